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


@dataclass(frozen=True)
class Check:
    """The scores of one validation, between 0 and 1; NaN where there was nothing to judge."""

    tasks: int
    miou: float
    accuracy: float
    false_mask_rate: float  # of queries that lack the class, how many got a mask
    false_area: float  # and how much of them it covers on average

    @staticmethod
    def of(counts: Counts) -> "Check":
        """The scores of summed counts."""
        scores = compute(counts)
        return Check(scores.tasks, scores.miou, scores.accuracy, scores.false_mask_rate, scores.false_area)


@torch.no_grad()
def check(method: Method, cache: FeatureCache, validation: Validation, rank: int = 0, processes: int = 1) -> Counts:
    """The counts of this process's share of the tasks."""
    dataset, sampler = validation.dataset, validation.sampler
    device = next(method.parameters()).device

    def features(name: str) -> Features:
        return cache.features_of(f"val {name}", lambda _: dataset.image(name))

    def shown(name: str, way: int) -> Any:
        mask = torch.from_numpy((dataset.mask(name) == way).astype(np.float32))
        return method.encode_support(features(name), mask.to(device))

    counts = no_counts(sampler.class_ids)
    for index in range(rank, len(sampler), processes):
        task = sampler[index]
        query = method.encode_query(features(task.query))
        ways = zip(task.ways, task.shots, strict=True)
        evidence = [method.compare(query, [shown(shot, way) for shot in shots]) for way, shots in ways]
        mask = dataset.mask(task.query)
        decision = method.decide(evidence, (mask.shape[0], mask.shape[1]))
        counts = counts + count_task(sampler.class_ids, task.ways, decision.present, decision.label_map, mask)
    return counts


def as_row(counts: Counts) -> Tensor:
    """All the numbers in one row of float64, which holds pixel counts exactly: one addition over processes does."""
    numbers = [counts.tasks, counts.judged, counts.right, counts.absent, counts.false_masks, counts.false_area]
    parts = [np.asarray(numbers), counts.intersections, counts.unions, counts.binary.ravel()]
    return torch.from_numpy(np.concatenate(parts).astype(np.float64))


def from_row(row: Tensor, class_ids: tuple[int, ...]) -> Counts:
    """The counts that `as_row` wrote, or the sum of several."""
    *whole, false_area = row[:6].tolist()
    tasks, judged, right, absent, false_masks = map(int, whole)
    pixels = row[6:].cpu().numpy().astype(np.int64)
    intersections, unions, binary = np.split(pixels, [len(class_ids), 2 * len(class_ids)])
    binary = binary.reshape(2, 2)
    return Counts(class_ids, tasks, judged, right, intersections, unions, binary, absent, false_masks, false_area)
