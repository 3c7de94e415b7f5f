"""Finds the best thresholds of a head, by scoring the same predictions at many thresholds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from emat.datasets.dataset import Dataset
from emat.device import all_cores
from emat.errors import EmatError
from emat.evaluation.evaluator import Evaluator, QueryWork, SharedTask, plan
from emat.evaluation.metrics import ScoreCounts, Scores, compute, count_outcome, outcome_of, true_labels
from emat.evaluation.run import Watch
from emat.features import FeatureCache
from emat.methods.base import PAPER_THRESHOLD, Decision, Method, Thresholds
from emat.methods.label_map import likeliest
from emat.methods.trained_head import Training
from emat.tasks.benchmark import Benchmark
from emat.tasks.task import Configuration

CANDIDATES = tuple(percent / 100 for percent in range(10, 91, 5))

Gate: TypeAlias = tuple[bool, ...]  # which ways of a task may have a mask


@dataclass(frozen=True)
class Sweep:
    """The scores of the same tasks at every candidate threshold."""

    alike: Mapping[float, Scores]  # the same threshold for presence and masks, as in `emat eval`
    gated: Mapping[Thresholds, Scores]  # a class whose score is below the presence threshold has no mask

    def best(self) -> Thresholds:
        """Return the presence threshold of the best accuracy and, with it, the mask threshold of the best mIoU.

        The presence threshold of a method that does not predict presence is the paper's.
        """
        accuracy = {threshold: scores.accuracy for threshold, scores in self.alike.items()}
        judged = not any(map(math.isnan, accuracy.values()))
        presence = middle_of_best(accuracy) if judged else PAPER_THRESHOLD
        miou = {both.mask: scores.miou for both, scores in self.gated.items() if both.presence == presence}
        return Thresholds(presence, middle_of_best(miou))


def middle_of_best(scores: Mapping[float, float]) -> float:
    """Return the candidate with the highest score, or the middle of the longest run of neighbours that share it.

    >>> middle_of_best({0.1: 0.7, 0.2: 0.4, 0.3: 0.7, 0.4: 0.7, 0.5: 0.7})
    0.4
    """
    highest = max(scores.values())
    runs = [list(run) for reached, run in groupby(scores, lambda candidate: scores[candidate] == highest) if reached]
    longest = max(runs, key=len)
    return longest[len(longest) // 2]


def sweep(
    method: Method,
    dataset: Dataset,
    configurations: Sequence[Configuration],
    *,
    cache: FeatureCache,
    watch: Watch = iter,
) -> Sweep:
    """Score all tasks of all configurations together, at every candidate threshold.

    Args:
        method: The method whose thresholds are chosen.
        dataset: The data set of the photos and masks.
        configurations: The tasks.
        cache: Encodes photos with the method's backbone.
        watch: Is given the work, and may show progress.
    """
    classes = sorted({way for configuration in configurations for task in configuration.tasks for way in task.ways})
    answering = Evaluator(method, dataset, cache)

    def answer(work: QueryWork) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        mask = dataset.mask(work.query)
        size = (mask.shape[0], mask.shape[1])
        return answering.decisions(work, size, lambda task, decision: _count(task, decision, mask, classes))

    columns, count = len(ScoreCounts.none(classes).row), len(CANDIDATES)
    alike, gated = np.zeros((count, columns)), np.zeros((count, count, columns))
    works = plan(dict(enumerate(configurations)))
    with all_cores(next(method.parameters()).device) as workers:
        for work, answers in zip(watch(works), workers.map(answer, works), strict=True):
            for task, counts in zip(work.tasks, answers, strict=True):
                for _ in task.indices:
                    alike += counts[0]
                    gated += counts[1]

    def scores(row: NDArray[np.float64]) -> Scores:
        return compute(ScoreCounts(tuple(classes), row))

    each_pair = {
        (a, b): row for a, rows in zip(CANDIDATES, gated, strict=True) for b, row in zip(CANDIDATES, rows, strict=True)
    }
    return Sweep(
        {threshold: scores(row) for threshold, row in zip(CANDIDATES, alike, strict=True)},
        {Thresholds(*pair): scores(row) for pair, row in each_pair.items()},
    )


def _count(
    task: SharedTask, decision: Decision, mask: NDArray[np.integer], classes: Sequence[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Count one task at every candidate: rows of `ScoreCounts` for `Sweep.alike` (K, R) and `Sweep.gated` (K, K, R).

    Presence thresholds that admit the same ways share one count of the pixels.
    """
    ways, truth = task.ways, true_labels(task.ways, mask)
    gates = [tuple(score >= threshold for score in decision.certainty) for threshold in CANDIDATES]
    everything = (True,) * len(ways)
    confusions = {gate: _confusions(decision.probabilities, gate, truth) for gate in {everything, *gates}}

    def row(confusion: NDArray[np.int64], gate: Gate) -> NDArray[np.float64]:
        return count_outcome(outcome_of(confusion, ways, None if decision.scores is None else gate), classes).row

    alike = [row(confusion, gate) for confusion, gate in zip(confusions[everything], gates, strict=True)]
    gated = {gate: [row(confusion, gate) for confusion in confusions[gate]] for gate in set(gates)}
    return np.array(alike), np.array([gated[gate] for gate in gates])


