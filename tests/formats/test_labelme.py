"""LabelMe files with every kind of shape."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from PIL import Image, ImageDraw

from emat import progress
from emat.datasets.layouts import open_dataset
from emat.formats.labelme import is_labelme, read_labelme
from emat.formats.writing import WriteOptions, open_writer
from emat.images import VOID
from tests.formats.label_maps import CLASSES, LABEL_MAPS, rich_label_map
from tests.raises import raises_code


def write(path: Path, *shapes: dict[str, Any], **others: Any) -> Path:
    content = {"imagePath": "a.jpg", "imageHeight": 20, "imageWidth": 30, "shapes": shapes, **others}
    path.write_text(json.dumps(content))
    return path


def painted(path: Path) -> np.ndarray:
    return read_labelme(path).label_map(["cat"])


def test_polygons_and_rectangles_are_painted(tmp_path: Path) -> None:
    expected = np.zeros((20, 30), np.uint8)
    expected[5:15, 10:20] = 1
    corners = [[10, 5], [20, 5], [20, 15], [10, 15]]
    polygon = {"label": "cat", "shape_type": "polygon", "points": corners}
    backwards = {"label": "cat", "shape_type": "rectangle", "points": [[20, 15], [10, 5]]}
    for shape in (polygon, backwards, {"label": "cat", "points": corners}):
        assert np.array_equal(painted(write(tmp_path / "a.json", shape)), expected)


def test_a_circle_has_its_area(tmp_path: Path) -> None:
    circle = {"label": "cat", "shape_type": "circle", "points": [[15, 10], [15, 2]]}
    # pycocotools places an edge to a fifth of a pixel, here all along the circumference
    assert abs(int(painted(write(tmp_path / "a.json", circle)).sum()) - np.pi * 64) < 2 * np.pi * 8 / 5


def test_a_small_mask_is_put_in_its_place(tmp_path: Path) -> None:
    small = np.array([[255, 0], [255, 255]], np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(small).save(buffer, "PNG")
    encoded = base64.b64encode(buffer.getvalue()).decode()
    shape = {"label": "cat", "shape_type": "mask", "points": [[28, 18], [29, 19]], "mask": encoded}
    expected = np.zeros((20, 30), np.uint8)
    expected[18:, 28:] = [[1, 0], [1, 1]]
    assert np.array_equal(painted(write(tmp_path / "a.json", shape)), expected)
    for corner in ([29, 18], [28, 19], [-1, 18], [28, -1]):
        with raises_code("bad-outline", "beyond the photo"):
            read_labelme(write(tmp_path / "a.json", {**shape, "points": [corner, [30, 20]]}))
    with raises_code("bad-annotation", "a.json"):
        read_labelme(write(tmp_path / "a.json", {**shape, "mask": "&&&"}))


def test_points_and_lines_enclose_nothing(tmp_path: Path) -> None:
    shapes = [{"label": "cat", "shape_type": kind, "points": [[1, 1], [5, 5]]} for kind in ("point", "line")]
    assert not painted(write(tmp_path / "a.json", *shapes)).any()


def test_a_photo_path_from_windows_is_understood(tmp_path: Path) -> None:
    assert read_labelme(write(tmp_path / "a.json", imagePath="..\\photos\\a.jpg")).photo == "../photos/a.jpg"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"shapes": 3, "imageHeight": 1, "imageWidth": 1}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    assert not is_labelme(path)
    with raises_code("bad-annotation|bad-syntax", "a.json"):
        read_labelme(path)


def test_an_unknown_shape_is_named(tmp_path: Path) -> None:
    shape = {"label": "cat", "shape_type": "spiral", "points": [[1, 1]]}
    with raises_code("bad-outline"):
        read_labelme(write(tmp_path / "a.json", shape))


def written(out: Path, label_map: np.ndarray, options: WriteOptions, name: str = "x/a.jpg") -> Path:
    with open_writer("labelme", out, CLASSES, options=options) as writer:
        writer.write(name, label_map)
    return out / "x" / "a.json"


def parsed(path: Path) -> np.ndarray:
    """The label map in a LabelMe file, with none of our code: masks as LabelMe pastes them, polygons eight times
    as large by Pillow, looked up at the middle of every pixel."""
    content = json.loads(path.read_text())
    height, width = content["imageHeight"], content["imageWidth"]
    label_map = np.zeros((height, width), np.uint8)
    for shape in content["shapes"]:
        value = VOID if shape["label"] == "__ignore__" else CLASSES.index(shape["label"]) + 1
        if shape["shape_type"] == "mask":
            (left, top), (right, bottom) = shape["points"]
            small = np.array(Image.open(io.BytesIO(base64.b64decode(shape["mask"])))).astype(bool)
            assert small.shape == (bottom - top + 1, right - left + 1)
            label_map[top : bottom + 1, left : right + 1][small] = value
        else:
            canvas = Image.new("1", (8 * width + 1, 8 * height + 1))
            ImageDraw.Draw(canvas).polygon([(8 * x, 8 * y) for x, y in shape["points"]], fill=1)
            label_map[np.asarray(canvas)[4::8, 4::8]] = value
    return label_map


@pytest.mark.parametrize("shapes", ["masks", "polygons"])
@given(label_map=LABEL_MAPS)
def test_our_reader_gives_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, shapes: str, label_map: np.ndarray
) -> None:
    path = written(tmp_path_factory.mktemp("out"), label_map, WriteOptions(shapes, tolerance=0))
    assert np.array_equal(read_labelme(path).label_map(CLASSES), label_map)


@given(LABEL_MAPS)
def test_another_parser_reads_the_masks(tmp_path_factory: pytest.TempPathFactory, label_map: np.ndarray) -> None:
    path = written(tmp_path_factory.mktemp("out"), label_map, WriteOptions("masks"))
    assert np.array_equal(parsed(path), label_map)


def test_another_parser_reads_the_polygons_with_their_holes(tmp_path: Path) -> None:
    path = written(tmp_path, rich_label_map(), WriteOptions("polygons", tolerance=0))
    assert np.array_equal(parsed(path), rich_label_map())


def test_the_written_folder_opens_as_a_data_set_with_all_classes(tmp_path: Path) -> None:
    only_dogs = np.where(rich_label_map() == 3, 3, 0).astype(np.uint8)
    written(tmp_path, only_dogs, WriteOptions(tolerance=0))
    dataset = open_dataset(tmp_path)
    assert (dataset.kind, dataset.classes, dataset.names) == ("labelme", CLASSES, ("x/a",))
    assert np.array_equal(dataset.mask("x/a"), only_dogs)


def test_the_photo_is_beside_the_file_or_where_it_is_said_to_be(tmp_path: Path) -> None:
    with open_writer("labelme", tmp_path / "out", CLASSES) as writer:
        writer.write("x/a.jpg", rich_label_map())
        writer.write("x/b.jpg", rich_label_map(), photo_file=tmp_path / "photos" / "b.jpg")
    assert read_labelme(tmp_path / "out" / "x" / "a.json").photo == "a.jpg"
    assert read_labelme(tmp_path / "out" / "x" / "b.json").photo == "../../photos/b.jpg"


def test_what_is_to_be_ignored_is_void_and_needs_no_class(tmp_path: Path) -> None:
    corners = [[0, 0], [4, 0], [4, 4], [0, 4]]
    path = write(tmp_path / "a.json", {"label": "__ignore__", "shape_type": "polygon", "points": corners})
    assert (painted(path) == VOID).sum() == 16


@pytest.mark.parametrize(
    "change",
    [
        {"shapes": [1]},
        {"shapes": [None]},
        {"shapes": {"a": 1}},
        {"imageHeight": float("inf")},
        {"imageWidth": 10**400},
        {"shapes": [{"label": "cat", "shape_type": "mask", "points": [[float("inf"), 0]], "mask": "AAAA"}]},
        {"shapes": [{"label": "cat", "shape_type": "mask", "points": [[0, 0]], "mask": 5}]},
        {"shapes": [{"label": "cat", "shape_type": "circle", "points": [[0, 0], [10**400, 1]]}]},
    ],
)
def test_a_file_of_another_form_is_refused_in_one_sentence(tmp_path: Path, change: dict[str, Any]) -> None:
    with raises_code("bad-annotation|not-an-image", "a.json") as caught:
        read_labelme(write(tmp_path / "a.json", **change))
    assert "\n" not in str(caught.value)


def test_points_and_lines_are_left_out_and_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    progress._said.cache_clear()
    shapes = [{"label": "cat", "shape_type": kind, "points": [[1, 1], [9, 9]]} for kind in ("point", "line")]
    assert not read_labelme(write(tmp_path / "a.json", *shapes)).objects
    read_labelme(write(tmp_path / "b.json", *shapes))
    assert caplog.text.count("enclose no area") == 1
    assert "a.json has 2 points or lines" in caplog.text


@pytest.mark.parametrize("kind", ["rectangle", "rotation", "oriented_rectangle"])
def test_a_rectangle_of_four_corners_is_its_outline(tmp_path: Path, kind: str) -> None:
    corners = [[15, 2], [23, 10], [15, 18], [7, 10]]
    turned = painted(write(tmp_path / "a.json", {"label": "cat", "shape_type": kind, "points": corners}))
    outlined = painted(write(tmp_path / "b.json", {"label": "cat", "points": corners}))
    assert np.array_equal(turned, outlined)


@pytest.mark.parametrize(("kind", "count"), [("ellipse", 2), ("rectangle", 3), ("circle", 1), (None, 3)])
def test_a_shape_that_is_not_read_is_said(tmp_path: Path, kind: str | None, count: int) -> None:
    shape = {"label": "cat", "shape_type": kind, "points": [[3, 3], [9, 3], [9, 9]][:count]}
    with raises_code("bad-outline", repr(kind), str(count)):
        read_labelme(write(tmp_path / "a.json", shape))


def test_labels_are_text_without_spaces_around_them(tmp_path: Path) -> None:
    corners = [[1, 1], [9, 1], [9, 9]]
    drawing = read_labelme(write(tmp_path / "a.json", {"label": " cat ", "points": corners}))
    assert [drawn.class_name for drawn in drawing.objects] == ["cat"]
    labels: list[Any] = ["", " ", None, []]
    for label in labels:
        with raises_code("bad-class-name"):
            read_labelme(write(tmp_path / "a.json", {"label": label, "points": corners}))


def test_a_mask_without_its_corner_is_refused(tmp_path: Path) -> None:
    shape = {"label": "cat", "shape_type": "mask", "points": [], "mask": "iVBORw0KGgo="}
    content = {"imagePath": "a.jpg", "imageHeight": 4, "imageWidth": 4, "shapes": [shape]}
    (tmp_path / "a.json").write_text(json.dumps(content))
    with raises_code("bad-outline"):
        read_labelme(tmp_path / "a.json")


def test_half_a_pixel_of_a_photo_is_not_cut_off(tmp_path: Path) -> None:
    content = {"imagePath": "a.jpg", "imageHeight": 20.5, "imageWidth": 30, "shapes": []}
    (tmp_path / "a.json").write_text(json.dumps(content))
    with raises_code("bad-annotation"):
        read_labelme(tmp_path / "a.json")
