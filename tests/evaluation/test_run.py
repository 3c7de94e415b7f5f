"""A stopped run is resumed, several processes give the same outcomes, and runs are never mixed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from emat.cli import main
from emat.distributed import Processes, find_processes
from emat.evaluation.evaluator import FittedOptions, QueryWork, plan
from emat.evaluation.results import read_results
from emat.evaluation.run import EvaluatedMethod, Outcomes, Run, evaluate, load_evaluated, remove_journals, seconds_spent
from emat.features import FeatureCache
from emat.inference.decisions import DECISION_VERSION
from emat.methods.base import Thresholds
from emat.tasks.benchmark import Benchmark, open_benchmark
from emat.tasks.sampling import TaskRequest
from emat.tasks.task import Setting, read_task_file, write_task_file
from emat.tensor_files import digest
from emat.weights import MOBILESAM
from tests.evaluation.conftest import make_photos
from tests.inference.colour_method import ColourMethod
from tests.raises import raises_code

PRECISIONS = (torch.float32, torch.bfloat16)


class Stopped(Exception):
    """Stands for whatever ends a process."""


@pytest.fixture(scope="module")
def benchmark(photos: Path) -> Benchmark:
    return open_benchmark(None, None, photos, folds="2")


@pytest.fixture(scope="module")
def evaluated() -> EvaluatedMethod:
    return load_evaluated(None, "prototype", image_size=64, device="cpu")


@pytest.fixture(scope="module")
def run(benchmark: Benchmark, evaluated: EvaluatedMethod) -> Run:
    configurations = [
        benchmark.sampler(fold, TaskRequest(2, 1, setting, tasks=8)).configuration()
        for fold in (0, 1)
        for setting in Setting
    ]
    return Run(tuple(configurations), {0: evaluated, 1: evaluated})


def answered(run: Run, benchmark: Benchmark, journal: Path, **more: object) -> Outcomes:
    assert benchmark.dataset is not None
    outcomes = evaluate(run, benchmark.dataset, journal, **more)  # type: ignore[arg-type]
    assert outcomes is not None
    return outcomes


def test_a_stopped_run_is_resumed_without_repeating_work(run: Run, benchmark: Benchmark, tmp_path: Path) -> None:
    queries: list[str] = []

    def stopping(work: Sequence[QueryWork]) -> Iterator[QueryWork]:
        for each in work[:3]:
            queries.append(each.query)
            yield each
        raise Stopped

    def watching(work: Sequence[QueryWork]) -> Iterator[QueryWork]:
        for each in work:
            queries.append(each.query)
            yield each

    journal = tmp_path / "stopped[1].json.journal"
    with pytest.raises(Stopped):
        answered(run, benchmark, journal, watch=stopping)
    with (tmp_path / "stopped[1].json.journal.0").open("a") as file:
        file.write('{"query": "photo10", "outcomes": [[0,')  # what a kill in the middle of a line leaves
    before = seconds_spent(run, journal)
    outcomes = answered(run, benchmark, journal, watch=watching)
    assert seconds_spent(run, journal) > before > 0
    assert outcomes == answered(run, benchmark, tmp_path / "whole.json.journal")
    assert len(queries) == len(set(queries))
    remove_journals(journal)
    assert not list(tmp_path.glob("stopped*"))


def test_several_processes_together_answer_every_task(run: Run, benchmark: Benchmark, tmp_path: Path) -> None:
    assert benchmark.dataset is not None
    journal = tmp_path / "many.json.journal"
    for rank in (2, 1):
        assert evaluate(run, benchmark.dataset, journal, processes=Processes(rank, 3)) is None
    outcomes = answered(run, benchmark, journal, processes=Processes(0, 3))
    assert outcomes == answered(run, benchmark, tmp_path / "one.json.journal")


def test_a_missing_journal_of_another_process_is_an_error(run: Run, benchmark: Benchmark, tmp_path: Path) -> None:
    with raises_code("tasks-missing"):
        answered(run, benchmark, tmp_path / "half.json.journal", processes=Processes(0, 2))


def test_a_journal_of_other_tasks_is_refused(run: Run, benchmark: Benchmark, tmp_path: Path) -> None:
    journal = tmp_path / "run.json.journal"
    answered(run, benchmark, journal)
    other = Run(run.configurations, run.methods, Thresholds(presence=0.5, mask=0.6))
    assert other.fingerprint != run.fingerprint
    with raises_code("other-run"):
        answered(other, benchmark, journal)


def test_answers_by_other_rules_are_another_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run.fingerprint
    monkeypatch.setattr(type(run.methods[run.configurations[0].fold].method), "decision_version", 7)
    assert run.fingerprint != before


def test_photos_that_are_encoded_in_another_precision_are_another_run(benchmark: Benchmark, tmp_path: Path) -> None:
    methods = [load_evaluated(None, "prototype", image_size=64, device="cpu", precision=each) for each in PRECISIONS]
    configurations = (benchmark.sampler(0, TaskRequest(2, 1, tasks=3)).configuration(),)
    runs = [Run(configurations, {0: method}) for method in methods]
    assert len({run.fingerprint for run in runs}) == len(PRECISIONS)
    assert [method.description()["precision"] for method in methods] == ["float32", "bfloat16"]
    caches = [FeatureCache(method.method, memory_bytes=10**8) for method in methods]
    assert not caches[0].serves(methods[1].method)
    photo = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    single, half = (cache.features(photo).tensors[0] for cache in caches)
    assert half.dtype == torch.float32
    assert not torch.equal(single, half)
    assert float((single - half).norm() / single.norm()) < 0.1
    scores = [answered(run, benchmark, tmp_path / f"{index}.journal") for index, run in enumerate(runs)]
    assert scores[0] != scores[1]


def test_a_task_file_gives_what_sampled_tasks_give(run: Run, benchmark: Benchmark, tmp_path: Path) -> None:
    write_task_file(run.configurations[2], tmp_path / "tasks.jsonl")
    from_file = Run((read_task_file(tmp_path / "tasks.jsonl"),), run.methods)
    sampled = Run(run.configurations[2:3], run.methods)
    assert from_file.fingerprint == sampled.fingerprint
    one = answered(from_file, benchmark, tmp_path / "frozen.journal")
    assert one == answered(sampled, benchmark, tmp_path / "sampled.journal")


def test_each_fold_is_answered_by_its_own_head(benchmark: Benchmark, evaluated: EvaluatedMethod, head: Path) -> None:
    other = load_evaluated(head, device="cpu")
    configurations = tuple(benchmark.sampler(fold, TaskRequest(1, 1, tasks=3)).configuration() for fold in (0, 1))
    assert other.description()["trained_parameters"] == sum(each.numel() for each in load_file(head).values())
    mixed = Run(configurations, {0: evaluated, 1: other})
    assert mixed.fingerprint != Run(configurations, {0: evaluated, 1: evaluated}).fingerprint


def test_heads_that_encode_alike_encode_each_photo_once(benchmark: Benchmark, tmp_path: Path) -> None:
    methods = [ColourMethod(), ColourMethod()]
    configurations = tuple(benchmark.sampler(fold, TaskRequest(2, 1, tasks=8)).configuration() for fold in (0, 1, 0))
    configurations = (*configurations[:2], replace(configurations[2], fold=2))  # the photos of fold 0 once more
    ours, other = (EvaluatedMethod(method, "none", None, None, digest(method.state_dict()), 0) for method in methods)
    answered(Run(configurations, {0: ours, 1: ours, 2: other}), benchmark, tmp_path / "run.json.journal")
    photos = {name for configuration in configurations for task in configuration.tasks for name in task.photos}
    assert sum(method.encoded for method in methods) == len(photos)


def test_nothing_to_evaluate_is_an_error(evaluated: EvaluatedMethod) -> None:
    with raises_code("nothing-evaluated"):
        Run((), {0: evaluated})


def test_at_least_one_device_is_needed() -> None:
    with raises_code("bad-number"):
        find_processes(0)


def words(photos: Path, output: Path, *more: object) -> list[str]:
    asked = ["eval", "--method", "prototype", "--size", 64, "--data", photos, "--folds", 2, "--device", "cpu"]
    return [str(word) for word in (*asked, "-o", output, *more)]


def in_this_process(photos: Path, output: Path, *more: object) -> dict[str, Any]:
    with pytest.raises(SystemExit) as left:
        main(words(photos, output, *more))
    assert left.value.code == 0
    return read_results(output)


@pytest.mark.parametrize("launcher", ["--devices", "torchrun"])
def test_two_processes_give_the_file_of_one(launcher: str, photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    more = ("--tasks", 8, "--way", 2, "--setting", "all")
    two = tmp_path / "two.json"
    before = ("-m", "torch.distributed.run", "--nproc_per_node", "2") if launcher == "torchrun" else ()
    after = () if launcher == "torchrun" else ("--devices", 2)
    asked = [sys.executable, *before, "-m", "emat", *words(photos, two, *more, *after)]
    done = subprocess.run(asked, check=True, capture_output=True, text=True)
    assert done.stdout.count("two.json: 48 tasks") == 1
    one = in_this_process(photos, tmp_path / "one.json", *more)
    assert one["outcomes"] == read_results(two)["outcomes"]
    assert one["summaries"] == read_results(two)["summaries"]
    assert sorted(path.name for path in tmp_path.glob("*.json*")) == ["one.json", "two.json"]


def photos_of(work: QueryWork) -> set[str]:
    return {work.query, *(name for name, _ in work.pairs)}


@pytest.mark.slow
def test_an_error_of_another_process_names_the_process(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    data = make_photos(tmp_path / "data")
    made = open_benchmark(None, None, data, folds="2")
    work = plan({fold: made.sampler(fold, TaskRequest(1, 1, tasks=2)).configuration() for fold in (0, 1)})
    ours, others = ({name for each in share for name in photos_of(each)} for share in (work[::2], work[1::2]))
    alone = (others - ours).pop()
    (data / "images" / f"{alone}.png").write_bytes(b"no picture")
    asked = [sys.executable, "-m", "emat", *words(data, tmp_path / "run.json", "--tasks", 2, "--devices", 2)]
    done = subprocess.run(asked, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert f"emat: process 1: {data / 'images' / alone}.png" in done.stderr
    assert "lost the connection to another process" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_of_all_processes_is_printed_once(photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    asked = [sys.executable, "-m", "emat", *words(photos, tmp_path / "run.json", "--way", "no", "--devices", 2)]
    done = subprocess.run(asked, capture_output=True, text=True)
    assert done.stderr.count("--way is 'no'") == 1


def test_a_killed_evaluation_is_resumed(photos: Path, tmp_path: Path) -> None:
    path, journal = tmp_path / "run.json", tmp_path / "run.json.journal.0"
    more = ("--tasks", 150, "--way", 2)
    asked = [sys.executable, "-m", "emat", *words(photos, path, *more)]
    process = subprocess.Popen(asked, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (journal.exists() and journal.read_bytes().count(b"\n") > 2):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not path.exists()
    resumed = in_this_process(photos, path, *more)
    assert resumed["outcomes"] == in_this_process(photos, tmp_path / "whole.json", *more)["outcomes"]
    assert not journal.exists()


def test_runs_that_refine_with_and_without_weights_are_not_mixed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path))
    refined = replace(run, as_fitted=FittedOptions(learn=False))
    without = refined.fingerprint
    MOBILESAM.path.parent.mkdir(parents=True)
    MOBILESAM.path.write_bytes(b"here now")
    always = replace(run, as_fitted=FittedOptions(learn=False, refine="mobilesam"))
    assert len({run.fingerprint, without, refined.fingerprint, always.fingerprint}) == 4


def test_a_run_as_fitted_is_not_continued_when_fit_decides_otherwise(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = replace(run, as_fitted=FittedOptions())
    published, before = run.fingerprint, fitted.fingerprint
    monkeypatch.setattr("emat.evaluation.evaluator.DECISION_VERSION", DECISION_VERSION + 1)
    assert fitted.fingerprint != before
    assert run.fingerprint == published
