"""Many evaluations in one pass: each photo is encoded once, and each query is compared once with each support.

Most tasks of the three settings are the same, and tasks of other ways and shots share pairs of photos. So the tasks of
all configurations are drawn first, and `plan` groups them by query. `Evaluator` then answers one query after the other.
What is computed for a query is kept until that query is answered. Features and support encodings are kept within limits
of memory, and are computed again if they were dropped. Several threads may answer queries of one pass.

`AsFitted` answers tasks the way a user gets answers: the supports of a task are the examples of a `Segmenter`, which
learns from them and decides all that it decides, and the query is a photo that it predicts.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from threading import Lock
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emat.datasets.dataset import Dataset
from emat.device import free_memory, main_memory
from emat.errors import EmatError
from emat.evaluation.metrics import TaskOutcome, judge_task
from emat.features import FeatureCache
from emat.images import VOID
from emat.inference.decisions import DECISION_VERSION
from emat.inference.example import Example
from emat.inference.segmenter import Segmenter
from emat.methods.base import PAPER_THRESHOLDS, Comparison, Decision, Method, Thresholds
from emat.pixel_learner.learner import PixelLearner
from emat.refine.refiner import Refinement, refiner_of
from emat.tasks.task import Configuration, Task

Result = TypeVar("Result")
Key = TypeVar("Key")
SupportPair: TypeAlias = tuple[str, int]  # a support photo and the class that it is an example of
SupportsByWay: TypeAlias = tuple[tuple[int, ...], tuple[tuple[str, ...], ...]]  # a task's ways and shots

FEATURE_SHARE, SUPPORT_SHARE = 0.25, 0.25  # of the memory that is free when a pass begins
FITTED_SEGMENTERS = 64  # that are kept for further queries of the same supports


@dataclass(frozen=True)
class TaskIndex:
    """Which task an outcome belongs to: the index of its configuration, and its index among that one's tasks."""

    configuration: int
    task: int


@dataclass(frozen=True)
class SharedTask:
    """The support set of a task that may occur in any number of configurations."""

    ways: tuple[int, ...]
    shots: tuple[tuple[str, ...], ...]  # shots[w] are the support photos of ways[w]
    indices: tuple[TaskIndex, ...]  # where it occurs

    @property
    def pairs(self) -> tuple[SupportPair, ...]:
        """The different (support photo, class) pairs."""
        by_way = zip(self.ways, self.shots, strict=True)
        return tuple(dict.fromkeys((name, way) for way, names in by_way for name in names))


@dataclass(frozen=True)
class QueryWork:
    """All different tasks of one query photo."""

    query: str
    tasks: tuple[SharedTask, ...]

    @property
    def pairs(self) -> tuple[SupportPair, ...]:
        """The different (support photo, class) pairs that the query is compared with."""
        return tuple(dict.fromkeys(pair for task in self.tasks for pair in task.pairs))

    @property
    def photos(self) -> set[str]:
        """The names of the query and of all supports."""
        return {self.query, *(name for name, _ in self.pairs)}


def plan(configurations: Mapping[int, Configuration], done: Collection[TaskIndex] = ()) -> list[QueryWork]:
    """Group the tasks of all configurations by query, in the order in which the queries first occur.

    Args:
        configurations: The configurations by their index.
        done: Tasks that are left out because their outcomes are known.
    """
    finished = set(done)
    indices: dict[str, dict[SupportsByWay, list[TaskIndex]]] = {}
    for number, configuration in configurations.items():
        for position, task in enumerate(configuration.tasks):
            index = TaskIndex(number, position)
            if index not in finished:
                indices.setdefault(task.query, {}).setdefault((task.ways, task.shots), []).append(index)
    return [
        QueryWork(query, tuple(SharedTask(*supports, tuple(where)) for supports, where in tasks.items()))
        for query, tasks in indices.items()
    ]


def last_uses(work: Sequence[QueryWork]) -> list[list[str]]:
    """Return, for the work of each query, the photos that no later one needs."""
    last = {name: index for index, query in enumerate(work) for name in query.photos}
    return [[name for name in query.photos if last[name] == index] for index, query in enumerate(work)]


@dataclass(frozen=True)
class Savings:
    """How much work a plan has, and how much there would be (`..._apart`) if every task were done by itself."""

    tasks: int
    shared_tasks: int  # different tasks
    pairs: int
    pairs_apart: int
    images: int
    images_apart: int


