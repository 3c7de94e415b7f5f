"""`emat data` as a user runs it."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emat.images import write_indexed_png
from tests.cli.command import run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    root = tmp_path / "pets"
    (root / "images").mkdir(parents=True)
    for name, value in (("a", 1), ("b", 2)):
        Image.new("RGB", (8, 6)).save(root / "images" / f"{name}.jpg")
        write_indexed_png(root / "masks" / f"{name}.png", np.full((6, 8), value, np.uint8))
    (root / "classes.txt").write_text("cat\ndog\n")
    return root


def test_a_sound_data_set_ends_with_code_0(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("data", "check", folder) == 0
    printed = capsys.readouterr().out
    assert "kind folder, 2 photos, 2 masks, 2 of 2 classes present" in printed
    assert "cat 1, dog 1" in printed
    assert "Nothing to fix." in printed


def test_faults_are_shown_with_what_to_do_and_end_with_code_2(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_indexed_png(folder / "masks" / "a.png", np.full((3, 4), 1, np.uint8))
    assert run("data", "check", folder, "--dataset", "folder") == 2
    printed = capsys.readouterr().out
    assert "a: mask 4 x 3, photo 8 x 6" in printed
    assert "save the mask at its photo's size" in printed
    assert "There are faults to fix." in printed


def test_a_program_reads_the_same_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "images" / "b.jpg").unlink()
    assert run("data", "check", folder, "--json") == 2
    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["photos"], outcome["masks"], outcome["clean"]) == (1, 2, False)
    assert outcome["findings"][0]["kind"] == "missing photo"
    assert outcome["findings"][0]["examples"] == ["b"]


def test_lists_are_made_written_and_shown_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder.parent / "lists"
    assert run("data", "lists", "--data", folder, "--folds", 2, "-o", out) == 0
    assert "2 lists written" in capsys.readouterr().out
    assert run("data", "lists", "--lists", out, "--json") == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["dataset"], first["fold"], first["counts"]) == ("pets", 0, {"1": 1})
    assert second["published"] is None
    assert run("data", "lists", "--lists", out) == 0
    assert "not on record" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["lists"], "missing-option"),
        (["lists", "--lists", "/nowhere"], "not-a-folder"),
        (["check", "/nowhere"], "no-such-file"),
        (["check", ".", "--dataset", "imagenet"], "unknown-choice"),
    ],
)
def test_mistakes_are_one_sentence_and_code_2(arguments: list[str], code: str) -> None:
    assert run("data", *arguments) == code


def test_with_json_an_error_is_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("data", "check", "/nowhere", "--json") == "no-such-file"
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert told["code"] == "no-such-file"
    assert printed.err == f"emat: {told['error']}\n"


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("check", "lists"):
        assert run("data", verb, "--help") == 0
        assert f"emat data {verb}" in capsys.readouterr().out.partition("Example")[2]


def test_the_published_lists_are_recognised(
    shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert run("data", "lists", "--dataset", "pascal", "--lists", shared / "data" / "splits" / "pascal") == 0
    printed = capsys.readouterr().out
    assert printed.count("yes") == 24
    assert "tvmonitor" in printed
