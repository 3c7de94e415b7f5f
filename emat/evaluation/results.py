"""Results of a run as one JSON file: what was asked, of whom, on what, and what came of every task."""

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
from emat.evaluation.metrics import count_outcome
from emat.evaluation.outcome import TaskOutcome
from emat.evaluation.plan import Place, savings
from emat.evaluation.run import Outcomes, Run, plain_protocol
from emat.evaluation.summary import INTERVAL_SEED, LEVEL, RESAMPLES, Configuration, FoldCounts, Summary, summarise
from emat.formats.whole_files import write_text
from emat.tasks.frozen import FrozenTasks

FORMAT = "emat evaluation 1"
OWN_THRESHOLDS = "own"  # in place of numbers: each method had those of its head's file
OUTCOME_FIELDS = ("ways", "truth", "present", "intersections", "unions", "background", "foreground", "scores")


def results(run: Run, outcomes: Outcomes, *, options: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Everything needed to read a run, and to repeat it. `outcomes[i][t]` is of task t of `cells[i]`."""
    rows = [
        [outcomes[Place(number, position)].row() for position in range(len(cell.tasks))]
        for number, cell in enumerate(run.cells)
    ]
    cells = [_cell(cell) for cell in run.cells]
    return {
        "format": FORMAT,
        "fingerprint": run.fingerprint,
        "emat": __version__,
        "methods": {
            str(fold): {**contender.description(), "thresholds": asdict(run.thresholds_of(contender))}
            for fold, contender in sorted(run.contenders.items())
        },
        "options": dict(options),
        "thresholds": OWN_THRESHOLDS if run.thresholds is None else asdict(run.thresholds),
        "only_segment": run.only_segment,
        "data_state": run.data_state,
        "seeds": {"task": "numpy.random.RandomState(task index)", "intervals": INTERVAL_SEED},
        "intervals": {"level": LEVEL, "resamples": RESAMPLES, "over": "tasks, within their fold"},
        "machine": machine(),
        "seconds": round(seconds, 2),
        "work": asdict(savings(run.cells)),
        "cells": cells,
        "summaries": [_plain(each) for each in summarise(fold_counts(cells, rows))],
        "outcome_fields": OUTCOME_FIELDS,
        "outcomes": rows,
    }


def fold_counts(cells: Sequence[Mapping[str, Any]], outcomes: Sequence[Sequence[Any]]) -> list[FoldCounts]:
    """The cells of a results file with their tasks' outcomes, ready to be summarised."""
    found = []
    for cell, rows in zip(cells, outcomes, strict=True):
        protocol = cell["protocol"]
        asked = Configuration(
            cell["dataset"], cell["split"], *(protocol[key] for key in ("way", "shot", "setting", "query_has_class"))
        )
        counts = [count_outcome(TaskOutcome.from_row(row), cell["class_ids"]) for row in rows]
        found.append(FoldCounts(asked, int(cell["fold"]), counts))
    return found


def summaries_of(content: Mapping[str, Any]) -> list[Summary]:
    """The table of a results file."""
    return [
        Summary(
            Configuration(**each["configuration"]),
            each["fold"],
            tuple(each["folds"]),
            each["tasks"],
            each["scores"],
            {name: None if both is None else (both[0], both[1]) for name, both in each["intervals"].items()},
        )
        for each in content["summaries"]
    ]


def write_results(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` to `path`, whole or not at all: readable at its top, then a line for each task."""
    head = json.dumps({key: value for key, value in content.items() if key != "outcomes"}, indent=1)
    cells = [",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) for rows in content["outcomes"]]
    rows = "\n],\n[\n".join(cells)
    write_text(path, f'{head[:-2]},\n "outcomes": [[\n{rows}\n]]\n}}\n')


def read_results(path: Path) -> dict[str, Any]:
    """The results in `path`; EmatError if it is something else, or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EmatError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError:
        content = None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise EmatError(f"{path} is no file of results that emat {__version__} reads; emat eval -o writes one")
    try:
        for cell, rows in zip(content["cells"], content["outcomes"], strict=True):
            if len(rows) != cell["tasks"]:
                raise ValueError(f"{len(rows)} outcomes of {cell['tasks']} tasks")
        fold_counts(content["cells"], content["outcomes"])
        summaries_of(content)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise EmatError(f"{path} is a damaged file of results ({error!r}); evaluate again") from None
    return content


def machine() -> dict[str, Any]:
    """Where this runs, as far as it explains times and last digits."""
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


def _cell(cell: FrozenTasks) -> dict[str, Any]:
    return {
        "dataset": cell.dataset,
        "fold": cell.fold,
        "split": cell.split,
        "class_ids": cell.class_ids,
        "list_sha256": cell.list_sha256,
        "protocol": plain_protocol(cell.protocol),
        "tasks": len(cell.tasks),
        "augmented": sum(task.augmented for task in cell.tasks),
        "digest": cell.digest,
    }


def _plain(summary: Summary) -> dict[str, Any]:
    return {**asdict(summary), "configuration": summary.configuration._asdict()}
