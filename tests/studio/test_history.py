"""What a correction teaches, what it changes, and the way back."""

from pathlib import Path

import numpy as np
import pytest

from emat.inference.forecast import Forecast
from emat.inference.segmenter import Segmenter
from emat.studio import examples, history
from emat.studio.examples import correct, with_touched_objects
from emat.studio.masks import label_map
from emat.studio.session import Session, new_session
from tests.raises import raises_code
from tests.studio.conftest import BLUE, GREY, RED, look, png, show

BACKGROUND = 254


@pytest.fixture
def learner_session(tiny_head: Path, tmp_path: Path) -> Session:
    """A session that learns, with two examples of red and two photos that were looked at."""
    session = new_session(Segmenter.load(tiny_head, learn=True), tmp_path / "sessions")
    examples.add_classes(session, "red")
    show(session, "a.png", RED, GREY)
    show(session, "b.png", RED, BLUE)
    for name in ("c.png", "d.png"):
        examples.add_photo(session, png(RED, GREY, RED), name)
    look(session)
    return session


def test_the_rest_of_a_touched_object_is_learnt_and_other_objects_are_not() -> None:
    found = np.zeros((20, 60), np.uint8)
    found[2:12, 2:12], found[2:12, 20:30], found[2:12, 40:50] = 1, 1, 1
    touched = np.zeros_like(found)
    touched[2:6, 2:12] = BACKGROUND  # a part of the first is cut off
    touched[12:15, 20:30] = 1  # and a part added to the second
    said = with_touched_objects(touched, found)
    assert (said[2:6, 2:12] == BACKGROUND).all()
    assert (said[6:12, 2:12] == 1).all()
    assert (said[2:15, 20:30] == 1).all()
    assert not said[:, 31:].any(), "nobody touched the third"
    whole = np.where(found == 1, BACKGROUND, 0).astype(np.uint8)
    whole[:, 31:] = 0
    assert set(np.unique(with_touched_objects(whole, found))) == {0, BACKGROUND}, "what was rejected teaches no object"


def test_a_correction_teaches_the_touched_pixels_and_the_rest_stays_undecided(learner_session: Session) -> None:
    session = learner_session
    key = next(iter(session.queries))
    query = session.queries[key]
    name = examples.reject_object(session, key, 0.95, 0.5)
    assert name == "red"
    example = session.segmenter.examples_[-1]
    assert example.working is not None
    assert example.working.sparse
    known = example.working.pixel_labels(["red"]).numpy()[0]
    assert set(np.unique(known)) == {0, 255}
    assert (known[:, -4:] == 0).all()
    assert (known[:, : known.shape[1] // 2] == 255).all(), "nobody said that the other object is right"
    labels = label_map(session, query, session.numbers, query.photo.working)
    assert not labels[:, 45:].any(), "it is gone at once"
    assert (labels[:, 2:15] == 1).all()
    look(session)
    assert session.search.problem == ""
    assert not label_map(session, query, session.numbers, query.photo.working)[:, 45:].any(), "and stays so"
    with raises_code("bad-click"):
        examples.reject_object(session, key, 0.95, 0.5)
    with raises_code("empty-mask"):
        correct(session, list(session.queries)[1], np.zeros((40, 60), np.uint8))


def test_a_step_back_brings_back_examples_masks_and_forecast_without_another_look(learner_session: Session) -> None:
    session = learner_session
    first, second = session.queries.values()
    before = label_map(session, second, session.numbers, (40, 60))
    forecast, shares = session.forecast, dict(second.shares)
    examples.none_here(session, first.key)
    look(session)
    assert len(session.segmenter.examples_) == 3
    assert session.earlier is not None
    second.shares = {look: dict.fromkeys(shares, 0.0) for look, shares in second.shares.items()}
    (change,) = history.changes(session)
    assert (change.photo, change.name, change.after) == ("d.png", "red", 0.0), "the corrected photo is not listed"
    history.step_back(session)
    assert first.corrected is None
    assert [example.name for example in session.segmenter.examples_] == ["a.png", "b.png"]
    assert session.forecast == forecast
    assert second.shares == shares
    np.testing.assert_array_equal(label_map(session, second, session.numbers, (40, 60)), before)
    changes = second.changes
    look(session)
    assert second.changes == changes, "nothing was left to do"
    with raises_code("page-outdated"):
        history.step_back(session)


def test_a_correction_that_makes_left_out_examples_worse_is_known_before_it_is_kept(learner_session: Session) -> None:
    session = learner_session
    before, after = ({"red": Forecast(2, 0.8, None, left_out={0: first, 1: 0.7})} for first in (0.9, 0.7))
    session.forecast = before
    history.remember(session, "c.png was corrected", next(iter(session.queries)))
    session.segmenter.move(1, 0)  # examples are known by their pictures, wherever they are
    session.segmenter.move(1, 0)
    session.version += 1
    assert history.forecast_change(session) is None, "not before it is learnt"
    session.forecast, session.forecast_version = after, session.version
    change = history.forecast_change(session)
    assert change == pytest.approx((0.8, 0.7))
    assert history.is_worse(change)
    history.keep(session)
    assert session.earlier is not None
    assert session.earlier.kept


def test_an_example_that_was_removed_comes_back_in_its_place(answered: Session) -> None:
    show(answered, "d.png", BLUE, GREY, number=2)
    examples.remove_example(answered, 0)
    assert [example.name for example in answered.segmenter.examples_] == ["d.png"]
    history.step_back(answered)
    assert [example.name for example in answered.segmenter.examples_] == ["a.png", "d.png"]
