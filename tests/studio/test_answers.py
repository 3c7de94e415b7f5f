"""Predictions read at thresholds of each class."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emat.inference.prediction import Prediction, Thresholds
from emat.studio.answers import is_present, label_map, moved_thresholds
from emat.studio.photos import studio_photo
from emat.studio.session import Question, Session

NUMBERS = {"red": 1, "blue": 2}


@pytest.fixture
def question() -> Question:
    photo = np.zeros((6, 8, 3), np.uint8)
    random = np.random.default_rng(0)
    maps = {name: random.random((6, 8), np.float32) for name in NUMBERS}
    return Question(0, studio_photo(photo, "a.png"), Prediction(photo, {"red": 0.8, "blue": 0.6}, maps))


def test_at_the_usual_thresholds_it_is_the_prediction(session_with_classes: Session, question: Question) -> None:
    assert question.prediction is not None
    labels = label_map(session_with_classes, question, NUMBERS, (6, 8))
    np.testing.assert_array_equal(labels, question.prediction.label_map)


def test_a_slider_moves_its_own_class_alone(session_with_classes: Session, question: Question) -> None:
    session_with_classes.thresholds["blue"] = 0.7
    assert is_present(session_with_classes, question, "red")
    assert not is_present(session_with_classes, question, "blue")
    assert set(np.unique(label_map(session_with_classes, question, NUMBERS, (6, 8)))) == {0, 1}


def test_a_lower_threshold_never_shows_less(session_with_classes: Session, question: Question) -> None:
    shares = []
    for value in (0.98, 0.7, 0.5, 0.2, 0.02):
        session_with_classes.thresholds["red"] = value
        shares.append(float((label_map(session_with_classes, question, {"red": 1}, (6, 8)) == 1).mean()))
    assert shares == sorted(shares)
    assert shares[0] == 0 < shares[-1]


def test_what_the_user_painted_is_final_and_fits_any_size(session_with_classes: Session, question: Question) -> None:
    mask = np.zeros((6, 8), bool)
    mask[:3] = True
    question.corrected = {"blue": mask}
    labels = label_map(session_with_classes, question, NUMBERS, (60, 80))
    assert (labels[:30] == 2).all()
    assert (labels[30:] == 0).all()
    assert not is_present(session_with_classes, question, "red")


@given(st.floats(0, 1), st.floats(0.01, 0.99), st.floats(0, 1))
def test_presence_moves_with_the_slider_from_none_to_all(presence: float, mask: float, moved: float) -> None:
    usual = Thresholds(presence, mask)
    assert moved_thresholds(usual, mask).presence == pytest.approx(presence, abs=1e-4)
    assert moved_thresholds(usual, 0.0).presence == 0
    assert moved_thresholds(usual, 1.0).presence == 1
    assert moved_thresholds(usual, moved).mask == moved
