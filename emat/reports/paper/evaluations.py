"""Evaluations for the paper: what was measured, read from results files, and what is left, planned and run.

`PaperTasks` draws the tasks. Results are found by what they are of - the same tasks, photos, masks, weights, size and
thresholds - not by the name of their file. So a run for one table is used by every other table, and so are results of
`emat eval`.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from emat.datasets.dataset import ClassAreas, Dataset
from emat.datasets.fold_lists import equals_published
from emat.errors import EmatError
from emat.evaluation.evaluator import Evaluator, Savings, default_limits, plan, savings
from emat.evaluation.metrics import ScoreCounts, TaskOutcome, count_outcome
from emat.evaluation.results import Conditions, Summary, read_results, results, summarise, write_results
from emat.evaluation.run import EvaluatedMethod, Run, Watch, evaluate, remove_journals, seconds_spent
from emat.features import FeatureCache
from emat.methods.base import PAPER_THRESHOLDS
from emat.outputs import check_output
from emat.reports.paper.contents import PaperModel, Part, TaskSpec, name_folds, specs_of
from emat.tasks.benchmark import Benchmark, open_benchmark, size_split
from emat.tasks.benchmark import Watch as MaskWatch
from emat.tasks.sampling import ORDINARY_SPLITS, TaskSampler, size_split_tasks
from emat.tasks.task import TASKS_PER_FOLD, Configuration, Protocol, Task, digest

Weights: TypeAlias = tuple[str, int, str]  # the method's name, the size of photos, and the hash of all tensors
CellKey: TypeAlias = tuple[Weights, int, str]  # by whom, the fold, and how tasks are drawn and judged
TaskCounts: TypeAlias = tuple[tuple[int, int], ...]  # folds, and how many of the first tasks of each
RESULTS = "results"
TRIAL_QUERIES = 2  # are answered to estimate the time: the first warms up, the second is timed


@dataclass
class PaperTasks:
    """The tasks of a data set by what they are needed for. They are drawn once.

    Args:
        name: "pascal" or "coco".
        benchmark: The folds with their validation lists, photos and masks.
        lists: The folder of the fold lists; None if they were made from the masks.
        tasks: How many tasks to measure a fold; None for the published number.
        counted: How many tasks of a fold to draw when augmented tasks are counted; None for the published number.
    """

    name: str
    benchmark: Benchmark
    lists: Path | None
    tasks: int | None
    counted: int | None = None
    _drawn: dict[tuple[TaskSpec, int | None], tuple[Configuration, ...] | str] = field(default_factory=dict)
    _again: dict[tuple[int, str, Protocol], tuple[Task, ...]] = field(default_factory=dict)

    @property
    def dataset(self) -> Dataset:
        """The photos and masks."""
        assert self.benchmark.dataset is not None
        return self.benchmark.dataset

    @property
    def areas(self) -> ClassAreas:
        """How much of each photo each class covers."""
        assert self.benchmark.areas is not None
        return self.benchmark.areas

    @property
    def folds(self) -> list[int]:
        """The numbers of the folds."""
        return [fold_list.fold for fold_list in self.benchmark.fold_lists]

    @property
    def are_published(self) -> bool:
        """Whether the fold lists are the published ones."""
        return all(equals_published(fold_list) for fold_list in self.benchmark.fold_lists)

    @cached_property
    def state(self) -> str:
        """A hash that changes when a photo or mask changes."""
        return self.dataset.state(self.dataset.names)

    def class_names(self, fold: int) -> list[str]:
        """Return the names of a fold's test classes."""
        return [self.dataset.classes[class_id - 1] for class_id in self.benchmark.fold_list(fold).class_ids]

    def measured(self, spec: TaskSpec) -> tuple[Configuration, ...]:
        """Return the tasks that are measured, one configuration for each fold; none if they cannot be drawn."""
        return self._configurations(spec, self.tasks)

    def augmented(self, spec: TaskSpec) -> list[int] | None:
        """Return how many of the published number of tasks a setting augments, by fold; None if none can be drawn."""
        configurations = self._configurations(spec, self.counted)
        return [sum(task.augmented for task in configuration.tasks) for configuration in configurations] or None

    def problem(self, spec: TaskSpec) -> str | None:
        """Return why tasks cannot be drawn; None if they can."""
        self.measured(spec)
        drawn = self._drawn[spec, self.tasks]
        return drawn if isinstance(drawn, str) else None

    def _configurations(self, spec: TaskSpec, tasks: int | None) -> tuple[Configuration, ...]:
        key = (spec, tasks)
        if key not in self._drawn:
            try:
                self._drawn[key] = self._draw(spec, tasks)
            except EmatError as error:
                self._drawn[key] = str(error)
        drawn = self._drawn[key]
        return () if isinstance(drawn, str) else drawn

    def drawn_again(self, cell: Mapping[str, Any]) -> tuple[Task, ...] | None:
        """Draw the tasks of a configuration in a results file; None if they are not those that were measured."""
        try:
            protocol = Protocol.from_json(cell["protocol"])
            key = (int(cell["fold"]), str(cell["split"]), protocol)
            if key not in self._again:
                benchmark = self.benchmark if key[1] in ORDINARY_SPLITS else self._of_size(key[1])
                self._again[key] = tuple(TaskSampler(benchmark.fold_list(key[0]), protocol, self.areas))
        except EmatError:
            return None  # of other lists or another data set
        return self._again[key] if digest(self._again[key]) == cell["digest"] else None

    def samplers(self, spec: TaskSpec) -> list[TaskSampler]:
        """Return the sampler of each fold's published number of tasks, which draws a task when it is asked for."""
        return [self.benchmark.sampler(fold, spec) for fold in self.folds]

    def _draw(self, spec: TaskSpec, tasks: int | None) -> tuple[Configuration, ...]:
        benchmark = self.benchmark
        if spec.object_size is not None:
            benchmark = self._of_size(spec.object_size)
            tasks = None if tasks is None else min(tasks, size_split_tasks(benchmark.fold_lists))
        request = replace(spec, tasks=tasks if tasks is None else min(tasks, TASKS_PER_FOLD))
        return tuple(benchmark.sampler(fold, request).configuration() for fold in self.folds)

    def _of_size(self, size: str) -> Benchmark:
        if self.lists is not None:
            lists = open_benchmark(self.name, self.lists, None, object_size=size).fold_lists
        else:
            lists = tuple(size_split(fold_list, self.areas, size) for fold_list in self.benchmark.fold_lists)
        return replace(self.benchmark, fold_lists=lists)


