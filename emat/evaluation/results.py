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
from typing import Any, NamedTuple, TypeAlias

import numpy
import numpy as np
import torch
from numpy.typing import NDArray

from emat import __version__
from emat.device import available_devices, main_memory
from emat.errors import EmatError
from emat.evaluation.evaluator import TaskIndex, savings
from emat.evaluation.metrics import ScoreCounts, Scores, TaskOutcome, compute, compute_rows, count_outcome
from emat.evaluation.run import Outcomes, Run
from emat.files import open_input
from emat.outputs import write_text

FORMAT = "emat evaluation 1"
OWN_THRESHOLDS = "own"  # written instead of numbers if every head was evaluated with the thresholds of its own file
OUTCOME_FIELDS = ("ways", "truth", "present", "intersections", "unions", "background", "foreground", "scores")
INTERVAL_SEED, RESAMPLES, LEVEL = 0, 1000, 0.95
RESAMPLES_AT_ONCE = 250  # whose weights take 8 MB for 4000 tasks


class Conditions(NamedTuple):
    """What must be equal for folds to be averaged: everything about a configuration except its fold."""

    dataset: str
    split: str
    way: int
    shot: int
    setting: str
    query_has_class: bool

    @classmethod
    def of(cls, configuration: Mapping[str, Any]) -> "Conditions":
        """Return the conditions of a configuration in a results file."""
        fields = {**configuration["protocol"], "dataset": configuration["dataset"], "split": configuration["split"]}
        return cls.checked({name: fields[name] for name in cls._fields})

    @classmethod
    def checked(cls, fields: Mapping[str, Any]) -> "Conditions":
        """Return the conditions with these fields; KeyError, TypeError or ValueError if one is of another kind."""
        for name, kind in cls.__annotations__.items():
            if not isinstance(fields[name], kind) or isinstance(fields[name], bool) != (kind is bool):
                raise ValueError(f"{name} {fields[name]!r}")
        return cls(**fields)


FoldCounts: TypeAlias = tuple[int, list[ScoreCounts]]  # a fold, and the counts of each of its tasks


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


def summarise(counts: Mapping[Conditions, Sequence[FoldCounts]]) -> list[Summary]:
    """Summarise every fold and, after the folds that share their conditions, the mean of several."""
    summaries = []
    for conditions, folds in counts.items():
        summaries += [_summary(conditions, [fold], fold[0]) for fold in folds]
        if len(folds) > 1:
            summaries.append(_summary(conditions, folds, None))
    return summaries


def bootstrap(
    folds: Sequence[Sequence[ScoreCounts]],
    others: Sequence[Sequence[ScoreCounts]] | None = None,
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = INTERVAL_SEED,
) -> tuple[Scores, Scores]:
    """Compute percentile intervals of the scores' mean over folds by resampling tasks.

    Tasks are drawn with replacement within their fold, so that each fold keeps its number of tasks.

    Args:
        folds: For each fold, the counts of each of its tasks.
        others: The same of another method that answered the same tasks. The intervals are then those of the difference.
            Both are resampled with the same tasks, so what makes a task hard for both does not widen the interval.
        resamples: How often to resample.
        level: The share of the resampled scores that an interval holds.
        seed: The same seed gives the same intervals.

    Returns:
        The lower and the upper ends of the intervals.

    Raises:
        EmatError: If there is no fold, a fold without a task, or if the numbers of tasks differ.
    """
    scores = _resampled_means(folds, resamples, seed)
    if others is not None:
        if [len(tasks) for tasks in folds] != [len(tasks) for tasks in others]:
            raise EmatError("tasks-differ", "a difference needs the same tasks of both methods")
        scores = scores - _resampled_means(others, resamples, seed)
    low, high = np.quantile(scores, [(1 - level) / 2, (1 + level) / 2], axis=1)
    return Scores(*low.tolist()), Scores(*high.tolist())


def _resampled_means(folds: Sequence[Sequence[ScoreCounts]], resamples: int, seed: int) -> NDArray[np.float64]:
    """The mean over folds of each score in each resample, (5, resamples); one seed draws the same tasks every time."""
    if not folds or not all(folds):
        raise EmatError("nothing-evaluated", "an interval needs at least one task in every fold")
    random = np.random.default_rng(seed)
    scores = []
    for tasks in folds:
        table = np.array([task.row for task in tasks])  # (T, 6 + 2 C + 4)
        parts = []
        for start in range(0, resamples, RESAMPLES_AT_ONCE):
            parts.append(_weights(len(tasks), min(RESAMPLES_AT_ONCE, resamples - start), random) @ table)
        scores.append(compute_rows(np.concatenate(parts)))
    means: NDArray[np.float64] = np.mean(scores, axis=0)
    return means


