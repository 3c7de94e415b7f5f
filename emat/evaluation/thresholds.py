"""The thresholds that suit a head: the same answers, scored at many of them."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from emat.datasets.dataset import Dataset
from emat.evaluation.metrics import Counts, Scores, compute, count_task, merge
from emat.evaluation.one_pass import OnePass
from emat.evaluation.plan import QueryWork, Question, plan
from emat.evaluation.run import Watch
from emat.evaluation.workers import all_cores
from emat.inference.feature_cache import FeatureCache
from emat.method import PAPER_THRESHOLD, Decision, Method, Thresholds
from emat.tasks.frozen import FrozenTasks

CANDIDATES = tuple(percent / 100 for percent in range(10, 91, 5))


def sweep(
    method: Method, dataset: Dataset, cells: Sequence[FrozenTasks], *, cache: FeatureCache, watch: Watch = iter
) -> dict[float, Scores]:
    """The scores of all tasks of `cells` together, at every candidate as threshold of presence and of masks alike."""
    classes = sorted({way for cell in cells for task in cell.tasks for way in task.ways})
    answering = OnePass(method, dataset, cache)

    def answer(work: QueryWork) -> list[list[Counts]]:
        mask = dataset.mask(work.query)

        def judge(question: Question, decision: Decision) -> list[Counts]:
            found = [_count_at(each, classes, question, decision, mask) for each in CANDIDATES]
            return [sum((counts for _ in question.places), start=merge([], classes)) for counts in found]

        return answering.decisions(work, (mask.shape[0], mask.shape[1]), judge)

    totals = [merge([], classes) for _ in CANDIDATES]
    works = plan(dict(enumerate(cells)))
    with all_cores(next(method.parameters()).device) as workers:
        for _, answers in zip(watch(works), workers.map(answer, works), strict=True):
            for counts in answers:
                totals = [total + each for total, each in zip(totals, counts, strict=True)]
    return {each: compute(total) for each, total in zip(CANDIDATES, totals, strict=True)}


def best_thresholds(scores: Mapping[float, Scores]) -> Thresholds:
    """The most accurate one for presence, that of the highest mIoU for masks.

    They are chosen apart: one decides which classes are there, the other which pixels are theirs.
    """
    judged = any(each.accuracy > 0 for each in scores.values())  # accuracy is NaN where presence is not predicted
    return Thresholds(
        presence=max(scores, key=lambda each: scores[each].accuracy) if judged else PAPER_THRESHOLD,
        mask=max(scores, key=lambda each: scores[each].miou),
    )


def _count_at(
    threshold: float, classes: Sequence[int], question: Question, decision: Decision, mask: NDArray[np.integer]
) -> Counts:
    """The counts of a decision that is read with another threshold."""
    likeliest = decision.probabilities.argmax(axis=0)  # (H, W)
    label_map = np.where(decision.probabilities.max(axis=0) >= threshold, likeliest + 1, 0)
    present = None if decision.scores is None else [score >= threshold for score in decision.scores]
    return count_task(classes, question.ways, present, label_map, mask)
