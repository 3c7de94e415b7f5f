"""`emat tasks` as a user runs it: what it prints, what it writes, and how it refuses."""

import json
from pathlib import Path

import pytest
from PIL import Image

from emat.tasks.task import read_task_file
from tests.cli.command import run

DIGESTS = json.loads((Path(__file__).parents[1] / "parity" / "task_digests.json").read_text())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    """A folder of lists of four PASCAL folds with 30 images each."""
    for fold in range(4):
        path = tmp_path / "splits" / "pascal" / "val" / f"fold{fold}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"f{fold}_{i}__{5 * fold + i % 5 + 1:02}\n" for i in range(30)))
    return tmp_path / "splits"


def tasks(*words: object) -> int | str:
    return run("tasks", *words)


def test_digest_prints_the_hash_and_nothing_else(lists: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tasks("digest", "--dataset", "pascal", "--lists", lists, "--fold", 1, "--way", 2, "--shot", 3) == 0
    printed = capsys.readouterr().out
    assert len(printed) == 65
    assert int(printed, 16)


@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        ("pascal/fold3/5way-5shot", ["--way", "5", "--shot", "5"]),
        ("pascal/fold3/1way-1shot/query-has-class", ["--query-has-class"]),
        ("pascal/fold3/1way-1shot/size0-5", ["--object-size", "0-5"]),
    ],
)
def test_digest_agrees_with_the_published_one(
    fold_lists: Path, configuration: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tasks("digest", "--dataset", "pascal", "--lists", fold_lists, "--fold", 3, *words) == 0
    assert capsys.readouterr().out == DIGESTS[configuration] + "\n"


def test_count_takes_all_folds_unless_some_are_named(lists: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tasks("count", "--dataset", "pascal", "--lists", lists, "--tasks", 5, "--json") == 0
    counts = json.loads(capsys.readouterr().out)
    assert (counts["tasks"], counts["augmented"], [fold["fold"] for fold in counts["folds"]]) == (20, 0, [0, 1, 2, 3])


def test_count_gives_the_published_numbers(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = shared / "data"
    words = ["--dataset", "pascal", "--lists", data / "splits", "--masks", data / "voc2012-masks.zip", "--way", 2]
    assert tasks("count", *words, "--setting", "partially-augmented", "--fold", 1, "--fold", 3, "--json") == 0
    counts = json.loads(capsys.readouterr().out)
    assert (counts["tasks"], counts["augmented"], counts["theta"]) == (2000, 62, 0.07)
    assert [fold["augmented"] for fold in counts["folds"]] == [29, 33]
    # The second run finds the areas counted by the first.
    assert tasks("count", *words, "--setting", "fully-augmented", "--fold", 3) == 0
    assert "124" in capsys.readouterr().out


def test_freeze_writes_tasks_that_can_be_read(lists: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "tasks.jsonl"
    assert tasks("freeze", "--dataset", "pascal", "--lists", lists, "--fold", 2, "--tasks", 7, "-o", output) == 0
    written = read_task_file(output)
    assert (len(written.tasks), written.fold) == (7, 2)
    assert written.digest in capsys.readouterr().out


def test_show_draws_a_task(shared: Path, tmp_path: Path) -> None:
    output = tmp_path / "pictures" / "task.png"
    data = shared / "data" / "voc2012-mini"
    assert tasks("show", "--data", data, "--fold", 2, "--way", 2, "--index", 731, "-o", output) == 0
    with Image.open(output) as picture:
        assert picture.width > 600
    assert tasks("show", "--data", data, "--index", 1000, "-o", output) == "bad-number"


def test_sizes_equal_the_published_splits(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = shared / "data"
    words = ["--dataset", "pascal", "--lists", data / "splits", "--masks", data / "voc2012-masks.zip"]
    assert tasks("sizes", *words, "-o", tmp_path / "made") == 0
    printed = capsys.readouterr().out
    assert printed.count("compared with the published lists: equal") == 4
    words = ["--dataset", "pascal", "--lists", tmp_path / "made", "--object-size", "5-10"]
    assert tasks("digest", *words) == 0
    assert capsys.readouterr().out == DIGESTS["pascal/fold0/1way-1shot/size5-10"] + "\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--shot", "9"], "too-few-photos"),
        (["--way", "6"], "too-few-photos"),
        (["--fold", "4"], "no-such-list"),
        (["--object-size", "big"], "unclear-option"),
        (["--setting", "fully-augmented"], "missing-option"),
    ],
)
def test_what_the_user_can_fix_is_one_line_and_exit_code_2(
    lists: Path, words: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tasks("digest", "--dataset", "pascal", "--lists", lists, *words) == code
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert said.out == ""


@pytest.mark.parametrize("verb", ["digest", "count", "freeze", "show", "sizes"])
def test_help_has_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tasks(verb, "--help") == 0
    assert f"Example: emat tasks {verb}" in capsys.readouterr().out
