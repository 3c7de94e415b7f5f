"""Folders of LabelMe and YOLO files."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from emat.datasets.folders import LabelMeDataset, YoloDataset
from emat.datasets.layouts import open_dataset
from tests.raises import raises_code

from .conftest import HEIGHT, WIDTH, classes_in, half_mask, save_photo

Build = Callable[[str], Path]


def test_labels_are_numbered_in_alphabetical_order_or_as_listed(build: Build) -> None:
    root = build("labelme")
    assert LabelMeDataset(root).classes == ("cat", "dog")
    assert np.array_equal(LabelMeDataset(root).mask("a"), half_mask(2))
    (root / "labels.txt").write_text("__ignore__\n_background_\ndog\ncat\n")
    assert np.array_equal(LabelMeDataset(root).mask("a"), half_mask(1))


@pytest.mark.parametrize("label", ["__ignore__", "Void"])
def test_void_is_no_class_without_a_list_of_labels(build: Build, label: str) -> None:
    root = build("labelme")
    shape = {"label": label, "shape_type": "rectangle", "points": [[0, 0], [4, 6]]}
    content = {"imagePath": "b.jpg", "imageHeight": HEIGHT, "imageWidth": WIDTH, "shapes": [shape]}
    (root / "b.json").write_text(json.dumps(content))
    dataset = LabelMeDataset(root)
    assert dataset.classes == ("dog",)
    assert np.array_equal(dataset.mask("a"), half_mask(1))
    assert np.array_equal(dataset.mask("b"), half_mask(255))
    assert [classes_in(dataset, name) for name in dataset.names] == [(1,), ()]


def test_one_damaged_labelme_file_spoils_only_itself(build: Build) -> None:
    root = build("labelme")
    (root / "c.json").write_text('{"shapes": [')
    dataset = open_dataset(root)
    assert dataset.mask("a").any()
    with raises_code("bad-syntax", "c.json"):
        dataset.mask("c")


def test_damaged_labelme_files_alone_are_said_to_be_damaged_and_not_without_classes(build: Build) -> None:
    root = build("labelme")
    for path in root.glob("*.json"):
        path.write_text('{"shapes": [')
    with raises_code("bad-syntax", "a.json"):
        _ = open_dataset(root, kind="labelme").classes


def test_a_photo_without_yolo_file_is_all_background(build: Build) -> None:
    dataset = YoloDataset(build("yolo"))
    assert np.array_equal(dataset.mask("images/val/a"), half_mask(2))
    assert not dataset.mask("images/val/empty").any()


def test_yolo_splits_may_hold_their_own_images_and_labels(tmp_path: Path) -> None:
    save_photo(tmp_path / "train" / "images" / "a.jpg")
    (tmp_path / "train" / "labels").mkdir()
    (tmp_path / "train" / "labels" / "a.txt").write_text("0 0 0 0.5 0 0.5 1 0 1\n")
    (tmp_path / "data.yaml").write_text("names: ['cat', \"dog\"]\n")
    dataset = open_dataset(tmp_path)
    assert dataset.classes == ("cat", "dog")
    assert np.array_equal(dataset.mask("train/images/a"), half_mask(1))


def test_yolo_needs_its_class_names(build: Build) -> None:
    root = build("yolo")
    (root / "data.yaml").unlink()
    with raises_code("no-classes"):
        YoloDataset(root)


def test_a_photo_outside_of_the_folder_is_read_only_if_it_is_allowed(
    build: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = build("labelme")
    outside = tmp_path / "elsewhere" / "secret.jpg"
    outside.parent.mkdir()
    (root / "a.jpg").rename(outside)
    content = json.loads((root / "a.json").read_text())
    for path in (str(outside), f"../{outside.relative_to(root.parent).as_posix()}"):
        (root / "a.json").write_text(json.dumps({**content, "imagePath": path}))
        with raises_code("path-leads-out", "labelme", "EMAT_PHOTOS", "elsewhere"):
            LabelMeDataset(root).image("a")
    monkeypatch.setenv("EMAT_PHOTOS", f"/nowhere:{outside.parent}")
    assert LabelMeDataset(root).image("a").shape[2] == 3


def test_a_name_that_no_file_can_have_is_a_missing_photo(build: Build) -> None:
    root = build("labelme")
    content = json.loads((root / "a.json").read_text())
    for name in ("x" * 300 + ".jpg", "a\0.jpg"):
        (root / "a.json").write_text(json.dumps({**content, "imagePath": name}))
        with raises_code("no-such-photo"):
            LabelMeDataset(root).image("a")


def test_labels_without_a_photo_are_said_and_never_all_ignored(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    root = build("yolo")
    labels = sorted((root / "labels").rglob("*.txt"))
    labels[0].with_name("other.txt").write_text("0 0 0 1 0 1 1\n")
    YoloDataset(root)
    assert "text files have no photo and are left out, such as" in caplog.text
    for number, path in enumerate(labels):
        path.rename(path.with_name(f"renamed{number}.txt"))
    with raises_code("names-do-not-match"):
        YoloDataset(root)


def test_a_label_file_may_begin_with_a_byte_order_mark(build: Build) -> None:
    root = build("yolo")
    for path in (root / "labels").rglob("*.txt"):
        path.write_text(path.read_text(), encoding="utf-8-sig")
    dataset = YoloDataset(root)
    assert any(dataset.mask(name).any() for name in dataset.names)


def test_a_pipe_in_place_of_a_label_file_is_refused_and_not_waited_for(build: Build) -> None:
    root = build("yolo")
    path = next((root / "labels").rglob("*.txt"))
    path.unlink()
    os.mkfifo(path)
    dataset = YoloDataset(root)
    name = path.relative_to(root / "labels").with_suffix("").as_posix()
    with raises_code("not-a-file", "a pipe"):
        dataset.mask(f"images/{name}")
