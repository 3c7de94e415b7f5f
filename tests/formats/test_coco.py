"""COCO instance JSON, sound and unsound."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocotools.coco import COCO

from emat.datasets.layouts import open_dataset
from emat.formats.class_names import number_classes
from emat.formats.coco import COCO_CLASSES, read_coco
from emat.formats.writing import WriteOptions, open_writer
from emat.images import VOID
from tests.formats.label_maps import CLASSES, LABEL_MAPS, rich_label_map
from tests.raises import raises_code

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


def photo(number: int, name: str) -> dict[str, Any]:
    return {"id": number, "file_name": name, "height": 4, "width": 4}


def write(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value))
    return path


def test_classes_follow_category_ids_and_boxes_alone_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    instances = read_coco(write(tmp_path / "c.json", content()))
    assert instances.classes == ("cat", "dog")
    assert [drawn.class_name for drawn in instances.drawings["a.jpg"].objects] == ["dog"]
    assert "c.json: 1 objects have a box and no outline, and are left out" in caplog.text


def test_two_categories_of_one_name_are_one_class(tmp_path: Path) -> None:
    value = content()
    value["categories"].append({"id": 0, "name": "cat"})
    assert read_coco(write(tmp_path / "c.json", value)).classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"images": None}, "bad-annotation"),
        ({"categories": [{"id": 1}]}, "bad-annotation"),
        ({"annotations": [{"id": 7, "image_id": 6, "category_id": 9}]}, "bad-annotation"),
        ({"annotations": [{"id": 7, "image_id": 5, "category_id": 99}]}, "unknown-class"),
        ({"images": [{"id": 5, "file_name": "../../x.jpg", "height": 4, "width": 4}]}, "path-leads-out"),
        ({"images": [{"id": 5, "file_name": "/etc/x.jpg", "height": 4, "width": 4}]}, "path-leads-out"),
        ({"images": [{"id": 5, "file_name": "a.jpg", "height": 9**9, "width": 9**9}]}, "bad-annotation"),
        ({"images": [{"id": 5, "file_name": "a.jpg", "height": float("inf"), "width": 4}]}, "bad-annotation"),
        ({"images": [{"id": 10**400, "file_name": "a.jpg", "height": 10**400, "width": 4}]}, "bad-annotation"),
        ({"images": [[1, 2]]}, "bad-annotation"),
        ({"images": [photo(5, "a.jpg"), photo(5, "b.jpg")]}, "given-twice"),
        ({"images": [photo(5, "a.jpg"), photo(6, "a.jpg")]}, "given-twice"),
        ({"categories": [{"id": 9, "name": "dog"}, {"id": 9, "name": "cat"}]}, "given-twice"),
    ],
)
def test_a_file_that_cannot_be_is_named_with_the_reason(tmp_path: Path, change: dict[str, Any], code: str) -> None:
    path = write(tmp_path / "c.json", {**content(), **change})
    with raises_code(code) as caught:
        read_coco(path)
    assert "c.json" in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1, 2", "[]", "3", "[" * 100_000])
def test_other_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with raises_code("bad-annotation|bad-syntax", "c.json"):
        read_coco(tmp_path / "c.json")


def test_cocos_eighty_classes_are_those_of_its_files(shared: Path) -> None:
    path = shared / "data" / "coco2017-mini" / "annotations" / "instances_train2017.json"
    assert read_coco(path).classes == COCO_CLASSES


def written(out: Path, label_maps: dict[str, np.ndarray], options: WriteOptions | None = None) -> Path:
    with open_writer("coco", out, CLASSES, options=options) as writer:
        for name, label_map in label_maps.items():
            writer.write(name, label_map)
    return out / "annotations.json"


def painted_by_pycocotools(path: Path) -> dict[str, np.ndarray]:
    """Each photo's label map, from what pycocotools makes of the objects."""
    coco = COCO(str(path))
    found = {}
    for photo in coco.dataset["images"]:
        label_map = np.zeros((photo["height"], photo["width"]), np.uint8)
        objects = coco.loadAnns(coco.getAnnIds(imgIds=[photo["id"]]))
        for drawn in sorted(objects, key=lambda drawn: -drawn["iscrowd"]):
            mask = coco.annToMask(drawn).astype(bool)
            assert drawn["area"] == mask.sum()
            rows, columns = np.nonzero(mask)
            left, top = columns.min(), rows.min()
            assert drawn["bbox"] == [left, top, columns.max() + 1 - left, rows.max() + 1 - top]
            label_map[mask] = VOID if drawn["iscrowd"] else drawn["category_id"]
        found[photo["file_name"]] = label_map
    return found


