"""An evaluation: methods answer the tasks of all configurations, and a journal is kept so that it can be resumed.

`EvaluatedMethod` is a method with its weights, described so that others find the same weights again. `Run` says what is
evaluated, and `evaluate` does it.
"""

import glob
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from emat.backbone import Backbone
from emat.datasets.dataset import Dataset
from emat.device import all_cores, autocast
from emat.distributed import ALONE, Processes
from emat.errors import EmatError
from emat.evaluation.evaluator import (
    AsFitted,
    Evaluator,
    FittedOptions,
    Limits,
    QueryWork,
    TaskIndex,
    default_limits,
    last_uses,
    plan,
)
from emat.evaluation.metrics import TaskOutcome
from emat.features import FeatureCache
from emat.files import file_sha256
from emat.journal import Journal, read_journal
from emat.methods.base import PAPER_THRESHOLDS, Method, Thresholds
from emat.methods.registry import find_method, training_free_methods
from emat.methods.trained_head import TrainedHead, find_head, is_training_free, load_head
from emat.tasks.task import Configuration
from emat.tensor_files import digest

Outcomes: TypeAlias = dict[TaskIndex, TaskOutcome]
Watch: TypeAlias = Callable[[Sequence[QueryWork]], Iterable[QueryWork]]  # passes the work on, and may show progress

# The version since which answers are the same as now: results of later versions belong to the same evaluation.
ANSWERS_SINCE = "0.1.0"


@dataclass(frozen=True)
class EvaluatedMethod:
    """A method with its weights, and a description by which others can find the same weights."""

    method: Method
    backbone: str
    head: Path | None  # None if the method is used without training
    head_sha256: str | None  # of the file
    weights_sha256: str  # of all tensors, whatever file they came from
    trained_parameters: int
    thresholds: Thresholds = PAPER_THRESHOLDS  # those of the head file

    def description(self) -> dict[str, Any]:
        """Return what a results file says about the method."""
        return {
            "name": self.method.name,
            "backbone": self.backbone,
            "image_size": self.method.preparation.image_size,
            "trained_parameters": self.trained_parameters,
            "head": None if self.head is None else str(self.head),
            "head_sha256": self.head_sha256,
            "weights_sha256": self.weights_sha256,
            "precision": precision_name(self.method),
        }


def load_evaluated(
    model: str | Path | None = None,
    method: str | None = None,
    *,
    backbone: str | None = None,
    image_size: int | None = None,
    device: str | torch.device | None = None,
    precision: torch.dtype = torch.float32,
    beside: EvaluatedMethod | None = None,
) -> EvaluatedMethod:
    """Load a head, or a method that needs no training, for an evaluation.

    Args:
        model: A head's file or name; None for the method `method` without training.
        method: The method's name. With `model` it is needed only if the head's file does not say it.
        backbone: By default what the head's file says, or the method's own.
        image_size: Side of the square that photos are resized to; by default what the head's file says.
        device: "cpu", "cuda", "mps" or "auto".
        precision: In which photos are encoded: float32, bfloat16 or float16.
        beside: A method that is already loaded. Its frozen backbone is shared if the head needs the same one.

    Raises:
        EmatError: If neither is given, the method must be trained first, the head cannot be loaded, or the device does
            not support the precision.
    """
    named = _training_free(method) if model is None else model
    head = load_head(named, backbone, method)
    sized = head if image_size is None else replace(head, image_size=image_size)
    built = sized.build(device, None if beside is None else _frozen_backbone(beside, head))
    autocast(next(built.parameters()).device, precision)  # raises if the device does not support it
    built.precision = precision
    path = None if is_training_free(named) else find_head(named)
    return EvaluatedMethod(
        method=built,
        backbone=head.backbone,
        head=path,
        head_sha256=None if path is None else file_sha256(path),
        weights_sha256=digest(built.state_dict()),
        trained_parameters=sum(value.numel() for value in built.trained_weights().values()) if path else 0,
        thresholds=head.thresholds,
    )


def precision_name(method: Method) -> str:
    """Return the precision in which a method encodes photos, such as "float32"."""
    return str(method.precision).removeprefix("torch.")


def load_folds(
    heads: Mapping[int, str | None],
    method: str | None = None,
    *,
    backbone: str | None = None,
    image_size: int | None = None,
    device: str | torch.device | None = None,
    precision: torch.dtype = torch.float32,
) -> dict[int, EvaluatedMethod]:
    """Load the head of each fold, given by fold; folds with the same head share it. See `load_evaluated`."""
    built: dict[str | None, EvaluatedMethod] = {}
    for head in dict.fromkeys(heads.values()):
        beside = next(iter(built.values()), None)
        built[head] = load_evaluated(
            head, method, backbone=backbone, image_size=image_size, device=device, precision=precision, beside=beside
        )
    return {fold: built[head] for fold, head in heads.items()}


