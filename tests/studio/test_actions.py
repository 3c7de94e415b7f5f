"""What the buttons do, without the page."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emat.errors import EmatError
from emat.inference.segmenter import Segmenter
from emat.studio import actions
from emat.studio.masks import is_present
from emat.studio.session import MOST_CLASSES, MOST_PHOTOS, Session, new_session
from tests.inference.colour_method import ColourMethod
from tests.studio.conftest import BLUE, GREY, RED, Files, left_half, paint


def show(session: Session, file: Path, name: str) -> None:
    """Paint the left half of a photo and add it as an example."""
    actions.add_drafts(session, [file])
    actions.add_example(session, [paint(session.colours[name], left_half())])


def look(session: Session) -> list[actions.SearchProgress]:
    return list(actions.search(session))


def test_classes_have_names_and_colours_of_their_own(session: Session) -> None:
    actions.add_classes(session, " red ,blue;  big   cat\n")
    assert [shown.name for shown in session.classes] == ["red", "blue", "big cat"]
    assert len(set(session.colours.values())) == 3
    assert session.brush == "red"
    actions.remove_class(session, session.classes[0].number)
    assert session.brush == "blue"
    kept = session.colours["blue"]
    actions.add_classes(session, "green")
    assert session.colours["blue"] == kept, "a colour stays when other classes come and go"
    assert len(set(session.colours.values())) == 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("Red", "already"), ("background", "without a class"), ("a" * 41, "too long"), ("a\x00b", "not printable")],
)
def test_names_that_cannot_be_are_refused(session_with_classes: Session, text: str, sentence: str) -> None:
    with pytest.raises(EmatError, match=sentence):
        actions.add_classes(session_with_classes, text)


def test_there_are_as_many_classes_as_colours(session: Session) -> None:
    with pytest.raises(EmatError, match=f"{MOST_CLASSES} classes"):
        actions.add_classes(session, ",".join(f"class {number}" for number in range(MOST_CLASSES + 1)))
    assert len(session.classes) == MOST_CLASSES


def test_photos_need_a_class_to_be_painted(session: Session, photo_file: Files) -> None:
    with pytest.raises(EmatError, match="step 1"):
        actions.add_drafts(session, [photo_file("a.png", RED, GREY)])


def test_painted_photos_become_examples_one_after_the_other(session_with_classes: Session, photo_file: Files) -> None:
    session = session_with_classes
    actions.add_drafts(session, [photo_file("a.png", RED, GREY), photo_file("b.png", BLUE, GREY)])
    with pytest.raises(EmatError, match=r"nothing is painted on a\.png"):
        actions.add_example(session, [])
    actions.add_example(session, [paint(session.colours["red"], left_half())])
    assert [draft.name for draft in session.drafts] == ["b.png"]
    actions.skip_draft(session)
    assert session.drafts == []
    assert session.segmenter.classes_ == ("red",)
    with pytest.raises(EmatError, match="no photo to paint on"):
        actions.add_example(session, [])


def test_a_class_with_examples_is_not_removed_by_a_slip(session_with_classes: Session, photo_file: Files) -> None:
    show(session_with_classes, photo_file("a.png", RED, GREY), "red")
    with pytest.raises(EmatError, match="shown by 1 of your examples"):
        actions.remove_class(session_with_classes, session_with_classes.classes[0].number)
    actions.remove_example(session_with_classes, 0)
    actions.remove_class(session_with_classes, session_with_classes.classes[0].number)
    assert list(session_with_classes.colours) == ["blue"]


def test_a_mask_file_is_painted_over_what_is_there(
    session_with_classes: Session, photo_file: Files, tmp_path: Path
) -> None:
    session = session_with_classes
    actions.add_drafts(session, [photo_file("a.png", RED, BLUE)])
    Image.fromarray(left_half()).save(tmp_path / "mask.png")
    everywhere = paint(session.colours["blue"], np.ones((40, 60), bool))
    masks = actions.add_mask_file(session, tmp_path / "mask.png", [everywhere])
    np.testing.assert_array_equal(masks["red"], left_half())
    np.testing.assert_array_equal(masks["blue"], ~left_half())
    Image.new("1", (10, 10), 1).save(tmp_path / "small.png")
    with pytest.raises(EmatError, match=r"small\.png is 10 x 10 pixels but the photo is 60 x 40"):
        actions.add_mask_file(session, tmp_path / "small.png", [])


def test_photos_are_answered_and_encoded_once(
    session_with_classes: Session, method: ColourMethod, photo_file: Files
) -> None:
    session = session_with_classes
    show(session, photo_file("a.png", RED, GREY), "red")
    actions.add_photos(session, [photo_file("c.png", RED, BLUE), photo_file("d.png", (150, 50, 50), GREY)])
    assert [(progress.done, progress.count) for progress in look(session)] == [(0, 2), (1, 2), (2, 2)]
    assert look(session)[-1].count == 0, "nothing is left to do"
    first, second = session.queries.values()
    assert is_present(session, first, "red")
    assert not is_present(session, second, "red")
    encoded = method.encoded
    show(session, photo_file("b.png", BLUE, GREY), "blue")
    assert look(session)[-1].done == 2, "new examples, new answers"
    assert is_present(session, first, "blue")
    assert method.encoded == encoded + 1, "the new example alone"
    actions.set_threshold(session, session.classes[0].number, 0.02)
    assert is_present(session, second, "red")
    assert method.encoded == encoded + 1


def test_a_run_ends_when_the_examples_change(session_with_classes: Session, photo_file: Files) -> None:
    session = session_with_classes
    show(session, photo_file("a.png", RED, GREY), "red")
    actions.add_photos(session, [photo_file(f"{n}.png", RED, BLUE) for n in range(3)])
    run = actions.search(session)
    next(run), next(run)
    show(session, photo_file("b.png", BLUE, GREY), "blue")
    assert list(run) == []
    assert [progress.done for progress in look(session)] == [0, 1, 2, 3]


def test_without_examples_photos_wait(session_with_classes: Session, photo_file: Files) -> None:
    session = session_with_classes
    show(session, photo_file("a.png", RED, GREY), "red")
    actions.add_photos(session, [photo_file("c.png", RED, BLUE)])
    look(session)
    actions.remove_example(session, 0)
    assert look(session) == []
    assert session.queries[0].prediction is None


def test_a_bad_photo_among_many_is_left_out(session: Session, photo_file: Files, tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_text("no")
    good = photo_file("good.png", RED)
    problems = actions.add_photos(session, [tmp_path / "bad.jpg", good, good])
    assert ["bad.jpg" in str(problem) for problem in problems] == [True]
    assert [query.photo.name for query in session.queries.values()] == ["good.png", "good-2.png"]


def test_a_page_holds_so_many_photos(session: Session, photo_file: Files) -> None:
    problems = actions.add_photos(session, [photo_file("a.png", RED)] * (MOST_PHOTOS + 2))
    assert len(session.queries) == MOST_PHOTOS
    assert "2 were left out" in str(problems[0])


def test_a_correction_is_final_and_teaches(session_with_classes: Session, photo_file: Files) -> None:
    session = session_with_classes
    show(session, photo_file("a.png", RED, GREY), "red")
    actions.add_photos(session, [photo_file("c.png", RED, BLUE), photo_file("d.png", BLUE, GREY)])
    look(session)
    actions.begin_correction(session, 0)
    query = actions.corrected_query(session)
    assert query.photo.name == "c.png"
    masks = actions.shown_masks(session, query)
    np.testing.assert_array_equal(masks["red"], left_half())
    assert actions.finish_correction(session, [paint(session.colours["blue"], ~left_half())])
    assert session.segmenter.classes_ == ("red", "blue")
    look(session)
    assert not is_present(session, session.queries[0], "red")
    assert is_present(session, session.queries[1], "blue"), "it was learned"
    with pytest.raises(EmatError, match="no photo is being corrected"):
        actions.finish_correction(session, [])


def test_a_photo_may_be_corrected_to_nothing(session_with_classes: Session, photo_file: Files) -> None:
    session = session_with_classes
    show(session, photo_file("a.png", RED, GREY), "red")
    actions.add_photos(session, [photo_file("c.png", RED, BLUE)])
    look(session)
    actions.begin_correction(session, 0)
    assert not actions.finish_correction(session, [])
    assert session.queries[0].corrected == {}
    assert len(session.segmenter.examples_) == 1


def test_a_photo_that_goes_is_not_corrected_any_more(session_with_classes: Session, photo_file: Files) -> None:
    actions.add_photos(session_with_classes, [photo_file("c.png", RED)])
    actions.begin_correction(session_with_classes, 0)
    actions.remove_photo(session_with_classes, 0)
    assert session_with_classes.correcting is None
    with pytest.raises(EmatError, match="no longer on the page"):
        actions.begin_correction(session_with_classes, 0)


@pytest.mark.skipif(importlib.util.find_spec("gradio") is None, reason="the photos come with gradio")
def test_the_demonstration_is_one_click(session: Session) -> None:
    assert session.is_empty()
    actions.start_demo(session)
    assert session.segmenter.classes_ == ("cheetah", "lion")
    assert len(session.queries) == 3
    assert not session.is_empty()


def test_what_was_learned_goes_into_a_file_and_comes_back(tiny_head: Path, tmp_path: Path, photo_file: Files) -> None:
    session = new_session(Segmenter.load(tiny_head))
    with pytest.raises(EmatError, match="nothing to save yet"):
        actions.save_fitted(session, tmp_path)
    actions.add_classes(session, "../red")
    show(session, photo_file("a.png", RED, GREY), "../red")
    saved = actions.save_fitted(session, tmp_path / "out")
    assert saved.parent == tmp_path / "out"
    assert saved.suffix == ".emat"
    actions.start_over(session, Segmenter.load(tiny_head))
    assert session.is_empty()
    actions.take_over(session, Segmenter.load(saved))
    assert list(session.colours) == ["../red"]
