"""Many evaluations in one pass: each photo is encoded once, and each query is compared once with each support.

Most tasks of the three settings are the same, and tasks of other ways and shots share pairs of photos. So the tasks of
all configurations are drawn first, and `plan` groups them by query. `OnePass` then answers one query after the other,
and `RefinedTasks` refines its masks if that is asked for. What is computed for a query is kept until that query is
answered. Features and support encodings are kept within limits of memory, and are computed again if they were dropped.
Several threads may answer queries of one pass.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
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
from emat.methods.base import PAPER_THRESHOLDS, Decision, LabelledFeatures, Learnt, Method, TaskEvidence, Thresholds
from emat.methods.label_map import make_label_map
from emat.refine.refiner import Refinement, can_draw, examples_suit, refine_maps, shared_mobilesam
from emat.tasks.task import Configuration, Task

Result = TypeVar("Result")
Key = TypeVar("Key")
SupportPair: TypeAlias = tuple[str, int]  # a support photo and the class that it is an example of
SupportsByWay: TypeAlias = tuple[tuple[int, ...], tuple[tuple[str, ...], ...]]  # a task's ways and shots
# From ways, shots and probabilities (N, H, W) to the label map (H, W)
RefineTask: TypeAlias = Callable[[Sequence[int], Sequence[Sequence[str]], NDArray[np.float32]], NDArray[np.uint8]]

FEATURE_SHARE, SUPPORT_SHARE = 0.25, 0.25  # of the memory that is free when a pass begins
LEARNT_BYTES = 1 << 28  # of what a method learnt from the supports of tasks


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
        QueryWork(query, tuple(SharedTask(ways, shots, tuple(found)) for (ways, shots), found in tasks.items()))
        for query, tasks in indices.items()
    ]


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
    tasks: list[Task] = [task for each in configurations for task in each.tasks]
    return Savings(
        tasks=len(tasks),
        shared_tasks=sum(len(each.tasks) for each in work),
        pairs=sum(len(each.pairs) for each in work),
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


class OnePass:
    """Answers the tasks of one query after the other.

    Args:
        method: The method that answers.
        dataset: The data set of the photos and masks.
        cache: Encodes photos with the method's backbone, or gives features that it has kept.
        thresholds: The probabilities from which a class is present and a pixel belongs to a class.
        only_segment: Ignore the predicted presence, as if the method did not predict it.
        support_bytes: How many bytes of support encodings to keep; None uses a share of the free memory.
        refine: How masks are refined, as a segmenter does it. None: they are not refined, as in the paper.

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
        refine: Refinement | None = None,
    ) -> None:
        if not dataset.has_photos:
            raise EmatError(f"{dataset.root} has masks but no photos; an evaluation needs both")
        self.method, self.dataset, self.cache = method, dataset, cache
        self.thresholds, self.only_segment = thresholds, only_segment
        limit = default_limits().supports if support_bytes is None else support_bytes
        on_device = free_memory(next(method.parameters()).device)  # encodings are on the method's device
        self._supports: _Kept[SupportPair] = _Kept(min(limit, int(SUPPORT_SHARE * on_device)))
        self._learnt: _Kept[SupportsByWay] = _Kept(LEARNT_BYTES)
        self._refining = None if refine is None else RefinedTasks(dataset, refine, thresholds.mask)

    def answer(self, work: QueryWork) -> list[tuple[TaskIndex, TaskOutcome]]:
        """Return the outcome of every task of one query."""
        mask = self.dataset.mask(work.query)

        def judge(task: SharedTask, decision: Decision) -> TaskOutcome:
            present, scores = (None, None) if self.only_segment else (decision.present, decision.scores)
            label_map = (
                decision.label_map if refining is None else refining(task.ways, task.shots, decision.probabilities)
            )
            return judge_task(task.ways, present, label_map, mask, scores)

        refining = None if self._refining is None else self._refining.of_query(work.query)
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
        query = self.method.encode_query(self.cache.features_of(work.query, self.dataset.image))
        evidence = {pair: self.method.compare(query, [self._support(pair)])[0] for pair in work.pairs}
        found = []
        for task in work.tasks:
            by_way = zip(task.ways, task.shots, strict=True)
            shots = [[evidence[name, way] for name in names] for way, names in by_way]
            learnt = self._learnt_from(task) if self.method.learns else None
            applied = None if learnt is None else self.method.apply_learnt(query, learnt)
            found.append(use(task, self.method.decide(TaskEvidence(shots, size, applied), self.thresholds)))
        return found

    def _learnt_from(self, task: SharedTask) -> Learnt | None:
        """Return what the method learns from the supports of a task, which is kept for tasks with the same supports."""
        key = (task.ways, task.shots)
        kept = self._learnt.get(key)
        if kept is None:
            masks: dict[str, dict[int, NDArray[np.bool_]]] = {}  # by photo and way
            for way, (class_id, names) in enumerate(zip(task.ways, task.shots, strict=True)):
                for name in names:
                    masks.setdefault(name, {})[way] = self.dataset.mask(name) == class_id
            photos = []
            for name, shown in masks.items():
                features = self.cache.features_of(name, self.dataset.image)
                labels = labels_of_support(shown, self.dataset.mask(name) == VOID, len(task.ways))
                photos.append(LabelledFeatures(features, labels.to(features.tensors[0].device)))
            kept = self.method.learn(photos)
            self._learnt.keep(key, kept)
        return kept

    def _support(self, pair: SupportPair) -> Any:
        kept = self._supports.get(pair)
        if kept is None:
            name, class_id = pair
            features = self.cache.features_of(name, self.dataset.image)
            shown = torch.from_numpy(self.dataset.mask(name) == class_id)  # (H, W)
            kept = self.method.encode_support(features, shown.to(features.tensors[0].device, torch.float32))
            self._supports.keep(pair, kept)
        return kept