def _frozen_backbone(other: EvaluatedMethod, head: TrainedHead) -> Backbone | None:
    """Return the backbone of `other` if `head` needs the same one and it was not trained."""
    method = other.method
    backbone = getattr(method, "backbone", None)
    alike = (method.name, other.backbone) == (head.method, head.backbone) and not method.recipe.trains_backbone
    return backbone if alike and isinstance(backbone, Backbone) else None


def _training_free(method: str | None) -> str:
    if method is None:
        free = " or ".join(training_free_methods())
        raise EmatError(
            "missing-option", f"say what to evaluate: give a head's file or name with --model, or --method {free}"
        )
    if find_method(method).needs_training:
        raise EmatError(
            "not-trained", f"{method} must be trained before it can be evaluated; give its head with --model"
        )
    return method


@dataclass(frozen=True)
class Run:
    """What is evaluated: the tasks of some configurations, and the method that answers each fold.

    `methods` has one for the fold of every configuration. If `thresholds` is None, each uses the thresholds of its own
    file.
    """

    configurations: tuple[Configuration, ...]
    methods: Mapping[int, EvaluatedMethod]
    thresholds: Thresholds | None = PAPER_THRESHOLDS
    only_segment: bool = False
    data_state: str = ""  # changes when the files of photos or masks change
    as_fitted: FittedOptions | None = None  # None: by the published protocol

    def __post_init__(self) -> None:
        if not self.configurations:
            raise EmatError(
                "nothing-evaluated", "there is nothing to evaluate; ask for at least one fold, way, shot and setting"
            )

    @property
    def fingerprint(self) -> str:
        """The hash of everything that the outcomes depend on, except the machine."""
        state = {
            "emat": ANSWERS_SINCE,
            "cells": [
                [cell.dataset, cell.fold, cell.split, cell.list_sha256, cell.protocol.as_json(), cell.digest]
                for cell in self.configurations
            ],
            "weights": {
                fold: [evaluated.method.name, evaluated.method.preparation.image_size, evaluated.weights_sha256]
                for fold, evaluated in self.methods.items()
            },
            "thresholds": {fold: asdict(self.thresholds_of(evaluated)) for fold, evaluated in self.methods.items()},
            "only_segment": self.only_segment,
            "data_state": self.data_state,
        }
        versions = {fold: evaluated.method.decision_version for fold, evaluated in self.methods.items()}
        if any(versions.values()):
            state["rules"] = {fold: version for fold, version in versions.items() if version}
        precisions = {fold: precision_name(evaluated.method) for fold, evaluated in self.methods.items()}
        if set(precisions.values()) != {"float32"}:
            state["precision"] = precisions
        if self.as_fitted is not None:
            state["as_fitted"] = self.as_fitted.description
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()

    def thresholds_of(self, evaluated: EvaluatedMethod) -> Thresholds:
        """Return the thresholds that `evaluated` is evaluated with."""
        return evaluated.thresholds if self.thresholds is None else self.thresholds


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
    """Answer all tasks of `run`.

    Args:
        run: What is evaluated.
        dataset: The data set of the photos and masks.
        journal: The path of the journal, from which a stopped evaluation is resumed. Every process appends its rank
            to the name and writes a file of its own.
        processes: Which of how many processes this one is.
        features: A folder that keeps the features of photos for other runs.
        limits: How much memory to use for features and support encodings.
        watch: Is given the work of this process, and may show progress.

    Returns:
        The outcome of every task in the first process, and None in the others.

    Raises:
        EmatError: If the data set lacks a photo, or the journal belongs to another run.
    """
    # Read what earlier runs have done.
    _check_names(run.configurations, dataset)
    limits = limits or default_limits(processes.per_machine)
    header = _header(run)
    done = _read_journals(journal, header)
    mine = Journal(journal.with_name(f"{journal.name}.{processes.rank}"), header, unchecked=True)
    before = time.monotonic()
    # Answer the queries of this process, method by method; photos that no later query needs are dropped on the way.
    try:
        cache = None
        shares = [(evaluated, _share(asked, done, processes)) for evaluated, asked in _by_method(run)]
        unneeded = iter(last_uses([query for _, work in shares for query in work]))
        for evaluated, work in shares:
            if work:
                # Heads with the same backbone share its features.
                if cache is None or not cache.serves(evaluated.method):
                    cache = FeatureCache(evaluated.method, memory_bytes=limits.features, folder=features)
                answering = _pass(run, evaluated, dataset, cache, limits)
                with all_cores(next(evaluated.method.parameters()).device) as workers:
                    for query, answers in zip(watch(work), workers.map(answering.answer, work), strict=True):
                        now = time.monotonic()
                        mine.add(_record(query.query, now - before, answers))
                        before = now
                        names = next(unneeded)
                        if isinstance(answering, Evaluator):
                            answering.forget(names)
    finally:
        mine.leave()
    # The first process collects the outcomes of all, from the journals.
    processes.barrier()
    if processes.rank:
        return None
    outcomes = _read_journals(journal, header)
    expected = sum(len(configuration.tasks) for configuration in run.configurations)
    if len(outcomes) != expected:
        raise EmatError(
            "tasks-missing",
            f"{expected - len(outcomes)} of {expected} tasks have no outcome; processes on several machines must share "
            f"the folder {journal.parent}",
        )
    return outcomes


