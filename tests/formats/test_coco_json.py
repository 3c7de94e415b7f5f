"""COCO instance JSON, sound and unsound."""

import json
from pathlib import Path
from typing import Any

import pytest

from emat.errors import EmatError
from emat.formats.coco_json import COCO_CLASSES, file_digest, read_coco

SQUARE = [0, 0, 2, 0, 2, 2, 0, 2]


def content() -> dict[str, Any]:
    return {
        "categories": [{"id": 9, "name": "dog"}, {"id": 2, "name": "cat"}],
        "images": [{"id": 5, "file_name": "a.jpg", "height": 4, "width": 4}],
        "annotations": [
            {"id": 1, "image_id": 5, "category_id": 9, "segmentation": [SQUARE]},
            {"id": 2, "image_id": 5, "category_id": 2, "bbox": [0, 0, 1, 1]},
        ],
    }


def write(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value))
    return path


def test_classes_follow_category_ids_and_boxes_alone_are_left_out(tmp_path: Path) -> None:
    instances = read_coco(write(tmp_path / "c.json", content()))
    assert instances.classes == ("cat", "dog")
    assert [drawn.class_name for drawn in instances.drawings["a.jpg"].objects] == ["dog"]


def test_two_categories_of_one_name_are_one_class(tmp_path: Path) -> None:
    value = content()
    value["categories"].append({"id": 0, "name": "cat"})
    assert read_coco(write(tmp_path / "c.json", value)).classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"images": None}, "not COCO instance JSON"),
        ({"categories": [{"id": 1}]}, "KeyError 'name'"),
        ({"annotations": [{"id": 7, "image_id": 6, "category_id": 9}]}, "annotation 7 is for image 6"),
        ({"annotations": [{"id": 7, "image_id": 5, "category_id": 99}]}, "annotation 7 has category 99"),
        ({"images": [{"id": 5, "file_name": "../../x.jpg", "height": 4, "width": 4}]}, "leads out of the photo folder"),
        ({"images": [{"id": 5, "file_name": "/etc/x.jpg", "height": 4, "width": 4}]}, "leads out of the photo folder"),
        ({"images": [{"id": 5, "file_name": "a.jpg", "height": 9**9, "width": 9**9}]}, "correct that"),
    ],
)
def test_a_file_that_cannot_be_is_named_with_the_reason(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    path = write(tmp_path / "c.json", {**content(), **change})
    with pytest.raises(EmatError, match=complaint) as caught:
        read_coco(path)
    assert "c.json" in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1, 2", "[]", "3", "[" * 100_000])
def test_other_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(EmatError, match=r"c\.json is not"):
        read_coco(tmp_path / "c.json")


def test_the_digest_tells_a_changed_file(tmp_path: Path) -> None:
    before = file_digest(write(tmp_path / "c.json", content()))
    assert file_digest(write(tmp_path / "c.json", content())) == before
    assert file_digest(write(tmp_path / "c.json", {})) != before


def test_cocos_eighty_classes_are_those_of_its_files(shared: Path) -> None:
    path = shared / "data" / "coco2017-mini" / "annotations" / "instances_train2017.json"
    assert read_coco(path).classes == COCO_CLASSES
