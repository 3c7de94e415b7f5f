"""Masks follow the thresholds of each class; areas and counts follow the masks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emat.inference.postprocessing import in_steps
from emat.inference.prediction import Prediction, Thresholds
from emat.studio.masks import is_present, label_map, note_drawn, object_image, results
from emat.studio.photos import keep_photo
from emat.studio.session import Session, StudioQuery, moved_thresholds

NUMBERS = {"red": 1, "blue": 2}


@pytest.fixture
def prediction() -> Prediction:
    random = np.random.default_rng(0)
    maps = {name: in_steps(random.random((6, 8), np.float32)) for name in NUMBERS}
    return Prediction(np.zeros((6, 8, 3), np.uint8), {"red": 0.8, "blue": 0.6}, maps)


@pytest.fixture
def query(session_with_classes: Session, prediction: Prediction) -> StudioQuery:
    session = session_with_classes
    query = StudioQuery(1, keep_photo(prediction.photo, "a.png", session.photo_file(1)), prediction.scores)
    session.maps.write(1, prediction)
    session.queries[1] = query
    note_drawn(session, query)
    return query


def test_at_the_usual_thresholds_it_is_the_prediction(
    session_with_classes: Session, query: StudioQuery, prediction: Prediction
) -> None:
    labels = label_map(session_with_classes, query, NUMBERS, (6, 8))
    np.testing.assert_array_equal(labels, prediction.label_map)


def test_a_slider_moves_its_own_class_alone(session_with_classes: Session, query: StudioQuery) -> None:
    session_with_classes.thresholds["blue"] = 0.7
    assert is_present(session_with_classes, query, "red")
    assert not is_present(session_with_classes, query, "blue")
    assert set(np.unique(label_map(session_with_classes, query, NUMBERS, (6, 8)))) == {0, 1}


def test_a_lower_threshold_never_shows_less(session_with_classes: Session, query: StudioQuery) -> None:
    shares = []
    for value in (0.98, 0.7, 0.5, 0.2, 0.02):
        session_with_classes.thresholds["red"] = value
        shares.append(float((label_map(session_with_classes, query, {"red": 1}, (6, 8)) == 1).mean()))
    assert shares == sorted(shares)
    assert shares[0] == 0 < shares[-1]


def test_what_the_user_painted_is_final_and_fits_any_size(session_with_classes: Session, query: StudioQuery) -> None:
    paint = np.zeros((6, 8), np.uint8)
    paint[:3] = 2
    session_with_classes.keep_paint(query.key, paint)
    query.corrected = ("blue",)
    labels = label_map(session_with_classes, query, NUMBERS, (60, 80))
    assert (labels[:30] == 2).all()
    assert (labels[30:] == 0).all()
    assert not is_present(session_with_classes, query, "red")


@given(st.floats(0, 1), st.floats(0.01, 0.99), st.floats(0, 1))
def test_presence_moves_with_the_slider_from_none_to_all(presence: float, mask: float, moved: float) -> None:
    usual = Thresholds(presence, mask)
    assert moved_thresholds(usual, mask).presence == pytest.approx(presence, abs=1e-4)
    assert moved_thresholds(usual, 0.0).presence == 0
    assert moved_thresholds(usual, 1.0).presence == 1
    assert moved_thresholds(usual, moved).mask == moved


def test_areas_and_counts_are_those_of_the_photo_itself(answered: Session) -> None:
    small, large = answered.queries.values()
    red, blue = results(answered, large, objects=True)
    assert large.photo.size == (300, 2400)
    assert large.photo.working[1] < 2400
    assert red.present
    assert red.area == pytest.approx(300 * 1200, rel=0.01)
    assert red.share == pytest.approx(0.5, abs=0.01)
    assert red.objects == pytest.approx((300 * 1200,), rel=0.01)
    assert not blue.present
    assert blue.objects == ()
    assert results(answered, small, objects=False)[0].objects is None


def test_two_objects_are_counted_apart(session_with_classes: Session) -> None:
    session = session_with_classes
    map_ = np.zeros((40, 60), np.float32)
    map_[5:15, 5:15] = map_[20:35, 30:50] = 0.9
    photo = np.zeros((40, 60, 3), np.uint8)
    query = StudioQuery(1, keep_photo(photo, "a.png", session.photo_file(1)), {"red": 0.9})
    session.maps.write(1, Prediction(photo, {"red": 0.9}, {"red": map_}))
    red, _ = results(session, query, objects=True)
    assert red.objects is not None
    assert sorted(red.objects) == [100, 300]
    labels = label_map(session, query, NUMBERS, (40, 60))
    assert object_image(session, query, labels, NUMBERS).max() == 2


def test_a_class_is_present_only_if_some_pixel_shows_it(session_with_classes: Session) -> None:
    session = session_with_classes
    maps = {"red": np.full((40, 60), 0.9, np.float32), "blue": np.full((40, 60), 0.8, np.float32)}
    both = Prediction(np.zeros((40, 60, 3), np.uint8), {"red": 0.9, "blue": 0.9}, maps)
    query = StudioQuery(1, keep_photo(both.photo, "a.png", session.photo_file(1)), both.scores)
    session.maps.write(1, both)
    note_drawn(session, query)
    assert is_present(session, query, "red")
    assert not is_present(session, query, "blue"), "its score is high, but red is likelier everywhere"