def open_tasks(
    name: str, data: Path, masks: Path | None, lists: Path | None, tasks: int | None, watch: MaskWatch = iter
) -> PaperTasks:
    """Open a data set for the paper's tables.

    Args:
        name: "pascal" or "coco".
        data: The data set, with photos and masks; or its photos, if `masks` are given.
        masks: A folder or zip of the masks, if they are not with the photos.
        lists: The folder of the fold lists; None makes them from the masks.
        tasks: How many tasks to measure a fold; None for the published number.
        watch: Is given the names of the masks that are read, and may show progress.

    Raises:
        EmatError: If there are no photos, no masks, or classes of another data set.
    """
    benchmark = open_benchmark(name, lists, data, masks=masks, watch=watch)
    dataset = benchmark.dataset
    if dataset is None or not dataset.has_photos:
        raise EmatError("no-photos", f"{data} has no photos; give a data set with photos and masks")
    if dataset.name != name:
        more = f" and {len(dataset.classes) - 3} more" if len(dataset.classes) > 3 else ""
        raise EmatError(
            "class-lists-differ", f"{data} is not {name}: its classes are {', '.join(dataset.classes[:3])}{more}"
        )
    return PaperTasks(name, benchmark, lists, tasks)


@dataclass(frozen=True)
class MeasuredFold:
    """The first tasks of one fold, as many as were measured, and their outcomes."""

    configuration: Configuration
    outcomes: tuple[TaskOutcome, ...]

    def counts(self) -> list[ScoreCounts]:
        """Return the counts of each task."""
        return [count_outcome(outcome, self.configuration.class_ids) for outcome in self.outcomes]


