"""Published lists are read in their own formats, recognised by their hashes, and never run a program."""

import collections
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from emat.datasets.fold_lists import (
    equals_published,
    find_fold_lists,
    fold_lists_in,
    list_path,
    lists_from_masks,
    load_fold_list,
    published_list,
    published_lists,
    read_fold_list,
    read_plain_pickle,
    write_fold_list,
)
from emat.datasets.layouts import open_dataset
from tests.raises import raises_code


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
    with raises_code("damaged-file", "fold0.txt"):
        read_fold_list(text_list(tmp_path, text))


def test_a_list_of_unknown_origin_must_be_named(tmp_path: Path) -> None:
    path = text_list(tmp_path, "a__1\n", "somewhere/train.txt")
    with raises_code("bad-file-name"):
        read_fold_list(path)
    assert read_fold_list(path, "pets", 0, "train").class_ids == (1,)


@pytest.mark.parametrize("value", [["a"], {"x": ["a"]}, {0: "a"}, {0: [1]}], ids=repr)
def test_a_pickle_of_anything_else_is_refused(tmp_path: Path, value: object) -> None:
    path = tmp_path / "fold0.pkl"
    path.write_bytes(pickle.dumps(value))
    with raises_code("damaged-file", "fold0.pkl"):
        read_fold_list(path, "coco", 0, "val")


def test_the_list_asked_for_is_found_with_or_without_the_data_set_folder(tmp_path: Path) -> None:
    text_list(tmp_path, "a__06\nb__07\n", "pascal/val/fold1.txt")
    text_list(tmp_path, "a__06\n", "pascal/trn/fold1.txt")
    assert load_fold_list(tmp_path, "pascal", 1) == load_fold_list(tmp_path / "pascal", "pascal", 1)
    assert load_fold_list(tmp_path, "pascal", 1, "train").entries == (("a", 6),)
    with raises_code("no-such-list", "pascal", "0-5", "custom/0-5"):
        load_fold_list(tmp_path, "pascal", 0, "0-5")
    with raises_code("not-a-folder"):
        load_fold_list(tmp_path / "absent", "pascal", 0)


def test_every_list_equals_the_published_one(fold_lists: Path, tmp_path: Path) -> None:
    paths = list(find_fold_lists(fold_lists))
    lists = [read_fold_list(path) for path in paths]
    assert len(lists) == len(published_lists()) == 45
    assert all(equals_published(fold_list) for fold_list in lists)
    for fold_list in lists:
        published = published_list(fold_list)
        assert published is not None
        assert (published.entries, published.photos) == (len(fold_list.entries), fold_list.photos)
    largest = max(lists, key=lambda fold_list: len(fold_list.entries))
    write_fold_list(largest, tmp_path / "fold0.list")
    assert read_fold_list(tmp_path / "fold0.list") == largest


def pickled(path: Path, value: object) -> Path:
    path.write_bytes(pickle.dumps(value))
    return path


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_is_read_in_every_protocol(tmp_path: Path, protocol: int) -> None:
    value = {0: ["a.jpg", "b.jpg"], 1: [], 2: [{"deep": [10**30]}]}
    path = tmp_path / "list.pkl"
    path.write_bytes(pickle.dumps(value, protocol))
    assert read_plain_pickle(path) == value


class CallsSystem:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (self.command,)


def test_a_pickle_that_calls_is_refused_by_the_name_of_what_it_calls(tmp_path: Path) -> None:
    witness = tmp_path / "was_here"
    path = pickled(tmp_path / "evil.pkl", {0: [CallsSystem(f"touch {witness}")]})
    with raises_code("unsafe-pickle", f"{os.system.__module__}.system"):
        read_plain_pickle(path)
    assert not witness.exists()


def test_even_harmless_globals_are_refused(tmp_path: Path) -> None:
    path = pickled(tmp_path / "ordered.pkl", collections.OrderedDict(a=1))
    with raises_code("unsafe-pickle", "collections.OrderedDict"):
        read_plain_pickle(path)


@pytest.mark.parametrize("value", [b"bytes", 1.5, None, True, (1, 2), {1, 2}], ids=repr)
def test_other_types_are_refused_by_name_at_any_depth(tmp_path: Path, value: object) -> None:
    path = pickled(tmp_path / "other.pkl", {0: [["a", value]]})
    with raises_code("unsafe-pickle", type(value).__name__):
        read_plain_pickle(path)


def test_a_list_that_holds_itself_ends(tmp_path: Path) -> None:
    endless: list[object] = ["a"]
    endless.append(endless)
    assert read_plain_pickle(pickled(tmp_path / "endless.pkl", endless))


@pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps({0: ["a"]})[:-4], b"\x80\x04P1\n."])
def test_damaged_files_are_one_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "damaged.pkl"
    path.write_bytes(content)
    with raises_code("damaged-file|unsafe-pickle", "damaged.pkl"):
        read_plain_pickle(path)


def test_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    with raises_code("no-such-file"):
        read_plain_pickle(tmp_path / "absent.pkl")


Build = Callable[[str], Path]


def test_written_lists_are_found_again(build: Build, tmp_path: Path) -> None:
    made = lists_from_masks(open_dataset(build("folder")), "2")
    for fold_list in made:
        write_fold_list(fold_list, tmp_path / "out" / list_path(fold_list))
    assert fold_lists_in(tmp_path / "out") == made
    assert load_fold_list(tmp_path / "out", "folder", 1) == made[1]


def test_a_folder_without_lists_says_so(tmp_path: Path) -> None:
    with raises_code("no-such-list", "of coco"):
        fold_lists_in(tmp_path, "coco")
    with raises_code("not-a-folder"):
        fold_lists_in(tmp_path / "nothing")


def test_the_lists_of_a_folder_are_sorted_and_written_again(fold_lists: Path, tmp_path: Path) -> None:
    found = fold_lists_in(fold_lists, "pascal")
    assert len(found) == 24
    assert all(equals_published(fold_list) for fold_list in found)
    assert [f.split for f in found[::4]] == ["train", "val", "0-5", "5-10", "10-15", "0-15"]
    for fold_list in found:
        write_fold_list(fold_list, tmp_path / list_path(fold_list))
    assert fold_lists_in(tmp_path, "pascal") == found
