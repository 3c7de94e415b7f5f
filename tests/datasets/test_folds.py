"""Folds given by name, by file, or by an even cut."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emat.datasets.folds import folds_by_name, read_folds, split_evenly
from emat.errors import EmatError
from emat.formats.class_names import VOID_NAME, number_classes

CLASSES = ("ant", "bee", "traffic light")


def test_a_file_names_one_fold_a_line(tmp_path: Path) -> None:
    path = tmp_path / "folds.txt"
    path.write_text("# insects\nant, bee\n\ntraffic light # no insect\n")
    assert read_folds(path, CLASSES) == ((1, 2), (3,))


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        ([["wasp"]], "'wasp', which the data set lacks"),
        ([["ant"], ["ant"]], "folds 0 and 1"),
        ([[]], "no class"),
    ],
)
def test_folds_that_cannot_be_are_refused(names: list[list[str]], complaint: str) -> None:
    with pytest.raises(EmatError, match=complaint):
        folds_by_name(CLASSES, names)


@given(st.integers(1, 400), st.integers(1, 9))
def test_an_even_cut_has_every_class_once_and_never_void(count: int, folds: int) -> None:
    classes = number_classes([str(number) for number in range(count)])
    if folds > count:
        with pytest.raises(EmatError, match="cannot be cut"):
            split_evenly(classes, folds)
        return
    cut = split_evenly(classes, folds)
    assert sorted(number for fold in cut for number in fold) == [
        number for number, name in enumerate(classes, start=1) if name != VOID_NAME
    ]
    assert max(map(len, cut)) - min(map(len, cut)) <= 1
    assert 255 not in {number for fold in cut for number in fold}
