"""What was measured, read from results files; and what is left, planned as one pass a model, and run or resumed.

Results are found by what they are of - the same tasks, photos, masks, weights, size and thresholds - not by the name of
their file. So a run for one table is used by every other table, and results of `emat eval` may be put into the folder.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from emat.errors import EmatError
from emat.evaluation.evaluated_method import EvaluatedMethod
from emat.evaluation.metrics import TaskOutcome, count_outcome
from emat.evaluation.one_pass import OnePass, Savings, default_limits, plan, savings
from emat.evaluation.results import read_results, results, write_results
from emat.evaluation.run import Run, Watch, evaluate, remove_journals, seconds_spent
from emat.evaluation.summary import Conditions, FoldCounts, Summary, summarise
from emat.features import FeatureCache
from emat.files import check_output
from emat.methods.base import PAPER_THRESHOLDS
from emat.reports.paper.models import PaperModel
from emat.reports.paper.parts import Need, PaperTasks, Part, needs_of
from emat.tasks.task import Configuration

Weights: TypeAlias = tuple[str, int, str]  # the method's name, the size of photos, and the hash of all tensors
CellKey: TypeAlias = tuple[Weights, str, str]  # by whom, on which tasks, and how these are judged
RESULTS = "results"
TRIAL_QUERIES = 2  # are answered to estimate the time: the first warms up, the second is timed


@dataclass
class Ledger:
    """The outcomes of every task that was measured at the paper's thresholds.

    Args:
        folder: The folder of the results files.
        tasks: The tasks of the data set.
        methods: The methods of each fold, by the label of their model.
        needs: What results are looked for.
    """

    folder: Path
    tasks: PaperTasks
    methods: Mapping[str, Mapping[int, EvaluatedMethod]]
    needs: tuple[Need, ...]
    _outcomes: dict[CellKey, list[TaskOutcome]] = field(default_factory=dict)
    _summaries: dict[tuple[str, Need], list[Summary]] = field(default_factory=dict)

    def read(self) -> None:
        """Read all results files of the folder; those of other photos, masks or options are left out."""
        self._outcomes.clear()
        self._summaries.clear()
        for path in sorted(self.folder.glob("*.json")):
            content = read_results(path)
            paper = content.get("thresholds") == asdict(PAPER_THRESHOLDS)
            changed = content.get("refine") or content.get("only_segment") or content.get("options", {}).get("learn")
            if not paper or changed or not self._of_these_photos(content):
                continue
            for cell, rows in zip(content["cells"], content["outcomes"], strict=True):
                method = content["methods"][str(cell["fold"])]
                weights = (method["name"], method["image_size"], method["weights_sha256"])
                judged = _judged(cell["fold"], cell["split"], cell["class_ids"], cell["protocol"])
                self._outcomes[weights, cell["digest"], judged] = list(map(TaskOutcome.from_row, rows))

    def missing(self, label: str, needs: Sequence[Need]) -> list[Configuration]:
        """Return the configurations of these needs that the folder has no results of."""
        every = [each for need in needs for each in self.tasks.measured(need)]
        unique = {self._key(label, each): each for each in every}
        return [each for key, each in unique.items() if key not in self._outcomes]

    def outcomes(self, label: str, need: Need) -> list[tuple[Configuration, list[TaskOutcome]]]:
        """Return each fold's tasks and their outcomes; nothing unless all folds were measured."""
        if label not in self.methods:
            return []
        found = [
            (each, self._outcomes[key])
            for each in self.tasks.measured(need)
            if (key := self._key(label, each)) in self._outcomes
        ]
        return found if len(found) == len(self.tasks.folds) else []

    def summaries(self, label: str, need: Need) -> list[Summary]:
        """Return the scores of each fold and then of their mean; nothing unless all folds were measured."""
        key = (label, need)
        if key not in self._summaries:
            counts = [
                FoldCounts(_conditions(each), each.fold, [count_outcome(one, each.class_ids) for one in outcomes])
                for each, outcomes in self.outcomes(label, need)
            ]
            self._summaries[key] = summarise(counts)
        return self._summaries[key]

    def mean(self, label: str, need: Need) -> Summary | None:
        """Return the mean over the folds; None if it was not measured."""
        found = self.summaries(label, need)
        return found[-1] if found else None

    def _of_these_photos(self, content: Mapping[str, Any]) -> bool:
        """Whether results are of the photos and masks as they are now.

        A run for the paper records the state of the whole data set, `emat eval` that of its tasks' photos.
        """
        if content.get("data_state") == self.tasks.state:
            return True
        known = {each.digest: each for need in self.needs for each in self.tasks.measured(need)}
        if any(cell["digest"] not in known for cell in content["cells"]):
            return False
        tasks = [task for cell in content["cells"] for task in known[cell["digest"]].tasks]
        photos = {name for task in tasks for name in task.photos}
        return content.get("data_state") == self.tasks.dataset.state(photos)

    def _key(self, label: str, configuration: Configuration) -> CellKey:
        evaluated = self.methods[label][configuration.fold]
        method = evaluated.method
        weights = (method.name, method.preparation.image_size, evaluated.weights_sha256)
        protocol = configuration.protocol.as_json()
        judged = _judged(configuration.fold, configuration.split, configuration.class_ids, protocol)
        return weights, configuration.digest, judged


def _judged(fold: int, split: str, class_ids: Sequence[int], protocol: Mapping[str, Any]) -> str:
    asked = [protocol[name] for name in ("way", "shot", "setting", "query_has_class", "theta", "new_ways")]
    return repr([fold, split, list(class_ids), *(list(each) if isinstance(each, tuple) else each for each in asked)])


def _conditions(configuration: Configuration) -> Conditions:
    protocol = configuration.protocol
    return Conditions(
        configuration.dataset,
        configuration.split,
        protocol.way,
        protocol.shot,
        protocol.setting.value,
        protocol.query_has_class,
    )


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