def _weights(tasks: int, resamples: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Return how often each task was drawn in each resample, (resamples, tasks)."""
    drawn = random.integers(tasks, size=(resamples, tasks)) + np.arange(resamples)[:, None] * tasks
    return np.bincount(drawn.ravel(), minlength=resamples * tasks).reshape(resamples, tasks).astype(np.float64)


def _summary(conditions: Conditions, folds: Sequence[FoldCounts], fold: int | None) -> Summary:
    counts = [tasks for _, tasks in folds]
    by_fold = [compute(sum(tasks, start=ScoreCounts.none(tasks[0].class_ids))) for tasks in counts]
    means = [_known(sum(values) / len(values)) for values in zip(*by_fold, strict=True)]
    ends = zip(*bootstrap(counts), strict=True)
    ranges = [None if math.isnan(low + high) else (float(low), float(high)) for low, high in ends]
    return Summary(
        conditions,
        fold,
        tuple(number for number, _ in folds),
        sum(map(len, counts)),
        dict(zip(Scores._fields, means, strict=True)),
        dict(zip(Scores._fields, ranges, strict=True)),
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


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
    configurations = [
        {**cell.as_json(), "tasks": len(cell.tasks), "augmented": sum(task.augmented for task in cell.tasks)}
        for cell in run.configurations
    ]
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
        **({} if run.as_fitted is None else {"as_fitted": run.as_fitted.description}),
        "data_state": run.data_state,
        "seeds": {"task": "numpy.random.RandomState(task index)", "intervals": INTERVAL_SEED},
        "intervals": {"level": LEVEL, "resamples": RESAMPLES, "over": "tasks, within their fold"},
        "machine": machine(),
        "seconds": round(seconds, 2),
        "work": asdict(savings(run.configurations)),
        "cells": configurations,
        "summaries": [_plain(summary) for summary in summarise(fold_counts(configurations, rows))],
        "outcome_fields": OUTCOME_FIELDS,
        "outcomes": rows,
    }


def fold_counts(
    configurations: Sequence[Mapping[str, Any]], outcomes: Sequence[Sequence[Any]]
) -> dict[Conditions, list[FoldCounts]]:
    """Count the outcomes of each configuration of a results file (its "cells" and "outcomes")."""
    counts: dict[Conditions, list[FoldCounts]] = {}
    for configuration, rows in zip(configurations, outcomes, strict=True):
        of_tasks = [count_outcome(TaskOutcome.from_row(row), configuration["class_ids"]) for row in rows]
        counts.setdefault(Conditions.of(configuration), []).append((int(configuration["fold"]), of_tasks))
    return counts


def summaries_of(content: Mapping[str, Any]) -> list[Summary]:
    """Return the summaries in the content of a results file."""
    return [
        Summary(
            Conditions.checked(summary["configuration"]),
            summary["fold"],
            tuple(summary["folds"]),
            summary["tasks"],
            summary["scores"],
            {name: None if both is None else (both[0], both[1]) for name, both in summary["intervals"].items()},
        )
        for summary in content["summaries"]
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
    with open_input(path) as file:
        written = file.read()
    try:
        content = json.loads(written)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise EmatError(
            "wrong-file-kind", f"{path} is not a results file that emat {__version__} can read; emat eval writes one"
        )
    try:
        for configuration, rows in zip(content["cells"], content["outcomes"], strict=True):
            if len(rows) != configuration["tasks"]:
                raise ValueError(f"{len(rows)} outcomes of {configuration['tasks']} tasks")
        fold_counts(content["cells"], content["outcomes"])
        summaries_of(content)
        _check_described(content)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        reason = " ".join(repr(error).split())[:120]
        raise EmatError(
            "damaged-file", f"{path} is a damaged results file ({reason}); run the evaluation again"
        ) from None
    return content


def _check_described(content: Mapping[str, Any]) -> None:
    """Check what a report says of the methods; ValueError, KeyError or TypeError if something else is there."""
    for method in content["methods"].values():
        named = all(isinstance(method[name], str) for name in ("name", "backbone"))
        if not named or type(method["image_size"]) is not int or type(method["trained_parameters"]) is not int:
            raise ValueError(f"the method {method}")
    if not isinstance(content.get("options", {}), dict):
        raise TypeError("the options")
    asked = content.get("thresholds")
    if asked is None:
        asked = {"presence": content["threshold"], "mask": content["threshold"]}
    if asked != OWN_THRESHOLDS and not all(0 <= asked[name] <= 1 for name in ("presence", "mask")):
        raise ValueError(f"the thresholds {asked}")


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


def _plain(summary: Summary) -> dict[str, Any]:
    fields = asdict(summary)
    del fields["conditions"]
    return {"configuration": summary.conditions._asdict(), **fields}
