"""A results file has everything that is needed to repeat a run, and a damaged file is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from emat.errors import EmatError
from emat.evaluation.evaluated_method import load_evaluated
from emat.evaluation.metrics import TaskOutcome
from emat.evaluation.one_pass import TaskIndex
from emat.evaluation.results import read_results, results, summaries_of, write_results
from emat.evaluation.run import Run
from emat.evaluation.summary import summarise
from emat.tasks.benchmark import open_benchmark
from emat.tasks.sampling import TaskRequest
from emat.tasks.task import Setting

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
    assert not summarise([])


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
    with pytest.raises(EmatError, match="damaged"):
        read_results(tmp_path / "run.json")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": "emat tasks 1"}'])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(EmatError, match="not a results file"):
        read_results(tmp_path / "run.json")


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmatError, match="cannot be read"):
        read_results(tmp_path / "absent.json")
