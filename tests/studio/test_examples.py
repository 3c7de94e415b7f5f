"""Classes, drafts and examples; corrections are final, teach, and can be made again."""

import numpy as np
import pytest

from emat.inference.segmenter import Segmenter
from emat.studio import examples
from emat.studio.examples import correct, find_query, found_masks, remove_photo
from emat.studio.masks import is_present, label_map, results
from emat.studio.session import MOST_CLASSES, Session, new_session
from tests.raises import raises_code
from tests.studio.conftest import BLUE, GREY, RED, left_half, look, png, show


def test_classes_have_names_and_colours_of_their_own(session: Session) -> None:
    examples.add_classes(session, " red ,blue;  big   cat\n")
    assert list(session.numbers) == ["red", "blue", "big cat"]
    examples.remove_class(session, session.numbers["red"])
    kept = session.numbers["blue"]
    examples.add_classes(session, "green")
    assert session.numbers["blue"] == kept, "a colour stays when other classes come and go"
    assert len(set(session.numbers.values())) == 3


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Red", "given-twice"),
        ("background", "reserved-class-name"),
        ("a" * 41, "bad-class-name"),
        ("a\x00b", "bad-class-name"),
    ],
)
def test_names_that_cannot_be_are_refused(session_with_classes: Session, text: str, code: str) -> None:
    with raises_code(code):
        examples.add_classes(session_with_classes, text)


def test_there_are_as_many_classes_as_colours(session: Session) -> None:
    with raises_code("too-many-classes", str(MOST_CLASSES)):
        examples.add_classes(session, ",".join(f"class {number}" for number in range(MOST_CLASSES + 1)))
    assert len(session.classes) == MOST_CLASSES


def test_a_painted_photo_becomes_an_example_and_leaves_no_file(session_with_classes: Session) -> None:
    session = session_with_classes
    draft = examples.add_draft(session, png(RED, GREY), "a.png")
    with raises_code("empty-mask", "a.png"):
        examples.add_example(session, draft.key, np.zeros((40, 60), np.uint8))
    examples.add_example(session, draft.key, left_half())
    assert session.segmenter.classes_ == ("red",)
    assert session.drafts == {}
    assert [path for path in session.folder.rglob("*") if path.is_file()] == []
    with raises_code("no-such-photo"):
        examples.add_example(session, draft.key, left_half())


def test_paint_that_is_kept_is_there_again_and_goes_with_its_class(session_with_classes: Session) -> None:
    session = session_with_classes
    draft = examples.add_draft(session, png(RED, GREY), "a.png")
    session.keep_paint(draft.key, left_half(2))
    np.testing.assert_array_equal(session.paint(draft.key, draft.photo), left_half(2))
    examples.remove_class(session, 2)
    assert not session.paint(draft.key, draft.photo).any(), "the next class of that number starts with nothing"


