"""The scores of each fold and of their mean, with intervals that say how certain they are."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.evaluation.metrics import ScoreCounts, Scores, compute, merge

SCORES = ("accuracy", "miou", "foreground_background_iou", "false_mask_rate", "false_area")
INTERVAL_SEED, RESAMPLES, LEVEL = 0, 1000, 0.95
RESAMPLES_AT_ONCE = 250  # for 4000 tasks their weights take 8 MB
DIGITS = 6


class Conditions(NamedTuple):
    """What the folds share whose scores are averaged: everything about a configuration except its fold."""

    dataset: str
    split: str
    way: int
    shot: int
    setting: str
    query_has_class: bool


@dataclass(frozen=True)
class FoldCounts:
    """The counts of every task of one configuration."""

    conditions: Conditions
    fold: int
    tasks: Sequence[ScoreCounts]


@dataclass(frozen=True)
class Summary:
    """The scores, between 0 and 1, of one fold, or their mean over `folds` if `fold` is None.

    A score is None if there was nothing to judge.
    """

    conditions: Conditions
    fold: int | None
    folds: tuple[int, ...]
    tasks: int
    scores: Mapping[str, float | None]
    intervals: Mapping[str, tuple[float, float] | None]


def summarise(counts: Sequence[FoldCounts]) -> list[Summary]:
    """Summarise every fold and, after the folds that share their conditions, the mean of several."""
    groups: dict[Conditions, list[FoldCounts]] = {}
    for fold in counts:
        groups.setdefault(fold.conditions, []).append(fold)
    found = []
    for conditions, folds in groups.items():
        found += [_summary(conditions, [fold], fold.fold) for fold in folds]
        if len(folds) > 1:
            found.append(_summary(conditions, folds, None))
    return found


@dataclass(frozen=True)
class Interval:
    """The range in which the stated share of the resampled scores lies."""

    low: float
    high: float


@dataclass(frozen=True)
class ScoreIntervals:
    """An interval for each score of the same name in `Scores`."""

    accuracy: Interval
    miou: Interval
    foreground_background_iou: Interval
    false_mask_rate: Interval
    false_area: Interval


def bootstrap(
    folds: Sequence[Sequence[ScoreCounts]], resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> ScoreIntervals:
    """Compute percentile intervals of the scores' mean over folds by resampling tasks.

    Tasks are drawn with replacement within their fold, so that each fold keeps its number of tasks.

    Args:
        folds: For each fold, the counts of each of its tasks.
        resamples: How often to resample.
        level: The share of the resampled scores that an interval holds.
        seed: The same seed gives the same intervals.

    Raises:
        EmatError: If there is no fold, or a fold without a task.
    """
    if not folds or not all(folds):
        raise EmatError("an interval needs at least one task in every fold")
    random = np.random.default_rng(seed)
    per_fold = [_resampled_scores(tasks, resamples, random) for tasks in folds]  # each (5, resamples)
    scores = np.mean(per_fold, axis=0)
    low, high = np.quantile(scores, [(1 - level) / 2, (1 + level) / 2], axis=1)
    return ScoreIntervals(*(Interval(float(a), float(b)) for a, b in zip(low, high, strict=True)))


def _summary(conditions: Conditions, folds: Sequence[FoldCounts], fold: int | None) -> Summary:
    tasks = [each.tasks for each in folds]
    scores = [compute(merge(counts, counts[0].class_ids)) for counts in tasks]
    intervals = asdict(bootstrap(tasks, RESAMPLES, LEVEL, INTERVAL_SEED))
    return Summary(
        conditions,
        fold,
        tuple(each.fold for each in folds),
        sum(map(len, tasks)),
        {name: _known(_mean(scores, name)) for name in SCORES},
        {name: _range(intervals[name]) for name in SCORES},
    )


def _mean(scores: Sequence[Scores], name: str) -> float:
    return sum(getattr(each, name) for each in scores) / len(scores)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else round(value, DIGITS)


def _range(interval: Mapping[str, float]) -> tuple[float, float] | None:
    low, high = _known(interval["low"]), _known(interval["high"])
    return None if low is None or high is None else (low, high)


def _resampled_scores(tasks: Sequence[ScoreCounts], resamples: int, random: np.random.Generator) -> NDArray[np.float64]:
    table = np.array([_row(task) for task in tasks], dtype=np.float64)  # (T, 5 + 4 + 2 C)
    sums = np.concatenate(
        [
            _weights(len(tasks), min(RESAMPLES_AT_ONCE, resamples - start), random) @ table
            for start in range(0, resamples, RESAMPLES_AT_ONCE)
        ]
    )  # (resamples, 5 + 4 + 2 C)
    right, judged, false_masks, false_area, absent = sums[:, :5].T
    binary = sums[:, 5:9].reshape(-1, 2, 2)
    intersections, unions = np.split(sums[:, 9:], 2, axis=1)
    with np.errstate(invalid="ignore"):  # NaN without predicted presence or absent ways, as in `compute`
        accuracy, false_mask_rate, mean_false_area = right / judged, false_masks / absent, false_area / absent
    miou = (intersections / np.maximum(unions, 1)).mean(1)
    both = (binary[..., 0] / np.maximum(binary[..., 1], 1)).mean(1)
    return np.stack([accuracy, miou, both, false_mask_rate, mean_false_area])


def _row(task: ScoreCounts) -> NDArray[np.float64]:
    numbers = [task.right, task.judged, task.false_masks, task.false_area, task.absent]
    return np.concatenate([numbers, task.binary.ravel(), task.intersections, task.unions])


def _weights(tasks: int, resamples: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Return how often each task was drawn in each resample, (resamples, tasks)."""
    drawn = random.integers(tasks, size=(resamples, tasks)) + np.arange(resamples)[:, None] * tasks
    return np.bincount(drawn.ravel(), minlength=resamples * tasks).reshape(resamples, tasks).astype(np.float64)
