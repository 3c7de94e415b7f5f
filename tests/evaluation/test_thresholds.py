"""Many thresholds from one look are what each gives when the tasks are answered, or predictions read, with it."""

import math
from pathlib import Path

import numpy as np
import pytest

from emat.evaluation.contender import load_contender
from emat.evaluation.metrics import ClassScore, Counts, Scores, compute, count_outcome, count_task, merge
from emat.evaluation.one_pass import OnePass
from emat.evaluation.plan import Question, plan
from emat.evaluation.thresholds import CANDIDATES, Sweep, middle_of_best, sweep
from emat.inference.feature_cache import FeatureCache
from emat.inference.methods import build_method
from emat.inference.prediction import Prediction
from emat.method import PAPER_THRESHOLD, Decision, Method, Thresholds
from emat.tasks.benchmark import Benchmark, open_benchmark
from emat.tasks.frozen import FrozenTasks, freeze

PLENTY = 2**30
CLASSES = (1, 2, 3, 4)


@pytest.fixture(scope="module")
def benchmark(photos: Path) -> Benchmark:
    return open_benchmark(None, None, photos, folds="2")


@pytest.fixture(scope="module")
def cells(benchmark: Benchmark) -> list[FrozenTasks]:
    return [freeze(benchmark.sampler(fold, 2, 1, tasks=5)) for fold in (0, 1)]


@pytest.fixture(scope="module", params=["emat", "prototype", "emat-s"])
def method(request: pytest.FixtureRequest, head: Path) -> Method:
    if request.param == "emat-s":
        return build_method("emat-s", image_size=64, device="cpu").requires_grad_(False)
    model = head if request.param == "emat" else "prototype"
    return load_contender(model, image_size=64, device="cpu").method


@pytest.fixture(scope="module")
def found(method: Method, benchmark: Benchmark, cells: list[FrozenTasks]) -> Sweep:
    assert benchmark.dataset is not None
    return sweep(method, benchmark.dataset, cells, cache=FeatureCache(method, memory_bytes=PLENTY))


@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.55, 0.9])
def test_every_candidate_scores_as_an_evaluation_with_it(
    threshold: float, method: Method, benchmark: Benchmark, cells: list[FrozenTasks], found: Sweep
) -> None:
    assert benchmark.dataset is not None
    assert tuple(found.alike) == CANDIDATES
    cache = FeatureCache(method, memory_bytes=PLENTY)
    answering = OnePass(method, benchmark.dataset, cache, thresholds=Thresholds(threshold, threshold))
    outcomes = [outcome for work in plan(dict(enumerate(cells))) for _, outcome in answering.answer(work)]
    expected = compute(merge((count_outcome(each, CLASSES) for each in outcomes), CLASSES))
    assert _same(found.alike[threshold], expected)


@pytest.mark.parametrize("read", [Thresholds(0.3, 0.7), Thresholds(0.5, 0.35), Thresholds(0.65, 0.5)])
def test_every_pair_scores_as_predictions_that_are_read_with_it(
    read: Thresholds, method: Method, benchmark: Benchmark, cells: list[FrozenTasks], found: Sweep
) -> None:
    dataset = benchmark.dataset
    assert dataset is not None
    answering = OnePass(method, dataset, FeatureCache(method, memory_bytes=PLENTY))
    total = merge([], CLASSES)
    for work in plan(dict(enumerate(cells))):
        photo, mask = dataset.image(work.query), dataset.mask(work.query)

        def judge(question: Question, decision: Decision) -> Counts:
            names = [str(way) for way in question.ways]
            scores = dict(zip(names, decision.certainty, strict=True))
            maps = dict(zip(names, decision.probabilities, strict=True))
            prediction = Prediction(photo, scores, maps, read)  # noqa: B023  # used up before the next query
            present = None if decision.scores is None else [name in prediction.present for name in names]
            counts = count_task(CLASSES, question.ways, present, prediction.label_map, mask)  # noqa: B023
            return sum((counts for _ in question.places), start=merge([], CLASSES))

        total = merge([total, *answering.decisions(work, (mask.shape[0], mask.shape[1]), judge)], CLASSES)
    assert _same(found.gated[read], compute(total))


def test_presence_is_chosen_first_and_masks_as_they_are_left_by_it() -> None:
    alike = {0.2: _scores(0.6, 0.9), 0.4: _scores(0.7, 0.5), 0.6: _scores(0.5, 0.4)}
    gated = {Thresholds(p, m): _scores(0.1, 0.9 if p == 0.2 else m) for p in alike for m in alike}
    assert Sweep(alike, gated).best() == Thresholds(presence=0.4, mask=0.6)


def test_where_presence_is_not_predicted_its_threshold_stays() -> None:
    alike = {each: _scores(math.nan, each) for each in (0.4, PAPER_THRESHOLD)}
    gated = {Thresholds(p, m): _scores(math.nan, -m) for p in alike for m in alike}
    assert Sweep(alike, gated).best() == Thresholds(PAPER_THRESHOLD, 0.4)


def test_of_equal_candidates_the_middle_of_the_longest_run_is_taken() -> None:
    assert middle_of_best(dict.fromkeys(CANDIDATES, 0.0)) == 0.5
    assert middle_of_best({0.1: 0.9, 0.2: 0.1, 0.3: 0.9, 0.4: 0.9, 0.5: 0.9, 0.6: 0.2}) == 0.4


def _scores(accuracy: float, miou: float) -> Scores:
    return Scores(1, accuracy, miou, 0.0, (ClassScore(1, 0, 0, 0.0),), 0.0, 0.0)


def _same(one: Scores, other: Scores) -> bool:
    """NaN counts as equal."""
    ours, theirs = ([each.accuracy, each.miou, each.false_mask_rate, each.false_area] for each in (one, other))
    return np.array_equal(ours, theirs, equal_nan=True) and one.classes == other.classes and one.tasks == other.tasks
