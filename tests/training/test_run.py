import csv
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch import Tensor

from emat.evaluation.metrics import COUNTED, ScoreCounts, count_outcome, judge_task
from emat.features import FeatureCache
from emat.methods.base import Method, TaskEvidence
from emat.methods.registry import build_method
from emat.methods.trained_head import load_head
from emat.tensor_files import read_metadata, read_tensors
from emat.training.data import ValidationTasks, open_run_data
from emat.training.options import TrainingOptions, config_text, read_config
from emat.training.run import train, validate
from emat.training.state import BEST, CONFIG, LAST, STATE, ValidationScores, read_state
from tests.raises import raises_code
from tests.training.tiny import tiny_dataset, tiny_options

pytest.importorskip("lightning")
LONGEST = 600  # seconds that a process started here may take, even on a busy machine


@pytest.fixture(scope="module")
def whole(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that nothing interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMAT_HOME", str(tmp_path_factory.mktemp("home")))
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        yield train(tiny_options(tiny, tmp_path_factory.mktemp("runs") / "whole"))
        torch.set_num_threads(before)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def start(
    options: TrainingOptions, folder: Path, *before: str, environment: Mapping[str, str] = MappingProxyType({})
) -> "subprocess.Popen[str]":
    config = folder / "given.yaml"
    config.write_text(config_text(options))
    command = [sys.executable, *before, "-m", "emat", "train", "--config", str(config)]
    everything = {**os.environ, **environment}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=everything)


def test_a_run_leaves_heads_that_load_with_all_that_made_them(whole: Path, tiny: Path) -> None:
    for name in (BEST, LAST):
        assert load_head(whole / name).method == "emat"
        metadata = read_metadata(whole / name)
        assert (metadata["backbone"], metadata["image_size"], metadata["seed"]) == ("efficientnet-lite2", "64", "0")
        assert json.loads(metadata["settings"])["data"] == [str(tiny)]
        assert set(json.loads(metadata["validation"])) >= {"tasks", "miou", "accuracy", "false_mask_rate"}
        assert len(metadata["data_sha256"]) == 64
    assert read_metadata(whole / LAST)["trained_tasks"] == "22"


def test_logs_have_a_row_an_epoch_and_curves(whole: Path) -> None:
    assert [row["epoch"] for row in rows(whole)] == ["0", "1"]
    assert [row["tasks"] for row in rows(whole)] == ["11", "22"]
    assert all(float(row["loss"]) > 0 and 0 <= float(row["accuracy"]) <= 1 for row in rows(whole))
    assert list((whole / "tensorboard").iterdir())


def test_the_head_kept_is_the_average_and_the_state_has_both(whole: Path) -> None:
    state = read_state(whole)
    kept = read_tensors(whole / LAST)
    assert_same(kept, {name.removeprefix("network."): value for name, value in state["average"].items()})
    assert any(not torch.equal(kept[name], state["weights"][name]) for name in kept)


def test_the_same_seed_trains_the_same_weights_and_another_seed_others(whole: Path, tiny: Path, tmp_path: Path) -> None:
    again = train(tiny_options(tiny, tmp_path / "again"))
    assert_same(read_tensors(again / LAST), read_tensors(whole / LAST))
    other = train(tiny_options(tiny, tmp_path / "other", seed=1, val_tasks=0, epochs=1))
    assert not torch.equal(*(next(iter(read_tensors(f / LAST).values())) for f in (other, whole)))


def test_a_killed_run_continues_as_if_it_had_not_been_killed(whole: Path, tiny: Path, tmp_path: Path) -> None:
    options = tiny_options(tiny, tmp_path / "killed")
    process = start(options, tmp_path)
    killed_at = None
    deadline = time.monotonic() + LONGEST
    while process.poll() is None and time.monotonic() < deadline:
        if (tmp_path / "killed" / STATE).is_file():
            killed_at = read_state(tmp_path / "killed")["progress"]
            if 0 < killed_at.step < 3:
                break
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    stands = read_state(tmp_path / "killed")["progress"]
    assert killed_at is not None
    assert (stands.epoch, stands.step) < (2, 0), "the run was over before it could be killed"
    folder = train(options, resume=True)
    assert_same(read_tensors(folder / LAST), read_tensors(whole / LAST))
    assert_same(read_tensors(folder / BEST), read_tensors(whole / BEST))
    assert [row["loss"] for row in rows(folder)] == [row["loss"] for row in rows(whole)]
    assert_same(read_state(folder)["weights"], read_state(whole)["weights"])


