"""Measuring: what is to be done is planned as one pass a model, shown with an estimate of time, and run or resumed."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emat.errors import EmatError
from emat.evaluation.evaluated_method import EvaluatedMethod
from emat.evaluation.one_pass import OnePass, Savings, default_limits, plan, savings
from emat.evaluation.results import results, write_results
from emat.evaluation.run import Run, Watch, evaluate, remove_journals, seconds_spent
from emat.features import FeatureCache
from emat.files import check_output
from emat.reports.paper.ledger import Ledger
from emat.reports.paper.models import PaperModel
from emat.reports.paper.paper_tasks import PaperTasks
from emat.reports.paper.parts import Part, needs_of
from emat.tasks.task import Configuration

RESULTS = "results"
TRIAL_QUERIES = 2  # are answered to estimate the time: the first warms up, the second is timed


@dataclass(frozen=True)
class Pass:
    """What is left to measure with one model."""

    model: PaperModel
    configurations: tuple[Configuration, ...]
    work: Savings | None  # None if nothing is left
    seconds: float  # an estimate


@dataclass(frozen=True)
class MeasuringPlan:
    """The passes of all models, and the models that cannot be measured, with the reason."""

    ledger: Ledger
    passes: tuple[Pass, ...]
    not_run: dict[str, str]


def make_plan(
    parts: Sequence[Part],
    models: Sequence[PaperModel],
    tasks: PaperTasks,
    folder: Path,
    device: str,
    *,
    estimate: bool = True,
) -> MeasuringPlan:
    """Work out what has to be measured for these parts and is not yet in the folder's results.

    Args:
        parts: The tables and figures to make.
        models: The models; one whose heads or backbone are missing is left out, and the plan says why.
        tasks: The tasks of the data set.
        folder: The folder that the paper is written to.
        device: "auto", "cpu", "cuda" or "mps".
        estimate: Whether to estimate the time, for which two queries of each model are answered.
    """
    methods: dict[str, dict[int, EvaluatedMethod]] = {}
    not_run: dict[str, str] = {}
    for model in models:
        try:
            reason = model.missing(tasks.folds)
            if reason is None:
                methods[model.label] = model.load(tasks.folds, device)
        except EmatError as error:
            reason = str(error)
        if reason is not None:
            not_run[model.label] = reason
    needs = {label: needs_of(parts, label, list(methods)) for label in methods}
    every = tuple(dict.fromkeys(need for some in needs.values() for need in some))
    ledger = Ledger(folder / RESULTS, tasks, methods, every)
    ledger.read()
    passes = []
    for model in (each for each in models if each.label in methods):
        missing = tuple(ledger.missing(model.label, needs[model.label]))
        work = savings(missing) if missing else None
        seconds = _estimate(methods[model.label], missing, work, tasks) if work and estimate else 0.0
        passes.append(Pass(model, missing, work, seconds))
    tasks.areas.keep()
    return MeasuringPlan(ledger, tuple(passes), not_run)


def measure(plan_: MeasuringPlan, features: Path | None, watch: Watch = iter) -> None:
    """Run every pass of a plan, or resume it; its results are in the ledger afterwards.

    Args:
        plan_: What to measure.
        features: A folder that keeps the features of photos.
        watch: Is given the work of each pass, and may show progress.
    """
    ledger = plan_.ledger
    for each in plan_.passes:
        if not each.configurations:
            continue
        run = Run(each.configurations, ledger.methods[each.model.label], data_state=ledger.tasks.state)
        path = ledger.folder / f"{_file_name(each.model.label)}-{run.fingerprint[:8]}.json"
        check_output(path)
        journal = path.with_name(f"{path.name}.journal")
        outcomes = evaluate(run, ledger.tasks.dataset, journal, features=features, watch=watch)
        assert outcomes is not None  # there is one process
        options = {"label": each.model.label, "head": each.model.head and Path(each.model.head).name}
        write_results(path, results(run, outcomes, options=options, seconds=seconds_spent(run, journal)))
        remove_journals(journal)
    ledger.read()


def _file_name(label: str) -> str:
    plain = label.replace("*", "-star").lower()
    return "".join(letter if letter.isalnum() else "-" for letter in plain).strip("-") or "model"


def _estimate(
    methods: dict[int, EvaluatedMethod], missing: Sequence[Configuration], work: Savings, tasks: PaperTasks
) -> float:
    """Estimate the seconds of a pass from two of its queries: photos are encoded, and pairs compared, at their pace."""
    evaluated = methods[missing[0].fold]
    cache = FeatureCache(evaluated.method, memory_bytes=default_limits().features)
    answering = OnePass(evaluated.method, tasks.dataset, cache)
    photo = pair = 0.0
    for query in plan({0: missing[0]})[:TRIAL_QUERIES]:
        names = {query.query, *(name for name, _ in query.pairs)}
        started = time.perf_counter()
        for name in names:
            cache.features_of(name, tasks.dataset.image)
        encoded = time.perf_counter()
        answering.answer(query)
        photo, pair = (encoded - started) / len(names), (time.perf_counter() - encoded) / len(query.pairs)
    return photo * work.images + pair * work.pairs
