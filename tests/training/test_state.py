import json
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from emat.methods.registry import build_method
from emat.training.data import open_run_data
from emat.training.options import TrainingOptions, write_config
from emat.training.state import (
    CONFIG,
    STATE,
    RunProgress,
    check_folder,
    complete,
    provenance,
    read_state,
    save_state,
    save_trained,
)
from tests.raises import raises_code
from tests.training.tiny import CLASSES


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    progress = RunProgress(3, 2, 32, 8, "a" * 64, 0.5, 1, {"total": 0.25})
    save_state(tmp_path, progress, {"w": torch.ones(2)}, {"state": {}, "param_groups": []}, {"w": torch.zeros(2)})
    state = read_state(tmp_path)
    assert state["progress"] == progress
    assert torch.equal(state["weights"]["w"], torch.ones(2))
    assert [path.name for path in tmp_path.iterdir()] == [STATE]


def test_a_full_disk_is_reported_and_the_state_before_stays(tmp_path: Path) -> None:
    save_state(tmp_path, RunProgress(1), {"w": torch.ones(2)}, {}, {})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))  # what a file may grow to, as on a full disk
    try:
        with raises_code("cannot-write", "state.pt"):
            save_state(tmp_path, RunProgress(2), {"w": torch.ones(10**6)}, {}, {})
        with raises_code("cannot-write", "best.safetensors", "cannot be written"):
            save_trained(tmp_path / "best.safetensors", build_method("emat", device="cpu"), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert read_state(tmp_path)["progress"].epoch == 1
    assert [path.name for path in tmp_path.iterdir()] == [STATE]


def test_a_head_tells_the_classes_it_was_trained_on(tiny: Path) -> None:
    options = TrainingOptions(data=(tiny,), fold=0)
    drawn_from = open_run_data(options).tasks.drawn_from
    said = provenance(options, "efficientnet-lite2", build_method("emat", device="cpu"), drawn_from)
    assert json.loads(said["classes"]) == list(CLASSES[2:])
    assert said["data_sha256"] == drawn_from.sha256


@pytest.mark.parametrize("content", [b"", b"nonsense", b"junk\n"])
def test_a_damaged_state_is_reported(content: bytes, tmp_path: Path) -> None:
    (tmp_path / STATE).write_bytes(content)
    with raises_code("wrong-file-version"):
        read_state(tmp_path)


def test_another_file_is_no_state(tmp_path: Path) -> None:
    torch.save({"weights": {}}, tmp_path / STATE)
    with raises_code("wrong-file-version"):
        read_state(tmp_path)


def test_a_run_cannot_continue_with_steps_of_another_size(tmp_path: Path) -> None:
    options = complete(TrainingOptions(data=(tmp_path,), out=tmp_path, batch_per_process=True, devices=3))
    write_config(tmp_path / CONFIG, options)
    save_state(tmp_path, RunProgress(1), {}, {}, {})
    assert check_folder(options, resume=True) == (tmp_path, [])
    with raises_code("other-run", "27", "18"):
        check_folder(replace(options, devices=2), resume=True)
