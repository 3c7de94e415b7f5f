"""`emat eval` equals the plain evaluation from photo to score: presence probabilities, intersections and unions."""

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from emat.backbone.registry import find_backbone
from emat.evaluation.results import results
from emat.evaluation.run import EvaluatedMethod, Run, evaluate
from emat.methods.correlation import NetworkMethod
from emat.model import build, load_public
from emat.tasks.benchmark import open_benchmark
from emat.tasks.sampling import TaskRequest
from emat.tasks.task import Setting
from emat.tensor_files import digest
from tests.parity.end_to_end import (
    BACKBONE,
    CASES,
    CHANNELS,
    FOLD,
    GOLDEN,
    SIDE,
    Case,
    drawn,
    plain_method,
    write_data,
)

PROBABILITY = 5e-6  # float noise; without the first step of the support mask, probabilities differ by up to 1e-3
PIXELS = 3  # at which a probability is 0.5 up to float noise

EXPECTED = [row["tasks"] for row in json.loads(GOLDEN.read_text())["cases"]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("rule")
    return {dataset: write_data(folder, dataset) for dataset in FOLD}


@cache
def method(name: str, side: int = SIDE) -> EvaluatedMethod:
    plain = plain_method(name)
    with torch.device("meta"):
        backbone = find_backbone(BACKBONE).build()
    backbone.to_empty(device="cpu").load_public(plain.backbone)
    network = build(name, CHANNELS)
    load_public(network, plain.learner)
    built = NetworkMethod(backbone, network, side).requires_grad_(False).eval()
    return EvaluatedMethod(built, BACKBONE, None, None, digest(built.state_dict()), 0)


def evaluated(case: Case, data: dict[str, tuple[Path, Path]], folder: Path) -> tuple[list[Any], list[Any]]:
    """The tasks that emat draws, and the outcomes in the results file that it writes."""
    root, lists = data[case.dataset]
    size = None if case.split == "val" else case.split
    fold = FOLD[case.dataset]
    benchmark = open_benchmark(case.dataset, lists, root, object_size=size)
    request = TaskRequest(case.way, case.shot, Setting(case.setting), tasks=case.tasks)
    configuration = benchmark.sampler(fold, request).configuration()
    run = Run((configuration,), {fold: method(case.method)})
    assert benchmark.dataset is not None
    outcomes = evaluate(run, benchmark.dataset, folder / "journal")
    assert outcomes is not None
    content = json.loads(json.dumps(results(run, outcomes, options={}, seconds=0)))
    fields = content["outcome_fields"]
    rows = [dict(zip(fields, row, strict=True)) for row in content["outcomes"][0]]
    return [[task.query, task.ways, task.shots] for task in configuration.tasks], rows


def near(found: Any, expected: Any) -> bool:
    return all(abs(one - other) <= PIXELS for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("case", "expected"),
    list(zip(CASES, EXPECTED, strict=True)),
    ids=lambda value: "-".join(map(str, asdict(value).values())) if isinstance(value, Case) else "",
)
def test_an_evaluation_equals_the_published_way_from_photo_to_score(
    case: Case,
    expected: list[Any],
    data: dict[str, tuple[Path, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
    tasks, outcomes = evaluated(case, data, tmp_path)
    assert json.loads(json.dumps(tasks)) == [[task["query"], task["ways"], task["shots"]] for task in expected]
    for outcome, golden in zip(outcomes, expected, strict=True):
        assert (outcome["scores"] is None) == (golden["presence"] is None)
        assert (outcome["scores"] or []) == pytest.approx(golden["presence"] or [], abs=PROBABILITY, rel=0)
        assert near(outcome["intersections"], golden["intersections"])
        assert near(outcome["unions"], golden["unions"])


def test_the_golden_tasks_are_those_that_the_rule_draws() -> None:
    for case, expected in zip(CASES, EXPECTED, strict=True):
        tasks = json.loads(json.dumps([asdict(task) for task in drawn(case)]))
        assert tasks == [{key: task[key] for key in ("query", "ways", "shots")} for task in expected]
