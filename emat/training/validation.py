"""Validation during training: the validation tasks are answered in the same way as in an evaluation."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from emat.device import all_cores
from emat.evaluation.metrics import ScoreCounts, compute, count_outcome, merge
from emat.evaluation.one_pass import OnePass, plan
from emat.features import FeatureCache
from emat.methods.base import Method
from emat.training.data import ValidationTasks


@dataclass(frozen=True)
class ValidationScores:
    """The scores of one validation, between 0 and 1; NaN if no task counts for a score."""

    tasks: int
    miou: float
    accuracy: float
    false_mask_rate: float  # the share of queries without the class that were given a mask
    false_area: float  # the mean share of such a query that its mask covers

    @staticmethod
    def of(counts: ScoreCounts) -> "ValidationScores":
        """Compute the scores from the counts of all tasks."""
        scores = compute(counts)
        return ValidationScores(scores.tasks, scores.miou, scores.accuracy, scores.false_mask_rate, scores.false_area)


def validate(
    method: Method, cache: FeatureCache, validation: ValidationTasks, rank: int = 0, processes: int = 1
) -> ScoreCounts:
    """Answer the validation tasks of this process.

    Args:
        method: The method with the weights to judge.
        cache: The features of photos.
        validation: The tasks of all processes.
        rank: The number of this process, from 0 on.
        processes: The number of processes, which share the queries.

    Returns:
        The counts of this process's tasks; the sum over all processes gives the scores.
    """
    class_ids = validation.sampler.class_ids
    work = plan({0: validation.sampler.configuration()})[rank::processes]
    answering = OnePass(method, validation.dataset, cache)
    with all_cores(next(method.parameters()).device) as workers:
        answers = [outcome for found in workers.map(answering.answer, work) for _, outcome in found]
    return merge((count_outcome(outcome, class_ids) for outcome in answers), class_ids)


def as_row(counts: ScoreCounts) -> Tensor:
    """Return all counts in one row, so that a single addition sums them over processes.

    The row is float64, which holds numbers of pixels exactly.
    """
    numbers = [counts.tasks, counts.judged, counts.right, counts.absent, counts.false_masks, counts.false_area]
    parts = [np.asarray(numbers), counts.intersections, counts.unions, counts.binary.ravel()]
    return torch.from_numpy(np.concatenate(parts).astype(np.float64))


def from_row(row: Tensor, class_ids: tuple[int, ...]) -> ScoreCounts:
    """Return the counts of a row from `as_row`, or of a sum of such rows."""
    *whole, false_area = row[:6].tolist()
    tasks, judged, right, absent, false_masks = map(int, whole)
    pixels = row[6:].cpu().numpy().astype(np.int64)
    intersections, unions, binary = np.split(pixels, [len(class_ids), 2 * len(class_ids)])
    binary = binary.reshape(2, 2)
    return ScoreCounts(class_ids, tasks, judged, right, intersections, unions, binary, absent, false_masks, false_area)
