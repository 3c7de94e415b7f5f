"""Many thresholds from one look are what each gives when the tasks are answered with it."""

from dataclasses import replace
from pathlib import Path

import pytest

from emat.evaluation.contender import load_contender
from emat.evaluation.metrics import compute, count_outcome, merge
from emat.evaluation.one_pass import OnePass
from emat.evaluation.plan import plan
from emat.evaluation.thresholds import CANDIDATES, best_thresholds, sweep
from emat.inference.feature_cache import FeatureCache
from emat.method import PAPER_THRESHOLD, Thresholds
from emat.tasks.benchmark import open_benchmark
from emat.tasks.frozen import freeze

PLENTY = 2**30


@pytest.mark.parametrize("method", ["emat", "prototype"])
def test_every_candidate_scores_as_an_evaluation_with_it(method: str, photos: Path, head: Path) -> None:
    benchmark = open_benchmark(None, None, photos, folds="2")
    model = head if method == "emat" else None
    chosen = load_contender(model, None if model else method, image_size=64, device="cpu").method
    dataset = benchmark.dataset
    assert dataset is not None
    cells = [freeze(benchmark.sampler(fold, 2, 1, tasks=5)) for fold in (0, 1)]
    cache = FeatureCache(chosen, memory_bytes=PLENTY)
    found = sweep(chosen, dataset, cells, cache=cache)
    assert tuple(found) == CANDIDATES
    for threshold in (0.1, 0.5, 0.55, 0.9):
        answering = OnePass(chosen, dataset, cache, thresholds=Thresholds(threshold, threshold))
        outcomes = [outcome for work in plan(dict(enumerate(cells))) for _, outcome in answering.answer(work)]
        classes = (1, 2, 3, 4)
        assert compute(merge((count_outcome(each, classes) for each in outcomes), classes)) == found[threshold]


def test_the_best_are_chosen_apart(photos: Path) -> None:
    benchmark = open_benchmark(None, None, photos, folds="2")
    method = load_contender(None, "prototype", image_size=64, device="cpu").method
    assert benchmark.dataset is not None
    cells = [freeze(benchmark.sampler(0, 1, 1, tasks=2))]
    some = sweep(method, benchmark.dataset, cells, cache=FeatureCache(method, memory_bytes=PLENTY))[0.5]
    scores = {
        0.2: replace(some, accuracy=0.6, miou=0.5),
        0.4: replace(some, accuracy=0.5, miou=0.6),
        0.6: replace(some, accuracy=0.7, miou=0.4),
    }
    best = best_thresholds(scores)
    assert (best.presence, best.mask) == (0.6, 0.4)
    silent = {each: replace(found, accuracy=float("nan")) for each, found in scores.items()}
    assert best_thresholds(silent).presence == PAPER_THRESHOLD
