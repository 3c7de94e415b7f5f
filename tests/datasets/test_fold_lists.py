"""Fold lists keep their order, count, hash and refuse wrong entries; folds come from names, files or an even cut."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emat.datasets.fold_lists import (
    FoldList,
    even_folds,
    fold_classes,
    fold_list_from_areas,
    folds_by_name,
    lists_from_masks,
    read_fold_list,
    read_folds,
    split_evenly,
    write_fold_list,
)
from emat.datasets.layouts import open_dataset
from emat.formats.class_names import VOID_NAME, number_classes
from tests.raises import raises_code

PETS = FoldList("pets", 1, "val", (("b", 3), ("a", 4), ("c", 3), ("a", 3)), (3, 4, 5))


def test_images_of_a_class_keep_the_order_of_the_file() -> None:
    assert PETS.photos_of_class == {3: ("b", "c", "a"), 4: ("a",), 5: ()}
    assert PETS.counts == {3: 3, 4: 1, 5: 0}
    assert PETS.photos == 3


def test_the_hash_depends_on_names_classes_and_order_and_on_nothing_else() -> None:
    same = FoldList("other", 0, "train", PETS.entries, (1, 2, 3, 4, 5))
    turned = FoldList("pets", 1, "val", PETS.entries[::-1], (3, 4, 5))
    assert same.sha256 == PETS.sha256 != turned.sha256


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a\tb", "a\\b", "", "x/../../y"])
def test_names_that_leave_the_data_set_are_refused(name: str) -> None:
    with raises_code("path-leads-out"):
        FoldList("pets", 0, "val", ((name, 1),), (1,))


def test_a_class_of_another_fold_is_refused() -> None:
    with raises_code("unknown-class", "1 2"):
        FoldList("pets", 0, "val", (("a", 9),), (1, 2))


def test_an_entry_listed_twice_is_refused() -> None:
    with raises_code("given-twice"):
        FoldList("pets", 0, "val", (("a", 1), ("b", 1), ("a", 1)), (1,))


NAMES = st.text("abc_0/. é\u2028", min_size=1, max_size=8).filter(
    lambda name: name[0] != "/" and ".." not in name.split("/")
)


@given(st.lists(st.tuples(NAMES, st.integers(1, 6)), unique=True))
def test_our_own_format_gives_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[str, int]]
) -> None:
    path = tmp_path_factory.mktemp("lists") / "fold2.list"
    written = FoldList("pets", 2, "0-5", tuple(entries), (1, 2, 3, 4, 5, 6))
    write_fold_list(written, path)
    assert read_fold_list(path) == written
    assert [file.name for file in path.parent.iterdir()] == ["fold2.list"]


@pytest.mark.parametrize(("old", "new"), [("a\t4", "a\t5"), ("c\t3\n", ""), ("# counts: 3 1 0", "# counts: 3 1 1")])
def test_a_list_that_was_edited_is_refused(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "fold1.list"
    write_fold_list(PETS, path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with raises_code("changed-file"):
        read_fold_list(path)


def test_a_list_without_its_header_lines_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fold1.list"
    write_fold_list(PETS, path)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    with raises_code("damaged-file"):
        read_fold_list(path)


def test_published_folds_part_the_classes() -> None:
    for dataset, classes in (("pascal", 20), ("coco", 80)):
        folds = [set(fold_classes(dataset, fold)) for fold in range(4)]
        assert set.union(*folds) == set(range(1, classes + 1))
        assert sum(map(len, folds)) == classes
    with raises_code("unknown-fold"):
        fold_classes("pascal", 4)
    with raises_code("unknown-fold", "pets"):
        fold_classes("pets", 0)


@given(st.integers(1, 90), st.integers(1, 90))
def test_even_folds_part_any_number_of_classes(classes: int, folds: int) -> None:
    if folds > classes:
        with raises_code("bad-number"):
            even_folds(classes, folds)
        return
    parts = even_folds(classes, folds)
    assert [c for part in parts for c in part] == list(range(1, classes + 1))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_list_from_masks_takes_classes_above_the_minimum_area() -> None:
    areas = [("a", {1: 0.5, 2: 0.05}), ("b", {2: 0.2, 7: 0.9}), ("c", {})]
    made = fold_list_from_areas("pets", 0, "val", [2, 1], areas, minimum_area=0.05)
    assert made.entries == (("a", 1), ("b", 2))
    assert made.class_ids == (1, 2)
    everything = fold_list_from_areas("pets", 0, "val", [1, 2], areas)
    assert everything.entries == (("a", 1), ("a", 2), ("b", 2))


CLASSES = ("ant", "bee", "traffic light")


def test_a_file_names_one_fold_a_line(tmp_path: Path) -> None:
    path = tmp_path / "folds.txt"
    path.write_text("# insects\nant, bee\n\ntraffic light # no insect\n")
    assert read_folds(path, CLASSES) == ((1, 2), (3,))


@pytest.mark.parametrize(
    ("names", "code"),
    [
        ([["wasp"]], "unknown-class"),
        ([["ant"], ["ant"]], "given-twice"),
        ([[]], "no-classes"),
    ],
)
def test_folds_that_cannot_be_are_refused(names: list[list[str]], code: str) -> None:
    with raises_code(code):
        folds_by_name(CLASSES, names)


@given(st.integers(1, 400), st.integers(1, 9))
def test_an_even_cut_has_every_class_once_and_never_void(count: int, folds: int) -> None:
    classes = number_classes([str(number) for number in range(count)])
    if folds > count:
        with raises_code("bad-number"):
            split_evenly(classes, folds)
        return
    cut = split_evenly(classes, folds)
    assert sorted(number for fold in cut for number in fold) == [
        number for number, name in enumerate(classes, start=1) if name != VOID_NAME
    ]
    assert max(map(len, cut)) - min(map(len, cut)) <= 1
    assert 255 not in {number for fold in cut for number in fold}


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
