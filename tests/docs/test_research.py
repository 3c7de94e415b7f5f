"""The tutorial for researchers is run from its first command to its last, on small data and a narrow backbone."""

import argparse
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from emat.backbone.registry import BACKBONES
from emat.backbone.vit import ViT
from emat.images import write_indexed_png
from emat.model import build
from tests.cli.command import run
from tests.docs.test_pages import ROOT, blocks, commands
from tests.evaluation.conftest import make_photos
from tests.parity.end_to_end import CLASSES, PHOTOS, mask_of, photo_of

PAGE = ROOT / "docs" / "tutorials" / "research.md"
FOLDS = 4
SMALLER = {  # what makes a command of the page end within seconds
    "tasks": ("--tasks", "2"),
    "eval": ("--tasks", "2", "--size", "112"),
    "train": ("--size", "112", "--max-tasks", "2", "--val-tasks", "2", "--batch", "1"),
}


def write_benchmark(root: Path, lists: Path) -> None:
    """VOC with four folds of the rule's photos, in each of which the rule's classes have the ids of the fold."""
    for fold in range(FOLDS):
        entries = []
        for number in range(PHOTOS):
            name, mask = f"fold{fold}-{number:02}", mask_of("pascal", number).astype(np.int64)
            mask = np.where(mask <= len(CLASSES["pascal"]), np.where(mask > 0, mask + 5 * fold, 0), 255)
            photo = root / "JPEGImages" / f"{name}.png"
            photo.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(photo_of("pascal", number)).save(photo)
            write_indexed_png(root / "SegmentationClassAug" / f"{name}.png", mask.astype(np.uint8))
            entries += [(name, c) for c in np.unique(mask).tolist() if 0 < c < 255]
        for split in ("trn", "val"):
            (lists / "pascal" / split).mkdir(parents=True, exist_ok=True)
            text = "".join(f"{name}__{class_id:02}\n" for name, class_id in entries)
            (lists / "pascal" / split / f"fold{fold}.txt").write_text(text)


def write_checkpoint(path: Path) -> None:
    """In the published format: backbone and learner in one state, with pickled hyper-parameters beside it."""
    torch.manual_seed(0)
    state = {f"backbone.{name}": value for name, value in BACKBONES["dinov2-s"].make().state_dict().items()}
    state |= {f"learner.{name}": value for name, value in build("emat", 72).state_dict().items()}
    path.parent.mkdir(parents=True)
    torch.save({"state_dict": state, "hyper_parameters": argparse.Namespace(way=1), "epoch": 3}, path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with everything that the page starts from."""
    pytest.importorskip("lightning")
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    narrow = replace(BACKBONES["dinov2-s"], make=partial(ViT, 48, 12, 6, patch=14, pos_grid=5), width=8)
    monkeypatch.setitem(BACKBONES, "dinov2-s", narrow)
    write_benchmark(tmp_path / "VOC2012", tmp_path / "splits")
    write_checkpoint(tmp_path / "emat-pascal" / "fold-0" / "best.ckpt")
    make_photos(tmp_path / "photos")
    return tmp_path


def test_every_command_of_the_page_runs_in_its_order(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = commands(PAGE)
    assert [words[0] for words in lines][-1] == "report"
    assert len(lines) >= 10
    for words in lines:
        more = () if words[:2] == ["tasks", "show"] else SMALLER.get(words[0], ())
        assert run(*words, *more) == 0, f"emat {' '.join(words)}\n{capsys.readouterr().err}"
    for name in ("prototype-0.json", "emat-0.json", "runs/fold0/best.safetensors", "runs/small/best.safetensors"):
        assert (folder / name).is_file()
    assert "EMAT" in (folder / "tables.md").read_text()
    assert list((folder / "figures").glob("*.svg"))


def test_the_python_of_the_page_says_what_its_comment_says(capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = blocks(PAGE, "python")
    exec(compile(text, str(PAGE), "exec"), {})
    said = re.search(r"# (\d+)$", text, re.MULTILINE)
    assert said is not None
    assert capsys.readouterr().out.strip() == said[1]
