"""Masks drawn from COCO's annotations, kept, and never stale."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emat.datasets.coco import CocoDataset, CocoPngDataset
from emat.datasets.fold_lists import load_fold_list
from emat.datasets.layouts import open_dataset
from emat.images import VOID
from tests.raises import raises_code

from .conftest import classes_in

Build = Callable[[str], Path]


def test_later_objects_lie_on_top_and_crowds_are_void_below_all(build: Build) -> None:
    dataset = CocoDataset(build("coco mini"))
    assert dataset.classes == ("cat", "dog")
    expected = np.zeros((6, 8), np.uint8)
    expected[:, 3:5] = VOID
    expected[:, :4] = 1
    expected[3:, :4] = 2
    assert np.array_equal(dataset.mask("01.jpg"), expected)
    assert not dataset.mask("02.jpg").any()


def test_masks_are_kept_and_read_without_the_annotations(build: Build) -> None:
    root = build("coco mini")
    first = CocoDataset(root).mask("01.jpg")
    again = CocoDataset(root)
    assert np.array_equal(again.mask("01.jpg"), first)
    assert "instances" not in again.splits[0].__dict__  # not parsed


def test_a_changed_annotation_file_gives_no_stale_mask(build: Build) -> None:
    root = build("coco mini")
    assert CocoDataset(root).mask("01.jpg").any()
    path = root / "annotations" / "instances_train2017.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "annotations": []}))
    assert not CocoDataset(root).mask("01.jpg").any()


def test_a_damaged_kept_mask_is_drawn_again(build: Build, tmp_path: Path) -> None:
    root = build("coco mini")
    first = CocoDataset(root, tmp_path / "kept").mask("01.jpg")
    (kept,) = (tmp_path / "kept").rglob("*.png")
    kept.write_bytes(kept.read_bytes()[:40])
    assert np.array_equal(CocoDataset(root, tmp_path / "kept").mask("01.jpg"), first)
    assert np.array_equal(np.asarray(Image.open(kept)), first)


def test_a_mask_of_one_split_leaves_the_others_unread(build: Build) -> None:
    dataset = CocoDataset(build("coco 2014"))
    dataset.mask("val2014/COCO_val2014_000000000001.jpg")
    assert ["instances" in split.__dict__ for split in dataset.splits] == [False, True]


def test_several_files_over_one_folder_of_photos_are_told_apart(build: Build) -> None:
    root = build("coco mini")
    first = root / "annotations" / "instances_train2017.json"
    content = json.loads(first.read_text().replace("01.jpg", "03.jpg").replace("02.jpg", "04.jpg"))
    (root / "annotations" / "instances_val2017.json").write_text(json.dumps(content))
    dataset = CocoDataset(root)
    assert dataset.names == ("01.jpg", "02.jpg", "03.jpg", "04.jpg")
    assert dataset.mask("03.jpg").any()
    assert {missing.name for missing in dataset.missing()} == {"03.jpg", "04.jpg"}


def test_a_json_file_alone_is_enough_for_masks(build: Build, tmp_path: Path) -> None:
    path = tmp_path / "alone" / "instances_val2014.json"
    path.parent.mkdir()
    path.write_bytes((build("coco 2014") / "annotations" / path.name).read_bytes())
    dataset = open_dataset(path)
    assert not dataset.has_photos
    assert dataset.mask("val2014/COCO_val2014_000000000001.jpg").any()
    with raises_code("no-photos", "val2014/"):
        dataset.image("val2014/COCO_val2014_000000000001.jpg")


def test_an_export_with_photos_beside_its_json_opens(build: Build, tmp_path: Path) -> None:
    mini = build("coco mini")
    for split in ("train", "valid"):
        (tmp_path / "export").mkdir(exist_ok=True)
        (mini / "images").rename(tmp_path / "export" / split) if split == "train" else (
            tmp_path / "export" / split
        ).mkdir()
        content = (mini / "annotations" / "instances_train2017.json").read_bytes()
        (tmp_path / "export" / split / "_annotations.coco.json").write_bytes(content)
    dataset = open_dataset(tmp_path / "export")
    assert dataset.names == ("train/01.jpg", "train/02.jpg", "valid/01.jpg", "valid/02.jpg")
    assert dataset.image("train/01.jpg").shape == (6, 8, 3)


def test_published_png_masks_are_preferred_where_both_are_there(build: Build) -> None:
    root = build("coco png")
    (root / "annotations" / "instances_val2014.json").write_text("{}")
    dataset = open_dataset(root)
    assert isinstance(dataset, CocoPngDataset)
    assert classes_in(dataset, dataset.names[1]) == (80,)


def test_a_class_that_others_cover_entirely_is_not_in_the_mask(build: Build) -> None:
    root = build("coco mini")
    path = root / "annotations" / "instances_train2017.json"
    content = json.loads(path.read_text())
    content["annotations"][1]["segmentation"] = content["annotations"][0]["segmentation"]
    path.write_text(json.dumps(content))
    dataset = CocoDataset(root)
    assert classes_in(dataset, dataset.names[0]) == (2,)


def test_masks_fit_the_published_size_splits(shared: Path, tmp_path: Path) -> None:
    dataset = CocoDataset(shared / "data" / "coco2017-mini", tmp_path)
    number = {name: int(Path(name).stem) for name in dataset.names}
    published: dict[tuple[int, int], str] = {}
    for split in ("0-5", "5-10", "10-15"):
        for fold in range(4):
            for name, class_id in load_fold_list(shared / "data" / "splits", "coco", fold, split).entries:
                published[int(name[-16:-4]), class_id] = split
    checked = agreed = 0
    for name in dataset.names:
        here = [(c, published[number[name], c]) for c in range(1, 81) if (number[name], c) in published]
        mask = dataset.mask(name) if here else np.zeros((1, 1), np.uint8)
        for class_id, size_range in here:
            low, high = (int(word) / 100 for word in size_range.split("-"))
            checked += 1
            agreed += bool(low <= np.mean(mask == class_id) < high)
    assert checked > 150
    assert agreed >= checked - 3  # the published masks are a trace larger, so a few cross a border


def test_masks_are_drawn_also_where_they_cannot_be_kept(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    root = build("coco mini")
    monkeypatch.setenv("EMAT_HOME", "/proc/nothing/can/be/here")
    dataset = CocoDataset(root)
    assert dataset.mask("01.jpg").any()
    areas = dataset.class_areas()
    assert areas["01.jpg"]
    areas.keep()
