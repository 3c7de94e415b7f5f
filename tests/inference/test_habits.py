"""What people who know scikit-learn and notebooks expect of a segmenter."""

import numpy as np
import pytest

import emat
from emat import Segmenter
from tests.inference.spots import spot_examples
from tests.raises import raises_code


@pytest.fixture(scope="module")
def fitted() -> Segmenter:
    return Segmenter.load("default", device="cpu", refine=None).fit(spot_examples(1, 2, 3))


def test_the_public_names_are_listed_before_they_are_loaded() -> None:
    assert {"Segmenter", "Example", "cross_validate"} <= set(dir(emat))
    assert all(hasattr(emat, name) for name in dir(emat))


def test_a_segmenter_says_what_it_knows(fitted: Segmenter) -> None:
    assert repr(fitted) == "Segmenter(emat-prior, learns from examples; spot (3 examples))"
    assert repr(fitted.copy(examples=False)) == "Segmenter(emat-prior, learns from examples; no classes yet)"
    shown = fitted._repr_html_()
    assert shown.count("<img") == 3
    assert "expected IoU" in shown


def test_a_look_at_a_segmenter_decides_nothing(fitted: Segmenter) -> None:
    added = fitted.copy().add(spot_examples(4)[0])
    assert "<td>4</td>" in added._repr_html_()
    assert added._fit is None


def test_the_forecast_is_a_table_and_says_what_is_missing(fitted: Segmenter) -> None:
    forecast = fitted.forecast_
    assert repr(forecast).startswith("spot: examples 3, expected IoU 0.")
    assert "<th>expected IoU</th>" in forecast._repr_html_()
    assert repr(forecast["spot"]).startswith("Forecast(examples 3, expected IoU 0.")
    with raises_code("unknown-class", "spot"):
        forecast["cat"]
    silent = Segmenter.load("default", device="cpu", refine=None, learn=False).fit(spot_examples(1))
    with raises_code("no-forecast"):
        silent.forecast_["spot"]


def test_parameters_make_an_equal_segmenter(fitted: Segmenter) -> None:
    parameters = fitted.get_params()
    assert {"method", "thresholds", "refine", "learner", "size"} <= set(parameters)
    assert Segmenter(**parameters).get_params() == parameters


def test_scikit_learn_clones_it_without_its_examples(fitted: Segmenter) -> None:
    sklearn = pytest.importorskip("sklearn.base", reason="cloning is scikit-learn's, which is not installed")
    clone = sklearn.clone(fitted)
    assert clone.classes_ == ()
    assert clone.method is fitted.method


def test_the_score_is_the_mean_iou_over_all_photos(fitted: Segmenter) -> None:
    new = spot_examples(7, 8)
    photos, masks = [each.photo for each in new], [each.masks for each in new]
    found = [fitted.predict(photo).mask("spot") for photo in photos]
    there = [np.asarray(mask["spot"]) for mask in masks]
    expected = np.sum(np.array(found) & there) / np.sum(np.array(found) | there)
    assert fitted.score(photos, masks) == pytest.approx(expected)
    assert fitted.score(photos, masks) > 0.6
    with raises_code("no-examples"):
        fitted.score([], [])
