"""Intervals contain the score, follow from their seed, and are narrower with more tasks."""

from typing import TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.evaluation.metrics import ScoreCounts, compute, merge
from emat.evaluation.summary import bootstrap

Pixels: TypeAlias = NDArray[np.int64]
CLASS_IDS = tuple(range(1, 21))


def outcome(right: bool, intersections: Pixels, unions: Pixels, judged: int = 1) -> ScoreCounts:
    binary = np.array([[500, 800], [intersections.sum(), unions.sum()]])
    return ScoreCounts(CLASS_IDS, 1, judged, int(right), intersections, unions, binary, 1, int(right), 0.25 * right)


def random_outcomes(tasks: int, seed: int = 0) -> list[ScoreCounts]:
    random = np.random.default_rng(seed)
    made = []
    for _ in range(tasks):
        unions = random.integers(0, 1000, len(CLASS_IDS)) * (random.random(len(CLASS_IDS)) < 0.1)
        made.append(outcome(random.random() < 0.8, (unions * random.random(len(CLASS_IDS))).astype(int), unions))
    return made


def test_the_interval_holds_the_score_and_is_narrow_for_many_tasks() -> None:
    outcomes = random_outcomes(1000)
    scores, intervals = compute(merge(outcomes, CLASS_IDS)), bootstrap([outcomes])
    assert intervals.accuracy.low < scores.accuracy < intervals.accuracy.high
    assert intervals.miou.low < scores.miou < intervals.miou.high
    # Accuracy is a proportion, whose standard error is known.
    error = np.sqrt(scores.accuracy * (1 - scores.accuracy) / 1000)
    assert intervals.accuracy.low == pytest.approx(scores.accuracy - 1.96 * error, abs=0.2 * error)
    assert intervals.accuracy.high == pytest.approx(scores.accuracy + 1.96 * error, abs=0.2 * error)


def test_the_same_seed_gives_the_same_interval() -> None:
    outcomes = random_outcomes(50)
    assert bootstrap([outcomes], seed=1) == bootstrap([outcomes], seed=1) != bootstrap([outcomes], seed=2)


def test_equal_tasks_give_an_interval_of_zero_width() -> None:
    one = outcome(True, np.full(20, 3), np.full(20, 4))
    intervals = bootstrap([[one] * 30])
    assert (intervals.miou.low, intervals.miou.high) == (0.75, 0.75)
    assert (intervals.accuracy.low, intervals.accuracy.high) == (1, 1)


def test_folds_are_averaged_after_resampling_each() -> None:
    right = outcome(True, np.full(20, 1), np.full(20, 2))
    wrong = outcome(False, np.full(20, 0), np.full(20, 2))
    intervals = bootstrap([[right] * 10, [wrong] * 30])
    assert (intervals.accuracy.low, intervals.accuracy.high) == (0.5, 0.5)
    assert (intervals.miou.low, intervals.miou.high) == (0.25, 0.25)


def test_false_masks_have_intervals_if_a_way_was_absent() -> None:
    intervals = bootstrap([[outcome(True, np.full(20, 1), np.full(20, 2))] * 5])
    assert (intervals.false_mask_rate.low, intervals.false_area.high) == (1, 0.25)
    never = ScoreCounts(CLASS_IDS, 1, 1, 1, np.full(20, 1), np.full(20, 2), np.ones((2, 2), np.int64))
    assert np.isnan(bootstrap([[never] * 5]).false_mask_rate.low)


def test_without_presence_the_accuracy_has_no_interval() -> None:
    one = outcome(False, np.full(20, 1), np.full(20, 2), judged=0)
    intervals = bootstrap([[one] * 5])
    assert np.isnan(intervals.accuracy.low)
    assert intervals.miou.low == 0.5


def test_a_wider_level_gives_a_wider_interval() -> None:
    outcomes = random_outcomes(100)
    narrow, wide = bootstrap([outcomes], level=0.5).miou, bootstrap([outcomes], level=0.99).miou
    assert wide.low < narrow.low < narrow.high < wide.high


@pytest.mark.parametrize("folds", [[], [[]]])
def test_no_task_is_an_error(folds: list[list[ScoreCounts]]) -> None:
    with pytest.raises(EmatError, match="at least one task in every fold"):
        bootstrap(folds)
