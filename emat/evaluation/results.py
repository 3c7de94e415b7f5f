"""The results of an evaluation: scores of each fold and of their mean, with intervals, and the file that keeps them.

`summarise` makes scores and intervals of the counts of tasks. `results` is the content of a results file: one JSON file
with everything that is needed to read and to repeat the evaluation. In it, the key for configurations is "cells", and
"configuration" is the key for what folds share (`Conditions`). Both stay as they are, so that every version reads the
files of the others.
"""

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import numpy as np
import torch
from numpy.typing import NDArray

from emat import __version__
from emat.device import available_devices, main_memory
from emat.errors import EmatError
from emat.evaluation.metrics import ScoreCounts, Scores, TaskOutcome, compute, count_outcome, merge
from emat.evaluation.one_pass import TaskIndex, savings
from emat.evaluation.run import Outcomes, Run
from emat.files import write_text
from emat.tasks.task import Configuration

FORMAT = "emat evaluation 1"
OWN_THRESHOLDS = "own"  # written instead of numbers if every head was evaluated with the thresholds of its own file
OUTCOME_FIELDS = ("ways", "truth", "present", "intersections", "unions", "background", "foreground", "scores")
SCORES = ("accuracy", "miou", "foreground_background_iou", "false_mask_rate", "false_area")
INTERVAL_SEED, RESAMPLES, LEVEL = 0, 1000, 0.95
RESAMPLES_AT_ONCE = 250  # whose weights take 8 MB for 4000 tasks
DIGITS = 6


class Conditions(NamedTuple):
    """What must be equal for folds to be averaged: everything about a configuration except its fold."""

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
    return _intervals(_resampled_means(folds, resamples, seed), level)


