"""How sure a score is: bootstrap intervals over tasks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.evaluation.metrics import Counts

CHUNK = 250  # resamples at once: 250 x 4000 tasks are 8 MB of weights


@dataclass(frozen=True)
class Interval:
    """The range that holds the stated share of the resampled scores."""

    low: float
    high: float


@dataclass(frozen=True)
class ScoreIntervals:
    """Intervals of the scores of the same names in `Scores`."""

    accuracy: Interval
    miou: Interval
    foreground_background_iou: Interval
    false_mask_rate: Interval
    false_area: Interval


def bootstrap(
    folds: Sequence[Sequence[Counts]], resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> ScoreIntervals:
    """Percentile intervals of the scores' mean over `folds`, each given by the outcomes of its tasks.

    Tasks are drawn with replacement within their fold, so the number of tasks per fold stays. One fold is a
    list of one. The same seed gives the same interval.
    """
    if not folds or not all(folds):
        raise EmatError("an interval needs at least one task in every fold")
    random = np.random.default_rng(seed)
    per_fold = [_resampled_scores(outcomes, resamples, random) for outcomes in folds]  # each (5, resamples)
    scores = np.mean(per_fold, axis=0)
    low, high = np.quantile(scores, [(1 - level) / 2, (1 + level) / 2], axis=1)
    return ScoreIntervals(*(Interval(float(a), float(b)) for a, b in zip(low, high, strict=True)))


def _resampled_scores(outcomes: Sequence[Counts], resamples: int, random: np.random.Generator) -> NDArray[np.float64]:
    table = np.array([_row(outcome) for outcome in outcomes], dtype=np.float64)  # (T, 5 + 4 + 2 C)
    sums = np.concatenate(
        [_weights(len(outcomes), min(CHUNK, resamples - start), random) @ table for start in range(0, resamples, CHUNK)]
    )  # (resamples, 5 + 4 + 2 C)
    right, judged, false_masks, false_area, absent = sums[:, :5].T
    binary = sums[:, 5:9].reshape(-1, 2, 2)
    intersections, unions = np.split(sums[:, 9:], 2, axis=1)
    with np.errstate(invalid="ignore"):  # no presence predicted, no way absent: NaN, as in `compute`
        accuracy, false_mask_rate, mean_false_area = right / judged, false_masks / absent, false_area / absent
    miou = (intersections / np.maximum(unions, 1)).mean(1)
    both = (binary[..., 0] / np.maximum(binary[..., 1], 1)).mean(1)
    return np.stack([accuracy, miou, both, false_mask_rate, mean_false_area])


def _row(outcome: Counts) -> NDArray[np.float64]:
    numbers = [outcome.right, outcome.judged, outcome.false_masks, outcome.false_area, outcome.absent]
    return np.concatenate([numbers, outcome.binary.ravel(), outcome.intersections, outcome.unions])


def _weights(tasks: int, resamples: int, random: np.random.Generator) -> NDArray[np.float64]:
    """How often each task was drawn in each resample: (resamples, tasks)."""
    drawn = random.integers(tasks, size=(resamples, tasks)) + np.arange(resamples)[:, None] * tasks
    return np.bincount(drawn.ravel(), minlength=resamples * tasks).reshape(resamples, tasks).astype(np.float64)
