"""The results of an evaluation as one JSON file, with everything that is needed to read and to repeat it.

The file's key for configurations is "cells", and "configuration" is its key for what folds share (`Conditions`).
Both stay as they are, so that every version reads the files of the others.
"""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy
import torch

from emat import __version__
from emat.device import available_devices, main_memory
from emat.errors import EmatError
from emat.evaluation.metrics import TaskOutcome, count_outcome
from emat.evaluation.one_pass import TaskIndex, savings
from emat.evaluation.run import Outcomes, Run
from emat.evaluation.summary import INTERVAL_SEED, LEVEL, RESAMPLES, Conditions, FoldCounts, Summary, summarise
from emat.files import write_text
from emat.tasks.task import Configuration

FORMAT = "emat evaluation 1"
OWN_THRESHOLDS = "own"  # written instead of numbers if every head was evaluated with the thresholds of its own file
OUTCOME_FIELDS = ("ways", "truth", "present", "intersections", "unions", "background", "foreground", "scores")


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
    head = json.dumps({key: value for key, value in content.items() if key != "outcomes"}, indent=1)
    parts = [",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) for rows in content["outcomes"]]
    rows = "\n],\n[\n".join(parts)
    write_text(path, f'{head[:-2]},\n "outcomes": [[\n{rows}\n]]\n}}\n')


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
    """Describe this machine, as far as it explains times and the last digits of numbers."""
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
