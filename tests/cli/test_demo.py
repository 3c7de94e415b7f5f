"""`emat demo` as a user runs it."""

import importlib.util
import json
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emat.images import photo_size
from emat.pictures import demo as photos
from tests.cli.command import run

needs_photos = pytest.mark.skipif(importlib.util.find_spec("gradio") is None, reason="the photos come with gradio")


@needs_photos
def test_the_demo_writes_a_picture_and_a_page(
    tiny_head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert run("demo", "--out", tmp_path / "demo", "--model", tiny_head) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("cheetah2.jpg", "cheetah.jpg", "tower.jpg", "lion"))
    picture = Image.open(tmp_path / "demo" / "demo.png")
    assert min(picture.size) > 800
    assert len(picture.convert("RGB").getcolors(1 << 24) or ()) > 10_000, "photos are in it"
    page = (tmp_path / "demo" / "demo.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 2 + 2 * 3
    assert "http" not in page, "nothing is loaded from anywhere"


@needs_photos
def test_scores_as_json(tiny_head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("demo", "--out", tmp_path, "--model", tiny_head, "--json") == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert set(scores) == {"cheetah2.jpg", "cheetah.jpg", "tower.jpg"}
    assert all(set(by_class) == {"cheetah", "lion"} for by_class in scores.values())


@needs_photos
def test_each_mask_fits_its_photo() -> None:
    for example in photos.demo_photos().examples:
        shown = example.read()
        (mask,) = shown.masks.values()
        assert mask.shape == photo_size(example.photo)  # type: ignore[arg-type]
        assert 0.3 < mask.mean() < 0.7


def test_masks_come_with_the_package() -> None:
    for name in photos.EXAMPLES:
        mask = np.asarray(Image.open(str(resources.files("emat") / "pictures" / f"{name}.png")))
        assert mask.dtype == bool


def test_without_the_photos_the_demo_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(photos, "SOURCE", "a_package_that_nobody_has")
    assert run("demo", "--out", tmp_path) == 2
    assert capsys.readouterr().err == (
        'emat: the demonstration uses photos that come with the studio; run: pip install "emat[studio]"\n'
    )
