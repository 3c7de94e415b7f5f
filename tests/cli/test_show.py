"""`emat show` says what a fitted file holds: in words, as JSON and as a page with pictures."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from emat import Example, Segmenter
from emat.files import file_sha256
from emat.images import Reading, Stretch
from tests.cli.command import run
from tests.scale.conftest import photo_of


@pytest.fixture(scope="module")
def fitted(tiny_head: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fitted") / "shapes.emat"
    reading = Reading(Stretch.read("100,900"), project="max")
    examples = [
        Example(photo_of(n), {"<square>": (6 + 9 * n, 4, 28 + 9 * n, 24)}, name=f"photo {n}.png") for n in range(2)
    ]
    Segmenter.load(tiny_head, device="cpu", learn=False, reading=reading).fit(
        [*examples, Example(photo_of(2), {"corner": (0, 0, 9, 9)}, name="third.png")]
    ).save(path)
    return path


def test_words_name_classes_examples_decisions_and_hashes(fitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", fitted) == 0
    text = capsys.readouterr().out
    assert "2 classes from 3 examples" in text
    assert "<square>: 2 examples" in text
    assert "corner: 1 example\n" in text
    assert all(sentence in text for sentence in Segmenter.load(fitted, device="cpu").decisions_.sentences())
    assert file_sha256(fitted) in text


def test_json_has_the_decisions_and_how_photos_are_read(fitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", fitted, "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["format"], content["project"], content["channels"]) == (2, "max", [])
    assert content["stretch"] == str(Stretch.read("100,900"))
    decisions = Segmenter.load(fitted, device="cpu").decisions_.classes["corner"]
    assert content["classes"]["corner"]["decisions"] == asdict(decisions)
    assert [one["name"] for one in content["examples"]] == ["photo 0.png", "photo 1.png", "third.png"]


def test_the_page_shows_every_example_and_takes_no_name_for_markup(fitted: Path, tmp_path: Path) -> None:
    assert run("show", fitted, "--html", tmp_path / "page.html") == 0
    page = (tmp_path / "page.html").read_text()
    assert len(re.findall(r'<img alt="[^"]*" src="data:image/jpeg;base64,', page)) == 3
    assert "<square>" not in page
    assert "&lt;square&gt;" in page