@pytest.mark.parametrize("shapes", ["masks", "polygons"])
@given(label_maps=st.lists(LABEL_MAPS, min_size=1, max_size=3))
def test_pycocotools_reads_what_is_written(
    tmp_path_factory: pytest.TempPathFactory, shapes: str, label_maps: list[np.ndarray]
) -> None:
    out = tmp_path_factory.mktemp("out")
    maps = {f"{number}/a.jpg": label_map for number, label_map in enumerate(label_maps)}
    path = written(out, maps, WriteOptions(shapes, tolerance=0))
    again = painted_by_pycocotools(path)
    instances = read_coco(path)
    assert instances.classes == CLASSES
    for name, label_map in maps.items():
        assert np.array_equal(again[name], label_map)
        assert np.array_equal(instances.drawings[name].label_map(CLASSES), label_map)


def test_void_is_a_crowd_of_every_class_in_the_photo(tmp_path: Path) -> None:
    path = written(tmp_path, {"a.jpg": rich_label_map(), "b.jpg": np.full((2, 2), VOID, np.uint8)})
    objects = json.loads(path.read_text())["annotations"]
    crowds = [(drawn["image_id"], drawn["category_id"]) for drawn in objects if drawn["iscrowd"]]
    assert crowds == [(1, 1), (1, 2), (1, 3), (2, 1)]
    assert [drawn["id"] for drawn in objects] == list(range(1, len(objects) + 1))


def test_the_folder_opens_as_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
    written(tmp_path / "out", {"x/a.jpg": rich_label_map(), "b.jpg": rich_label_map()})
    dataset = open_dataset(tmp_path / "out")
    assert (dataset.kind, dataset.classes, dataset.names) == ("coco", CLASSES, ("b.jpg", "x/a.jpg"))
    assert np.array_equal(dataset.mask("x/a.jpg"), rich_label_map())


def test_more_classes_than_a_byte_holds_keep_their_names(tmp_path: Path) -> None:
    classes = number_classes([f"class {number}" for number in range(300)])
    label_map = np.array([[0, 254, VOID, 256, 301]], np.uint16)
    with open_writer("coco", tmp_path, classes) as writer:
        writer.write("a.jpg", label_map)
    instances = read_coco(tmp_path / "annotations.json")
    assert instances.classes == classes
    assert np.array_equal(instances.drawings["a.jpg"].label_map(classes), label_map)


def test_an_outline_with_half_a_corner_is_refused_and_not_cut(tmp_path: Path) -> None:
    value = content()
    value["annotations"][0]["segmentation"] = [[*SQUARE, 1]]
    instances = read_coco(write(tmp_path / "c.json", value))
    with raises_code("bad-outline", "a.jpg", "dog"):
        instances.drawings["a.jpg"].label_map(instances.classes)


@pytest.mark.parametrize("other", ["./a.jpg", "a.jpg"])
def test_one_photo_under_two_spellings_is_refused_and_keeps_its_objects(tmp_path: Path, other: str) -> None:
    value = content()
    value["images"].append(photo(6, other))
    with raises_code("given-twice"):
        read_coco(write(tmp_path / "c.json", value))


@pytest.mark.parametrize("crowd", ["0", 0, None, False])
def test_no_crowd_is_no_crowd_also_as_text(tmp_path: Path, crowd: object) -> None:
    value = content()
    value["annotations"][0]["iscrowd"] = crowd
    instances = read_coco(write(tmp_path / "c.json", value))
    assert instances.drawings["a.jpg"].label_map(instances.classes).max() == 2


@pytest.mark.parametrize(
    ("part", "field", "wrong", "code"),
    [
        ("categories", "name", "", "bad-class-name"),
        ("categories", "name", None, "bad-class-name"),
        ("categories", "id", 9.5, "bad-annotation"),
        ("annotations", "category_id", 2.5, "bad-annotation"),
        ("images", "height", 20.7, "bad-annotation"),
        ("images", "width", 1e400, "bad-annotation"),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(tmp_path: Path, part: str, field: str, wrong: object, code: str) -> None:
    value = content()
    value[part][0][field] = wrong
    with raises_code(code):
        read_coco(write(tmp_path / "c.json", value))
    del value[part][0][field]
    with raises_code("bad-annotation", f"'{field}'"):
        read_coco(write(tmp_path / "c.json", value))
