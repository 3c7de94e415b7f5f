"""A results file has everything that is needed to repeat a run, and a damaged file is refused."""

import json
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from emat.evaluation.evaluator import TaskIndex
from emat.evaluation.metrics import ScoreCounts, TaskOutcome, compute
from emat.evaluation.results import (
    bootstrap,
    read_results,
    results,
    summaries_of,
    summarise,
    write_results,
)
from emat.evaluation.run import Run, load_evaluated
from emat.tasks.benchmark import open_benchmark
from emat.tasks.sampling import TaskRequest
from emat.tasks.task import Setting
from tests.raises import raises_code

KEYS = {
    "format", "fingerprint", "emat", "methods", "options", "thresholds", "only_segment", "data_state", "seeds",
    "intervals", "machine", "seconds", "work", "cells", "summaries", "outcome_fields", "outcomes",
}  # fmt: skip


@pytest.fixture(scope="module")
def content(photos: Path) -> dict[str, Any]:
    """Two folds in two settings, with outcomes made up: right in fold 0, wrong in fold 1."""
    benchmark = open_benchmark(None, None, photos, folds="2")
    evaluated = load_evaluated(None, "prototype", image_size=64, device="cpu")
    chosen = (Setting.ORIGINAL, Setting.FULLY_AUGMENTED)
    configurations = tuple(
        benchmark.sampler(fold, TaskRequest(1, 1, each, tasks=5)).configuration() for fold in (0, 1) for each in chosen
    )
    run = Run(configurations, {0: evaluated, 1: evaluated})
    outcomes = {}
    for number, configuration in enumerate(configurations):
        for position, task in enumerate(configuration.tasks):
            right, ways = configuration.fold == 0, len(task.ways)
            outcomes[TaskIndex(number, position)] = TaskOutcome(
                task.ways, (True,) * ways, (right,) * ways, (30 if right else 0,) * ways, (60,) * ways,
                (20, 50), (30, 60), (0.5,) * ways,
            )  # fmt: skip
    return results(run, outcomes, options={"way": "1"}, seconds=1.5)


def test_the_file_says_all_that_is_needed(content: dict[str, Any], tmp_path: Path) -> None:
    write_results(tmp_path / "run.json", content)
    read = read_results(tmp_path / "run.json")
    assert set(read) == KEYS
    assert read == json.loads(json.dumps(content))
    configuration = read["cells"][0]
    assert (
        len(configuration["list_sha256"])
        == len(configuration["digest"])
        == len(read["methods"]["0"]["weights_sha256"])
        == 64
    )
    assert configuration["protocol"]["setting"] == "original"
    assert read["thresholds"] == read["methods"]["1"]["thresholds"] == {"presence": 0.5, "mask": 0.5}
    assert [len(rows) for rows in read["outcomes"]] == [5, 5, 5, 5]
    assert read["outcome_fields"] == list(TaskOutcome.__dataclass_fields__)


def test_every_task_is_one_line(content: dict[str, Any], tmp_path: Path) -> None:
    write_results(tmp_path / "run.json", content)
    lines = (tmp_path / "run.json").read_text().splitlines()
    rows = [json.loads(line.rstrip(",")) for line in lines if line.startswith("[") and len(line) > 20]
    assert len(rows) == 20


def test_folds_come_before_their_mean(content: dict[str, Any]) -> None:
    found = [(each.conditions.setting, each.fold, each.tasks) for each in summaries_of(content)]
    assert found[:3] == [("original", 0, 5), ("original", 1, 5), ("original", None, 10)]
    assert [each.scores["accuracy"] for each in summaries_of(content)[:3]] == [1, 0, 0.5]
    assert summaries_of(content)[0].scores["false_mask_rate"] is None
    assert not summarise({})


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content["outcomes"][1].pop(),
        lambda content: content["outcomes"][0][0].pop(),
        lambda content: content["cells"][0].pop("class_ids"),
        lambda content: content.pop("summaries"),
    ],
)
def test_a_damaged_file_is_refused(content: dict[str, Any], tmp_path: Path, damage: Any) -> None:
    changed = json.loads(json.dumps(content))
    damage(changed)
    (tmp_path / "run.json").write_text(json.dumps(changed))
    with raises_code("damaged-file", "damaged"):
        read_results(tmp_path / "run.json")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": "emat tasks 1"}'])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text)
    with raises_code("wrong-file-kind"):
        read_results(tmp_path / "run.json")


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    with raises_code("no-such-file"):
        read_results(tmp_path / "absent.json")


Pixels: TypeAlias = NDArray[np.int64]
CLASS_IDS = tuple(range(1, 21))


