"""What a head file says about its training, and runs that start from a head."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from emat.files import file_sha256
from emat.methods.trained_head import (
    Training,
    save_head,
    starting_head,
    training_of,
)
from emat.model import build
from emat.tensor_files import write_tensors
from tests.raises import raises_code

KEPT_APART = Training(fold=1, kept_apart=True, classes=frozenset({"disc", "slab"}))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, Training()),
        ({"settings": json.dumps({"fold": 2})}, Training(2, True)),
        ({"settings": '{"fold": null}', "classes": '["Fire hat"]'}, Training(None, False, frozenset({"firehat"}))),
        ({"settings": json.dumps({"exclude_classes": ["cat"]}), "classes": "[]"}, Training(None, True, frozenset())),
        ({"settings": "[1]"}, Training()),
        ({"settings": "{", "classes": "7"}, Training()),
    ],
)  # fmt: skip
def test_a_file_tells_how_its_head_was_trained(
    metadata: dict[str, str], expected: Training, head: Path, tmp_path: Path
) -> None:
    path = tmp_path / "head.safetensors"
    write_tensors(path, load_file(head), metadata)
    assert training_of(path) == expected


def test_a_method_that_needs_no_training_has_seen_nothing() -> None:
    assert training_of("prototype") == Training()


def test_classes_that_were_seen_are_named_whatever_the_fold_s_number() -> None:
    said = KEPT_APART.warning("mine", 1, ["Disc", "bar"])
    assert said == "mine has seen classes of fold 1 in training: Disc"
    assert KEPT_APART.warning("mine", 0, ["bar", "blob"]) is None


def test_without_names_the_fold_s_number_tells() -> None:
    assert Training(fold=1).warning("mine", 1, ["bar"]) is None
    assert Training().warning("mine", 0, ["bar"]) is None
    assert "was trained for fold 1; it has seen the classes of fold 0" in str(Training(1).warning("mine", 0, ["bar"]))


def starting_file(folder: Path, **metadata: str) -> str:
    path = folder / "start.safetensors"
    save_head(path, build("emat", channels=42).state_dict(), {"backbone": "efficientnet-lite2", **metadata})
    return str(path)


def test_without_a_head_a_run_starts_from_random_weights() -> None:
    assert starting_head(None, "emat", "efficientnet-lite2") is None


def test_files_say_where_a_run_started_and_list_every_class_once(tmp_path: Path) -> None:
    seen = json.dumps(["Ant", "zebra", "Fire Hat"])
    file = starting_file(tmp_path, classes=seen, trained_tasks="90")
    found = starting_head(file, "emat", "efficientnet-lite2")
    assert found is not None
    said = found.provenance(["cat", "firehat"])
    assert json.loads(said["classes"]) == ["cat", "firehat", "Ant", "zebra"]
    assert json.loads(said["started_from"]) == {"sha256": file_sha256(Path(file)), "trained_tasks": "90"}
    assert all(torch.isfinite(value).all() for value in found.head.tensors.values())


def test_a_start_that_lists_no_classes_leaves_them_unknown(tmp_path: Path) -> None:
    found = starting_head(starting_file(tmp_path), "emat", "efficientnet-lite2")
    assert found is not None
    assert json.loads(found.provenance(["cat"])["classes"]) is None


@pytest.mark.parametrize(("word", "other"), [("method", "cst"), ("backbone", "resnet50")])
def test_a_head_of_another_kind_cannot_be_a_start(word: str, other: str, tmp_path: Path) -> None:
    options = {"method": "emat", "backbone": "efficientnet-lite2", word: other}
    with raises_code("wrong-head", f"--{word}", str(other)):
        starting_head(starting_file(tmp_path), **options)