@pytest.mark.parametrize("launcher", ["devices", "torchrun"])
def test_two_processes_train_on_the_same_tasks(launcher: str, whole: Path, tiny: Path, tmp_path: Path) -> None:
    torchrun = launcher == "torchrun"
    options = tiny_options(tiny, tmp_path / "two", devices=1 if torchrun else 2)
    before = ("-m", "torch.distributed.run", "--nproc_per_node", "2") if torchrun else ()
    process = start(options, tmp_path, *before)
    out, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 0, errors
    assert out.count("trained:") == 1
    assert read_config(tmp_path / "two" / CONFIG)["devices"] == 2
    for name, value in read_tensors(tmp_path / "two" / LAST).items():
        torch.testing.assert_close(value, read_tensors(whole / LAST)[name], atol=2e-3, rtol=1e-2)
    for two, one in zip(rows(tmp_path / "two"), rows(whole), strict=True):
        assert float(two["loss"]) == pytest.approx(float(one["loss"]), rel=1e-3)
        assert float(two["accuracy"]) == pytest.approx(float(one["accuracy"]))
        assert float(two["miou"]) == pytest.approx(float(one["miou"]), abs=0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_two_machines_with_homes_of_their_own_train_on_the_same_tasks(whole: Path, tiny: Path, tmp_path: Path) -> None:
    """Two calls of torchrun are two machines that share the folder of the run, and neither home nor cache."""
    options = tiny_options(tiny, tmp_path / "nodes", nodes=2)
    port = str(free_port())
    machines = []
    for rank in (0, 1):
        home = tmp_path / f"home{rank}"
        home.mkdir()
        where = ("--nnodes", "2", "--node_rank", str(rank), "--master_addr", "127.0.0.1", "--master_port", port)
        before = ("-m", "torch.distributed.run", "--nproc_per_node", "1", *where)
        machines.append(start(options, home, *before, environment={"EMAT_HOME": str(home)}))
    try:
        said = [machine.communicate(timeout=5 * LONGEST) for machine in machines]
    finally:
        for machine in machines:
            machine.kill()
    assert [machine.returncode for machine in machines] == [0, 0], said
    assert [out.count("trained:") for out, _ in said] == [1, 0]
    assert read_config(tmp_path / "nodes" / CONFIG)["nodes"] == 2
    for name, value in read_tensors(tmp_path / "nodes" / LAST).items():
        torch.testing.assert_close(value, read_tensors(whole / LAST)[name], atol=2e-3, rtol=1e-2)
    for two, one in zip(rows(tmp_path / "nodes"), rows(whole), strict=True):
        assert float(two["loss"]) == pytest.approx(float(one["loss"]), rel=1e-3)


@pytest.mark.slow
def test_a_process_beside_the_first_tells_what_it_alone_met(tmp_path: Path) -> None:
    data = tiny_dataset(tmp_path / "data")
    options = tiny_options(data, tmp_path / "run", devices=2, batch=2, val_tasks=0)
    tasks = open_run_data(options).tasks
    photos = [{task.query.name, task.support.name} for task in (tasks.draw(0, index) for index in range(2))]
    alone = (photos[1] - photos[0]).pop()
    (data / "images" / f"{alone}.png").write_bytes(b"no picture")
    process = start(options, tmp_path)
    _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 2, errors
    assert f"emat: process 1: {data / 'images' / alone}.png" in errors
    assert "emat: process 0 lost the connection to another process" in errors
    assert "Traceback" not in errors


def test_what_no_process_can_do_is_reported_once(tmp_path: Path) -> None:
    process = start(tiny_options(tmp_path / "nowhere", tmp_path / "run", devices=2), tmp_path)
    _, errors = process.communicate(timeout=LONGEST)
    assert errors == f"emat: {tmp_path / 'nowhere'} does not exist; check the path\n"


def test_parts_of_a_batch_train_like_the_whole_batch(whole: Path, tiny: Path, tmp_path: Path) -> None:
    parts = train(tiny_options(tiny, tmp_path / "parts", at_once=3))
    for two, one in zip(rows(parts), rows(whole), strict=True):
        assert float(two["loss"]) == pytest.approx(float(one["loss"]), rel=1e-3)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_state(tiny: Path, tmp_path: Path) -> None:
    options = tiny_options(tiny, tmp_path / "nan", lr=1e30, val_tasks=0)
    with raises_code("diverged-training", "nan"):
        train(options)
    state = read_state(tmp_path / "nan")
    assert state["progress"].step == 1


def test_a_folder_with_a_run_is_not_overwritten(whole: Path, tiny: Path) -> None:
    with raises_code("refuses-overwrite"):
        train(tiny_options(tiny, whole))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"method": "cst"}, "method emat, not cst"),
        ({"batch": 8}, "batch 4, not 8"),
        ({"tasks_per_epoch": 12}, "tasks_per_epoch 11, not 12"),
    ],
)
def test_another_run_does_not_go_on_with_this_one(
    changes: dict[str, object], told: str, whole: Path, tiny: Path
) -> None:
    with raises_code("other-run", told):
        train(tiny_options(tiny, whole, **changes), resume=True)


