"""Corrections are final, teach, and can be made again."""

import numpy as np
import pytest

from emat.errors import EmatError
from emat.studio.corrections import correct, find_query, remove_photo, shown_paint
from emat.studio.masks import is_present, label_map, results
from emat.studio.session import Session
from tests.studio.conftest import left_half, look


def keys(session: Session) -> list[int]:
    return list(session.queries)


def test_the_editor_begins_with_what_the_page_shows(answered: Session) -> None:
    query = find_query(answered, keys(answered)[0])
    np.testing.assert_array_equal(shown_paint(answered, query), left_half())


def test_a_correction_is_final_and_teaches(answered: Session) -> None:
    first, second = keys(answered)
    correct(answered, first, 2 * (1 - left_half()))
    assert answered.segmenter.classes_ == ("red", "blue")
    look(answered)
    query = find_query(answered, first)
    assert query.corrected == ("blue",)
    assert not is_present(answered, query, "red")
    assert is_present(answered, find_query(answered, second), "blue"), "it was learned"


def test_a_second_correction_takes_the_place_of_the_first(answered: Session) -> None:
    first = keys(answered)[0]
    correct(answered, first, left_half())
    correct(answered, first, left_half(2))
    assert [example.classes for example in answered.segmenter.examples_] == [("red",), ("blue",)]


def test_a_photo_that_is_corrected_to_nothing_is_a_negative_example(answered: Session) -> None:
    first = keys(answered)[0]
    correct(answered, first, np.zeros((40, 60), np.uint8))
    assert find_query(answered, first).corrected == ()
    assert [example.classes for example in answered.segmenter.examples_] == [("red",), ()]


def test_what_was_left_undecided_is_void_in_the_label_map(answered: Session) -> None:
    first = keys(answered)[0]
    paint = left_half()
    paint[:5] = 255
    correct(answered, first, paint)
    labels = label_map(answered, find_query(answered, first), {"red": 3}, (80, 120))
    assert labels[0, 0] == 255
    assert labels[40, 10] == 3
    assert labels[40, 100] == 0
    (red, _) = results(answered, find_query(answered, first), objects=True)
    assert red.objects == (35 * 30,)


def test_a_photo_that_goes_takes_its_files_along(answered: Session) -> None:
    for key in keys(answered):
        remove_photo(answered, key)
    assert [path for path in answered.folder.rglob("*") if path.is_file()] == []
    with pytest.raises(EmatError, match="no longer on the page"):
        find_query(answered, 0)
