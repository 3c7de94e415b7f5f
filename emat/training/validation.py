"""Judging weights in training: the fold's tasks as an evaluation answers them."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from emat.evaluation.metrics import Counts, compute, count_outcome, merge
from emat.evaluation.one_pass import OnePass
from emat.evaluation.plan import plan
from emat.evaluation.workers import all_cores
from emat.inference.feature_cache import FeatureCache
from emat.method import Method
from emat.tasks.frozen import freeze
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


def check(method: Method, cache: FeatureCache, validation: Validation, rank: int = 0, processes: int = 1) -> Counts:
    """The counts of this process's share of the queries."""
    class_ids = validation.sampler.class_ids
    work = plan({0: freeze(validation.sampler)})[rank::processes]
    answering = OnePass(method, validation.dataset, cache)
    with all_cores(next(method.parameters()).device) as workers:
        answers = [outcome for found in workers.map(answering.answer, work) for _, outcome in found]
    return merge((count_outcome(outcome, class_ids) for outcome in answers), class_ids)


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
