"""VOC trees as they are found in the wild."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from emat.datasets.dataset import Missing
from emat.datasets.pascal import PascalDataset
from emat.errors import EmatError
from emat.images import write_indexed_png

from .conftest import half_mask

Build = Callable[[str], Path]


def test_the_augmented_masks_are_preferred(build: Build) -> None:
    root = build("voc tree")
    write_indexed_png(root / "SegmentationClassAug" / "2007_000001.png", half_mask(7))
    assert PascalDataset(root).entries[0].classes == (7,)


def test_the_tree_may_lie_below_vocdevkit(build: Build, tmp_path: Path) -> None:
    shutil.move(build("voc tree"), tmp_path / "download" / "VOCdevkit" / "VOC2012")
    dataset = PascalDataset(tmp_path / "download")
    assert dataset.image("2007_000001").shape == (6, 8, 3)


def test_a_folder_of_masks_alone_is_enough(build: Build) -> None:
    dataset = PascalDataset(build("voc tree") / "SegmentationClass")
    assert dataset.names == ("2007_000001", "2007_000002")
    assert not dataset.has_photos


def test_classes_may_be_someones_own(build: Build) -> None:
    root = build("voc tree")
    (root / "classes.txt").write_text("0 background\n1 nut\n2 bolt\n255 void\n")
    assert PascalDataset(root).classes == ("nut", "bolt")


def test_listed_names_without_mask_and_masks_without_photo_are_missing(build: Build) -> None:
    root = build("voc tree")
    (root / "JPEGImages" / "2007_000001.jpg").unlink()
    (root / "ImageSets" / "Segmentation" / "val.txt").write_text("2007_000001\n2007_000077\n")
    assert list(PascalDataset(root).missing()) == [
        Missing("photo", "2007_000001"),
        Missing("mask", "2007_000077"),
    ]


def test_masks_in_several_folders_are_not_guessed_at(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_indexed_png(tmp_path / folder / "x.png", half_mask(1))
    with pytest.raises(EmatError, match="masks in 2 folders"):
        PascalDataset(tmp_path)


def test_a_damaged_zip_member_is_named(build: Build) -> None:
    path = build("voc zip")
    content = bytearray(path.read_bytes())
    start = content.index(b"IDAT")
    content[start : start + 30] = bytes(30)
    path.write_bytes(content)
    with pytest.raises(EmatError, match=r"masks\.zip:SegmentationClassAug/2007_000001\.png"):
        PascalDataset(path).mask("2007_000001")
