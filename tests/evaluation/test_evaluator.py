"""All settings, ways and shots in one pass give exactly what each gives alone, encoding each photo once."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from emat.backbone.registry import find_backbone
from emat.datasets.layouts import open_dataset
from emat.device import all_cores
from emat.evaluation.evaluator import (
    AsFitted,
    Evaluator,
    FittedOptions,
    TaskIndex,
    default_limits,
    last_uses,
    plan,
    savings,
    tensor_bytes,
)
from emat.evaluation.metrics import TaskOutcome, judge_task
from emat.evaluation.run import load_evaluated
from emat.features import FeatureCache
from emat.images import to_pixels
from emat.inference.example import Example
from emat.inference.segmenter import Segmenter
from emat.methods.base import Features, Method, TaskEvidence, Thresholds
from emat.methods.registry import build_method
from emat.pixel_learner.learner import PixelLearner
from emat.tasks.benchmark import Benchmark, open_benchmark
from emat.tasks.sampling import TaskRequest
from emat.tasks.task import Configuration, Protocol, Setting, Task
from tests.raises import raises_code

PLENTY = 2**30


@pytest.fixture(scope="module")
def benchmark(photos: Path) -> Benchmark:
    return open_benchmark(None, None, photos, folds="2")


@pytest.fixture(scope="module", params=["emat", "prototype"])
def method(request: pytest.FixtureRequest, head: Path) -> Method:
    model = head if request.param == "emat" else None
    return load_evaluated(model, request.param, image_size=64, device="cpu").method


def configurations(benchmark: Benchmark) -> list[Configuration]:
    return [
        benchmark.sampler(0, TaskRequest(way, shot, setting, tasks=4)).configuration()
        for way, shot in ((1, 1), (2, 2))
        for setting in Setting
    ]


def in_one_pass(
    method: Method, benchmark: Benchmark, asked: list[Configuration], kept: int = PLENTY
) -> dict[TaskIndex, TaskOutcome]:
    assert benchmark.dataset is not None
    cache = FeatureCache(method, memory_bytes=kept)
    answering = Evaluator(method, benchmark.dataset, cache, support_bytes=kept)
    return dict(pair for work in plan(dict(enumerate(asked))) for pair in answering.answer(work))


@torch.no_grad()
def alone(method: Method, benchmark: Benchmark, configuration: Configuration) -> list[TaskOutcome]:
    """The plain way: every task's images encoded afresh."""
    dataset = benchmark.dataset
    assert dataset is not None

    def features(name: str) -> Features:
        pixels = to_pixels(dataset.image(name), (64, 64), method.preparation.mean, method.preparation.std)
        return method.features(torch.from_numpy(pixels)[None])[0]

    outcomes = []
    for task in configuration.tasks:
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
        decision = method.decide(TaskEvidence(evidence, (mask.shape[0], mask.shape[1])))
        outcomes.append(judge_task(task.ways, decision.present, decision.label_map, mask, decision.scores))
    return outcomes


def test_one_pass_equals_every_configuration_alone(method: Method, benchmark: Benchmark) -> None:
    asked = configurations(benchmark)
    assert any(task.augmented for configuration in asked for task in configuration.tasks)
    together = in_one_pass(method, benchmark, asked)
    for number, configuration in enumerate(asked):
        assert [together[TaskIndex(number, each)] for each in range(len(configuration.tasks))] == alone(
            method, benchmark, configuration
        )


def test_what_no_later_query_needs_is_forgotten_and_outcomes_stay(method: Method, benchmark: Benchmark) -> None:
    assert benchmark.dataset is not None
    asked = configurations(benchmark)
    work = plan(dict(enumerate(asked)))
    cache = FeatureCache(method, memory_bytes=PLENTY)
    answering = Evaluator(method, benchmark.dataset, cache, support_bytes=PLENTY)
    outcomes: dict[TaskIndex, TaskOutcome] = {}
    for each, names in zip(work, last_uses(work), strict=True):
        outcomes.update(answering.answer(each))
        answering.forget(names)
    photos = {name for each in work for name in each.photos}
    assert cache.counts.misses == len(photos), "nothing is encoded twice"
    assert cache.counts.memory_bytes == 0
    assert outcomes == in_one_pass(method, benchmark, asked)


