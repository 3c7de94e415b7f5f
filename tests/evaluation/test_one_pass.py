"""All settings, ways and shots in one pass give exactly what each gives alone, encoding each photo once."""

from pathlib import Path

import numpy as np
import pytest
import torch

from emat.datasets.opening import open_dataset
from emat.errors import EmatError
from emat.evaluation.contender import load_contender
from emat.evaluation.one_pass import OnePass, default_limits, tensor_bytes
from emat.evaluation.outcome import TaskOutcome, judge_task
from emat.evaluation.plan import Place, plan
from emat.evaluation.workers import all_cores
from emat.images import to_pixels
from emat.inference.feature_cache import FeatureCache
from emat.method import Features, Method, Thresholds
from emat.tasks.benchmark import Benchmark, open_benchmark
from emat.tasks.frozen import FrozenTasks, freeze
from emat.tasks.task import Setting

PLENTY = 2**30


@pytest.fixture(scope="module")
def benchmark(photos: Path) -> Benchmark:
    return open_benchmark(None, None, photos, folds="2")


@pytest.fixture(scope="module", params=["emat", "prototype"])
def method(request: pytest.FixtureRequest, head: Path) -> Method:
    model = head if request.param == "emat" else None
    return load_contender(model, request.param, image_size=64, device="cpu").method


def cells(benchmark: Benchmark) -> list[FrozenTasks]:
    return [
        freeze(benchmark.sampler(0, way, shot, setting, tasks=4))
        for way, shot in ((1, 1), (2, 2))
        for setting in Setting
    ]


def in_one_pass(
    method: Method, benchmark: Benchmark, asked: list[FrozenTasks], kept: int = PLENTY
) -> dict[Place, TaskOutcome]:
    assert benchmark.dataset is not None
    cache = FeatureCache(method, memory_bytes=kept)
    answering = OnePass(method, benchmark.dataset, cache, support_bytes=kept)
    return dict(pair for work in plan(dict(enumerate(asked))) for pair in answering.answer(work))


@torch.no_grad()
def alone(method: Method, benchmark: Benchmark, cell: FrozenTasks) -> list[TaskOutcome]:
    """The plain way: every task's images encoded afresh."""
    dataset = benchmark.dataset
    assert dataset is not None

    def features(name: str) -> Features:
        pixels = to_pixels(dataset.image(name), (64, 64), method.preparation.mean, method.preparation.std)
        return method.features(torch.from_numpy(pixels)[None])[0]

    outcomes = []
    for task in cell.tasks:
        query = method.encode_query(features(task.query))
        evidence = [
            [
                method.compare(
                    query, [method.encode_support(features(name), torch.tensor(dataset.mask(name) == way).float())]
                )[0]
                for name in names
            ]
            for way, names in zip(task.ways, task.shots, strict=True)
        ]
        mask = dataset.mask(task.query)
        decision = method.decide(evidence, (mask.shape[0], mask.shape[1]))
        outcomes.append(judge_task(task.ways, decision.present, decision.label_map, mask, decision.scores))
    return outcomes


def test_one_pass_equals_every_configuration_alone(method: Method, benchmark: Benchmark) -> None:
    asked = cells(benchmark)
    assert any(task.augmented for cell in asked for task in cell.tasks)
    together = in_one_pass(method, benchmark, asked)
    for number, cell in enumerate(asked):
        assert [together[Place(number, each)] for each in range(len(cell.tasks))] == alone(method, benchmark, cell)


def test_without_room_to_keep_anything_the_outcomes_stay(method: Method, benchmark: Benchmark) -> None:
    asked = cells(benchmark)[:4]
    assert in_one_pass(method, benchmark, asked, kept=0) == in_one_pass(method, benchmark, asked)


def test_workers_change_nothing(method: Method, benchmark: Benchmark) -> None:
    assert benchmark.dataset is not None
    asked = cells(benchmark)
    work = plan(dict(enumerate(asked)))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        plain = in_one_pass(method, benchmark, asked)
        with all_cores(torch.device("cpu"), 3) as workers:
            cache = FeatureCache(method, memory_bytes=PLENTY)
            answering = OnePass(method, benchmark.dataset, cache, support_bytes=PLENTY)
            pairs = [pair for some in workers.map(answering.answer, work) for pair in some]
    finally:
        torch.set_num_threads(threads)
    assert dict(pairs) == plain
    assert cache.counts.misses == len({name for cell in asked for task in cell.tasks for name in task.images})


def test_each_photo_is_encoded_once(method: Method, benchmark: Benchmark) -> None:
    assert benchmark.dataset is not None
    asked = cells(benchmark)
    cache = FeatureCache(method, memory_bytes=PLENTY)
    answering = OnePass(method, benchmark.dataset, cache, support_bytes=PLENTY)
    for work in plan(dict(enumerate(asked))):
        answering.answer(work)
    assert cache.counts.misses == len({name for cell in asked for task in cell.tasks for name in task.images})


def test_segmentation_alone_judges_no_presence(method: Method, benchmark: Benchmark) -> None:
    assert benchmark.dataset is not None
    work = plan({0: cells(benchmark)[0]})[0]
    cache = FeatureCache(method, memory_bytes=PLENTY)
    answering = OnePass(method, benchmark.dataset, cache, only_segment=True, support_bytes=PLENTY)
    outcome = answering.answer(work)[0][1]
    assert outcome.present is None
    assert outcome.scores is None


@pytest.mark.parametrize(("presence", "mask"), [(0.0, 1.0), (1.0, 0.0)])
def test_presence_and_masks_have_thresholds_of_their_own(
    presence: float, mask: float, method: Method, benchmark: Benchmark
) -> None:
    assert benchmark.dataset is not None
    work = plan({0: cells(benchmark)[3]})[0]
    cache = FeatureCache(method, memory_bytes=PLENTY)
    answering = OnePass(method, benchmark.dataset, cache, thresholds=Thresholds(presence, mask), support_bytes=PLENTY)
    for _, outcome in answering.answer(work):
        assert outcome.present == (presence == 0,) * len(outcome.ways)
        assert (outcome.background[0] > 0) == (mask == 1)  # no pixel is foreground, or every one


def test_masks_without_photos_are_refused(method: Method, photos: Path, tmp_path: Path) -> None:
    masks = tmp_path / "masks-alone"
    masks.mkdir()
    for path in (photos / "masks").iterdir():
        (masks / path.name).write_bytes(path.read_bytes())
    with pytest.raises(EmatError, match="no photos"):
        OnePass(method, open_dataset(masks), FeatureCache(method, memory_bytes=0))


def test_processes_of_a_machine_share_its_memory() -> None:
    one, four = default_limits(), default_limits(4)
    assert four.features == pytest.approx(one.features / 4, rel=0.2)  # what is free changes all the time
    assert four.supports == pytest.approx(one.supports / 4, rel=0.2)


def test_bytes_of_encodings_are_counted() -> None:
    assert tensor_bytes([torch.zeros(2, 3), (np.zeros(4), None)]) == 24
