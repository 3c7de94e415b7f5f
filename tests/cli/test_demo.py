"""`emat demo` as a user runs it."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emat.images import photo_size
from emat.inference.prediction import Prediction
from emat.pictures import demo
from tests.cli.command import run


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


def test_scores_as_json(tiny_head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("demo", "--out", tmp_path, "--model", tiny_head, "--json") == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert set(scores) == {"cheetah2.jpg", "cheetah.jpg", "tower.jpg"}
    assert all(set(by_class) == {"cheetah", "lion"} for by_class in scores.values())


def test_each_mask_fits_its_photo() -> None:
    for example in demo.demo_photos().examples:
        shown = example.read()
        (mask,) = shown.masks.values()
        assert mask.shape == photo_size(example.photo)  # type: ignore[arg-type]
        assert 0.3 < mask.mean() < 0.7


def test_nuclei_are_counted_and_measured(
    tiny_head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert run("demo", "nuclei", "--out", tmp_path, "--model", tiny_head) == 0
    assert "IoU with the mask by hand" in capsys.readouterr().out
    with (tmp_path / "objects.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len({row["photo"] for row in rows}) == 11, "the example itself is not counted"
    assert 100 < len(rows) < 2000
    assert all(int(row["area_px"]) > 0 for row in rows)
    assert (tmp_path / "demo.html").read_text().count("data:image/jpeg;base64,") == 1 + 2 * 11


def test_the_count_is_compared_with_masks_by_hand() -> None:
    photo = np.zeros((20, 40, 3), np.uint8)
    by_hand = np.zeros((20, 40), bool)
    by_hand[4:12, 4:12] = by_hand[4:12, 24:32] = True
    found = by_hand.copy()
    found[:, 20:] = False
    prediction = Prediction(photo, {"nucleus": 1.0}, {"nucleus": found.astype(np.float32)})
    assert demo.count_objects(prediction, "nucleus", by_hand) == demo.ObjectCount(1, 64.0, 2, 0.5)


def test_photos_are_small_and_have_credits() -> None:
    root = Path(demo.__file__).parent / "photos"
    files = [path for path in root.rglob("*") if path.suffix in (".jpg", ".png")]
    assert sum(path.stat().st_size for path in files) < 500_000
    assert all(max(photo_size(path)) <= 640 for path in files)
    credits = (root / "CREDITS.md").read_text()
    assert all(path.name in credits or path.parent.parent.name == "nuclei" for path in files)


def test_without_mobilesam_one_line_says_how_to_get_crisp_outlines(
    tiny_head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
    assert run("demo", "--out", tmp_path, "--model", tiny_head) == 0
    assert capsys.readouterr().out.splitlines()[-2] == "For crisper outlines (41 MB once): emat demo --crisp"


def test_an_unknown_demonstration_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("demo", "dogs", "--out", tmp_path / "demo") == "unknown-choice"
    assert capsys.readouterr().err == "emat: there is no demonstration 'dogs'; choose cats or nuclei\n"
    assert not (tmp_path / "demo").exists()
