"""Every verb explains itself with an example, one flag has one meaning, and old flags still work."""

import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from emat.cli import ADVANCED, INTENTS, OLD_SPELLINGS, PANELS, VERBS, build_app, in_new_spelling
from emat.errors import EmatError
from tests.cli.command import run

DIGESTS = json.loads((Path(__file__).parents[1] / "parity" / "task_digests.json").read_text())
LINES_OF_A_SCREEN = 45
ROOT = Path(__file__).parents[2]


def commands() -> dict[str, Any]:
    """All verbs, and the verbs of groups, by what a user types."""
    found: dict[str, Any] = {}
    for verb in VERBS:
        group: Any = typer.main.get_command(build_app(verb))
        found[verb] = group.commands[verb]
        found.update((f"{verb} {name}", each) for name, each in getattr(found[verb], "commands", {}).items())
    return found


COMMANDS = commands()


def test_the_help_fits_a_screen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run("--help") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= LINES_OF_A_SCREEN
    assert all(any(f" {verb} " in line for line in lines) for verb in VERBS)


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_has_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*verb.split(), "--help") == 0
    assert f"emat {verb}" in " ".join(capsys.readouterr().out.split("Usage:")[1].split("\n", 1)[1].split())


@pytest.mark.parametrize("verb", COMMANDS)
def test_one_flag_has_one_meaning(verb: str) -> None:
    flags = {flag: each for each in COMMANDS[verb].params for flag in each.opts if flag.startswith("-")}
    assert not {"--output", "--root", "--size-split", "--presence"} & set(flags)
    assert ("--out" in flags) == ("-o" in flags)
    if "--size" in flags:
        assert "pixels a side" in (flags["--size"].help or "")
    for flag in ("--threshold-presence", "--threshold-mask"):
        assert flag not in flags or "Probability" in (flags[flag].help or "")
    assert all(each.help or each.hidden for each in flags.values())


def test_old_spellings_name_flags_that_exist() -> None:
    for verb, names in OLD_SPELLINGS.items():
        known = {
            flag
            for name, command in COMMANDS.items()
            if name.split()[0] == verb
            for each in command.params
            for flag in each.opts
        }
        assert set(names.values()) <= known
        assert importlib.import_module(f"emat.cli.{verb}")


def test_old_flags_become_the_present_ones() -> None:
    assert in_new_spelling(["eval", "--size-split", "0-5", "--output=a.json", "--size", "64"]) == [
        *("eval", "--object-size", "0-5", "--out=a.json", "--size", "64")
    ]
    assert in_new_spelling(["predict", "--", "--threshold"]) == ["predict", "--", "--threshold"]
    assert in_new_spelling(["--help"]) == ["--help"]


def test_the_old_flag_for_object_sizes_gives_the_published_tasks(
    fold_lists: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--dataset", "pascal", "--lists", fold_lists, "--fold", 3, "--way", 1, "--shot", 1)
    assert run("tasks", "digest", *words, "--size", "0-5") == 0
    assert capsys.readouterr().out == DIGESTS["pascal/fold3/1way-1shot/size0-5"] + "\n"


def test_flags_in_the_documentation_exist() -> None:
    root = Path(__file__).parents[2]
    unknown = []
    for page in [root / "README.md", *(root / "docs").rglob("*.md")]:
        text = page.read_text().replace("\\\n", " ")
        for verb, subverb, rest in re.findall(r"\bemat ([a-z]+)(?: ([a-z]+))?([^\n`]*)", text):
            command = COMMANDS.get(f"{verb} {subverb}", COMMANDS.get(verb))
            if command is not None:
                known = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)} | {"--help"}
                unknown += [(page.name, verb, flag) for flag in re.findall(r"\s(--[a-z-]+)", rest) if flag not in known]
    assert unknown == []


def _emat(*words: str, **environment: str) -> "subprocess.CompletedProcess[bytes]":
    command = " ".join(shlex.quote(word) for word in (sys.executable, "-m", "emat", *words[:-1])) + words[-1]
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        check=False,
    )


def test_output_that_nobody_reads_to_its_end_is_not_an_error() -> None:
    ended = _emat("--help", " | head -1")
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_an_output_that_the_caller_closed_is_not_an_error() -> None:
    ended = _emat("--help", " >&-")
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_an_interrupt_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("emat.cli.convert.open_dataset", interrupted)
    assert run("convert", ROOT, "-o", ROOT / "nowhere", "--to", "png") == 130
    assert capsys.readouterr().err == "emat: interrupted\n"


@pytest.mark.parametrize("error", [ValueError("x"), EmatError("damaged-file", "x")])
def test_an_interrupt_of_which_a_library_made_another_error_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def read(*_: Any, **__: Any) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        except KeyboardInterrupt:  # as PyTorch does while it reads weights
            raise error from None

    monkeypatch.setattr("emat.cli.convert.open_dataset", read)
    assert run("convert", ROOT, "-o", ROOT / "nowhere", "--to", "png") == 130
    assert capsys.readouterr().err == "emat: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_zero_byte_is_refused(tmp_path: Path) -> None:
    assert run("predict", ROOT / "no.emat", "a\0b.jpg", "-o", tmp_path / "out") == "bad-file-name"


def test_a_terminal_without_letters_is_written_to_all_the_same(tmp_path: Path) -> None:
    ended = _emat("data", "check", str(tmp_path / "caf\u00e9"), "", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert ended.returncode == 2
    assert b"does not exist" in ended.stderr
    assert b"Traceback" not in ended.stderr
    ended = _emat("tasks", "--help", "", PYTHONIOENCODING="ascii")
    assert ended.returncode == 0


def test_every_verb_is_shown_under_one_intent() -> None:
    shown = [name for names in INTENTS.values() for name in names]
    assert sorted(shown) == sorted(VERBS)


@pytest.mark.parametrize("verb", [name for name, each in COMMANDS.items() if not hasattr(each, "commands")])
def test_options_are_shown_in_panels_of_one_order(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run(*verb.split(), "--help") == 0
    printed = capsys.readouterr().out
    shown = [panel for panel in re.findall(r"─ ([A-Z]\w+) ─", printed) if panel != "Arguments"]
    assert shown == [panel for panel in (*PANELS, ADVANCED) if panel in shown]
    assert "<bool>" not in printed


def test_every_name_in_a_panel_is_an_option() -> None:
    options = {each.name for command in COMMANDS.values() for each in command.params}
    assert {name for names in PANELS.values() for name in names.split()} <= options


def test_lines_of_the_help_break_where_the_terminal_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert run("predict", "--help") == 0
    assert "in it. A photo that cannot be read is reported and skipped" in capsys.readouterr().out
