"""Looking at photos: once each, stopped and continued, and which of them is worth a label."""

import threading

import numpy as np
import pytest

from emat.inference.prediction import Prediction
from emat.studio import examples
from emat.studio.masks import is_present, label_map
from emat.studio.search import Search, peaks
from emat.studio.session import Session
from emat.studio.uncertainty import uncertainty
from tests.inference.colour_method import ColourMethod
from tests.studio.conftest import BLUE, GREY, RED, look, png, png_of, show, stripes


def test_photos_are_answered_and_encoded_once(session_with_classes: Session, method: ColourMethod) -> None:
    session = session_with_classes
    show(session, "a.png", RED, GREY)
    examples.add_photo(session, png(RED, BLUE), "c.png")
    examples.add_photo(session, png((150, 50, 50), GREY), "d.png")
    look(session)
    first, second = session.queries.values()
    assert is_present(session, first, "red")
    assert not is_present(session, second, "red")
    encoded, changes = method.encoded, first.changes
    look(session)
    assert first.changes == changes, "nothing was left to do"
    show(session, "b.png", BLUE, GREY, number=2)
    look(session)
    assert is_present(session, first, "blue"), "new examples, new answers"
    assert method.encoded == encoded + 1, "the new example alone"
    examples.set_threshold(session, 1, 0.02)
    assert is_present(session, second, "red")
    assert method.encoded == encoded + 1


def test_it_stops_and_continues_where_it_stopped(
    session_with_classes: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_with_classes
    show(session, "a.png", RED, GREY)
    for number in range(4):
        examples.add_photo(session, png(RED, BLUE), f"{number}.png")
    search, seen, go = Search(session), threading.Event(), threading.Event()
    examples.set_crisp(session, False)
    predict = type(session.segmenter).predict_unrefined

    def slow(self: object, photo: object) -> Prediction:
        seen.set()
        go.wait(10)
        return predict(self, photo)  # type: ignore[arg-type]

    monkeypatch.setattr(type(session.segmenter), "predict_unrefined", slow)
    search.start()
    assert session.search.phase != "idle", "known at once, or the page would not ask again"
    seen.wait(10)
    search.stop()
    go.set()
    search.wait()
    assert session.search.phase == "stopped"
    assert [query.scores is not None for query in session.queries.values()] == [True, False, False, False]
    changes = session.queries[next(iter(session.queries))].changes
    search.look_at_new()
    assert session.search.phase == "stopped", "a photo that comes later does not start it again"
    search.start()
    search.wait()
    assert session.search.phase == "idle"
    assert all(query.scores is not None for query in session.queries.values())
    assert session.queries[next(iter(session.queries))].changes == changes, "what was done is not done again"


@pytest.mark.usefixtures("with_mobilesam")
def test_masks_are_refined_after_every_photo_has_one_and_both_are_kept(
    session_with_classes: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_with_classes
    show(session, "a.png", RED, GREY)
    photo = stripes(GREY, size=(120, 160))
    photo[30:90, 40:100] = RED
    for name in ("b.png", "c.png"):
        examples.add_photo(session, png_of(photo), name)
    first, second = session.queries.values()
    refined, found_first = Prediction.refined, []

    def watched(self: Prediction) -> Prediction:
        found_first.append(second.scores is not None)
        return refined(self)

    monkeypatch.setattr(Prediction, "refined", watched)
    look(session)
    assert found_first == [True, True], "finding masks comes before refining any"
    assert session.search.phase == "idle"
    assert not session.is_waiting(first)
    crisp = label_map(session, first, session.numbers, (120, 160)) == 1
    square = (photo == RED).all(-1)
    assert (crisp & square).sum() / (crisp | square).sum() > 0.9
    assert is_present(session, first, "red")
    look_of_crisp = session.look_of(first)
    examples.set_crisp(session, False)
    assert session.look_of(first) != look_of_crisp, "pictures have another address"
    assert is_present(session, first, "red")
    examples.set_crisp(session, True)
    look(session)
    assert len(found_first) == 2, "the refined masks were kept"


def test_without_examples_photos_wait(session_with_classes: Session) -> None:
    session = session_with_classes
    show(session, "a.png", RED, GREY)
    examples.add_photo(session, png(RED, BLUE), "c.png")
    look(session)
    examples.remove_example(session, 0)
    look(session)
    (query,) = session.queries.values()
    assert query.scores is None
    assert session.search.phase == "idle"


def prediction(score: float, *probabilities: float) -> Prediction:
    map_ = np.array([probabilities], np.float32)
    return Prediction(np.zeros((1, len(probabilities), 3), np.uint8), {"red": score}, {"red": map_})


def test_what_is_near_a_threshold_is_unsure() -> None:
    sure, unsure_presence = prediction(0.99, 0.99, 0.01, 0.01), prediction(0.5, 0.01, 0.01, 0.01)
    unsure_mask = prediction(0.99, 0.5, 0.55, 0.01)
    assert uncertainty(sure) < 0.1
    assert uncertainty(unsure_presence) == 1
    assert uncertainty(unsure_mask) > 0.85
    assert uncertainty(prediction(0.0, 0.0, 0.0)) == 0


def test_a_class_that_another_covers_everywhere_has_no_peak() -> None:
    maps = {"red": np.array([[0.9, 0.8]], np.float32), "blue": np.array([[0.7, 0.6]], np.float32)}
    both = Prediction(np.zeros((1, 2, 3), np.uint8), {"red": 0.9, "blue": 0.9}, maps)
    assert peaks(both) == pytest.approx({"red": 0.9, "blue": 0.0})
    assert both.present == {"red"}
