"""The scores of many thresholds at once equal those of an evaluation with each of them."""

import math
from pathlib import Path

import numpy as np
import pytest

from emat.evaluation.evaluator import Evaluator, SharedTask, plan
from emat.evaluation.metrics import ScoreCounts, Scores, compute, count_outcome, judge_task
from emat.evaluation.run import load_evaluated
from emat.evaluation.thresholds import CANDIDATES, Sweep, middle_of_best, sweep, without_test
from emat.features import FeatureCache
from emat.methods.base import PAPER_THRESHOLD, Decision, Method, Thresholds
from emat.methods.label_map import make_label_map
from emat.methods.registry import build_method
from emat.methods.trained_head import Training
from emat.tasks.benchmark import Benchmark, open_benchmark
from emat.tasks.sampling import TaskRequest
from emat.tasks.task import Configuration
from tests.raises import raises_code

PLENTY = 2**30
CLASSES = (1, 2, 3, 4)
KEPT_APART = Training(fold=1, kept_apart=True, classes=frozenset({"disc", "slab"}))


@pytest.fixture(scope="module")
def benchmark(photos: Path) -> Benchmark:
    return open_benchmark(None, None, photos, folds="2")


@pytest.fixture(scope="module")
def configurations(benchmark: Benchmark) -> list[Configuration]:
    return [benchmark.sampler(fold, TaskRequest(2, 1, tasks=5)).configuration() for fold in (0, 1)]


@pytest.fixture(scope="module", params=["emat", "prototype", "emat-s"])
def method(request: pytest.FixtureRequest, head: Path) -> Method:
    if request.param == "emat-s":
        return build_method("emat-s", image_size=64, device="cpu").requires_grad_(False)
    model = head if request.param == "emat" else "prototype"
    return load_evaluated(model, image_size=64, device="cpu").method


@pytest.fixture(scope="module")
def found(method: Method, benchmark: Benchmark, configurations: list[Configuration]) -> Sweep:
    assert benchmark.dataset is not None
    return sweep(method, benchmark.dataset, configurations, cache=FeatureCache(method, memory_bytes=PLENTY))


@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.55, 0.9])
def test_every_candidate_scores_like_an_evaluation_with_it(
    threshold: float, method: Method, benchmark: Benchmark, configurations: list[Configuration], found: Sweep
) -> None:
    assert benchmark.dataset is not None
    assert tuple(found.alike) == CANDIDATES
    cache = FeatureCache(method, memory_bytes=PLENTY)
    answering = Evaluator(method, benchmark.dataset, cache, thresholds=Thresholds(threshold, threshold))
    outcomes = [outcome for work in plan(dict(enumerate(configurations))) for _, outcome in answering.answer(work)]
    expected = compute(ScoreCounts.of(outcomes, CLASSES))
    assert _same(found.alike[threshold], expected)


@pytest.mark.parametrize("read", [Thresholds(0.3, 0.7), Thresholds(0.5, 0.35), Thresholds(0.65, 0.5)])
def test_every_pair_of_thresholds_scores_like_masks_of_the_likely_classes_alone(
    read: Thresholds, method: Method, benchmark: Benchmark, configurations: list[Configuration], found: Sweep
) -> None:
    dataset = benchmark.dataset
    assert dataset is not None
    answering = Evaluator(method, dataset, FeatureCache(method, memory_bytes=PLENTY))
    total = ScoreCounts.none(CLASSES)
    for work in plan(dict(enumerate(configurations))):
        mask = dataset.mask(work.query)

        def judge(task: SharedTask, decision: Decision) -> ScoreCounts:
            likely = [score >= read.presence for score in decision.certainty]
            maps = [probability for probability, shown in zip(decision.probabilities, likely, strict=True) if shown]
            labels = [label for label, shown in enumerate(likely, start=1) if shown]
            label_map = make_label_map(maps, read.mask, labels) if maps else np.zeros_like(mask)  # noqa: B023
            present = None if decision.scores is None else likely
            # `mask` is used up before the next query.
            counts = count_outcome(judge_task(task.ways, present, label_map, mask), CLASSES)  # noqa: B023
            return sum((counts for _ in task.indices), start=ScoreCounts.none(CLASSES))

        total = sum(answering.decisions(work, (mask.shape[0], mask.shape[1]), judge), start=total)
    assert _same(found.gated[read], compute(total))


def test_the_presence_threshold_is_chosen_first_and_the_mask_threshold_with_it() -> None:
    alike = {0.2: _scores(0.6, 0.9), 0.4: _scores(0.7, 0.5), 0.6: _scores(0.5, 0.4)}
    gated = {Thresholds(p, m): _scores(0.1, 0.9 if p == 0.2 else m) for p in alike for m in alike}
    assert Sweep(alike, gated).best() == Thresholds(presence=0.4, mask=0.6)


def test_without_predicted_presence_its_threshold_is_the_papers() -> None:
    alike = {each: _scores(math.nan, each) for each in (0.4, PAPER_THRESHOLD)}
    gated = {Thresholds(p, m): _scores(math.nan, -m) for p in alike for m in alike}
    assert Sweep(alike, gated).best() == Thresholds(PAPER_THRESHOLD, 0.4)


def test_of_equal_candidates_the_middle_of_the_longest_run_is_taken() -> None:
    assert middle_of_best(dict.fromkeys(CANDIDATES, 0.0)) == 0.5
    assert middle_of_best({0.1: 0.9, 0.2: 0.1, 0.3: 0.9, 0.4: 0.9, 0.5: 0.9, 0.6: 0.2}) == 0.4


def _scores(accuracy: float, miou: float) -> Scores:
    return Scores(accuracy, miou, 0.0, 0.0, 0.0)


def _same(one: Scores, other: Scores) -> bool:
    """NaN counts as equal."""
    return np.array_equal(one, other, equal_nan=True)


def test_what_was_kept_from_a_head_is_left_out_by_name(benchmark: Benchmark) -> None:
    remaining, left_out = without_test(benchmark, KEPT_APART)
    assert [each.class_ids for each in remaining.fold_lists] == [(1,), (4,)]
    assert {class_id for each in remaining.fold_lists for _, class_id in each.entries} == {1, 4}
    assert left_out == "bar, blob"


def test_a_head_that_nothing_was_kept_from_leaves_nothing_out(benchmark: Benchmark) -> None:
    assert without_test(benchmark, Training(classes=frozenset({"cat"})))[0] is benchmark
    assert without_test(benchmark, Training())[1] is None


@pytest.mark.parametrize(("training", "fold"), [(Training(1, True), None), (Training(), 1), (KEPT_APART, 1)])
def test_a_fold_that_is_named_is_left_out(benchmark: Benchmark, training: Training, fold: int | None) -> None:
    remaining, left_out = without_test(benchmark, training, fold)
    assert [each.fold for each in remaining.fold_lists] == [0]
    assert left_out == "fold 1"


@pytest.mark.parametrize(("training", "fold"), [(Training(), 9), (Training(9, True), None)])
def test_a_fold_that_is_not_there_cannot_be_left_out(
    benchmark: Benchmark, training: Training, fold: int | None
) -> None:
    with raises_code("unknown-fold", "0, 1"):
        without_test(benchmark, training, fold)


def test_a_head_that_knows_none_of_the_classes_asks_which_fold_to_leave_out(benchmark: Benchmark) -> None:
    with raises_code("too-few-folds", "shapes"):
        without_test(benchmark, Training(0, True, frozenset({"cat"})))
