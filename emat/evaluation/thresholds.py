"""The thresholds that suit a head: the same answers, scored at many of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from emat.datasets.dataset import Dataset
from emat.evaluation.metrics import Counts, Scores, compute, count_outcome, merge
from emat.evaluation.one_pass import OnePass
from emat.evaluation.outcome import outcome_of, true_labels
from emat.evaluation.plan import QueryWork, Question, plan
from emat.evaluation.run import Watch
from emat.evaluation.workers import all_cores
from emat.inference.feature_cache import FeatureCache
from emat.method import PAPER_THRESHOLD, Decision, Method, Thresholds
from emat.tasks.frozen import FrozenTasks

CANDIDATES = tuple(percent / 100 for percent in range(10, 91, 5))

Gate: TypeAlias = tuple[bool, ...]  # which ways of a question may have a mask


@dataclass(frozen=True)
class Sweep:
    """The scores of the same tasks at every candidate."""

    alike: Mapping[float, Scores]  # one threshold for presence and masks, as `emat eval` judges
    gated: Mapping[Thresholds, Scores]  # as `Prediction` reads an answer: a class that is not present has no mask

    def best(self) -> Thresholds:
        """The most accurate presence threshold, and with it the mask threshold of the highest mIoU.

        A method that does not predict presence keeps the paper's threshold for it.
        """
        accuracy = {each: scores.accuracy for each, scores in self.alike.items()}
        judged = not any(map(math.isnan, accuracy.values()))
        presence = middle_of_best(accuracy) if judged else PAPER_THRESHOLD
        found = {both.mask: scores.miou for both, scores in self.gated.items() if both.presence == presence}
        return Thresholds(presence, middle_of_best(found))


def middle_of_best(scores: Mapping[float, float]) -> float:
    """The candidate with the highest score; the middle of the longest run of neighbours that share it.

    >>> middle_of_best({0.1: 0.7, 0.2: 0.4, 0.3: 0.7, 0.4: 0.7, 0.5: 0.7})
    0.4
    """
    highest = max(scores.values())
    runs = [list(run) for reached, run in groupby(scores, lambda each: scores[each] == highest) if reached]
    longest = max(runs, key=len)
    return longest[len(longest) // 2]


def sweep(
    method: Method, dataset: Dataset, cells: Sequence[FrozenTasks], *, cache: FeatureCache, watch: Watch = iter
) -> Sweep:
    """The scores of all tasks of `cells` together, at every candidate."""
    classes = sorted({way for cell in cells for task in cell.tasks for way in task.ways})
    answering = OnePass(method, dataset, cache)

    def answer(work: QueryWork) -> list[_QuestionCounts]:
        mask = dataset.mask(work.query)

        def judge(question: Question, decision: Decision) -> _QuestionCounts:
            return _count(question, decision, mask, classes)

        return answering.decisions(work, (mask.shape[0], mask.shape[1]), judge)

    alike = [merge([], classes) for _ in CANDIDATES]
    gated = [[merge([], classes) for _ in CANDIDATES] for _ in CANDIDATES]
    works = plan(dict(enumerate(cells)))
    with all_cores(next(method.parameters()).device) as workers:
        for work, answers in zip(watch(works), workers.map(answer, works), strict=True):
            for question, counts in zip(work.questions, answers, strict=True):
                for _ in question.places:
                    alike = _added(alike, counts.alike)
                    gated = [_added(sums, counts.gated[gate]) for sums, gate in zip(gated, counts.gates, strict=True)]
    pairs = zip(CANDIDATES, gated, strict=True)
    return Sweep(
        {each: compute(total) for each, total in zip(CANDIDATES, alike, strict=True)},
        {
            Thresholds(presence, mask): compute(total)
            for presence, sums in pairs
            for mask, total in zip(CANDIDATES, sums, strict=True)
        },
    )


@dataclass(frozen=True)
class _QuestionCounts:
    """One question's counts at every candidate."""

    alike: list[Counts]
    gates: list[Gate]  # of every candidate as presence threshold
    gated: dict[Gate, list[Counts]]  # at every candidate as mask threshold


def _count(
    question: Question, decision: Decision, mask: NDArray[np.integer], classes: Sequence[int]
) -> _QuestionCounts:
    """Many presence thresholds let the same ways through: pixels are counted once for each such set."""
    ways, truth = question.ways, true_labels(question.ways, mask)
    gates = [tuple(score >= each for score in decision.certainty) for each in CANDIDATES]
    everything = (True,) * len(ways)
    confusions = {gate: _confusions(decision.probabilities, gate, truth) for gate in {everything, *gates}}

    def counts(confusion: NDArray[np.int64], gate: Gate) -> Counts:
        return count_outcome(outcome_of(confusion, ways, None if decision.scores is None else gate), classes)

    return _QuestionCounts(
        [counts(each, gate) for each, gate in zip(confusions[everything], gates, strict=True)],
        gates,
        {gate: [counts(each, gate) for each in confusions[gate]] for gate in set(gates)},
    )


def _confusions(probabilities: NDArray[np.float32], gate: Gate, truth: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """(1 + N, 1 + N) at every candidate as mask threshold: a pixel goes to the likeliest way that is let through.

    Pixels are counted once, by how many candidates they reach; of those, sums from the top.
    """
    passed = np.where(np.array(gate)[:, None, None], probabilities, np.float32(-1))  # (N, H, W)
    reached = np.searchsorted(np.array(CANDIDATES, np.float32), passed.max(axis=0), side="right")  # (H, W)
    labels, levels = len(gate) + 1, len(CANDIDATES) + 1
    places = (reached * labels + truth) * labels + passed.argmax(axis=0) + 1
    counts = np.bincount(places.ravel(), minlength=levels * labels * labels).reshape(levels, labels, labels)
    at_least = counts[::-1].cumsum(axis=0)[::-1]  # [k]: pixels that reach k candidates or more
    confusions = []
    for found in at_least[1:]:
        confusion = found.copy()
        confusion[:, 0] = (at_least[0] - found).sum(axis=1)  # all the others are background
        confusions.append(confusion)
    return confusions


def _added(sums: Sequence[Counts], more: Sequence[Counts]) -> list[Counts]:
    return [one + other for one, other in zip(sums, more, strict=True)]