def savings(configurations: Sequence[Configuration]) -> Savings:
    """Count how much work the tasks of `configurations` have in common."""
    work = plan(dict(enumerate(configurations)))
    tasks: list[Task] = [task for group in configurations for task in group.tasks]
    return Savings(
        tasks=len(tasks),
        shared_tasks=sum(len(group.tasks) for group in work),
        pairs=sum(len(group.pairs) for group in work),
        pairs_apart=sum(len(shots) for task in tasks for shots in task.shots),
        images=len({name for task in tasks for name in task.photos}),
        images_apart=sum(len(task.photos) for task in tasks),
    )


@dataclass(frozen=True)
class Limits:
    """How many bytes a pass may keep from one query to the next."""

    features: int
    supports: int


def default_limits(processes: int = 1) -> Limits:
    """Return limits that share the memory that is free now between so many processes on this machine."""
    available = main_memory().available / processes
    return Limits(int(FEATURE_SHARE * available), int(SUPPORT_SHARE * available))


class Evaluator:
    """Answers the tasks of one query after the other.

    Args:
        method: The method that answers.
        dataset: The data set of the photos and masks.
        cache: Encodes photos with the method's backbone, or gives features that it has kept.
        thresholds: The probabilities from which a class is present and a pixel belongs to a class.
        only_segment: Ignore the predicted presence, as if the method did not predict it.
        support_bytes: How many bytes of support encodings to keep; None uses a share of the free memory.

    Raises:
        EmatError: If the data set has no photos.
    """

    def __init__(
        self,
        method: Method,
        dataset: Dataset,
        cache: FeatureCache,
        *,
        thresholds: Thresholds = PAPER_THRESHOLDS,
        only_segment: bool = False,
        support_bytes: int | None = None,
    ) -> None:
        if not dataset.has_photos:
            raise EmatError("no-photos", f"{dataset.root} has masks but no photos; an evaluation needs both")
        self.method, self.dataset, self.cache = method, dataset, cache
        self.thresholds, self.only_segment = thresholds, only_segment
        limit = default_limits().supports if support_bytes is None else support_bytes
        on_device = free_memory(next(method.parameters()).device)  # encodings are on the method's device
        self._supports: _Kept[SupportPair] = _Kept(min(limit, int(SUPPORT_SHARE * on_device)))

    def answer(self, work: QueryWork) -> list[tuple[TaskIndex, TaskOutcome]]:
        """Return the outcome of every task of one query."""
        mask = self.dataset.mask(work.query)

        def judge(task: SharedTask, decision: Decision) -> TaskOutcome:
            present, scores = (None, None) if self.only_segment else (decision.present, decision.scores)
            return judge_task(task.ways, present, decision.label_map, mask, scores)

        outcomes = self.decisions(work, (mask.shape[0], mask.shape[1]), judge)
        answered = zip(work.tasks, outcomes, strict=True)
        return [(index, outcome) for task, outcome in answered for index in task.indices]

    @torch.no_grad()
    def decisions(
        self, work: QueryWork, size: tuple[int, int], use: Callable[[SharedTask, Decision], Result]
    ) -> list[Result]:
        """Call `use` with each different task of one query and the method's decision for it, at `size` (H, W).

        A decision holds maps of full size, so it is used where it is made and not collected.

        Returns:
            What `use` returned for each task.
        """
        query = Comparison(self.method, self.cache.features_of(work.query, self.dataset.image))
        supports = {pair: self._support(pair) for pair in work.pairs}
        answers = []
        for task in work.tasks:
            by_way = zip(task.ways, task.shots, strict=True)
            ways = [[supports[name, way] for name in names] for way, names in by_way]
            answers.append(use(task, query.decide(ways, size, self.thresholds)))
        return answers

    def forget(self, names: Iterable[str]) -> None:
        """Give up what is kept of photos that no later query needs."""
        unneeded = set(names)
        self.cache.forget(unneeded)
        self._supports.drop(lambda pair: pair[0] in unneeded)

    def _support(self, pair: SupportPair) -> Any:
        kept = self._supports.get(pair)
        if kept is None:
            name, class_id = pair
            mask = torch.from_numpy(self.dataset.mask(name) == class_id)  # (H, W)
            kept = self.method.encode_example(
                mask.to(next(self.method.parameters()).device, torch.float32),
                lambda: self.dataset.image(name),
                lambda: self.cache.features_of(name, self.dataset.image),
            )
            self._supports.keep(pair, kept)
        return kept


