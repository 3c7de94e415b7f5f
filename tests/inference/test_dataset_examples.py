"""Examples from data sets: what shows a class, what shows nothing, and what is undecided."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emat.datasets.layouts import open_dataset
from emat.images import write_indexed_png
from emat.inference.example import Example, examples_of, wanted_classes
from tests.raises import raises_code

SIZE = (12, 16)


def _photo(path: Path, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (*SIZE, 3), np.uint8)
    Image.fromarray(pixels).save(path)


def _masked(root: Path, name: str, *values: int) -> None:
    """A photo and its mask: four columns of each value from the left."""
    _photo(root / "images" / f"{name}.jpg")
    mask = np.zeros(SIZE, np.uint8)
    for index, value in enumerate(values):
        mask[:, 4 * index : 4 * index + 4] = value
    write_indexed_png(root / "masks" / f"{name}.png", mask)


def _examples(root: Path, only: str | None = None, shots: int | None = None, empty: int = 20) -> list[Example]:
    dataset = open_dataset(root)
    return list(examples_of(dataset, dataset.names, wanted_classes(dataset, only), shots, empty))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "set"
    for name, values in (("a", (1,)), ("b", ()), ("c", (1, 2)), ("d", (2, 255))):
        _masked(root, name, *values)
    (root / "classes.txt").write_text("cat\ndog\n")
    return root


def test_a_mask_of_background_is_a_photo_that_shows_nothing(folder: Path) -> None:
    shown = {example.name: set(example.masks) for example in _examples(folder)}
    assert shown == {"a": {"cat"}, "b": set(), "c": {"cat", "dog"}, "d": {"dog"}}


def test_void_and_classes_that_are_not_wanted_are_undecided(folder: Path) -> None:
    examples = {example.name: example.read() for example in _examples(folder, only="dog")}
    assert set(examples) == {"b", "c", "d"}
    assert examples["c"].void[0].tolist() == [True] * 4 + [False] * 12
    assert examples["d"].void[0].tolist() == [False] * 4 + [True] * 4 + [False] * 8


def test_a_photo_does_not_lack_a_class_of_which_there_are_enough(folder: Path) -> None:
    examples = {example.name: example for example in _examples(folder, shots=1)}
    assert set(examples) == {"a", "b", "c"}
    assert set(examples["c"].masks) == {"dog"}
    assert list(examples["c"].undecided) == ["cat"]
    known, _ = examples["c"].read().pixel_labels()
    assert (known["cat"] == 255).all()


def test_a_folder_nothing_holds_photos_without_any_class(folder: Path) -> None:
    _photo(folder / "nothing" / "empty.jpg")
    _photo(folder / "nothing" / "deep" / "empty.jpg")
    found = [example for example in _examples(folder, shots=1) if not example.masks]
    assert [example.name for example in found] == ["nothing/deep/empty.jpg", "nothing/empty.jpg", "b"]
    assert len([example for example in _examples(folder, empty=2) if not example.masks]) == 2
    assert all(example.masks for example in _examples(folder, empty=0))


def test_in_class_folders_nothing_is_no_class_unless_it_has_masks(tmp_path: Path) -> None:
    for name in ("cat/a", "nothing/b"):
        _photo(tmp_path / f"{name}.jpg")
    Image.new("L", SIZE[::-1], 255).save(tmp_path / "cat" / "a.png")
    assert open_dataset(tmp_path).classes == ("cat",)
    assert [set(example.masks) for example in _examples(tmp_path)] == [set(), {"cat"}]
    Image.new("L", SIZE[::-1], 255).save(tmp_path / "nothing" / "b.png")
    assert open_dataset(tmp_path).classes == ("cat", "nothing")
    assert [set(example.masks) for example in _examples(tmp_path)] == [{"cat"}, {"nothing"}]


def test_an_empty_yolo_file_says_nothing_is_here_and_a_missing_one_says_nothing(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        _photo(tmp_path / "images" / f"{name}.jpg")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "a.txt").write_text("0 0.1 0.1 0.9 0.1 0.9 0.9\n")
    (tmp_path / "labels" / "b.txt").touch()
    (tmp_path / "classes.txt").write_text("cat\n")
    assert {example.name: len(example.masks) for example in _examples(tmp_path)} == {"images/a": 1, "images/b": 0}


def test_labelme_files_without_shapes_show_nothing_and_void_shapes_are_undecided(tmp_path: Path) -> None:
    corners = {"cat": [[0, 0], [4, 0], [4, 12], [0, 12]], "void": [[8, 0], [16, 0], [16, 12], [8, 12]]}
    for name, labels in (("a", ("cat", "void")), ("b", ())):
        _photo(tmp_path / f"{name}.jpg")
        shapes = [{"label": label, "points": corners[label], "shape_type": "polygon"} for label in labels]
        content = {"imagePath": f"{name}.jpg", "imageHeight": SIZE[0], "imageWidth": SIZE[1], "shapes": shapes}
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    painted, empty = (example.read() for example in _examples(tmp_path))
    assert painted.void[0].tolist() == [False] * 8 + [True] * 8
    assert not empty.masks


def test_coco_images_without_annotations_show_nothing_and_crowds_are_undecided(tmp_path: Path) -> None:
    images, annotations = [], []
    for number, name in enumerate(("a", "b"), start=1):
        _photo(tmp_path / "images" / f"{name}.jpg")
        images.append({"id": number, "file_name": f"{name}.jpg", "height": SIZE[0], "width": SIZE[1]})
    for number, (left, crowd) in enumerate(((0, 0), (8, 1))):
        polygon = [left, 0, left + 4, 0, left + 4, 12, left, 12]
        one = {"id": number, "image_id": 1, "category_id": 1, "segmentation": [polygon], "iscrowd": crowd}
        annotations.append(one)
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "cat"}]}
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    painted, empty = (example.read() for example in _examples(tmp_path))
    assert painted.masks["cat"].any()
    assert painted.void[0].tolist() == [False] * 8 + [True] * 4 + [False] * 4
    assert not empty.masks


def test_a_photo_of_void_alone_is_left_out(folder: Path) -> None:
    _masked(folder, "e", 255, 255, 255, 255)
    assert "e" not in [example.name for example in _examples(folder)]


def test_a_class_that_is_not_there_is_refused(folder: Path) -> None:
    with raises_code("unknown-class", "'cow'", "cat, dog"):
        _examples(folder, only="cow")
