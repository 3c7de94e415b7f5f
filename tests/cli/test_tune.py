"""`emat tune` as a user runs it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from emat.methods.trained_head import load_head, save_head
from emat.model import build
from emat.tensor_files import read_metadata, write_tensors
from tests.cli.command import run
from tests.evaluation.conftest import make_photos


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("data") / "shapes")


@pytest.fixture
def head(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "head.safetensors"
    metadata = {"backbone": "efficientnet-lite2", "image_size": "96", "settings": json.dumps({"fold": 1})}
    save_head(path, build("emat", channels=42).state_dict(), metadata)
    return path


def tune(*words: object) -> int | str:
    return run("tune", *words, "--device", "cpu")


def test_the_best_thresholds_are_shown_and_written_to_the_head(
    head: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned = tmp_path / "tuned.safetensors"
    assert tune(head, "--data", photos, "--folds", 2, "--tasks", 3, "--size", 64, "-o", tuned) == 0
    printed = capsys.readouterr().out
    assert "emat on efficientnet-lite2 at 64 px; 1-way 1-shot, without fold 1" in printed
    words = printed.split("best: presence ")[1].replace(",", " ").split()
    found, before = load_head(tuned), load_head(head)
    assert (found.thresholds.presence, found.thresholds.mask) == (float(words[0]), float(words[2]))
    assert (found.image_size, before.image_size) == (64, 96)
    assert all(torch.equal(value, before.tensors[name]) for name, value in found.tensors.items())
    assert read_metadata(tuned)["settings"] == read_metadata(head)["settings"]


def test_a_head_of_emat_is_tuned_and_written_for_emat_prior(head: Path, photos: Path, tmp_path: Path) -> None:
    tuned = tmp_path / "tuned.safetensors"
    words = ("--data", photos, "--folds", 2, "--tasks", 2, "--size", 64, "--method", "emat-prior", "-o", tuned)
    assert tune(head, *words) == 0
    assert load_head(tuned).method == "emat-prior"


def test_a_head_without_a_backbone_in_its_file_needs_the_option(
    head: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    silent, tuned = tmp_path / "silent.safetensors", tmp_path / "tuned.safetensors"
    write_tensors(silent, load_file(head), {})
    words = (silent, "--data", photos, "--folds", 2, "--tasks", 2, "--size", 64, "-o", tuned)
    assert tune(*words) == "missing-option"
    assert tune(*words, "--backbone", "efficientnet-lite2") == 0
    assert "if classes that are not present have no mask" in capsys.readouterr().out
    assert load_head(tuned).backbone == "efficientnet-lite2"


@pytest.mark.parametrize(("path", "said"), [("taken/x.safetensors", "taken"), ("folder", "it is a folder")])
def test_a_path_that_cannot_be_written_is_reported_before_the_work(
    path: str, said: str, head: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("a file where the folder should be")
    (tmp_path / "folder").mkdir()
    assert tune(head, "--data", photos, "--folds", 2, "-o", tmp_path / path) == "cannot-write"
    printed = capsys.readouterr()
    assert f"{tmp_path / path} cannot be written: " in printed.err
    assert said in printed.err
    assert "queries" not in printed.err + printed.out


def test_a_training_free_method_can_be_tuned_but_not_written(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("prototype", "--data", photos, "--folds", 2, "--tasks", 2, "--size", 64)
    assert tune(*words) == 0
    assert "prototype on efficientnet-lite2 at 64 px; 1-way 1-shot; percent" in capsys.readouterr().out
    assert tune(*words, "-o", tmp_path / "tuned.safetensors") == "nothing-to-train"


def test_classes_that_the_head_has_not_seen_are_left_out_by_name(
    head: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = tmp_path / "known.safetensors"
    write_tensors(known, load_file(head), {**read_metadata(head), "classes": json.dumps(["bar", "slab"])})
    assert tune(known, "--data", photos, "--folds", 2, "--tasks", 2, "--size", 64) == 0
    assert "1-way 1-shot, without disc, blob; percent" in capsys.readouterr().out


def test_leaving_the_only_fold_out_is_refused(head: Path, photos: Path) -> None:
    assert tune(head, "--data", photos, "--folds", 1, "--fold", 0) == "too-few-folds"
