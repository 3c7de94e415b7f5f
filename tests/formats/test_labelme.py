"""LabelMe files with every kind of shape."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from emat.errors import EmatError
from emat.formats.labelme import is_labelme, read_labelme


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
        with pytest.raises(EmatError, match="beyond the photo"):
            read_labelme(write(tmp_path / "a.json", {**shape, "points": [corner, [30, 20]]}))
    with pytest.raises(EmatError, match=r"a\.json"):
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
    with pytest.raises(EmatError, match=r"a\.json is not"):
        read_labelme(path)


def test_an_unknown_shape_is_named(tmp_path: Path) -> None:
    shape = {"label": "cat", "shape_type": "spiral", "points": [[1, 1]]}
    with pytest.raises(EmatError, match="unknown shape type 'spiral'"):
        read_labelme(write(tmp_path / "a.json", shape))
