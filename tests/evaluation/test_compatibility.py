"""Results and journals that version 0.1 wrote are still read, and a stopped evaluation of it is resumed."""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from emat.evaluation.evaluator import QueryWork
from emat.evaluation.results import read_results, results
from emat.evaluation.run import Run, evaluate, load_evaluated
from emat.reports.comparison import read_methods
from emat.tasks.benchmark import Benchmark, open_benchmark
from emat.tasks.sampling import TaskRequest
from emat.tasks.task import Setting

OLD = Path(__file__).parent / "written_by_0_1"


def old_run(photos: Path) -> tuple[Run, Benchmark]:
    """The evaluation that wrote the old files, asked for again."""
    benchmark = open_benchmark(None, None, photos, folds="2")
    head = load_evaluated(None, "prototype", image_size=64, device="cpu")
    requests = [(fold, TaskRequest(2, 1, setting, tasks=4)) for fold in (0, 1) for setting in Setting]
    drawn = tuple(benchmark.sampler(fold, request).configuration() for fold, request in requests)
    return Run(drawn, {0: head, 1: head}), benchmark


def test_old_results_are_read_and_belong_to_the_same_evaluation(photos: Path) -> None:
    old = read_results(OLD / "results.json")
    assert old["fingerprint"] == old_run(photos)[0].fingerprint
    assert [method.label for method in read_methods([str(OLD / "results.json")])] == ["prototype"]


def test_a_stopped_old_evaluation_is_resumed(photos: Path, tmp_path: Path) -> None:
    run, benchmark = old_run(photos)
    journal = tmp_path / "stopped.json.journal"
    shutil.copy(OLD / "stopped.json.journal.0", tmp_path)
    before = [json.loads(line)["query"] for line in (OLD / "stopped.json.journal.0").read_text().splitlines()[1:]]
    answered: list[str] = []

    def watch(work: Sequence[QueryWork]) -> Iterator[QueryWork]:
        for each in work:
            answered.append(each.query)
            yield each

    assert benchmark.dataset is not None
    outcomes = evaluate(run, benchmark.dataset, journal, watch=watch)
    assert outcomes is not None
    assert len(before) == 3
    assert not set(before) & set(answered)
    old = read_results(OLD / "results.json")
    new = json.loads(json.dumps(results(run, outcomes, options=old["options"], seconds=1.0)))
    assert new.keys() == old.keys()
    assert new["cells"] == old["cells"]
    rounded = [[[*row[:-1], [round(score, 4) for score in row[-1]]] for row in rows] for rows in new["outcomes"]]
    assert rounded == old["outcomes"]  # version 0.1 kept four decimals of scores, and six of their means
    for one, other in zip(new["summaries"], old["summaries"], strict=True):
        assert one["scores"] == pytest.approx(other["scores"], abs=1e-6)
        assert {**one, "scores": None, "intervals": None} == {**other, "scores": None, "intervals": None}