def test_outcomes_do_not_depend_on_the_memory_limits(method: Method, benchmark: Benchmark) -> None:
    asked = configurations(benchmark)[:4]
    assert in_one_pass(method, benchmark, asked, kept=0) == in_one_pass(method, benchmark, asked)


def test_outcomes_do_not_depend_on_the_number_of_workers(method: Method, benchmark: Benchmark) -> None:
    assert benchmark.dataset is not None
    asked = configurations(benchmark)
    work = plan(dict(enumerate(asked)))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        plain = in_one_pass(method, benchmark, asked)
        with all_cores(torch.device("cpu"), 3) as workers:
            cache = FeatureCache(method, memory_bytes=PLENTY)
            answering = Evaluator(method, benchmark.dataset, cache, support_bytes=PLENTY)
            pairs = [pair for some in workers.map(answering.answer, work) for pair in some]
    finally:
        torch.set_num_threads(threads)
    assert dict(pairs) == plain
    assert cache.counts.misses == len(
        {name for configuration in asked for task in configuration.tasks for name in task.photos}
    )


def test_each_photo_is_encoded_once(method: Method, benchmark: Benchmark) -> None:
    assert benchmark.dataset is not None
    asked = configurations(benchmark)
    cache = FeatureCache(method, memory_bytes=PLENTY)
    answering = Evaluator(method, benchmark.dataset, cache, support_bytes=PLENTY)
    for work in plan(dict(enumerate(asked))):
        answering.answer(work)
    assert cache.counts.misses == len(
        {name for configuration in asked for task in configuration.tasks for name in task.photos}
    )


def test_only_segment_leaves_out_presence(method: Method, benchmark: Benchmark) -> None:
    assert benchmark.dataset is not None
    work = plan({0: configurations(benchmark)[0]})[0]
    cache = FeatureCache(method, memory_bytes=PLENTY)
    answering = Evaluator(method, benchmark.dataset, cache, only_segment=True, support_bytes=PLENTY)
    outcome = answering.answer(work)[0][1]
    assert outcome.present is None
    assert outcome.scores is None


@pytest.mark.parametrize(("presence", "mask"), [(0.0, 1.0), (1.0, 0.0)])
def test_presence_and_masks_have_separate_thresholds(
    presence: float, mask: float, method: Method, benchmark: Benchmark
) -> None:
    assert benchmark.dataset is not None
    work = plan({0: configurations(benchmark)[3]})[0]
    cache = FeatureCache(method, memory_bytes=PLENTY)
    answering = Evaluator(method, benchmark.dataset, cache, thresholds=Thresholds(presence, mask), support_bytes=PLENTY)
    for _, outcome in answering.answer(work):
        assert outcome.present == (presence == 0,) * len(outcome.ways)
        assert (outcome.background[0] > 0) == (mask == 1)  # no pixel is foreground, or every one


def test_masks_without_photos_are_refused(method: Method, photos: Path, tmp_path: Path) -> None:
    masks = tmp_path / "masks-alone"
    masks.mkdir()
    for path in (photos / "masks").iterdir():
        (masks / path.name).write_bytes(path.read_bytes())
    with raises_code("no-photos"):
        Evaluator(method, open_dataset(masks), FeatureCache(method, memory_bytes=0))


def test_processes_of_a_machine_share_its_memory() -> None:
    one, four = default_limits(), default_limits(4)
    assert four.features == pytest.approx(one.features / 4, rel=0.2)  # what is free changes all the time
    assert four.supports == pytest.approx(one.supports / 4, rel=0.2)


def test_bytes_of_encodings_are_counted() -> None:
    assert tensor_bytes([torch.zeros(2, 3), (np.zeros(4), None)]) == 24


NAMES = ("a", "b", "c", "d")


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    ways = tuple(draw(st.permutations((1, 2, 3)))[: draw(st.integers(1, 3))])
    shots = tuple(tuple(draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3))) for _ in ways)
    return Task(0, draw(st.sampled_from(NAMES)), ways[0], ways, shots)


