"""Judging weights in training: the fold's tasks through the same path as prediction."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emat.evaluation.metrics import Counts, compute, count_task, no_counts
from emat.inference.feature_cache import FeatureCache
from emat.method import Features, Method
from emat.training.data import Validation

FALSE_MASK = 0.01  # share of a photo: a smaller mask where nothing is counts as none


@dataclass(frozen=True)
class CheckCounts:
    """Sums over tasks, which add up over processes."""

    counts: Counts
    lacking: int  # tasks whose query lacks the class
    false_masks: int  # those of them in which a mask was drawn all the same

    def as_tensor(self) -> Tensor:
        """All numbers in one row of int64, so that one addition over processes does."""
        c = self.counts
        parts = [[c.tasks, c.judged, c.right, self.lacking, self.false_masks], c.intersections, c.unions, c.binary]
        return torch.from_numpy(np.concatenate([np.asarray(part, np.int64).ravel() for part in parts]))

    @staticmethod
    def from_tensor(row: Tensor, class_ids: tuple[int, ...]) -> "CheckCounts":
        """The counts that `as_tensor` wrote."""
        values = row.cpu().numpy()
        tasks, judged, right, lacking, false_masks = (int(value) for value in values[:5])
        intersections, unions, binary = np.split(values[5:], [len(class_ids), 2 * len(class_ids)])
        counts = Counts(class_ids, tasks, judged, right, intersections, unions, binary.reshape(2, 2))
        return CheckCounts(counts, lacking, false_masks)


@dataclass(frozen=True)
class Check:
    """The scores of one validation, between 0 and 1; NaN where nothing was there to judge."""

    tasks: int
    miou: float
    accuracy: float
    false_mask_rate: float  # of queries that lack the class, how many got a mask

    @staticmethod
    def of(found: CheckCounts) -> "Check":
        """The scores of summed counts."""
        scores = compute(found.counts)
        false_masks = found.false_masks / found.lacking if found.lacking else float("nan")
        return Check(scores.tasks, scores.miou, scores.accuracy, false_masks)


@torch.no_grad()
def check(
    method: Method, cache: FeatureCache, validation: Validation, rank: int = 0, processes: int = 1
) -> CheckCounts:
    """The counts of this process's share of the tasks."""
    dataset, sampler = validation.dataset, validation.sampler
    found, lacking, false_masks = no_counts(sampler.class_ids), 0, 0
    device = next(method.parameters()).device

    def features(name: str) -> Features:
        return cache.features_of(f"val {name}", lambda _: dataset.image(name))

    def shown(name: str, way: int) -> Any:
        mask = torch.from_numpy((dataset.mask(name) == way).astype(np.float32))
        return method.encode_support(features(name), mask.to(device))

    for index in range(rank, len(sampler), processes):
        task = sampler[index]
        query = method.encode_query(features(task.query))
        ways = zip(task.ways, task.shots, strict=True)
        evidence = [method.compare(query, [shown(shot, way) for shot in shots]) for way, shots in ways]
        mask = dataset.mask(task.query)
        decision = method.decide(evidence, (mask.shape[0], mask.shape[1]))
        found = found + count_task(sampler.class_ids, task.ways, decision.present, decision.label_map, mask)
        if not task.present(mask).any():
            lacking += 1
            false_masks += int((decision.label_map > 0).mean() >= FALSE_MASK)
    return CheckCounts(found, lacking, false_masks)
