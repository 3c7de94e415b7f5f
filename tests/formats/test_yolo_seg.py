"""YOLO segmentation files and the class lists beside them."""

from pathlib import Path

import numpy as np
import pytest

from emat.errors import EmatError
from emat.formats.class_names import VOID_NAME, number_classes
from emat.formats.yolo_seg import read_yolo, read_yolo_names


def test_fractions_are_scaled_by_width_and_height(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("0 0.5 0 1 0 1 0.5 0.5 0.5\n\n1 0 0.5 0.25 0.5 0.25 1 0 1\n")
    expected = np.zeros((10, 40), np.uint8)
    expected[:5, 20:] = 1
    expected[5:, :10] = 2
    drawing = read_yolo(tmp_path / "a.txt", "a.jpg", (10, 40), ["cat", "dog"])
    assert np.array_equal(drawing.label_map(["cat", "dog"]), expected)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("0 0.5 0.5 0.2 0.2", "a box, not an outline"),
        ("0 0.1 0.1 0.2", "at least three x y pairs"),
        ("0 1 2 3 4 5 6 7 8", "fractions from 0 to 1, not pixels"),
        ("0 0 0 nan 0 1 1", "fractions from 0 to 1"),
        ("2 0 0 1 0 1 1", "there are classes 0 to 1"),
        ("cat 0 0 1 0 1 1", "not a class number"),
    ],
)
def test_a_line_that_cannot_be_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    (tmp_path / "a.txt").write_text(f"0 0 0 1 0 1 1\n{line}\n")
    with pytest.raises(EmatError, match=complaint) as caught:
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
    with pytest.raises(EmatError, match="no class list"):
        read_yolo_names(tmp_path / "data.yaml")
