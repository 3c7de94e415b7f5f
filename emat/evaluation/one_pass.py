"""One pass over all queries: each photo encoded once, each pair of query and support compared once.

The evidence of a query's pairs lives as long as that query is answered; features and support encodings are kept within
limits, and made again when they were dropped. Any number of threads may answer queries of one pass.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from threading import Lock
from typing import Any, TypeVar

import torch
from torch import Tensor

from emat.datasets.dataset import Dataset
from emat.device import free_memory, main_memory
from emat.errors import EmatError
from emat.evaluation.outcome import TaskOutcome, judge_task
from emat.evaluation.plan import Pair, Place, QueryWork, Question
from emat.images import Pixels
from emat.inference.feature_cache import FeatureCache
from emat.method import PAPER_THRESHOLDS, Decision, Method, Thresholds

Result = TypeVar("Result")

FEATURE_SHARE, SUPPORT_SHARE = 0.25, 0.25  # of the memory that is available when a pass begins
MEMORY_IF_UNKNOWN = 4 * 2**30


@dataclass(frozen=True)
class Limits:
    """Bytes that a pass may keep from one query to the next."""

    features: int
    supports: int


def default_limits(processes: int = 1) -> Limits:
    """A share of the memory that is free now, for each of so many processes on this machine."""
    available = (main_memory().available or MEMORY_IF_UNKNOWN) / processes
    return Limits(int(FEATURE_SHARE * available), int(SUPPORT_SHARE * available))


class OnePass:
    """Answers queries of `dataset` by `method`, whose features `cache` gives.

    `only_segment` leaves presence out, as if the method did not predict it.
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
            raise EmatError(f"{dataset.root} holds masks but no photos; an evaluation looks at both")
        self.method, self.dataset, self.cache = method, dataset, cache
        self.thresholds, self.only_segment = thresholds, only_segment
        limit = default_limits().supports if support_bytes is None else support_bytes
        on_device = free_memory(next(method.parameters()).device)  # encodings live where the method is
        self._supports = _Supports(limit if on_device is None else min(limit, int(SUPPORT_SHARE * on_device)))

    def answer(self, work: QueryWork) -> list[tuple[Place, TaskOutcome]]:
        """The outcome of every task that asks something of this query."""
        mask = self.dataset.mask(work.query)

        def judge(question: Question, decision: Decision) -> TaskOutcome:
            present, scores = (None, None) if self.only_segment else (decision.present, decision.scores)
            return judge_task(question.ways, present, decision.label_map, mask, scores)

        outcomes = self.decisions(work, (mask.shape[0], mask.shape[1]), judge)
        asked = zip(work.questions, outcomes, strict=True)
        return [(place, outcome) for question, outcome in asked for place in question.places]

    @torch.no_grad()
    def decisions(
        self, work: QueryWork, size: tuple[int, int], use: Callable[[Question, Decision], Result]
    ) -> list[Result]:
        """What `use` makes of the method's answer to each question, at `size` (H, W).

        An answer holds maps of full size, so it is used up where it is made.
        """
        query = self.method.encode_query(self.cache.features_of(work.query, self._photo))
        evidence = {pair: self.method.compare(query, [self._support(pair)])[0] for pair in work.pairs}
        found = []
        for question in work.questions:
            by_way = zip(question.ways, question.shots, strict=True)
            shots = [[evidence[name, way] for name in names] for way, names in by_way]
            found.append(use(question, self.method.decide(shots, size, self.thresholds)))
        return found

    def _support(self, pair: Pair) -> Any:
        kept = self._supports.get(pair)
        if kept is None:
            name, class_id = pair
            features = self.cache.features_of(name, self._photo)
            shown = torch.from_numpy(self.dataset.mask(name) == class_id)  # (H, W)
            kept = self.method.encode_support(features, shown.to(features.tensors[0].device, torch.float32))
            self._supports.keep(pair, kept)
        return kept

    def _photo(self, name: str) -> Pixels:
        return self.dataset.image(name)


class _Supports:
    """Support encodings, those used longest ago dropped beyond `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes = limit, 0
        self._kept: OrderedDict[Pair, Any] = OrderedDict()
        self._lock = Lock()

    def get(self, pair: Pair) -> Any | None:
        with self._lock:
            if pair in self._kept:
                self._kept.move_to_end(pair)
            return self._kept.get(pair)

    def keep(self, pair: Pair, encoding: Any) -> None:
        with self._lock:
            if pair in self._kept:  # made by another thread at the same time
                return
            self._kept[pair] = encoding
            self._bytes += tensor_bytes(encoding)
            while self._bytes > self._limit:
                self._bytes -= tensor_bytes(self._kept.popitem(last=False)[1])


def tensor_bytes(value: Any) -> int:
    """Bytes of all tensors in a method's encoding: a tensor, a dataclass or a sequence of such.

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
