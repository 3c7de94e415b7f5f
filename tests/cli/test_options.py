"""`--data PHOTOS --masks MASKS.zip` means the same to every verb that reads a data set."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.command import run
from tests.evaluation.conftest import make_photos


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A folder of photos and a zip of their masks, which are three times as large."""
    root = make_photos(tmp_path / "shapes")
    for path in (root / "masks").iterdir():
        with Image.open(path) as mask:
            large = mask.resize((3 * mask.width, 3 * mask.height), Image.Resampling.NEAREST)
        large.save(path)
    photos = shutil.move(root / "images", tmp_path / "photos")
    return Path(photos), Path(shutil.make_archive(str(tmp_path / "masks"), "zip", root))


def test_data_check(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    photos, masks = pair
    assert run("data", "check", photos, "--masks", masks) == 0
    assert "kind pascal, 20 photos, 20 masks, 4 of 4 classes present" in capsys.readouterr().out


def test_tasks(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    photos, masks = pair
    words = ("--masks", masks, "--folds", 2, "--way", 2, "--setting", "fully-augmented", "--tasks", 20)
    assert run("tasks", "digest", *words) == 0
    alone = capsys.readouterr().out
    # The lists of masks alone carry the name of the zip, but their tasks are the same.
    assert run("tasks", "digest", "--data", photos, *words) == 0
    assert capsys.readouterr().out == alone
    assert run("tasks", "show", "--data", photos, *words, "--index", 0, "-o", "task.png") == 0
    assert Path("task.png").is_file()
    assert run("tasks", "show", *words, "--index", 0, "-o", "task.png") == "no-photos"


def test_eval_and_tune(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    photos, masks = pair
    common = ("--data", photos, "--masks", masks, "--size", 64, "--folds", 2, "--tasks", 3, "--device", "cpu")
    assert run("eval", "--method", "prototype", "--fold", 0, *common, "--json") == 0
    assert json.loads(capsys.readouterr().out)["summaries"][0]["tasks"] == 3
    assert run("tune", "prototype", *common) == 0
    assert "best: presence" in capsys.readouterr().out


def test_train(pair: tuple[Path, Path]) -> None:
    pytest.importorskip("lightning")
    photos, masks = pair
    small = ("--size", 64, "--max-tasks", 4, "--batch", 2, "--val-tasks", 2, "--device", "cpu", "--out", "run")
    assert run("train", "--data", photos, "--masks", masks, "--fold", 0, *small) == 0
    assert Path("run/best.safetensors").is_file()


def test_a_home_folder_that_the_shell_did_not_expand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "user"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    root = make_photos(tmp_path / "shapes")
    assert run("convert", root, "--to", "png", "--out=~/converted") == 0
    assert run("fit", root, "-o", "~/shapes.emat", "--model", "prototype", "--shots", 1) == 0
    assert run("predict", "~/shapes.emat", root / "images", "--out=~/masks", "--table", "~/objects.csv") == 0
    assert {path.name for path in home.iterdir()} >= {
        "converted", "shapes.emat", "masks", "objects.csv"
    }  # fmt: skip
    assert not list(Path.cwd().glob("~*"))
    assert run("convert", root, "--to", "png", "--out=~nobody-of-this-name/converted") == "no-such-file"
