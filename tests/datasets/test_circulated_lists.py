"""Lists that circulate are read in their own formats and known by their hashes."""

import pickle
from pathlib import Path

import pytest

from emat.datasets.circulated_lists import (
    equals_published,
    find_fold_lists,
    load_fold_list,
    published_list,
    read_fold_list,
)
from emat.datasets.fold_lists import write_fold_list
from emat.datasets.published_lists import PUBLISHED_LISTS
from emat.errors import EmatError


def text_list(folder: Path, text: str, name: str = "pascal/val/fold0.txt") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_a_text_list_tells_what_it_is_by_its_folders(tmp_path: Path) -> None:
    fold_list = read_fold_list(text_list(tmp_path, "2007_000033__01\n2007_000061__4\n"))
    assert (fold_list.dataset, fold_list.fold, fold_list.split) == ("pascal", 0, "val")
    assert fold_list.entries == (("2007_000033", 1), ("2007_000061", 4))
    assert fold_list.class_ids == (1, 2, 3, 4, 5)


def test_a_pickled_list_counts_classes_from_zero_and_is_read_from_one(tmp_path: Path) -> None:
    path = text_list(tmp_path, "", "coco/custom/0-5/fold1.pkl")
    path.write_bytes(pickle.dumps({0: [], 1: ["val2014/b.jpg", "val2014/a.jpg"], 5: ["val2014/a.jpg"]}))
    fold_list = read_fold_list(path)
    assert fold_list.split == "0-5"
    assert fold_list.entries == (("val2014/b.jpg", 2), ("val2014/a.jpg", 2), ("val2014/a.jpg", 6))


def test_one_hash_for_text_pickle_and_our_own_format(tmp_path: Path) -> None:
    text = read_fold_list(text_list(tmp_path, "a__1\nb__1\na__2\n"))
    pickled_path = tmp_path / "list.pkl"
    pickled_path.write_bytes(pickle.dumps({0: ["a", "b"], 1: ["a"]}))
    pickled = read_fold_list(pickled_path, "pascal", 0, "val")
    write_fold_list(text, tmp_path / "own.list")
    assert text.sha256 == pickled.sha256 == read_fold_list(tmp_path / "own.list").sha256
    assert equals_published(text) is False


@pytest.mark.parametrize("text", ["2007_000033\n", "__3\n", "a__b\n", "a__1\n\nb__1\n"])
def test_a_bad_line_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(EmatError, match=r"fold0\.txt, line [12]: "):
        read_fold_list(text_list(tmp_path, text))


def test_a_list_of_unknown_origin_must_be_named(tmp_path: Path) -> None:
    path = text_list(tmp_path, "a__1\n", "somewhere/train.txt")
    with pytest.raises(EmatError, match="does not tell its data set"):
        read_fold_list(path)
    assert read_fold_list(path, "pets", 0, "train").class_ids == (1,)


@pytest.mark.parametrize("value", [["a"], {"x": ["a"]}, {0: "a"}, {0: [1]}], ids=repr)
def test_a_pickle_that_is_no_list_is_refused(tmp_path: Path, value: object) -> None:
    path = tmp_path / "fold0.pkl"
    path.write_bytes(pickle.dumps(value))
    with pytest.raises(EmatError, match=r"fold0\.pkl"):
        read_fold_list(path, "coco", 0, "val")


def test_the_list_asked_for_is_found_with_or_without_the_data_set_folder(tmp_path: Path) -> None:
    text_list(tmp_path, "a__06\nb__07\n", "pascal/val/fold1.txt")
    text_list(tmp_path, "a__06\n", "pascal/trn/fold1.txt")
    assert load_fold_list(tmp_path, "pascal", 1) == load_fold_list(tmp_path / "pascal", "pascal", 1)
    assert load_fold_list(tmp_path, "pascal", 1, "train").entries == (("a", 6),)
    with pytest.raises(EmatError, match=r"no list of pascal fold 0, split 0-5; looked for pascal/custom/0-5/fold0"):
        load_fold_list(tmp_path, "pascal", 0, "0-5")
    with pytest.raises(EmatError, match="is no folder"):
        load_fold_list(tmp_path / "absent", "pascal", 0)


def test_every_circulated_list_equals_the_published_one(shared: Path, tmp_path: Path) -> None:
    paths = list(find_fold_lists(shared / "data" / "splits"))
    lists = [read_fold_list(path) for path in paths]
    assert len(lists) == len(PUBLISHED_LISTS) == 45
    assert all(equals_published(fold_list) for fold_list in lists)
    for fold_list in lists:
        published = published_list(fold_list)
        assert published is not None
        assert (published.entries, published.images) == (len(fold_list.entries), fold_list.images)
    largest = max(lists, key=lambda fold_list: len(fold_list.entries))
    write_fold_list(largest, tmp_path / "fold0.list")
    assert read_fold_list(tmp_path / "fold0.list") == largest