def _confusions(probabilities: NDArray[np.float32], gate: Gate, truth: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the confusion (1 + N, 1 + N) at every candidate as mask threshold.

    A pixel belongs to the most probable way that `gate` admits. Pixels are counted once, by how many candidates their
    probability reaches; sums of these counts from the top are the counts at each candidate.
    """
    passed = np.where(np.array(gate)[:, None, None], probabilities, np.float32(-1))  # (N, H, W)
    best = likeliest(passed, threshold=0.0)
    reached = np.searchsorted(np.array(CANDIDATES, np.float32), best.values.numpy(), side="right")  # (H, W)
    labels, levels = len(gate) + 1, len(CANDIDATES) + 1
    bins = (reached * labels + truth) * labels + best.labels.numpy()
    counts = np.bincount(bins.ravel(), minlength=levels * labels * labels).reshape(levels, labels, labels)
    at_least = counts[::-1].cumsum(axis=0)[::-1]  # [k]: pixels that reach k candidates or more
    confusions = []
    for reaching in at_least[1:]:
        confusion = reaching.copy()
        confusion[:, 0] = (at_least[0] - reaching).sum(axis=1)  # all other pixels are background
        confusions.append(confusion)
    return confusions


def without_test(benchmark: Benchmark, training: Training, fold: int | None = None) -> tuple[Benchmark, str | None]:
    """Leave the classes of `fold` out of `benchmark`; if `fold` is None, those that the head was not trained on.

    Returns:
        The rest, and a text that says what was left out; None if nothing was.
    """
    if fold is None and training.classes is not None:
        return _without_unseen(benchmark, training) if training.kept_apart else (benchmark, None)
    number = training.fold if fold is None else fold
    if number is None:
        return benchmark, None
    test = benchmark.fold_list(number)
    others = tuple(fold_list for fold_list in benchmark.fold_lists if fold_list is not test)
    if not others:
        raise EmatError(
            "too-few-folds", f"fold {number} is left out and there is no other; make more folds with --folds"
        )
    return replace(benchmark, fold_lists=others), f"fold {number}"


def _without_unseen(benchmark: Benchmark, training: Training) -> tuple[Benchmark, str | None]:
    assert benchmark.dataset is not None
    names = {
        class_id: benchmark.dataset.classes[class_id - 1]
        for fold_list in benchmark.fold_lists
        for class_id in fold_list.class_ids
    }
    seen = set(training.seen(list(names.values())))
    lists = []
    for fold_list in benchmark.fold_lists:
        kept = tuple(class_id for class_id in fold_list.class_ids if names[class_id] in seen)
        if kept:
            entries = tuple((name, class_id) for name, class_id in fold_list.entries if class_id in kept)
            lists.append(replace(fold_list, class_ids=kept, entries=entries))
    if not lists:
        raise EmatError(
            "too-few-folds",
            f"the head was not trained on any class of {benchmark.dataset.root}, so all of them may be for testing; "
            "name the fold to leave out with --fold",
        )
    left_out = ", ".join(name for name in names.values() if name not in seen)
    return replace(benchmark, fold_lists=tuple(lists)), left_out or None
