"""Folders of photos and mask images."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from emat.datasets.dataset import Missing
from emat.datasets.folders import ClassFoldersDataset, FolderDataset
from emat.images import write_indexed_png
from tests.raises import raises_code

from .conftest import classes_in, half_mask, save_photo

Build = Callable[[str], Path]


def test_files_without_partner_are_missing(build: Build) -> None:
    root = build("folder")
    (root / "images" / "a.jpg").unlink()
    save_photo(root / "images" / "c.jpg")
    assert list(FolderDataset(root).missing()) == [Missing("photo", "a"), Missing("mask", "c")]


def test_a_folder_needs_its_class_names(build: Build) -> None:
    root = build("folder")
    (root / "classes.txt").unlink()
    with raises_code("no-classes"):
        FolderDataset(root)


def test_with_one_class_white_on_black_is_the_object(build: Build) -> None:
    root = build("folder")
    (root / "classes.txt").write_text("cat\n")
    Image.fromarray(half_mask(255)).save(root / "masks" / "a.png")
    assert np.array_equal(FolderDataset(root).mask("a"), half_mask(1))


def test_with_one_class_an_indexed_mask_of_void_alone_stays_void(build: Build) -> None:
    root = build("folder")
    (root / "classes.txt").write_text("cat\n")
    write_indexed_png(root / "masks" / "a.png", half_mask(255))
    assert np.array_equal(FolderDataset(root).mask("a"), half_mask(255))
    assert classes_in(FolderDataset(root), "a") == ()


def test_with_several_classes_white_on_black_is_void(build: Build) -> None:
    root = build("folder")
    Image.fromarray(half_mask(255)).save(root / "masks" / "a.png")
    assert np.array_equal(FolderDataset(root).mask("a"), half_mask(255))


def test_photos_and_masks_may_lie_in_folders_below(build: Build) -> None:
    root = build("folder")
    save_photo(root / "images" / "day1" / "z.png")
    write_indexed_png(root / "masks" / "day1" / "z.png", half_mask(2))
    assert FolderDataset(root).names[-1] == "day1/z"
    assert FolderDataset(root).image("day1/z").shape == (6, 8, 3)


def test_smoothed_edges_of_an_object_are_cut_in_the_middle(build: Build) -> None:
    root = build("fss-1000")
    soft = half_mask(255)
    soft[:, 4] = 100
    soft[:, 3] = 150
    Image.fromarray(soft).save(root / "zebra" / "1.png")
    assert np.array_equal(ClassFoldersDataset(root).mask("zebra/1"), half_mask(2))


def test_more_classes_than_a_byte_holds_leave_void_alone(tmp_path: Path) -> None:
    for number in range(300):
        save_photo(tmp_path / f"{number:03}" / "1.jpg")
        Image.fromarray(half_mask(255)).save(tmp_path / f"{number:03}" / "1.png")
    dataset = ClassFoldersDataset(tmp_path)
    assert dataset.mask("253/1").dtype == np.uint16
    assert [classes_in(dataset, dataset.names[i]) for i in (253, 254, 299)] == [(254,), (256,), (301,)]
    assert all(dataset.classes[classes_in(dataset, name)[0] - 1] == name[:3] for name in dataset.names)
