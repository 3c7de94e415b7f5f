"""What was measured, read from results files; and what is left, planned as one pass a model, and run or resumed.

Results are found by what they are of - the same tasks, photos, masks, weights, size and thresholds - not by the name of
their file. So a run for one table is used by every other table, and so are results of `emat eval`.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from emat.errors import EmatError
from emat.evaluation.metrics import TaskOutcome, count_outcome
from emat.evaluation.one_pass import OnePass, Savings, default_limits, plan, savings
from emat.evaluation.results import Conditions, FoldCounts, Summary, read_results, results, summarise, write_results
from emat.evaluation.run import EvaluatedMethod, Run, Watch, evaluate, remove_journals, seconds_spent
from emat.features import FeatureCache
from emat.files import check_output
from emat.methods.base import PAPER_THRESHOLDS
from emat.reports.paper.cells import name_folds
from emat.reports.paper.models import PaperModel
from emat.reports.paper.parts import Need, PaperTasks, Part, needs_of
from emat.tasks.task import Configuration

Weights: TypeAlias = tuple[str, int, str]  # the method's name, the size of photos, and the hash of all tensors
CellKey: TypeAlias = tuple[Weights, int, str]  # by whom, the fold, and how tasks are drawn and judged
TaskCounts: TypeAlias = tuple[tuple[int, int], ...]  # folds, and how many of the first tasks of each
RESULTS = "results"
TRIAL_QUERIES = 2  # are answered to estimate the time: the first warms up, the second is timed


@dataclass(frozen=True)
class MeasuredFold:
    """The first tasks of one fold, as many as were measured, and their outcomes."""

    configuration: Configuration
    outcomes: tuple[TaskOutcome, ...]


@dataclass
class Ledger:
    """The outcomes of every task that was measured at the paper's thresholds.

    Results of more tasks than asked for are cut. Results of fewer tasks or folds are used as they are: whoever shows
    them says how many there are.

    Results of the same tasks may be of photo or mask files that have changed since, or of another copy of the data set,
    whose files have other times. In the first folder they are left out and measured again. Whoever gives a further
    folder vouches for what is in it: there they are used, unless newer ones have as many tasks.

    Args:
        folders: The folders of the results files; new ones are written to the first.
        tasks: The tasks of the data set.
        methods: The methods of the folds that have a head, by the label of their model.
    """

    folders: tuple[Path, ...]
    tasks: PaperTasks
    methods: Mapping[str, Mapping[int, EvaluatedMethod]]
    left_out: list[Path] = field(default_factory=list)  # results files of the first folder that are of other files
    vouched_for: list[Path] = field(default_factory=list)  # and those of the further folders, which are used
    _outcomes: dict[CellKey, tuple[TaskOutcome, ...]] = field(default_factory=dict)
    _summaries: dict[tuple[str, Need, TaskCounts | None], list[Summary]] = field(default_factory=dict)

    def read(self) -> None:
        """Read all results files of the folders; those of other models, tasks or options are left out."""
        self._outcomes.clear()
        self._summaries.clear()
        older = []
        self.left_out, self.vouched_for = [], []
        paths = [(folder, path) for folder in self.folders for path in sorted(folder.glob("*.json"))]
        for folder, path in paths:
            content = read_results(path)
            if not self._is_of_ours(content):
                continue
            if self._is_of_these_files(content):
                self._take(content)
            elif folder == self.folders[0]:
                self.left_out.append(path)
            else:
                self.vouched_for.append(path)
                older.append(content)
        for content in older:
            self._take(content)

    def _is_of_ours(self, content: Mapping[str, Any]) -> bool:
        """Whether results are of one of the models, judged as in the paper, on tasks of these lists and masks."""
        paper = content.get("thresholds") == asdict(PAPER_THRESHOLDS)
        changed = content.get("refine") or content.get("only_segment") or content.get("options", {}).get("learn")
        ours = {_weights(each) for methods in self.methods.values() for each in methods.values()}
        if not paper or changed or ours.isdisjoint(_weights_by_fold(content).values()):
            return False
        return all(self.tasks.drawn_again(cell) is not None for cell in content["cells"])

    def _is_of_these_files(self, content: Mapping[str, Any]) -> bool:
        """Whether the files of the photos and masks are those that were measured.

        A run for the paper records the state of the whole data set, `emat eval` that of its tasks' photos.
        """
        photos = {
            name for cell in content["cells"] for task in self.tasks.drawn_again(cell) or () for name in task.photos
        }
        return content.get("data_state") in (self.tasks.state, self.tasks.dataset.state(photos))

    def _take(self, content: Mapping[str, Any]) -> None:
        """Take the outcomes of a results file, unless as many of the same tasks were taken before."""
        weights = _weights_by_fold(content)
        for cell, rows in zip(content["cells"], content["outcomes"], strict=True):
            judged = _judged(cell["split"], cell["class_ids"], cell["protocol"])
            key = (weights[cell["fold"]], int(cell["fold"]), judged)
            if len(rows) > len(self._outcomes.get(key, ())):
                self._outcomes[key] = tuple(map(TaskOutcome.from_row, rows))

    def missing(self, label: str, needs: Sequence[Need]) -> list[Configuration]:
        """Return the configurations of these needs that were not measured, or on fewer tasks than asked for."""
        folds = self.methods[label]
        every = [each for need in needs for each in self.tasks.measured(need) if each.fold in folds]
        unique = {self._key(label, each): each for each in every}
        return [each for key, each in unique.items() if len(self._outcomes.get(key, ())) < len(each.tasks)]

    def folds(self, label: str, need: Need, first: TaskCounts | None = None) -> list[MeasuredFold]:
        """Return what was measured of a need, by fold; with `first`, only these folds and so many tasks of each."""
        found = []
        for each in self.tasks.measured(need):
            if each.fold not in self.methods.get(label, {}):
                continue
            count = len(each.tasks) if first is None else dict(first).get(each.fold, 0)
            outcomes = self._outcomes.get(self._key(label, each), ())[: len(each.tasks)][:count]
            if outcomes:
                protocol = replace(each.protocol, tasks=len(outcomes))
                measured = replace(each, protocol=protocol, tasks=each.tasks[: len(outcomes)])
                found.append(MeasuredFold(measured, outcomes))
        return found

    def summaries(self, label: str, need: Need, first: TaskCounts | None = None) -> list[Summary]:
        """Return the scores of each measured fold and then, of several, their mean."""
        key = (label, need, first)
        if key not in self._summaries:
            counts = []
            for fold in self.folds(label, need, first):
                each = fold.configuration
                counted = [count_outcome(outcome, each.class_ids) for outcome in fold.outcomes]
                counts.append(FoldCounts(_conditions(each), each.fold, counted))
            self._summaries[key] = summarise(counts)
        return self._summaries[key]

    def by_fold(self, label: str, need: Need) -> dict[int, Summary]:
        """Return the scores of each measured fold."""
        return {each.fold: each for each in self.summaries(label, need) if each.fold is not None}

    def over_folds(self, label: str, need: Need, first: TaskCounts | None = None) -> Summary | None:
        """Return the mean over the folds that were measured, which may be one; None if there are none."""
        found = self.summaries(label, need, first)
        return found[-1] if found else None

    def common_tasks(self, labels: Iterable[str], needs: Sequence[Need]) -> TaskCounts:
        """Return how many tasks of each fold were measured of every need and model that were measured on it at all.

        What is compared with each other is then compared on the same tasks.
        """
        counts: dict[int, int] = {}
        for each in (each for label in labels for need in needs for each in self.folds(label, need)):
            fold = each.configuration.fold
            counts[fold] = min(len(each.outcomes), counts.get(fold, len(each.outcomes)))
        return tuple(sorted(counts.items()))

    def mean(self, label: str, need: Need, first: TaskCounts | None = None) -> Summary | None:
        """Return the mean over all folds, with `first` over so many tasks of each; None unless all were measured."""
        found = self.over_folds(label, need, first)
        return found if found is not None and len(found.folds) == len(self.tasks.folds) else None

    def measured_folds(self, label: str) -> tuple[int, ...]:
        """Return the folds of which anything was measured with a model."""
        known = {(weights, fold) for weights, fold, _ in self._outcomes}
        return tuple(fold for fold, each in self.methods.get(label, {}).items() if (_weights(each), fold) in known)

    def fewer_tasks(self, labels: Iterable[str], needs: Iterable[Need]) -> list[str]:
        """Say of each model which of these needs it was measured on with fewer tasks than asked for."""
        said = []
        asked = list(dict.fromkeys(needs))
        for label in labels:
            by_count: dict[str, list[str]] = {}
            for need in asked:
                wanted = {each.fold: len(each.tasks) for each in self.tasks.measured(need)}
                counts = {each.configuration.fold: len(each.outcomes) for each in self.folds(label, need)}
                if any(count < wanted[fold] for fold, count in counts.items()):
                    low, high = min(counts.values()), max(counts.values())
                    count = f"{low}" if low == high else f"{low} to {high}"
                    of = "each fold" if len(counts) == len(self.tasks.folds) else name_folds(list(counts))
                    by_count.setdefault(f"the first {count} tasks of {of}", []).append(need.words())
            for count, words in by_count.items():
                said.append(f"{label} was measured on {count}: {'; '.join(words)}.")
        return said

    def _key(self, label: str, configuration: Configuration) -> CellKey:
        fold = configuration.fold
        judged = _judged(configuration.split, configuration.class_ids, configuration.protocol.as_json())
        return _weights(self.methods[label][fold]), fold, judged


def _weights(evaluated: EvaluatedMethod) -> Weights:
    return evaluated.method.name, evaluated.method.preparation.image_size, evaluated.weights_sha256


def _weights_by_fold(content: Mapping[str, Any]) -> dict[int, Weights]:
    methods = content["methods"].items()
    return {int(fold): (each["name"], each["image_size"], each["weights_sha256"]) for fold, each in methods}


def _judged(split: str, class_ids: Sequence[int], protocol: Mapping[str, Any]) -> str:
    """How tasks are drawn and judged, apart from their number: fewer of them are the first of more."""
    asked = [protocol[name] for name in ("way", "shot", "setting", "query_has_class", "queries", "theta", "new_ways")]
    return repr([split, list(class_ids), *(list(each) if isinstance(each, tuple) else each for each in asked)])


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
    """The passes of all models, and the models that cannot be measured, on no fold or on some, with the reason."""

    ledger: Ledger
    passes: tuple[Pass, ...]
    not_run: dict[str, str]
    partly_run: dict[str, str]


def make_plan(
    parts: Sequence[Part],
    models: Sequence[PaperModel],
    tasks: PaperTasks,
    folder: Path,
    device: str,
    *,
    results_in: Sequence[Path] = (),
    estimate: bool = True,
) -> MeasuringPlan:
    """Work out what has to be measured for these parts and is not yet in the folder's results.

    Args:
        parts: The tables and figures to make.
        models: The models; one whose heads or backbone are missing is left out, and the plan says why. One that has
            heads of some folds is measured on these.
        tasks: The tasks of the data set.
        folder: The folder that the paper is written to.
        device: "auto", "cpu", "cuda" or "mps".
        results_in: Further folders with results of `emat eval`.
        estimate: Whether to estimate the time, for which two queries of each model are answered.
    """
    methods: dict[str, dict[int, EvaluatedMethod]] = {}
    not_run: dict[str, str] = {}
    partly_run: dict[str, str] = {}
    for model in models:
        folds, reason = model.folds_here(tasks.folds)
        try:
            if folds:
                methods[model.label] = model.load(folds, device)
        except EmatError as error:
            folds, reason = [], str(error)
        if reason is not None:
            (partly_run if folds else not_run)[model.label] = reason
    ledger = Ledger((folder / RESULTS, *results_in), tasks, methods)
    ledger.read()
    labels = list(methods)
    passes = []
    for model in (each for each in models if each.label in methods):
        missing = tuple(ledger.missing(model.label, needs_of(parts, model.label, labels)))
        work = savings(missing) if missing else None
        seconds = _estimate(methods[model.label], missing, work, tasks) if work and estimate else 0.0
        passes.append(Pass(model, missing, work, seconds))
    tasks.areas.keep()
    return MeasuringPlan(ledger, tuple(passes), not_run, partly_run)


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
        path = ledger.folders[0] / f"{_file_name(each.model.label)}-{run.fingerprint[:8]}.json"
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
