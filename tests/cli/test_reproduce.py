"""`emat reproduce` as a user runs it."""

from pathlib import Path

import pytest

from tests.cli.command import run
from tests.reports.paper.conftest import heads, home, pascal

__all__ = ["heads", "home", "pascal"]


def test_the_list_names_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("reproduce", "figures", "--list") == 0
    printed = capsys.readouterr().out
    assert all(f"figure-{number} " in printed for number in range(1, 11))
    assert "table-1" in printed


def test_the_diagram_needs_no_data(tmp_path: Path) -> None:
    assert run("reproduce", "figures", "--only", "figure-3", "-o", tmp_path) == 0
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"figure-3.png", "figure-3.svg"}


def test_a_plan_is_shown_run_once_and_found_again(
    pascal: Path, heads: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [f"{label}={heads}/{name}-fold{{fold}}.safetensors" for label, name in (("EMAT", "emat"), ("CST*", "cst"))]
    out = tmp_path / "paper"
    words = ["reproduce", "pascal", "--root", pascal, "--tasks", 1, "--only", "table-1", "-o", out, "--device", "cpu"]
    words += ["--models", *models]
    assert run(*words, "--plan") == 0
    assert "tasks in one pass" in capsys.readouterr().out
    assert not out.exists()
    assert run(*words, "--no-run") == 0
    assert "12 tasks are not measured" in capsys.readouterr().out
    assert not list(out.glob("results/*.json"))
    assert run(*words) == 0
    assert "index.html: 1 table and 0 figures" in capsys.readouterr().out
    assert "| CST* | paper | 0.37 | 80.58 |" in (tmp_path / "paper" / "tables.md").read_text()
    assert run(*words) == 0
    assert capsys.readouterr().out.count("everything is measured") == 2


def test_the_plan_counts_the_costs_of_attention(
    pascal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["reproduce", "pascal", "--data", pascal, "--plan", "-o", tmp_path, "Prototype=prototype,size=64"]
    assert run(*words, "--only", "table-attention") == 0
    assert "The cost of attention is measured in 20 cases as well" in capsys.readouterr().out
    assert run(*words, "--only", "figure-10") == 0
    assert "cost of attention" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--only", "table-9"), "unknown-choice"),
        (("--models", "EMAT=a", "EMAT=b"), "given-twice"),
        (("--models", "EMAT"), "unclear-option"),
        (("--results", "nowhere"), "not-a-folder"),
        (("--data", "nowhere"), "no-such-file"),
    ],
)
def test_mistakes_are_named_before_anything_is_measured(
    pascal: Path, tmp_path: Path, words: tuple[str, ...], code: str
) -> None:
    assert run("reproduce", "pascal", "--data", pascal, "-o", tmp_path / "paper", *words) == code
    assert not (tmp_path / "paper").exists()


def test_another_data_set_is_refused(pascal: Path, tmp_path: Path) -> None:
    assert run("reproduce", "coco", "--data", pascal, "-o", tmp_path / "paper") == "no-annotations"
