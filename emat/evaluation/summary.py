"""What a table shows: the scores of each fold and of their mean, with intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from emat.evaluation.intervals import bootstrap
from emat.evaluation.metrics import Counts, Scores, compute, merge

SCORES = ("accuracy", "miou", "foreground_background_iou", "false_mask_rate", "false_area")
INTERVAL_SEED, RESAMPLES, LEVEL = 0, 1000, 0.95
DIGITS = 6


class Configuration(NamedTuple):
    """What folds have in common that are averaged."""

    dataset: str
    split: str
    way: int
    shot: int
    setting: str
    query_has_class: bool


@dataclass(frozen=True)
class FoldCounts:
    """The outcomes of one fold's tasks."""

    configuration: Configuration
    fold: int
    outcomes: Sequence[Counts]


@dataclass(frozen=True)
class Summary:
    """The scores, between 0 and 1, of one fold or, where `fold` is None, the mean over `folds` of them.

    A score is None where there was nothing to judge.
    """

    configuration: Configuration
    fold: int | None
    folds: tuple[int, ...]
    tasks: int
    scores: Mapping[str, float | None]
    intervals: Mapping[str, tuple[float, float] | None]


def summarise(cells: Sequence[FoldCounts]) -> list[Summary]:
    """Each fold of every configuration and, where there are several, their mean after them."""
    groups: dict[Configuration, list[FoldCounts]] = {}
    for cell in cells:
        groups.setdefault(cell.configuration, []).append(cell)
    found = []
    for configuration, folds in groups.items():
        found += [_summary(configuration, [fold], fold.fold) for fold in folds]
        if len(folds) > 1:
            found.append(_summary(configuration, folds, None))
    return found


def _summary(configuration: Configuration, folds: Sequence[FoldCounts], fold: int | None) -> Summary:
    outcomes = [each.outcomes for each in folds]
    scores = [compute(merge(counts, counts[0].class_ids)) for counts in outcomes]
    intervals = asdict(bootstrap(outcomes, RESAMPLES, LEVEL, INTERVAL_SEED))
    return Summary(
        configuration,
        fold,
        tuple(each.fold for each in folds),
        sum(map(len, outcomes)),
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