def bootstrap_difference(
    folds: Sequence[Sequence[ScoreCounts]],
    others: Sequence[Sequence[ScoreCounts]],
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> ScoreIntervals:
    """Compute intervals of the scores' difference between two methods that answered the same tasks.

    Both are resampled with the same tasks, so what makes a task hard for both does not widen the interval.

    Args:
        folds: For each fold, the counts of each of its tasks.
        others: The same of the method whose scores are subtracted.
        resamples: How often to resample.
        level: The share of the resampled differences that an interval holds.
        seed: The same seed gives the same intervals.

    Raises:
        EmatError: If there is no fold, a fold without a task, or if the numbers of tasks differ.
    """
    if [len(tasks) for tasks in folds] != [len(tasks) for tasks in others]:
        raise EmatError("a difference needs the same tasks of both methods")
    return _intervals(_resampled_means(folds, resamples, seed) - _resampled_means(others, resamples, seed), level)


def _resampled_means(folds: Sequence[Sequence[ScoreCounts]], resamples: int, seed: int) -> NDArray[np.float64]:
    """The mean over folds of each score in each resample, (5, resamples); one seed draws the same tasks every time."""
    if not folds or not all(folds):
        raise EmatError("an interval needs at least one task in every fold")
    random = np.random.default_rng(seed)
    means: NDArray[np.float64] = np.mean([_resampled_scores(tasks, resamples, random) for tasks in folds], axis=0)
    return means


def _intervals(scores: NDArray[np.float64], level: float) -> ScoreIntervals:
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
    table = np.array([task.as_row() for task in tasks])  # (T, 6 + 2 C + 4)
    sums = np.concatenate(
        [
            _weights(len(tasks), min(RESAMPLES_AT_ONCE, resamples - start), random) @ table
            for start in range(0, resamples, RESAMPLES_AT_ONCE)
        ]
    )  # (resamples, 6 + 2 C + 4)
    _, judged, right, absent, false_masks, false_area = sums[:, :6].T
    classes = len(tasks[0].class_ids)
    intersections, unions, binary = np.split(sums[:, 6:], [classes, 2 * classes], axis=1)
    binary = binary.reshape(-1, 2, 2)
    with np.errstate(invalid="ignore"):  # NaN without predicted presence or absent ways, as in `compute`
        accuracy, false_mask_rate, mean_false_area = right / judged, false_masks / absent, false_area / absent
    miou = (intersections / np.maximum(unions, 1)).mean(1)
    both = (binary[..., 0] / np.maximum(binary[..., 1], 1)).mean(1)
    return np.stack([accuracy, miou, both, false_mask_rate, mean_false_area])


def _weights(tasks: int, resamples: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Return how often each task was drawn in each resample, (resamples, tasks)."""
    drawn = random.integers(tasks, size=(resamples, tasks)) + np.arange(resamples)[:, None] * tasks
    return np.bincount(drawn.ravel(), minlength=resamples * tasks).reshape(resamples, tasks).astype(np.float64)


def results(run: Run, outcomes: Outcomes, *, options: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return the content of a results file.

    Args:
        run: What was evaluated.
        outcomes: The outcome of every task.
        options: What the user asked for.
        seconds: How long it took.
    """
    rows = [
        [outcomes[TaskIndex(index, task)].row() for task in range(len(configuration.tasks))]
        for index, configuration in enumerate(run.configurations)
    ]
    configurations = [_described(each) for each in run.configurations]
    return {
        "format": FORMAT,
        "fingerprint": run.fingerprint,
        "emat": __version__,
        "methods": {
            str(fold): {**evaluated.description(), "thresholds": asdict(run.thresholds_of(evaluated))}
            for fold, evaluated in sorted(run.methods.items())
        },
        "options": dict(options),
        "thresholds": OWN_THRESHOLDS if run.thresholds is None else asdict(run.thresholds),
        "only_segment": run.only_segment,
        **({} if run.refine is None else {"refine": run.refine, "refiner": run.refiner}),
        "data_state": run.data_state,
        "seeds": {"task": "numpy.random.RandomState(task index)", "intervals": INTERVAL_SEED},
        "intervals": {"level": LEVEL, "resamples": RESAMPLES, "over": "tasks, within their fold"},
        "machine": machine(),
        "seconds": round(seconds, 2),
        "work": asdict(savings(run.configurations)),
        "cells": configurations,
        "summaries": [_plain(each) for each in summarise(fold_counts(configurations, rows))],
        "outcome_fields": OUTCOME_FIELDS,
        "outcomes": rows,
    }


def fold_counts(configurations: Sequence[Mapping[str, Any]], outcomes: Sequence[Sequence[Any]]) -> list[FoldCounts]:
    """Count the outcomes of each configuration of a results file (its "cells" and "outcomes")."""
    found = []
    for configuration, rows in zip(configurations, outcomes, strict=True):
        fields = {**configuration["protocol"], "dataset": configuration["dataset"], "split": configuration["split"]}
        conditions = Conditions(**{name: fields[name] for name in Conditions._fields})
        counts = [count_outcome(TaskOutcome.from_row(row), configuration["class_ids"]) for row in rows]
        found.append(FoldCounts(conditions, int(configuration["fold"]), counts))
    return found


def summaries_of(content: Mapping[str, Any]) -> list[Summary]:
    """Return the summaries in the content of a results file."""
    return [
        Summary(
            Conditions(**each["configuration"]),
            each["fold"],
            tuple(each["folds"]),
            each["tasks"],
            each["scores"],
            {name: None if both is None else (both[0], both[1]) for name, both in each["intervals"].items()},
        )
        for each in content["summaries"]
    ]


def write_results(path: Path, content: Mapping[str, Any]) -> None:
    """Write the content of a results file, completely or not at all; the outcome of every task is on its own line."""
    start = json.dumps({key: value for key, value in content.items() if key != "outcomes"}, indent=1)
    parts = [",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) for rows in content["outcomes"]]
    rows = "\n],\n[\n".join(parts)
    write_text(path, f'{start[:-2]},\n "outcomes": [[\n{rows}\n]]\n}}\n')


def read_results(path: Path) -> dict[str, Any]:
    """Read a results file.

    Raises:
        EmatError: If `path` is missing, damaged or something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EmatError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError:
        content = None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise EmatError(f"{path} is not a results file that emat {__version__} can read; emat eval writes one")
    try:
        for configuration, rows in zip(content["cells"], content["outcomes"], strict=True):
            if len(rows) != configuration["tasks"]:
                raise ValueError(f"{len(rows)} outcomes of {configuration['tasks']} tasks")
        fold_counts(content["cells"], content["outcomes"])
        summaries_of(content)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise EmatError(f"{path} is a damaged results file ({error!r}); run the evaluation again") from None
    return content


def machine() -> dict[str, Any]:
    """Describe this machine: what may explain times, and differences in the last digits of numbers."""
    return {
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": main_memory().total,
        "devices": [device.description for device in available_devices()],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def _described(configuration: Configuration) -> dict[str, Any]:
    return {
        **configuration.as_json(),
        "tasks": len(configuration.tasks),
        "augmented": sum(task.augmented for task in configuration.tasks),
    }


def _plain(summary: Summary) -> dict[str, Any]:
    fields = asdict(summary)
    del fields["conditions"]
    return {"configuration": summary.conditions._asdict(), **fields}
