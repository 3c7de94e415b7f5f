"""Every layout is recognised and gives the same interface."""

import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from emat.datasets import Dataset, open_dataset
from emat.datasets.dataset import PackedPhoto
from emat.errors import EmatError
from emat.images import read_photo
from tests.raises import raises_code

from .conftest import classes_in

Build = Callable[[str], Path]

LAYOUTS = {  # layout: kind, first name, its classes, all classes
    "voc tree": ("pascal", "2007_000001", (15,), 20),
    "voc zip": ("pascal", "2007_000001", (15,), 20),
    "coco 2014": ("coco", "train2014/COCO_train2014_000000000001.jpg", (1, 2), 2),
    "coco mini": ("coco", "01.jpg", (1, 2), 2),
    "coco png": ("coco", "train2014/COCO_train2014_000000000001.jpg", (1,), 80),
    "folder": ("folder", "a", (1,), 2),
    "class folders": ("class-folders", "cat/1", (1,), 2),
    "fss-1000": ("class-folders", "abacus/1", (1,), 2),
    "labelme": ("labelme", "a", (2,), 2),
    "yolo": ("yolo", "images/train/a", (2,), 2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_recognised_and_read(build: Build, layout: str) -> None:
    kind, name, classes, count = LAYOUTS[layout]
    dataset = open_dataset(build(layout))
    assert dataset.kind == kind
    assert dataset.names[0] == name
    assert classes_in(dataset, name) == classes
    assert len(dataset.classes) == count
    mask = dataset.mask(name)
    assert mask.shape == (6, 8)
    assert mask.dtype == np.uint8
    assert not mask[:, 5:].any()
    if layout != "voc zip":
        file = dataset.photo_file(name)
        assert file is not None
        assert file.name == f"{name.removesuffix('.jpg').rpartition('/')[2]}.jpg"
        assert np.array_equal(read_photo(file), dataset.image(name))
        assert dataset.packed_photo(name) is None
        source = dataset.mask_file(name)
        assert source is not None
        assert source.is_file()
        assert dataset.image(name).shape == (6, 8, 3)
        assert dataset.image_size(name) == (6, 8)
    assert list(dataset.missing()) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_naming_the_kind_opens_the_same(build: Build, layout: str) -> None:
    root = build(layout)
    assert open_dataset(root, LAYOUTS[layout][0]).names == open_dataset(root).names


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_name_that_is_not_there_is_named_in_the_error(build: Build, layout: str) -> None:
    dataset = open_dataset(build(layout))
    for read in (dataset.mask, dataset.image, dataset.photo_file):
        with pytest.raises(EmatError):
            read("images/nobody")


def _mask_sum(dataset: Dataset, name: str) -> int:
    return int(dataset.mask(name).sum())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_data_set_can_be_pickled_after_use(build: Build, layout: str) -> None:
    dataset = open_dataset(build(layout))
    expected = _mask_sum(dataset, dataset.names[0])
    assert _mask_sum(pickle.loads(pickle.dumps(dataset)), dataset.names[0]) == expected


def test_a_zip_is_read_from_several_processes_at_once(build: Build) -> None:
    dataset = open_dataset(build("voc zip"))
    names = [dataset.names[i % 2] for i in range(40)]
    expected = [_mask_sum(dataset, name) for name in names]  # the zip is open before the fork
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        assert list(pool.map(_mask_sum, [dataset] * 40, names)) == expected


def test_photos_in_a_zip_are_no_files_but_can_be_had_as_stored(build: Build, tmp_path: Path) -> None:
    root = build("folder")
    dataset = open_dataset(shutil.make_archive(str(tmp_path / "pets"), "zip", root))
    assert dataset.photo_file("a") is None
    assert dataset.packed_photo("a") == PackedPhoto(".jpg", (root / "images" / "a.jpg").read_bytes())


def test_masks_alone_say_that_photos_are_missing(build: Build) -> None:
    dataset = open_dataset(build("voc zip"))
    assert not dataset.has_photos
    with raises_code("no-photos"):
        dataset.image("2007_000001")


def test_an_unknown_layout_lists_the_known_ones(tmp_path: Path) -> None:
    with raises_code("unknown-layout"):
        open_dataset(tmp_path)
    with raises_code("no-such-file"):
        open_dataset(tmp_path / "nothing")
    with raises_code("unknown-choice"):
        open_dataset(tmp_path, "voc")
    (tmp_path / "note.txt").write_text("no zip")
    with raises_code("not-a-folder"):
        open_dataset(tmp_path / "note.txt")


def test_a_data_set_is_called_pascal_or_coco_by_its_classes(build: Build) -> None:
    assert open_dataset(build("voc tree")).name == "pascal"
    assert open_dataset(build("coco png")).name == "coco"
    assert open_dataset(build("coco mini")).name == "coco-mini"  # the folder: its classes are not COCO's


def test_real_data_sets_open(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path))
    voc = open_dataset(shared / "data" / "voc2012-mini")
    assert (voc.name, len(voc.names), classes_in(voc, voc.names[0])) == ("pascal", 454, (1, 15))
    masks = open_dataset(shared / "data" / "voc2012-masks.zip")
    assert (masks.name, len(masks.names)) == ("pascal", 12031)
    coco = open_dataset(shared / "data" / "coco2017-mini")
    assert (coco.name, len(coco.names)) == ("coco", 381)
    assert coco.image(coco.names[0]).shape[:2] == coco.mask(coco.names[0]).shape