class RefinedTasks:
    """Refines the masks of tasks, as `Segmenter` does for photos.

    Whether the examples of a class suit MobileSAM is found out once for each support photo.

    Args:
        dataset: The photos and masks.
        refine: How masks are refined.
        threshold: The probability from which a pixel belongs to a class.
    """

    def __init__(self, dataset: Dataset, refine: Refinement, threshold: float) -> None:
        self._dataset, self._refine, self._threshold = dataset, refine, threshold
        self._sam = shared_mobilesam(refine)
        self._suited: dict[tuple[str, int], bool] = {}
        self._lock = Lock()

    def of_query(self, query: str) -> RefineTask:
        """Return a function that refines the tasks of one query. MobileSAM encodes the photo at most once."""
        photo = self._dataset.image(query)
        sam = self._sam
        encode = None if sam is None else cache(lambda: sam.encode(photo))  # not needed if no task has a mask

        def refine(
            ways: Sequence[int], shots: Sequence[Sequence[str]], probabilities: NDArray[np.float32]
        ) -> NDArray[np.uint8]:
            maps = {str(way): map_ for way, map_ in zip(ways, probabilities, strict=True)}
            chosen = {str(way): self._way_of(way, names) for way, names in zip(ways, shots, strict=True)}
            refined = refine_maps(photo, maps, self._threshold, chosen, sam, encode)
            return make_label_map(refined.maps.values(), self._threshold)

        return refine

    def _way_of(self, way: int, names: Sequence[str]) -> Refinement:
        """How a way is refined: "auto" leaves what does not suit MobileSAM to the photo's edges."""
        if self._refine != "auto":
            return self._refine
        answers = [self._suits(name, way) for name in dict.fromkeys(names)]
        return "auto" if sum(answers) > len(answers) / 2 else "guided"

    def _suits(self, name: str, way: int) -> bool:
        with self._lock:
            if (name, way) not in self._suited:
                mask = self._dataset.mask(name) == way
                self._suited[name, way] = examples_suit([mask]) and (
                    self._sam is None or can_draw(self._sam, self._dataset.image(name), mask)
                )
            return self._suited[name, way]


def labels_of_support(masks: Mapping[int, NDArray[np.bool_]], void: NDArray[np.bool_], ways: int) -> Tensor:
    """Say for every pixel of a support photo to which ways it belongs, as far as the task tells.

    Args:
        masks: The mask (H, W) of each way that the photo is a support of.
        void: Where (H, W) the data set does not say what the photo shows.
        ways: The number of ways.

    Returns:
        (ways, H, W) uint8: 1 = the class, 0 = not the class, 255 = unknown. A task shows no other mask of the photo,
        so another way may be anywhere except where a given mask is.

    >>> mask, void = np.array([[True, False, False]]), np.array([[False, False, True]])
    >>> labels_of_support({1: mask}, void, ways=2).tolist()
    [[[0, 255, 255]], [[1, 0, 255]]]
    """
    taken = np.any(list(masks.values()), axis=0)  # (H, W)
    labels = np.stack([masks.get(way, np.where(taken, 0, VOID)) for way in range(ways)])
    return torch.from_numpy(np.where(void, VOID, labels).astype(np.uint8))


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
