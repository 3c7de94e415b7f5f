"""YOLO segmentation files and the class lists beside them."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from PIL import Image, ImageDraw

from emat.datasets.layouts import open_dataset
from emat.formats.class_names import VOID_NAME, number_classes
from emat.formats.writing import WriteOptions, open_writer
from emat.formats.yolo import read_yolo, read_yolo_names
from emat.images import VOID
from tests.formats.label_maps import CLASSES, LABEL_MAPS, rich_label_map
from tests.raises import raises_code

EXACT = WriteOptions(tolerance=0)


def test_fractions_are_scaled_by_width_and_height(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("0 0.5 0 1 0 1 0.5 0.5 0.5\n\n1 0 0.5 0.25 0.5 0.25 1 0 1\n")
    expected = np.zeros((10, 40), np.uint8)
    expected[:5, 20:] = 1
    expected[5:, :10] = 2
    drawing = read_yolo(tmp_path / "a.txt", "a.jpg", (10, 40), ["cat", "dog"])
    assert np.array_equal(drawing.label_map(["cat", "dog"]), expected)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("0 0.5 0.5 0.2 0.2", "bad-outline"),
        ("0 0.1 0.1 0.2", "bad-outline"),
        ("0 1 2 3 4 5 6 7 8", "bad-outline"),
        ("0 0 0 nan 0 1 1", "bad-outline"),
        ("2 0 0 1 0 1 1", "unknown-class"),
        ("cat 0 0 1 0 1 1", "bad-annotation"),
    ],
)
def test_a_line_that_cannot_be_is_named(tmp_path: Path, line: str, code: str) -> None:
    (tmp_path / "a.txt").write_text(f"0 0 0 1 0 1 1\n{line}\n")
    with raises_code(code) as caught:
        read_yolo(tmp_path / "a.txt", "a.jpg", (10, 10), ["cat", "dog"])
    assert "a.txt, line 2" in str(caught.value)


def test_the_reserved_name_takes_no_class_number(tmp_path: Path) -> None:
    classes = number_classes([str(number) for number in range(300)])
    (tmp_path / "a.txt").write_text("254 0 0 1 0 1 1\n")
    (drawn,) = read_yolo(tmp_path / "a.txt", "a.jpg", (10, 10), classes).objects
    assert drawn.class_name == "254" != VOID_NAME


@pytest.mark.parametrize(
    "text",
    [
        "nc: 2\nnames: ['cat', \"traffic light\"]\n",
        "names: [cat, traffic light]  # the classes\ntrain: images/train\n",
        "names:\n  0: cat\n  1: traffic light\n\ntrain: x\n",
        "names:\n- cat\n- 'traffic light'\nnc: 2\n",
        "names:\n  - cat\n  - traffic light\n",
        "names: [\n  cat,\n  traffic light,\n]\nnc: 2\n",
        "names: {0: cat, 1: traffic light}\n",
    ],
)
def test_every_way_of_writing_names_in_yaml_is_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "data.yaml"
    path.write_text(text)
    assert read_yolo_names(path) == ("cat", "traffic light")


def test_yaml_without_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.yaml").write_text("nc: 2\n")
    with raises_code("no-classes"):
        read_yolo_names(tmp_path / "data.yaml")


def written(out: Path, label_map: np.ndarray, name: str = "a.jpg", options: WriteOptions = EXACT) -> Path:
    with open_writer("yolo", out, CLASSES, options=options) as writer:
        writer.write(name, label_map)
    return out / writer.result_path(name)


def without_void(label_map: np.ndarray) -> np.ndarray:
    return np.where(label_map == VOID, 0, label_map).astype(np.uint8)


@given(LABEL_MAPS)
def test_our_reader_gives_back_what_was_written_but_void(
    tmp_path_factory: pytest.TempPathFactory, label_map: np.ndarray
) -> None:
    path = written(tmp_path_factory.mktemp("out"), label_map)
    again = read_yolo(path, "a.jpg", label_map.shape, CLASSES).label_map(CLASSES)
    assert np.array_equal(again, without_void(label_map))


def test_another_parser_reads_the_outlines_with_their_holes(tmp_path: Path) -> None:
    height, width = rich_label_map().shape
    found = np.zeros((height, width), np.uint8)
    for line in written(tmp_path, rich_label_map()).read_text().splitlines():
        number, *words = line.split()
        fractions = np.array([float(word) for word in words]).reshape(-1, 2)
        assert ((fractions >= 0) & (fractions <= 1)).all()
        canvas = Image.new("1", (8 * width + 1, 8 * height + 1))  # eight times as large, then the middles of pixels
        corners = [tuple(corner) for corner in (fractions * [8 * width, 8 * height]).round().tolist()]
        ImageDraw.Draw(canvas).polygon(corners, fill=1)
        found[np.asarray(canvas)[4::8, 4::8]] = int(number) + 1
    assert np.array_equal(found, without_void(rich_label_map()))


@pytest.mark.parametrize("name", ["a.jpg", "x/a.jpg", "images/a.jpg", "x/images/y/a.jpg"])
def test_the_written_folder_opens_as_a_data_set_wherever_the_photo_lies(tmp_path: Path, name: str) -> None:
    with open_writer("yolo", tmp_path, CLASSES, options=EXACT) as writer:
        writer.write(name, rich_label_map())
    photo = tmp_path / writer.photo_path(name)
    photo.parent.mkdir(parents=True)
    Image.new("RGB", (30, 20)).save(photo)
    (tmp_path / "labels").mkdir(exist_ok=True)
    dataset = open_dataset(tmp_path, "yolo")
    assert dataset.classes == CLASSES
    (only,) = dataset.names
    assert np.array_equal(dataset.mask(only), without_void(rich_label_map()))


def test_an_empty_label_map_is_an_empty_file(tmp_path: Path) -> None:
    assert written(tmp_path, np.zeros((4, 4), np.uint8)).read_text() == ""


def test_fractions_are_fine_enough_for_the_largest_photos(tmp_path: Path) -> None:
    label_map = np.zeros((3, 29_000), np.uint8)
    label_map[1, 1:28_999:301] = 1
    path = written(tmp_path, label_map)
    assert np.array_equal(read_yolo(path, "a.jpg", (3, 29_000), CLASSES).label_map(CLASSES), label_map)


def test_class_names_survive_yaml(tmp_path: Path) -> None:
    names = ("cat", "3: series", "it's", 'a "b"', "x # y", "a, [b]", "back\\slash", "猫", "yes")
    with open_writer("yolo", tmp_path, names) as writer:
        writer.write("a.jpg", np.ones((2, 2), np.uint8))
    assert read_yolo_names(tmp_path / "data.yaml") == names


def test_masks_are_refused(tmp_path: Path) -> None:
    with raises_code("unknown-choice"):
        open_writer("yolo", tmp_path, CLASSES, options=WriteOptions("masks"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("names:\n  1: dog\n  0: cat\n", ("cat", "dog")),
        ("names: {1: dog, 0: cat}\n", ("cat", "dog")),
        ("names: ['salt, pepper', \"a: b\", 'it''s']\n", ("salt, pepper", "a: b", "it's")),
        ("names: [no, 'on', 1e3, 007]\n", ("no", "on", "1e3", "007")),
        ("# classes\nnames: &all\n- cat # with a comment\n- dog\nothers: *all\n", ("cat", "dog")),
    ],
)
def test_yaml_is_read_as_yaml(tmp_path: Path, text: str, expected: tuple[str, ...]) -> None:
    (tmp_path / "data.yaml").write_text(text)
    assert read_yolo_names(tmp_path / "data.yaml") == expected


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("names: {0: cat, 2: dog}\n", "class-numbers"),
        ("names: {0: cat, 0: dog}\n", "given-twice"),
        ("names: [cat, cat]\n", "given-twice"),
        ("names: [cat]\nnames: [dog]\n", "given-twice"),
        ("names: {cat: 0}\n", "class-numbers"),
        ("names: [[cat]]\n", "bad-class-name"),
        ("names: [cat\n", "bad-syntax"),
        ("names: " + "[" * 3000, "bad-syntax"),
        ("names: cat\n", "bad-annotation"),
    ],
)
def test_names_that_would_lose_a_class_are_refused(tmp_path: Path, text: str, code: str) -> None:
    (tmp_path / "data.yaml").write_text(text)
    with raises_code(code) as caught:
        read_yolo_names(tmp_path / "data.yaml")
    assert "data.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)