def test_undecided_and_background_paint_reach_the_example(
    tiny_head: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    session = new_session(Segmenter.load(tiny_head, learn=True), tmp_path_factory.mktemp("sessions"))
    examples.add_classes(session, "red")
    paint = left_half()
    paint[:10], paint[:, 50:] = 255, 254
    whole = examples.add_draft(session, png(RED, GREY), "whole.png")
    examples.add_example(session, whole.key, paint)
    scribbled = examples.add_draft(session, png(RED, GREY), "scribbled.png")
    examples.set_sparse(session, scribbled.key, True)
    examples.add_example(session, scribbled.key, paint)
    first, second = (example.working for example in session.segmenter.examples_)
    assert first is not None
    assert second is not None
    assert not first.sparse
    assert second.sparse

    def at(working: object, row: float, column: float) -> int:
        mask = working.masks["red"]  # type: ignore[attr-defined]
        return int(mask[int(row * mask.shape[0]), int(column * mask.shape[1])])

    assert [at(first, 0.1, 0.2), at(first, 0.6, 0.2), at(first, 0.6, 0.7), at(first, 0.6, 0.95)] == [255, 1, 0, 0]
    assert [at(second, 0.1, 0.2), at(second, 0.6, 0.2), at(second, 0.6, 0.7), at(second, 0.6, 0.95)] == [255, 1, 255, 0]


def test_a_photo_without_the_classes_is_an_example_too(session_with_classes: Session) -> None:
    session = session_with_classes
    show(session, "a.png", RED, GREY)
    draft = examples.add_draft(session, png(GREY), "none.png")
    examples.add_negative(session, draft.key)
    assert [example.classes for example in session.segmenter.examples_] == [("red",), ()]


def test_an_edited_example_keeps_its_place_and_is_there_until_it_is_saved(session_with_classes: Session) -> None:
    session = session_with_classes
    show(session, "a.png", RED, GREY)
    show(session, "b.png", BLUE, GREY, number=2)
    draft = examples.edit_example(session, 0)
    assert examples.edit_example(session, 0) is draft, "a second click opens the same"
    assert [example.name for example in session.segmenter.examples_] == ["a.png", "b.png"]
    np.testing.assert_array_equal(session.paint(draft.key, draft.photo), left_half())
    examples.add_example(session, draft.key, left_half(2))
    assert [(one.name, one.classes) for one in session.segmenter.examples_] == [
        ("a.png", ("blue",)),
        ("b.png", ("blue",)),
    ]
    with raises_code("unknown-example"):
        examples.edit_example(session, 2)


def test_examples_are_moved_and_classes_renamed_without_another_look(answered: Session) -> None:
    session = answered
    show(session, "d.png", BLUE, GREY, number=2)
    look(session)
    changes = [query.changes for query in session.queries.values()]
    examples.move_example(session, 1, -1)
    assert [example.name for example in session.segmenter.examples_] == ["d.png", "a.png"]
    examples.rename_class(session, 1, "crimson")
    look(session)
    first = next(iter(session.queries.values()))
    assert set(session.segmenter.classes_) == {"blue", "crimson"}
    assert is_present(session, first, "crimson")
    assert (label_map(session, first, session.numbers, (40, 60)) == left_half() + 2 * (1 - left_half())).all()
    assert [query.changes for query in session.queries.values()] == changes, "nothing was looked at again"
    with raises_code("given-twice"):
        examples.rename_class(session, 1, "Blue")


def test_a_class_with_examples_is_not_removed_by_a_slip(session_with_classes: Session) -> None:
    show(session_with_classes, "a.png", RED, GREY)
    with raises_code("class-in-use"):
        examples.remove_class(session_with_classes, 1)
    examples.remove_example(session_with_classes, 0)
    examples.remove_class(session_with_classes, 1)
    assert list(session_with_classes.numbers) == ["blue"]


def test_a_bad_photo_is_named(session: Session) -> None:
    with raises_code("not-an-image", "bad.jpg"):
        examples.add_photo(session, b"no", "bad.jpg")
    for _ in range(2):
        examples.add_photo(session, png(RED), "good.png")
    assert [query.photo.name for query in session.queries.values()] == ["good.png", "good-2.png"]


def test_the_demonstration_is_one_click(session: Session) -> None:
    assert session.is_empty()
    examples.start_demo(session)
    assert session.segmenter.classes_ == ("cheetah", "lion")
    assert len(session.queries) == 3


def test_a_fitted_file_takes_the_place_of_classes_and_examples(session_with_classes: Session) -> None:
    other = new_session(session_with_classes.segmenter.copy(), session_with_classes.folder)
    examples.add_classes(other, "blue")
    show(other, "b.png", BLUE, GREY)
    examples.add_photo(session_with_classes, png(BLUE, GREY), "c.png")
    examples.take_over(session_with_classes, other.segmenter)
    look(session_with_classes)
    (query,) = session_with_classes.queries.values()
    assert session_with_classes.numbers == {"blue": 1}
    assert query.scores is not None
    assert query.scores["blue"] > 0.9


def keys(session: Session) -> list[int]:
    return list(session.queries)


def test_the_editor_begins_with_what_the_page_shows(answered: Session) -> None:
    query = find_query(answered, keys(answered)[0])
    np.testing.assert_array_equal(found_masks(answered, query), left_half())


def test_a_correction_is_final_and_teaches(answered: Session) -> None:
    first, second = keys(answered)
    correct(answered, first, 2 * (1 - left_half()), whole=True)
    assert answered.segmenter.classes_ == ("red", "blue")
    look(answered)
    query = find_query(answered, first)
    assert query.corrected == ("blue",)
    assert not is_present(answered, query, "red")
    assert is_present(answered, find_query(answered, second), "blue"), "it was learned"


def test_a_second_correction_takes_the_place_of_the_first(answered: Session) -> None:
    first = keys(answered)[0]
    correct(answered, first, left_half(), whole=True)
    correct(answered, first, left_half(2), whole=True)
    assert [example.classes for example in answered.segmenter.examples_] == [("red",), ("blue",)]


def test_a_photo_that_is_corrected_to_nothing_is_a_negative_example(answered: Session) -> None:
    first = keys(answered)[0]
    correct(answered, first, np.zeros((40, 60), np.uint8), whole=True)
    assert find_query(answered, first).corrected == ()
    assert [example.classes for example in answered.segmenter.examples_] == [("red",), ()]


def test_what_was_left_undecided_is_void_in_the_label_map(answered: Session) -> None:
    first = keys(answered)[0]
    paint = left_half()
    paint[:5] = 255
    correct(answered, first, paint, whole=True)
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
    with raises_code("no-such-photo"):
        find_query(answered, 0)
