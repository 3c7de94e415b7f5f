"""When the class is not there: the same supports, asked about photos that do not show their class.

Every task, 1-way with a query that shows the class, gets further queries without it, one for each level that the data
set has photos of, from easy to hard:

    no class         the photo shows no class at all
    another scene    it shows none of the classes that the supports show
    same scene       it shows a class that the supports show beside their own
    similar class    it shows a class of the same kind, such as another animal (for the classes of PASCAL VOC)

A level is a configuration of its own, so absent queries are answered, resumed and stored as all others are. `absence`
reads from the outcomes how well presence is told: the area under the ROC curve, the share of absent queries that are
given a mask, and how far scores are probabilities. The share is that of the answers as they are, and that at the
threshold at which `HIT_RATE` of the present queries are found.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emat.datasets.dataset import ClassAreas
from emat.errors import EmatError
from emat.evaluation.metrics import TaskOutcome
from emat.evaluation.results import LEVEL, RESAMPLES
from emat.tasks.task import Configuration, Setting, Task

ABSENT = "absent: "  # begins the split of configurations whose queries lack the class
LEVELS = ("no class", "another scene", "same scene", "similar class")
HIT_RATE = 0.9
BINS = 10  # of the calibration curve
# The groups of the VOC challenge; the class `person` is one of its own.
GROUPS = (
    frozenset({"bird", "cat", "cow", "dog", "horse", "sheep"}),
    frozenset({"aeroplane", "bicycle", "boat", "bus", "car", "motorbike", "train"}),
    frozenset({"bottle", "chair", "diningtable", "pottedplant", "sofa", "tvmonitor"}),
)


@dataclass(frozen=True)
class AbsenceScores:
    """How one level of absent queries is told from the present ones; shares are between 0 and 1, with intervals."""

    level: str
    queries: int
    auroc: float
    auroc_interval: tuple[float, float]
    false_masks: float  # share of the absent queries that are given a pixel
    false_masks_interval: tuple[float, float]
    false_masks_at_hits: float | None  # at the score that finds HIT_RATE of the present queries; None: none does


@dataclass(frozen=True)
class CalibrationBin:
    """Queries whose scores are alike. Present and absent queries count as if there were as many of both."""

    score: float  # their mean
    present: float  # the share of them that show the class
    weight: float  # the share of all queries that they are


@dataclass(frozen=True)
class Absence:
    """What an evaluation with absent queries shows."""

    hit_rate: float  # share of the present queries that are found, with a mask that meets the class
    levels: tuple[AbsenceScores, ...]
    calibration: tuple[CalibrationBin, ...]
    calibration_error: float  # mean distance between a bin's score and its share of present queries

    def as_json(self) -> dict[str, Any]:
        """Return everything as values that JSON can hold."""
        return asdict(self)


def absent_configurations(
    configuration: Configuration, names: Sequence[str], areas: ClassAreas, classes: Sequence[str]
) -> list[Configuration]:
    """Draw queries without the class for the tasks of a configuration, one configuration for each level.

    A task whose level has no photo is left out of that level; a level without tasks is left out.

    Args:
        configuration: 1-way tasks whose queries show the class.
        names: The photos that may become queries.
        areas: Which classes are in each photo.
        classes: The names of the classes, the first of class 1.

    Raises:
        EmatError: If the tasks have several ways or queries that may lack the class, or there is no photo for any.
    """
    protocol = configuration.protocol
    if protocol.way != 1 or protocol.setting is not Setting.ORIGINAL or not protocol.query_has_class:
        raise EmatError(
            "conflicting-options", "queries without the class are drawn for 1-way tasks; leave --way and --setting out"
        )
    # At every level of difficulty, each task gets a query that lacks the class; the index of the task is the seed.
    shown = {name: frozenset(areas[name]) for name in names}
    tasks: dict[str, list[Task]] = {level: [] for level in LEVELS}
    for task in configuration.tasks:
        by_level = _candidates(task, shown, areas, classes)
        random = np.random.RandomState(task.index)
        for level, candidates in by_level.items():
            if candidates:
                query = candidates[random.randint(len(candidates))]
                tasks[level].append(replace(task, query=query))
    # One configuration for each level.
    configurations = [
        replace(
            configuration,
            split=f"{ABSENT}{level}",
            protocol=replace(protocol, tasks=len(drawn), query_has_class=False),
            tasks=tuple(drawn),
        )
        for level, drawn in tasks.items()
        if drawn
    ]
    if not configurations:
        raise EmatError(
            "too-few-photos", "every photo shows the class that is asked for; absence needs photos without it"
        )
    return configurations


def _candidates(
    task: Task, shown: Mapping[str, frozenset[int]], areas: ClassAreas, classes: Sequence[str]
) -> dict[str, list[str]]:
    """The photos of each level for one task. A photo that fits several levels belongs to the hardest."""
    (way,) = task.ways
    beside = frozenset().union(*(frozenset(areas[name]) for name in task.shots[0])) - {way}
    group = next((group for group in GROUPS if classes[way - 1] in group), frozenset())
    similar = {number for number, name in enumerate(classes, start=1) if name in group}
    by_level: dict[str, list[str]] = {level: [] for level in LEVELS}
    for name, ids in shown.items():
        if way in ids or name in task.photos:
            continue
        fits = (True, bool(ids), bool(ids & beside), bool(ids & similar))
        hardest = max(number for number, fit in enumerate(fits) if fit)
        by_level[LEVELS[hardest]].append(name)
    return by_level


def is_absent(cell: Mapping[str, Any]) -> bool:
    """Whether a configuration of a results file has queries without the class."""
    return str(cell["split"]).startswith(ABSENT)


def absence(cells: Sequence[Mapping[str, Any]], outcomes: Sequence[Sequence[Any]]) -> Absence:
    """Score presence from the configurations and outcomes of a results file ("cells" and "outcomes").

    Folds are taken together: a score means the same in all of them.
    """
    present: list[TaskOutcome] = []
    absent: dict[str, list[TaskOutcome]] = {}
    for cell, rows in zip(cells, outcomes, strict=True):
        level = str(cell["split"]).removeprefix(ABSENT)
        (absent.setdefault(level, []) if is_absent(cell) else present).extend(map(TaskOutcome.from_row, rows))
    there = np.array([_score(outcome) for outcome in present])
    overlaps = np.array([outcome.intersections[0] > 0 for outcome in present])
    threshold = threshold_at(there[overlaps], len(there))
    levels = []
    for level in sorted(absent, key=LEVELS.index):
        scores = np.array([_score(outcome) for outcome in absent[level]])
        given = np.array([outcome.unions[0] > 0 for outcome in absent[level]])
        area, area_interval = _with_interval(there, scores)
        share, share_interval = _share(given)
        at_hits = None if threshold is None else float((given & (scores >= threshold)).mean())
        levels.append(AbsenceScores(level, len(scores), area, area_interval, share, share_interval, at_hits))
    all_absent = np.concatenate([[_score(outcome) for outcome in some] for some in absent.values()])
    bins = calibration(there, all_absent)
    error = sum(one.weight * abs(one.score - one.present) for one in bins)
    return Absence(float(overlaps.mean()), tuple(levels), bins, error)


def _score(outcome: TaskOutcome) -> float:
    """The score of the way; a method that only segments says that a class is there by giving it a pixel."""
    if outcome.scores is not None:
        return outcome.scores[0]
    drawn = outcome.unions[0] > 0 if not outcome.truth[0] else outcome.intersections[0] > 0
    return float(drawn)


def area_under_curve(present: NDArray[np.float64], absent: NDArray[np.float64]) -> float:
    """Return how often a present query scores above an absent one, a draw counting half.

    >>> area_under_curve(np.array([0.9, 0.4]), np.array([0.4, 0.1]))
    0.875
    """
    ordered = np.sort(absent)
    below, not_above = (np.searchsorted(ordered, present, side=side) for side in ("left", "right"))
    return float((below + not_above).mean() / (2 * len(ordered)))


def threshold_at(scores: NDArray[np.float64], present: int) -> float | None:
    """Return the highest score at which HIT_RATE of the present queries are found; None if fewer are found at all.

    Args:
        scores: The scores of the present queries whose masks meet the class.
        present: The number of all present queries.

    >>> threshold_at(np.arange(1.0, 10.0), present=10), threshold_at(np.ones(8), present=10)
    (1.0, None)
    """
    needed = math.ceil(HIT_RATE * present)
    return None if len(scores) < needed else float(np.sort(scores)[-needed])


def calibration(present: NDArray[np.float64], absent: NDArray[np.float64]) -> tuple[CalibrationBin, ...]:
    """Return the calibration curve of scores between 0 and 1; bins without a query are left out."""
    scores = np.concatenate([present, absent])
    truth = np.arange(len(scores)) < len(present)
    weights = np.where(truth, 0.5 / len(present), 0.5 / len(absent))
    numbers = np.minimum((scores * BINS).astype(int), BINS - 1)
    bins = []
    for number in np.unique(numbers):
        inside = numbers == number
        weight = float(weights[inside].sum())
        score, share = (float((weights * values)[inside].sum() / weight) for values in (scores, truth))
        bins.append(CalibrationBin(score, share, weight))
    return tuple(bins)


def _with_interval(present: NDArray[np.float64], absent: NDArray[np.float64]) -> tuple[float, tuple[float, float]]:
    random = np.random.default_rng(0)
    areas = [
        area_under_curve(random.choice(present, len(present)), random.choice(absent, len(absent)))
        for _ in range(RESAMPLES)
    ]
    return area_under_curve(present, absent), _ends(areas)


def _share(flags: NDArray[np.bool_]) -> tuple[float, tuple[float, float]]:
    draws = np.random.default_rng(0).binomial(len(flags), flags.mean(), RESAMPLES) / len(flags)
    return float(flags.mean()), _ends(draws)


def _ends(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
