"""`emat train` as a user runs it."""

import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from emat.cli import build_app
from emat.errors import install_command
from emat.methods.trained_head import load_head
from emat.training.options import TrainingOptions, from_plain, write_config
from tests.cli import command
from tests.training.tiny import tiny_dataset

pytest.importorskip("lightning")
SMALL = ("--size", "64", "--max-tasks", "4", "--batch", "2", "--val-tasks", "2", "--device", "cpu")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dataset(tmp_path_factory.mktemp("data") / "tiny")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(build_app("train"), ["train", *arguments])
    return result.exit_code, result.output


def test_help_shows_an_example_and_the_papers_values() -> None:
    code, text = run("--help")
    assert code == 0
    assert "emat train --dataset pascal" in " ".join(text.split())
    assert "80" in text


def test_the_printed_yaml_has_the_options_given(tmp_path: Path) -> None:
    code, text = run("--data", "a", "--data", "b", "--fold", "1", "--lr", "0.003", "--print-config")
    assert code == 0
    assert from_plain(yaml.safe_load(text)) == TrainingOptions(data=(Path("a"), Path("b")), fold=1, lr=0.003)


def test_options_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("epochs: 7\nbatch: 5\nflip: true\n")
    _, text = run("--config", str(file), "--batch", "3", "--no-flip", "--print-config")
    options = from_plain(yaml.safe_load(text))
    assert (options.epochs, options.batch, options.flip) == (7, 3, False)


def test_a_run_writes_a_head_and_is_resumed_from_its_folder(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, text = run("--data", str(tiny), "--fold", "0", "--out", str(out), *SMALL)
    assert code == 0, text
    assert f"trained: {out / 'best.safetensors'}" in text
    assert load_head(out / "best.safetensors").method == "emat"
    code, text = run("--out", str(out), "--resume", "--max-tasks", "6")
    assert code == 0, text
    assert "continues after 4 tasks" in text


@pytest.mark.parametrize("named_by", ["default", "config", "option"])
def test_a_run_is_resumed_with_its_own_options_however_its_folder_is_named(
    named_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "given.yaml").write_text("out: mine\nbatch: 4\n" if named_by == "config" else "batch: 4\n")
    named = ["--data", "photos", "--config", "given.yaml", *(["--out", "mine"] if named_by == "option" else [])]
    folder = Path("runs/emat-efficientnet-lite2-photos-all" if named_by == "default" else "mine")
    write_config(tmp_path / folder / "run.yaml", TrainingOptions(data=(Path("photos"),), epochs=5, batch=3, lr=0.1))
    _, text = run(*named, "--resume", "--lr", "0.2", "--print-config")
    assert from_plain(yaml.safe_load(text)) == TrainingOptions(
        data=(Path("photos"),), epochs=5, batch=4, lr=0.2, out=folder
    )
    _, text = run(*named, "--print-config")
    assert from_plain(yaml.safe_load(text)).epochs == 80


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--size", "64"), "missing-option"),
        (("--data", "nowhere"), "no-such-file"),
        (("--data", ".", "--method", "magic"), "unknown-method"),
        (("--data", ".", "--epochs", "0"), "bad-number"),
        (("--data", ".", "--config", "none.yaml"), "no-such-file"),
        (("--data", ".", "--device", "warp"), "unknown-device"),
        (("--data", ".", "--device", "cuda", "--devices", "99"), "unknown-device"),
        (("--data", ".", "--cache-memory", "inf"), "bad-number"),
        (("--data", ".", "--out", __file__), "not-a-folder"),
    ],
)
def test_what_the_user_can_fix_is_one_sentence_and_exit_code_2(
    arguments: tuple[str, ...], code: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert command.run("train", "--out", tmp_path / "run", *arguments) == code
    assert capsys.readouterr().err.count("\n") == 1


def test_without_lightning_the_extra_is_named(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("lightning", "lightning.fabric"):
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    assert command.run("train", "--data", tiny, "--out", tmp_path / "run") == "missing-package"
    expected = f"training needs the package lightning; install it with: {install_command('train')}"
    assert capsys.readouterr().err == f"emat: {expected}\n"