def outcome(right: bool, intersections: Pixels, unions: Pixels, judged: int = 1) -> ScoreCounts:
    numbers = [1, judged, int(right), 1, int(right), 0.25 * right]
    binary = [500, 800, intersections.sum(), unions.sum()]
    return ScoreCounts(CLASS_IDS, np.array([*numbers, *intersections, *unions, *binary], np.float64))


def random_outcomes(tasks: int, seed: int = 0) -> list[ScoreCounts]:
    random = np.random.default_rng(seed)
    made = []
    for _ in range(tasks):
        unions = random.integers(0, 1000, len(CLASS_IDS)) * (random.random(len(CLASS_IDS)) < 0.1)
        made.append(outcome(random.random() < 0.8, (unions * random.random(len(CLASS_IDS))).astype(int), unions))
    return made


def test_the_interval_holds_the_score_and_is_narrow_for_many_tasks() -> None:
    outcomes = random_outcomes(1000)
    scores = compute(sum(outcomes, start=ScoreCounts.none(CLASS_IDS)))
    low, high = bootstrap([outcomes])
    assert low.accuracy < scores.accuracy < high.accuracy
    assert low.miou < scores.miou < high.miou
    # Accuracy is a proportion, whose standard error is known.
    error = np.sqrt(scores.accuracy * (1 - scores.accuracy) / 1000)
    assert low.accuracy == pytest.approx(scores.accuracy - 1.96 * error, abs=0.2 * error)
    assert high.accuracy == pytest.approx(scores.accuracy + 1.96 * error, abs=0.2 * error)


def test_the_same_seed_gives_the_same_interval() -> None:
    outcomes = random_outcomes(50)
    assert bootstrap([outcomes], seed=1) == bootstrap([outcomes], seed=1) != bootstrap([outcomes], seed=2)


def test_equal_tasks_give_an_interval_of_zero_width() -> None:
    one = outcome(True, np.full(20, 3), np.full(20, 4))
    low, high = bootstrap([[one] * 30])
    assert (low.miou, high.miou) == (0.75, 0.75)
    assert (low.accuracy, high.accuracy) == (1, 1)


def test_folds_are_averaged_after_resampling_each() -> None:
    right = outcome(True, np.full(20, 1), np.full(20, 2))
    wrong = outcome(False, np.full(20, 0), np.full(20, 2))
    low, high = bootstrap([[right] * 10, [wrong] * 30])
    assert (low.accuracy, high.accuracy) == (0.5, 0.5)
    assert (low.miou, high.miou) == (0.25, 0.25)


def test_false_masks_have_intervals_if_a_way_was_absent() -> None:
    low, high = bootstrap([[outcome(True, np.full(20, 1), np.full(20, 2))] * 5])
    assert (low.false_mask_rate, high.false_area) == (1, 0.25)
    never = ScoreCounts(CLASS_IDS, np.array([1, 1, 1, 0, 0, 0, *[1] * 20, *[2] * 20, *[1] * 4], np.float64))
    assert np.isnan(bootstrap([[never] * 5])[0].false_mask_rate)


def test_without_presence_the_accuracy_has_no_interval() -> None:
    one = outcome(False, np.full(20, 1), np.full(20, 2), judged=0)
    low, _ = bootstrap([[one] * 5])
    assert np.isnan(low.accuracy)
    assert low.miou == 0.5


def test_a_wider_level_gives_a_wider_interval() -> None:
    outcomes = random_outcomes(100)
    narrow, wide = (tuple(end.miou for end in bootstrap([outcomes], level=level)) for level in (0.5, 0.99))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


@pytest.mark.parametrize("folds", [[], [[]]])
def test_no_task_is_an_error(folds: list[list[ScoreCounts]]) -> None:
    with raises_code("nothing-evaluated"):
        bootstrap(folds)


def test_the_interval_of_a_difference_is_narrower_than_those_of_both_methods() -> None:
    random = np.random.default_rng(3)
    hard = [outcome(bool(right), np.full(20, 1), np.full(20, 1)) for right in random.integers(2, size=60)]
    better = [outcome(True, np.full(20, 1), np.full(20, 1)), *hard[1:]]  # right in one more task at most
    alone, difference = bootstrap([hard]), bootstrap([better], [hard])
    assert difference[1].accuracy - difference[0].accuracy < 0.5 * (alone[1].accuracy - alone[0].accuracy)
    assert {end.miou for end in bootstrap([hard], [hard])} == {end.accuracy for end in bootstrap([hard], [hard])} == {0}
    with raises_code("tasks-differ"):
        bootstrap([hard], [hard[:-1]])