CONFIGURATIONS = st.lists(st.lists(tasks(), min_size=1, max_size=6), min_size=1, max_size=3)


def configuration_of(*drawn: Task) -> Configuration:
    return Configuration("pets", 0, "val", (1, 2, 3), "0" * 64, Protocol(tasks=len(drawn)), drawn)


@settings(max_examples=40)
@given(CONFIGURATIONS)
def test_every_task_is_planned_once_under_its_query(drawn: list[list[Task]]) -> None:
    configurations = [configuration_of(*each) for each in drawn]
    found = {}
    for work in plan(dict(enumerate(configurations))):
        assert len({(each.ways, each.shots) for each in work.tasks}) == len(work.tasks)
        for task in work.tasks:
            assert set(task.pairs) <= set(work.pairs)
            found.update(dict.fromkeys(task.indices, (work.query, task.ways, task.shots)))
    assert found == {
        TaskIndex(number, position): (task.query, task.ways, task.shots)
        for number, configuration in enumerate(configurations)
        for position, task in enumerate(configuration.tasks)
    }


@settings(max_examples=40)
@given(CONFIGURATIONS, st.integers(0, 5))
def test_finished_tasks_are_left_out(drawn: list[list[Task]], done: int) -> None:
    configurations = dict(enumerate(configuration_of(*each) for each in drawn))
    indices = [index for work in plan(configurations) for task in work.tasks for index in task.indices]
    left = [p for work in plan(configurations, indices[:done]) for task in work.tasks for p in task.indices]
    assert sorted(left, key=str) == sorted(indices[done:], key=str)


def test_equal_tasks_of_two_settings_are_answered_once() -> None:
    task = Task(0, "a", 1, (1, 2), (("b",), ("c",)))
    more = Task(0, "a", 1, (1, 2), (("b",), ("c", "b")))
    shared = savings([configuration_of(task), configuration_of(task), configuration_of(more)])
    assert (shared.tasks, shared.shared_tasks, shared.pairs, shared.pairs_apart) == (3, 2, 3, 7)
    assert (shared.images, shared.images_apart) == (3, 9)


def test_tasks_as_fitted_are_answered_by_a_segmenter_with_the_supports_as_examples(
    method: Method, benchmark: Benchmark
) -> None:
    assert_counts_as_fitted(method, benchmark, configurations(benchmark)[3], FittedOptions(False, "guided"))


def test_tasks_as_fitted_with_a_learner_on_a_stack_of_backbones(benchmark: Benchmark) -> None:
    torch.manual_seed(0)
    stack = find_backbone("efficientnet-lite2+mobilesam").build()
    method = build_method("emat-prior", stack, image_size=64).requires_grad_(False)
    assert_counts_as_fitted(method, benchmark, configurations(benchmark)[0], FittedOptions())


def assert_counts_as_fitted(
    method: Method, benchmark: Benchmark, configuration: Configuration, options: FittedOptions
) -> None:
    dataset = benchmark.dataset
    assert dataset is not None
    answering = AsFitted(method, dataset, FeatureCache(method, memory_bytes=PLENTY), options)
    learner = PixelLearner.of(method, Thresholds()) if options.learn else None
    work = plan({0: configuration})[0]
    answers = dict(answering.answer(work))
    for task in work.tasks:
        shown: dict[str, dict[str, NDArray[np.bool_]]] = {}
        for way, names in zip(task.ways, task.shots, strict=True):
            for name in names:
                shown.setdefault(name, {})[str(way)] = dataset.mask(name) == way
        examples = [
            Example(dataset.image(name), masks, void=dataset.mask(name) == 255) for name, masks in shown.items()
        ]
        segmenter = Segmenter(method, refine=options.refine, learner=learner).fit(examples)
        prediction = segmenter.predict(dataset.image(work.query))
        outcome = answers[task.indices[0]]
        for way, truth, present in zip(task.ways, outcome.truth, outcome.present or (), strict=True):
            mask = prediction.mask(str(way))
            assert present == (str(way) in prediction.present)
            assert truth == bool((dataset.mask(work.query) == way).any())
            expected = int((mask & (dataset.mask(work.query) == way)).sum())
            assert outcome.intersections[task.ways.index(way)] == expected