@dataclass
class ResultStore:
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
    _summaries: dict[tuple[str, TaskSpec, TaskCounts | None], list[Summary]] = field(default_factory=dict)

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
        changed = any(content.get(key) for key in ("as_fitted", "refine", "only_segment"))
        changed = changed or content.get("options", {}).get("learn")
        ours = {_weights(evaluated) for methods in self.methods.values() for evaluated in methods.values()}
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

    def missing(self, label: str, specs: Sequence[TaskSpec]) -> list[Configuration]:
        """Return the configurations of these tasks that were not measured, or on fewer tasks than asked for."""
        folds = self.methods[label]
        wanted = [drawn for spec in specs for drawn in self.tasks.measured(spec) if drawn.fold in folds]
        unique = {self._key(label, drawn): drawn for drawn in wanted}
        return [drawn for key, drawn in unique.items() if len(self._outcomes.get(key, ())) < len(drawn.tasks)]

    def folds(self, label: str, spec: TaskSpec, first: TaskCounts | None = None) -> list[MeasuredFold]:
        """Return what was measured of some tasks, by fold; with `first`, only these folds and so many tasks of each."""
        folds = []
        for configuration in self.tasks.measured(spec):
            if configuration.fold not in self.methods.get(label, {}):
                continue
            count = len(configuration.tasks) if first is None else dict(first).get(configuration.fold, 0)
            outcomes = self._outcomes.get(self._key(label, configuration), ())[: len(configuration.tasks)][:count]
            if outcomes:
                protocol = replace(configuration.protocol, tasks=len(outcomes))
                measured = replace(configuration, protocol=protocol, tasks=configuration.tasks[: len(outcomes)])
                folds.append(MeasuredFold(measured, outcomes))
        return folds

    def summaries(self, label: str, spec: TaskSpec, first: TaskCounts | None = None) -> list[Summary]:
        """Return the scores of each measured fold and then, of several, their mean."""
        key = (label, spec, first)
        if key not in self._summaries:
            folds = self.folds(label, spec, first)
            counts = [(measured.configuration.fold, measured.counts()) for measured in folds]
            self._summaries[key] = summarise({_conditions(folds[0].configuration): counts} if folds else {})
        return self._summaries[key]

    def by_fold(self, label: str, spec: TaskSpec) -> dict[int, Summary]:
        """Return the scores of each measured fold."""
        return {summary.fold: summary for summary in self.summaries(label, spec) if summary.fold is not None}

    def over_folds(self, label: str, spec: TaskSpec, first: TaskCounts | None = None) -> Summary | None:
        """Return the mean over the folds that were measured, which may be one; None if there are none."""
        summaries = self.summaries(label, spec, first)
        return summaries[-1] if summaries else None

    def common_tasks(self, labels: Iterable[str], specs: Sequence[TaskSpec]) -> TaskCounts:
        """Return for each fold how many tasks are common to all models and specs that were measured on it.

        What is compared with each other is then compared on the same tasks.
        """
        counts: dict[int, int] = {}
        for measured in (measured for label in labels for spec in specs for measured in self.folds(label, spec)):
            fold = measured.configuration.fold
            counts[fold] = min(len(measured.outcomes), counts.get(fold, len(measured.outcomes)))
        return tuple(sorted(counts.items()))

    def mean(self, label: str, spec: TaskSpec, first: TaskCounts | None = None) -> Summary | None:
        """Return the mean over all folds, with `first` over so many tasks of each; None unless all were measured."""
        summary = self.over_folds(label, spec, first)
        return summary if summary is not None and len(summary.folds) == len(self.tasks.folds) else None

    def measured_folds(self, label: str) -> tuple[int, ...]:
        """Return the folds of which anything was measured with a model."""
        measured = {(weights, fold) for weights, fold, _ in self._outcomes}
        methods = self.methods.get(label, {}).items()
        return tuple(fold for fold, evaluated in methods if (_weights(evaluated), fold) in measured)

    def fewer_tasks(self, labels: Iterable[str], specs: Iterable[TaskSpec]) -> list[str]:
        """Return a sentence for each model on those of these tasks of which fewer were measured than asked for."""
        sentences = []
        asked = list(dict.fromkeys(specs))
        for label in labels:
            by_count: dict[str, list[str]] = {}
            for spec in asked:
                wanted = {configuration.fold: len(configuration.tasks) for configuration in self.tasks.measured(spec)}
                counts = {measured.configuration.fold: len(measured.outcomes) for measured in self.folds(label, spec)}
                if any(count < wanted[fold] for fold, count in counts.items()):
                    low, high = min(counts.values()), max(counts.values())
                    count = f"{low}" if low == high else f"{low} to {high}"
                    of = "each fold" if len(counts) == len(self.tasks.folds) else name_folds(list(counts))
                    by_count.setdefault(f"the first {count} tasks of {of}", []).append(spec.words())
            for count, words in by_count.items():
                sentences.append(f"{label} was measured on {count}: {'; '.join(words)}.")
        return sentences

    def _key(self, label: str, configuration: Configuration) -> CellKey:
        fold = configuration.fold
        judged = _judged(configuration.split, configuration.class_ids, configuration.protocol.as_json())
        return _weights(self.methods[label][fold]), fold, judged