def seconds_spent(run: Run, journal: Path) -> float:
    """Return how long `evaluate` took, over all its interruptions; of several processes the slowest counts."""
    header = _header(run)
    seconds = [[float(record.get("seconds", 0)) for record in _records(path, header)] for path in _journals(journal)]
    return max(map(sum, seconds), default=0.0)


def remove_journals(journal: Path) -> None:
    """Delete the journals of a run, when its results are written."""
    for path in _journals(journal):
        path.unlink(missing_ok=True)


def _share(configurations: dict[int, Configuration], done: Outcomes, processes: Processes) -> list[QueryWork]:
    """Return what is left of this process's queries.

    The queries are divided before those that are done are left out, so that every query stays with its process.
    """
    mine = {work.query for work in plan(configurations)[processes.rank :: processes.count]}
    return [work for work in plan(configurations, done) if work.query in mine]


def _pass(
    run: Run, evaluated: EvaluatedMethod, dataset: Dataset, cache: FeatureCache, limits: Limits
) -> Evaluator | AsFitted:
    method, thresholds, only = evaluated.method, run.thresholds_of(evaluated), run.only_segment
    if run.as_fitted is not None:
        return AsFitted(method, dataset, cache, run.as_fitted, thresholds=thresholds, only_segment=only)
    return Evaluator(method, dataset, cache, thresholds=thresholds, only_segment=only, support_bytes=limits.supports)


def _by_method(run: Run) -> list[tuple[EvaluatedMethod, dict[int, Configuration]]]:
    """Return the methods in the order in which they occur, each with its configurations by index."""
    groups: dict[int, tuple[EvaluatedMethod, dict[int, Configuration]]] = {}
    for index, configuration in enumerate(run.configurations):
        evaluated = run.methods[configuration.fold]
        groups.setdefault(id(evaluated), (evaluated, {}))[1][index] = configuration
    return list(groups.values())


def _check_names(configurations: Iterable[Configuration], dataset: Dataset) -> None:
    names = set(dataset.names)
    for configuration in configurations:
        for task in configuration.tasks:
            for name in task.photos:
                if name not in names:
                    raise dataset.unknown(name)


def _header(run: Run) -> dict[str, Any]:
    return {"format": "emat evaluation journal 1", "run": run.fingerprint}


def _journals(journal: Path) -> list[Path]:
    files = journal.parent.glob(f"{glob.escape(journal.name)}.*")
    return sorted(path for path in files if path.suffix[1:].isdecimal())


def _read_journals(journal: Path, header: Mapping[str, Any]) -> Outcomes:
    outcomes: Outcomes = {}
    for path in _journals(journal):
        for record in _records(path, header):
            try:
                rows = [
                    (TaskIndex(number, task), TaskOutcome.from_row(row)) for number, task, row in record["outcomes"]
                ]
                outcomes.update(rows)
            except (LookupError, TypeError, ValueError, ArithmeticError):
                raise EmatError("damaged-file", f"{path} is damaged; delete it and evaluate again") from None
    return outcomes


def _records(path: Path, header: Mapping[str, Any]) -> list[dict[str, Any]]:
    records = read_journal(path, header, unchecked=True)
    if records is None:
        raise EmatError(
            "other-run",
            f"{path} belongs to another run, with other tasks, photos, masks, weights or options; delete it, "
            "or write to another file with --out",
        )
    return [record for record in records if "outcomes" in record]


def _record(query: str, seconds: float, answers: Iterable[tuple[TaskIndex, TaskOutcome]]) -> dict[str, Any]:
    outcomes = [[index.configuration, index.task, outcome.row()] for index, outcome in answers]
    return {"query": query, "seconds": round(seconds, 3), "outcomes": outcomes}
