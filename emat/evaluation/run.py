"""A run: cells answered by their contenders, journalled as it goes, so that nothing finished is done twice."""

import glob
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from emat import __version__
from emat.datasets.dataset import Dataset
from emat.errors import EmatError
from emat.evaluation.contender import Contender
from emat.evaluation.one_pass import Limits, OnePass, default_limits
from emat.evaluation.outcome import TaskOutcome
from emat.evaluation.plan import Place, QueryWork, plan
from emat.evaluation.processes import ALONE, Processes
from emat.evaluation.workers import all_cores
from emat.formats.journal import Journal
from emat.inference.feature_cache import FeatureCache
from emat.method import PAPER_THRESHOLDS, Thresholds
from emat.tasks.frozen import FrozenTasks
from emat.tasks.sampling import Protocol

Outcomes: TypeAlias = dict[Place, TaskOutcome]
Watch: TypeAlias = Callable[[Sequence[QueryWork]], Iterable[QueryWork]]  # may show progress while it gives the work


@dataclass(frozen=True)
class Run:
    """What is asked, and of whom: `contenders` has one for the fold of every cell.

    Without `thresholds` each contender answers with its own.
    """

    cells: tuple[FrozenTasks, ...]
    contenders: Mapping[int, Contender]
    thresholds: Thresholds | None = PAPER_THRESHOLDS
    only_segment: bool = False
    data_state: str = ""  # of the photos and masks

    def __post_init__(self) -> None:
        if not self.cells:
            raise EmatError("there is nothing to evaluate; ask for at least one fold, way, shot and setting")

    @property
    def fingerprint(self) -> str:
        """Hash of everything the outcomes depend on; the machine is no part of it."""
        state = {
            "emat": __version__,
            "cells": [
                [cell.dataset, cell.fold, cell.split, cell.list_sha256, plain_protocol(cell.protocol), cell.digest]
                for cell in self.cells
            ],
            "weights": {
                fold: [each.method.name, each.method.preparation.image_size, each.weights_sha256]
                for fold, each in self.contenders.items()
            },
            "thresholds": {fold: asdict(self.thresholds_of(each)) for fold, each in self.contenders.items()},
            "only_segment": self.only_segment,
            "data_state": self.data_state,
        }
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()

    def thresholds_of(self, contender: Contender) -> Thresholds:
        """What `contender` answers with."""
        return contender.thresholds if self.thresholds is None else self.thresholds


def evaluate(
    run: Run,
    dataset: Dataset,
    journal: Path,
    *,
    processes: Processes = ALONE,
    features: Path | None = None,
    limits: Limits | None = None,
    watch: Watch = iter,
) -> Outcomes | None:
    """All outcomes of `run`; only the first of several processes gets them.

    `journal` is the file that an interrupted run goes on from; every process has one, beside the others. `features` is
    a folder in which encoded photos are kept for other runs.
    """
    _check_names(run.cells, dataset)
    limits = limits or default_limits(processes.on_machine)
    header = _header(run)
    done = _read_journals(journal, header)
    mine = Journal(_journal_of(journal, processes.rank), header)
    before = time.monotonic()
    try:
        cache = None
        for contender, cells in _by_contender(run):
            work = _share(cells, done, processes)
            if work:
                if cache is None or not cache.serves(contender.method):  # heads on one backbone share its features
                    cache = FeatureCache(contender.method, memory_bytes=limits.features, folder=features)
                answering = _pass(run, contender, dataset, cache, limits)
                with all_cores(next(contender.method.parameters()).device) as workers:
                    for each, answers in zip(watch(work), workers.map(answering.answer, work), strict=True):
                        now = time.monotonic()
                        mine.add(_record(each.query, now - before, answers))
                        before = now
    finally:
        mine.leave()
    processes.wait()
    if processes.rank:
        return None
    outcomes = _read_journals(journal, header)
    asked = sum(len(cell.tasks) for cell in run.cells)
    if len(outcomes) != asked:
        raise EmatError(
            f"{asked - len(outcomes)} of {asked} tasks have no outcome; processes on several machines must share "
            f"the folder {journal.parent}"
        )
    return outcomes


def seconds_spent(run: Run, journal: Path) -> float:
    """How long `evaluate` took, in all the sessions that were needed: the slowest process counts."""
    records = [_records(path, _header(run)) for path in _journals(journal)]
    return max((sum(float(each.get("seconds", 0)) for each in some) for some in records), default=0.0)


def remove_journals(journal: Path) -> None:
    """What `evaluate` kept for a run to go on from; for when its results are written."""
    for path in _journals(journal):
        path.unlink(missing_ok=True)


def _share(cells: dict[int, FrozenTasks], done: Outcomes, processes: Processes) -> list[QueryWork]:
    """What is left of this process's queries. What others have done by now must not move a query to another process."""
    mine = {each.query for each in plan(cells)[processes.rank :: processes.count]}
    return [each for each in plan(cells, done) if each.query in mine]


def plain_protocol(protocol: Protocol) -> dict[str, Any]:
    """A protocol as JSON has it."""
    return {key: getattr(value, "value", value) for key, value in asdict(protocol).items()}


def _pass(run: Run, contender: Contender, dataset: Dataset, cache: FeatureCache, limits: Limits) -> OnePass:
    return OnePass(
        contender.method,
        dataset,
        cache,
        thresholds=run.thresholds_of(contender),
        only_segment=run.only_segment,
        support_bytes=limits.supports,
    )


def _by_contender(run: Run) -> list[tuple[Contender, dict[int, FrozenTasks]]]:
    """Contenders in the order of their first cell, each with its cells by number."""
    groups: dict[int, tuple[Contender, dict[int, FrozenTasks]]] = {}
    for number, cell in enumerate(run.cells):
        contender = run.contenders[cell.fold]
        groups.setdefault(id(contender), (contender, {}))[1][number] = cell
    return list(groups.values())


def _check_names(cells: Iterable[FrozenTasks], dataset: Dataset) -> None:
    known = set(dataset.names)
    for cell in cells:
        for task in cell.tasks:
            for name in task.images:
                if name not in known:
                    raise dataset.unknown(name)


def _header(run: Run) -> dict[str, Any]:
    return {"format": "emat evaluation journal 1", "run": run.fingerprint}


def _journal_of(journal: Path, rank: int) -> Path:
    return journal.with_name(f"{journal.name}.{rank}")


def _journals(journal: Path) -> list[Path]:
    found = journal.parent.glob(f"{glob.escape(journal.name)}.*")
    return sorted(path for path in found if path.suffix[1:].isdecimal())


def _read_journals(journal: Path, header: Mapping[str, Any]) -> Outcomes:
    outcomes: Outcomes = {}
    for path in _journals(journal):
        for record in _records(path, header):
            outcomes.update((Place(cell, task), TaskOutcome.from_row(row)) for cell, task, row in record["outcomes"])
    return outcomes


def _records(path: Path, header: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            try:
                record = json.loads(line) if line.endswith("\n") else None  # cut off: not written
            except ValueError:
                record = None
            if number == 0 and record != header:
                raise EmatError(
                    f"{path} was left by another run: other tasks, photos, masks, weights or options; delete it, "
                    "or write to another file by -o"
                )
            if number and isinstance(record, dict) and "outcomes" in record:
                yield record


def _record(query: str, seconds: float, answers: Iterable[tuple[Place, TaskOutcome]]) -> dict[str, Any]:
    outcomes = [[place.cell, place.task, outcome.row()] for place, outcome in answers]
    return {"query": query, "seconds": round(seconds, 3), "outcomes": outcomes}