def test_a_finished_run_that_goes_on_longer_adds_epochs(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(tiny_options(tiny, tmp_path / "run", epochs=1))
    capsys.readouterr()
    train(tiny_options(tiny, tmp_path / "run", epochs=3), resume=True)
    assert [row["epoch"] for row in rows(folder)] == ["0", "1", "2"]
    assert "changed since the run started: epochs 1 -> 3" in capsys.readouterr().err


def test_a_method_without_anything_to_train_is_reported(tiny: Path, tmp_path: Path) -> None:
    with raises_code("nothing-to-train", "prototype"):
        train(tiny_options(tiny, tmp_path / "run", method="prototype"))


def test_the_cache_spares_the_backbone_after_the_first_epoch(tiny: Path, tmp_path: Path) -> None:
    folder = train(tiny_options(tiny, tmp_path / "run", cache=tmp_path / "cache", epochs=1))
    encoded = len(list((tmp_path / "cache").rglob("*.safetensors")))
    assert 0 < encoded <= 24
    again = train(tiny_options(tiny, tmp_path / "again", cache=tmp_path / "cache", epochs=1))
    assert float(rows(again)[0]["cache_hits"]) == 1.0
    assert_same(read_tensors(again / LAST), read_tensors(folder / LAST))


def test_cst_trains_too_without_average_and_without_validation(tiny: Path, tmp_path: Path) -> None:
    options = tiny_options(tiny, tmp_path / "cst", method="cst", ema=0.0, val_tasks=0, epochs=1, flip=True)
    folder = train(options)
    assert load_head(folder / BEST).method == "cst"
    assert_same(read_tensors(folder / BEST), read_state(folder)["weights"])


def test_a_run_starts_from_a_head_and_names_all_the_classes_seen(whole: Path, tiny: Path, tmp_path: Path) -> None:
    head = str(whole / LAST)
    folder = train(tiny_options(tiny, tmp_path / "more", fold=1, start_from=head, lr=1e-12, ema=0.0, epochs=1))
    before, after = read_tensors(whole / LAST), read_tensors(folder / LAST)
    assert all(torch.allclose(before[name], after[name], atol=1e-9) for name in before)
    metadata = read_metadata(folder / LAST)
    assert json.loads(metadata["started_from"])["trained_tasks"] == "22"
    fresh, first = json.loads(metadata["classes"]), json.loads(read_metadata(whole / LAST)["classes"])
    assert set(fresh) > set(first)
    assert len(fresh) == len(set(fresh)) == 8


def test_a_head_that_has_seen_the_classes_left_out_is_named(
    whole: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny_options(tiny, tmp_path / "other", fold=1, start_from=str(whole / LAST), max_tasks=4, val_tasks=0))
    assert "was trained on classes that are left out here: " in capsys.readouterr().err
    train(tiny_options(tiny, tmp_path / "same", fold=0, start_from=str(whole / LAST), max_tasks=4, val_tasks=0))
    assert "was trained on classes" not in capsys.readouterr().err


def test_a_run_continues_only_with_the_classes_it_started_with(tiny: Path, tmp_path: Path) -> None:
    folder = train(tiny_options(tiny, tmp_path / "run", max_tasks=4, val_tasks=0))
    with raises_code("other-run"):
        train(tiny_options(tiny, folder, fold=1, max_tasks=8, val_tasks=0), resume=True)


def test_a_run_that_goes_on_with_other_files_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tiny_dataset(tmp_path / "data")
    folder = train(tiny_options(data, tmp_path / "run", max_tasks=4, val_tasks=0))
    train(tiny_options(data, folder, max_tasks=6, val_tasks=0), resume=True)
    assert "files of photos or masks" not in capsys.readouterr().err
    for path in data.rglob("*.png"):
        os.utime(path, ns=(1, 1))
    train(tiny_options(data, folder, max_tasks=8, val_tasks=0), resume=True)
    assert "files of photos or masks" in capsys.readouterr().err


def test_tasks_are_counted_where_a_cut_step_goes_on(tiny: Path, tmp_path: Path) -> None:
    folder = train(tiny_options(tiny, tmp_path / "run", max_tasks=6, val_tasks=0))
    train(tiny_options(tiny, folder, max_tasks=11, val_tasks=0), resume=True)
    assert read_metadata(folder / LAST)["trained_tasks"] == "9"  # 4 and 2, then the third step's 3
    assert float(rows(folder)[-1]["loss"]) > 0.3  # a mean over the tasks there were
    with raises_code("already-trained"):
        train(tiny_options(tiny, folder, max_tasks=4, val_tasks=0), resume=True)


def test_a_run_that_cannot_begin_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "run"
    (tmp_path / "file").touch()
    for changes, code in (
        ({"data": (tmp_path / "nowhere",)}, "no-such-file"),
        ({"fold": 9}, "unknown-fold"),
        ({"start_from": "nothing"}, "unknown-head"),
        ({"cache": tmp_path / "file"}, "not-a-folder"),
    ):
        with raises_code(code):
            train(replace(tiny_options(tiny, out), **changes))
    assert not out.parent.exists()
    with raises_code("no-such-file", "run"):
        train(tiny_options(tiny, out), resume=True)
    with raises_code("not-a-folder", "file"):
        train(tiny_options(tiny, tmp_path / "file"))


@pytest.fixture
def method() -> Method:
    torch.manual_seed(0)
    return build_method("emat", image_size=64, device="cpu")


@pytest.fixture
def validation(tiny: Path) -> ValidationTasks:
    data = open_run_data(TrainingOptions(data=(tiny,), fold=0, val_tasks=10))
    assert data.validation is not None
    return data.validation


@torch.no_grad()
def test_validation_counts_what_each_task_by_itself_gives(method: Method, validation: ValidationTasks) -> None:
    dataset, class_ids = validation.dataset, validation.sampler.class_ids
    cache = FeatureCache(method, memory_bytes=10**8)
    counts = ScoreCounts.none(class_ids)
    for task in validation.sampler:
        (way,), ((shot,),), mask = task.ways, task.shots, dataset.mask(task.query)
        shown = torch.from_numpy((dataset.mask(shot) == way).astype("float32"))
        support = method.encode_support(cache.features(dataset.image(shot)), shown)
        evidence = method.compare(method.encode_query(cache.features(dataset.image(task.query))), [support])
        decision = method.decide(TaskEvidence([evidence], (mask.shape[0], mask.shape[1])))
        counts = counts + count_outcome(judge_task(task.ways, decision.present, decision.label_map, mask), class_ids)
    np.testing.assert_allclose(validate(method, cache, validation).row, counts.row)


def test_processes_add_up_to_one(method: Method, validation: ValidationTasks) -> None:
    cache = FeatureCache(method, memory_bytes=10**8)
    whole = validate(method, cache, validation)
    shares = [validate(method, cache, validation, rank, 3) for rank in range(3)]
    summed = ScoreCounts(whole.class_ids, np.sum([share.row for share in shares], axis=0))
    np.testing.assert_allclose(summed.row, whole.row)
    assert ValidationScores.of(summed).miou == ValidationScores.of(whole).miou


def test_masks_on_queries_that_lack_the_class_are_counted(method: Method, validation: ValidationTasks) -> None:
    cache = FeatureCache(method, memory_bytes=10**8)
    lacking = [task for task in validation.sampler if not task.present(validation.dataset.mask(task.query)).any()]
    for bias, expected in ((-50.0, 0.0), (50.0, 1.0)):
        found = validate(_always(method, bias), cache, validation)
        assert found.row[COUNTED.index("absent")] == len(lacking) > 0
        assert ValidationScores.of(found).false_mask_rate == expected


def _always(method: Method, bias: float) -> Method:
    """The same method with a mask branch that says background, or foreground, everywhere."""
    branch = method.network.decoder2_seg  # type: ignore[union-attr]
    last = [module for module in branch.modules() if isinstance(module, torch.nn.Conv2d)][-1]  # type: ignore[union-attr]
    with torch.no_grad():
        last.weight.zero_()
        assert last.bias is not None
        last.bias.copy_(torch.tensor([-bias, bias]))
    return method