def _weights(evaluated: EvaluatedMethod) -> Weights:
    return evaluated.method.name, evaluated.method.preparation.image_size, evaluated.weights_sha256


def _weights_by_fold(content: Mapping[str, Any]) -> dict[int, Weights]:
    methods = content["methods"].items()
    return {int(fold): (method["name"], method["image_size"], method["weights_sha256"]) for fold, method in methods}


def _conditions(configuration: Configuration) -> Conditions:
    protocol = configuration.protocol
    drawn = (protocol.way, protocol.shot, protocol.setting.value, protocol.query_has_class)
    return Conditions(configuration.dataset, configuration.split, *drawn)


def _judged(split: str, class_ids: Sequence[int], protocol: Mapping[str, Any]) -> str:
    """How tasks are drawn and judged, apart from their number: fewer of them are the first of more."""
    asked = [protocol[name] for name in ("way", "shot", "setting", "query_has_class", "queries", "theta", "new_ways")]
    return repr([split, list(class_ids), *(list(value) if isinstance(value, tuple) else value for value in asked)])


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

    store: ResultStore
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
    store = ResultStore((folder / RESULTS, *results_in), tasks, methods)
    store.read()
    labels = list(methods)
    passes = []
    for model in (candidate for candidate in models if candidate.label in methods):
        missing = tuple(store.missing(model.label, specs_of(parts, model.label, labels)))
        work = savings(missing) if missing else None
        seconds = _estimate(methods[model.label], missing, work, tasks) if work and estimate else 0.0
        passes.append(Pass(model, missing, work, seconds))
    tasks.areas.keep()
    return MeasuringPlan(store, tuple(passes), not_run, partly_run)


def measure(plan_: MeasuringPlan, features: Path | None, watch: Watch = iter) -> None:
    """Run every pass of a plan, or resume it; its results are in the store afterwards.

    Args:
        plan_: What to measure.
        features: A folder that keeps the features of photos.
        watch: Is given the work of each pass, and may show progress.
    """
    store = plan_.store
    for planned in plan_.passes:
        if not planned.configurations:
            continue
        run = Run(planned.configurations, store.methods[planned.model.label], data_state=store.tasks.state)
        path = store.folders[0] / f"{_file_name(planned.model.label)}-{run.fingerprint[:8]}.json"
        check_output(path)
        journal = path.with_name(f"{path.name}.journal")
        outcomes = evaluate(run, store.tasks.dataset, journal, features=features, watch=watch)
        assert outcomes is not None  # there is one process
        options = {"label": planned.model.label, "head": planned.model.head and Path(planned.model.head).name}
        write_results(path, results(run, outcomes, options=options, seconds=seconds_spent(run, journal)))
        remove_journals(journal)
    store.read()


def _file_name(label: str) -> str:
    plain = label.replace("*", "-star").lower()
    return "".join(letter if letter.isalnum() else "-" for letter in plain).strip("-") or "model"


def _estimate(
    methods: dict[int, EvaluatedMethod], missing: Sequence[Configuration], work: Savings, tasks: PaperTasks
) -> float:
    """Estimate the seconds of a pass from two of its queries: photos are encoded, and pairs compared, at their pace."""
    evaluated = methods[missing[0].fold]
    cache = FeatureCache(evaluated.method, memory_bytes=default_limits().features)
    answering = Evaluator(evaluated.method, tasks.dataset, cache)
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