@dataclass(frozen=True)
class FittedOptions:
    """What the segmenter of a task does beside asking its method; the defaults are those of `Segmenter.load`."""

    learn: bool = True
    refine: Refinement | None = "auto"

    @property
    def description(self) -> dict[str, object]:
        """All that answers depend on beside the method, for results and journals."""
        refiner = None if self.refine is None else refiner_of(self.refine)
        return {"learn": self.learn, "refine": refiner, "decision_version": DECISION_VERSION}


class AsFitted:
    """Answers tasks as `Segmenter` answers users: `fit` with the supports, `predict` for the query.

    Args:
        method: The method that answers.
        dataset: The data set of the photos and masks.
        cache: Encodes photos with the method's backbone, or gives features that it has kept.
        options: What a segmenter does beside asking its method.
        thresholds: The probabilities from which a class is present and a pixel belongs to a class.
        only_segment: Ignore the predicted presence.
    """

    def __init__(
        self,
        method: Method,
        dataset: Dataset,
        cache: FeatureCache,
        options: FittedOptions,
        *,
        thresholds: Thresholds = PAPER_THRESHOLDS,
        only_segment: bool = False,
    ) -> None:
        self.dataset, self.only_segment = dataset, only_segment
        learner = PixelLearner.of(method, thresholds) if options.learn else None
        self._unfitted = Segmenter(method, thresholds, cache=cache, refine=options.refine, learner=learner)
        self._kept: OrderedDict[SupportsByWay, Segmenter] = OrderedDict()
        self._lock = Lock()

    def answer(self, work: QueryWork) -> list[tuple[TaskIndex, TaskOutcome]]:
        """Return the outcome of every task of one query."""
        photo, mask = self.dataset.image(work.query), self.dataset.mask(work.query)
        answers = []
        for task in work.tasks:
            prediction = self._segmenter(task).predict(photo)
            present = [str(way) in prediction.present for way in task.ways]
            scores = [prediction.scores[str(way)] for way in task.ways]
            labels = np.array([0, *(1 + task.ways.index(int(name)) for name in prediction.classes)])
            label_map = labels[prediction.label_map]
            judged = (None, None) if self.only_segment else (present, scores)
            outcome = judge_task(task.ways, judged[0], label_map, mask, judged[1])
            answers += [(index, outcome) for index in task.indices]
        return answers

    def _segmenter(self, task: SharedTask) -> Segmenter:
        key = (task.ways, task.shots)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        fitted = self._unfitted.copy().fit(self._examples(task))
        with self._lock:
            self._kept[key] = fitted
            if len(self._kept) > FITTED_SEGMENTERS:
                self._kept.popitem(last=False)
        return fitted

    def _examples(self, task: SharedTask) -> list[Example]:
        """The supports of a task, each photo once. A task does not say where its other ways are in a photo."""
        masks: dict[str, dict[str, NDArray[np.bool_]]] = {}
        for way, names in zip(task.ways, task.shots, strict=True):
            for name in names:
                masks.setdefault(name, {})[str(way)] = self.dataset.mask(name) == way
        return [
            Example(
                self.dataset.image(name),
                shown,
                name=name,
                void=self.dataset.mask(name) == VOID,
                undecided=[str(way) for way in task.ways if str(way) not in shown],
            )
            for name, shown in masks.items()
        ]


class _Kept(Generic[Key]):
    """Keeps what a method computed. Beyond `limit` bytes, what was used longest ago is dropped."""

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes = limit, 0
        self._kept: OrderedDict[Key, Any] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Key) -> Any | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def drop(self, unwanted: Callable[[Key], bool]) -> None:
        with self._lock:
            for key in [key for key in self._kept if unwanted(key)]:
                self._bytes -= tensor_bytes(self._kept.pop(key))

    def keep(self, key: Key, value: Any) -> None:
        with self._lock:
            if key in self._kept:  # another thread made it at the same time
                return
            self._kept[key] = value
            self._bytes += tensor_bytes(value)
            while self._bytes > self._limit:
                self._bytes -= tensor_bytes(self._kept.popitem(last=False)[1])


def tensor_bytes(value: Any) -> int:
    """Return the bytes of all tensors in a method's encoding, which is a tensor, a dataclass or a sequence of such.

    >>> tensor_bytes((torch.zeros(3), [torch.zeros(2, dtype=torch.int64)]))
    28
    """
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if is_dataclass(value):
        return sum(tensor_bytes(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, (tuple, list)):
        return sum(map(tensor_bytes, value))
    return 0
