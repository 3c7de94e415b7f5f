"""All lists of a folder, and lists made from masks."""

from collections.abc import Callable
from pathlib import Path

import pytest

from emat.datasets.circulated_lists import equals_published, load_fold_list
from emat.datasets.fold_lists import write_fold_list
from emat.datasets.listing import fold_lists_in, lists_from_masks, place_of
from emat.datasets.opening import open_dataset
from emat.errors import EmatError

Build = Callable[[str], Path]


def test_lists_from_masks_hold_what_the_masks_show(build: Build, tmp_path: Path) -> None:
    dataset = open_dataset(build("folder"))
    made = lists_from_masks(dataset, "2")
    assert [(m.fold, m.class_ids, m.entries) for m in made] == [
        (0, (1,), (("a", 1),)),
        (1, (2,), (("b", 2),)),
    ]
    assert lists_from_masks(dataset, "2", min_area=0.5)[0].entries == ()  # half a photo is not more than half
    (tmp_path / "folds.txt").write_text("dog, cat\n")
    assert lists_from_masks(dataset, str(tmp_path / "folds.txt"))[0].entries == (("a", 1), ("b", 2))


def test_pascal_has_its_published_folds(build: Build) -> None:
    made = lists_from_masks(open_dataset(build("voc tree")))
    assert [m.class_ids[0] for m in made] == [1, 6, 11, 16]
    assert [m.entries for m in made] == [(("2007_000002", 3),), (), (("2007_000001", 15),), ()]


def test_written_lists_are_found_again(build: Build, tmp_path: Path) -> None:
    made = lists_from_masks(open_dataset(build("folder")), "2")
    for fold_list in made:
        write_fold_list(fold_list, tmp_path / "out" / place_of(fold_list))
    assert fold_lists_in(tmp_path / "out") == made
    assert load_fold_list(tmp_path / "out", "folder", 1) == made[1]


def test_a_folder_without_lists_says_so(tmp_path: Path) -> None:
    with pytest.raises(EmatError, match="no fold lists of coco"):
        fold_lists_in(tmp_path, "coco")
    with pytest.raises(EmatError, match="is no folder"):
        fold_lists_in(tmp_path / "nothing")


def test_circulated_lists_are_the_published_ones(shared: Path, tmp_path: Path) -> None:
    found = fold_lists_in(shared / "data" / "splits", "pascal")
    assert len(found) == 24
    assert all(equals_published(fold_list) for fold_list in found)
    assert [f.split for f in found[::4]] == ["train", "val", "0-5", "5-10", "10-15", "0-15"]
    for fold_list in found:
        write_fold_list(fold_list, tmp_path / place_of(fold_list))
    assert fold_lists_in(tmp_path, "pascal") == found
