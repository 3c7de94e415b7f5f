"""`emat doctor` as a user runs it."""

import json
from pathlib import Path

import pytest
import torch

from emat import weights
from emat.cli.doctor import examine
from tests.cli.command import run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def test_it_finds_the_default_backbone_and_says_that_emat_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor") == 0
    shown = capsys.readouterr().out
    assert "emat works here, by default with efficientnet-lite2" in shown
    assert torch.__version__ in shown
    assert "emat weights fetch dinov2-s" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_a_program_can_read_it(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    assert run("doctor", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] is True
    assert report["home"] == str(home)
    assert report["devices"][-1]["name"] == "cpu"
    states = {one["name"]: one["state"] for one in report["backbones"]}
    assert (states["efficientnet-lite2"], states["dinov2-s"]) == ("verified", "absent")


def test_without_the_default_backbones_weights_it_ends_with_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(weights, "find_spec", lambda module: None)  # as if the weights package were not installed
    assert run("doctor") == 2
    assert "efficientnet-lite2's weights cannot be used" in capsys.readouterr().out


def test_damaged_weights_are_shown_as_such(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "backbones").mkdir()
    (home / "backbones" / "dinov2-s.safetensors").write_bytes(b"nonsense")
    assert run("doctor") == 0
    shown = capsys.readouterr().out
    assert "damaged" in shown
    assert "dinov2-s.safetensors is damaged" in shown.replace("\n", "")


def test_extras_are_those_the_package_declares() -> None:
    names = {extra.name for extra in examine().extras}
    assert {"train", "data", "studio", "dev"} <= names
    assert "all" not in names
