"""`emat eval` and `emat report` as a user runs them: what they print, what they write, and how they refuse."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from emat.images import write_indexed_png
from emat.tasks.task import read_task_file
from emat.tensor_files import read_metadata, write_tensors
from tests.cli.command import run
from tests.evaluation.conftest import make_photos


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("data") / "shapes")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def evaluate(photos: Path, *words: object) -> int:
    return run("eval", "--method", "prototype", "--size", 64, "--data", photos, "--device", "cpu", *words)


def test_all_settings_ways_and_folds_are_in_one_table(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--folds", 2, "--way", "1,2", "--setting", "all", "--tasks", 4, "-o", "run.json")
    assert evaluate(photos, *words) == 0
    printed = capsys.readouterr().out
    assert "prototype on efficientnet-lite2 at 64 px" in printed
    assert all(word in printed for word in ("1-way 1-shot", "2-way 1-shot", "partially", "fully", "mean", "run.json"))
    content = json.loads(Path("run.json").read_text())
    assert len(content["cells"]) == 12
    assert content["options"]["setting"] == "all"


def test_a_finished_evaluation_is_not_repeated(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--folds", 2, "--fold", 0, "--tasks", 4, "--json")
    assert evaluate(photos, *words) == 0
    first = json.loads(capsys.readouterr().out)
    (summary,) = first["summaries"]
    assert summary["configuration"]["way"] == 1
    assert summary["tasks"] == 4
    assert Path(first["results"]).is_file()
    before = Path(first["results"]).stat().st_mtime_ns
    assert evaluate(photos, *words) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert Path(first["results"]).stat().st_mtime_ns == before


def test_corrected_masks_are_evaluated_anew(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = Path(shutil.copytree(photos, "data"))
    words = ("--folds", 2, "--fold", 0, "--tasks", 2, "--theta", 0.1, "--json")
    assert evaluate(data, *words) == 0
    first = json.loads(capsys.readouterr().out)
    for path in (data / "masks").iterdir():
        drawn = np.array(Image.open(path))
        drawn[15] = 0  # a row of the object: lists and tasks stay
        write_indexed_png(path, drawn)
    assert evaluate(data, *words) == 0
    assert json.loads(capsys.readouterr().out)["results"] != first["results"]
    assert evaluate(data, *words, "-o", first["results"]) == 2
    assert "another run" in capsys.readouterr().err


def test_a_task_file_is_evaluated(photos: Path) -> None:
    words = ("--data", photos, "--folds", 2, "--fold", 1, "--way", 2, "--tasks", 5)
    assert run("tasks", "freeze", *words, "-o", "tasks.jsonl") == 0
    assert evaluate(photos, "--tasks", "tasks.jsonl", "-o", "frozen.json") == 0
    assert evaluate(photos, *words[2:], "-o", "sampled.json") == 0
    from_file, sampled = (json.loads(Path(f"{name}.json").read_text()) for name in ("frozen", "sampled"))
    assert from_file["outcomes"] == sampled["outcomes"]
    assert from_file["cells"][0]["digest"] == read_task_file(Path("tasks.jsonl")).digest


def test_a_head_is_evaluated_with_its_own_size(photos: Path, tiny_head: Path) -> None:
    words = ("--model", tiny_head, "--data", photos, "--folds", 2, "--fold", 0, "--tasks", 2, "--only-seg")
    assert run("eval", *words, "--cache", "features", "-o", "run.json") == 0
    content: dict[str, Any] = json.loads(Path("run.json").read_text())
    assert content["methods"]["0"]["image_size"] == 64
    assert content["summaries"][0]["scores"]["accuracy"] is None
    assert list(Path("features").iterdir())


def test_a_head_is_evaluated_with_its_own_thresholds(
    photos: Path, tiny_head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--model", tiny_head, "--data", photos, "--folds", 2, "--fold", 0, "--tasks", 2, "--device", "cpu")
    apart = ("--threshold-presence", 0.4, "--threshold-mask", 0.3)
    for name, thresholds in (("own", ("--own-thresholds",)), ("apart", apart), ("paper", ())):
        assert run("eval", *words, *thresholds, "-o", f"{name}.json") == 0
    assert capsys.readouterr().out.count("presence threshold 0.4, mask threshold 0.3") == 2
    own, both, paper = (json.loads(Path(f"{name}.json").read_text()) for name in ("own", "apart", "paper"))
    assert own["methods"]["0"]["thresholds"] == both["thresholds"] == {"presence": 0.4, "mask": 0.3}
    assert own["outcomes"] == both["outcomes"]
    assert own["fingerprint"] == both["fingerprint"] != paper["fingerprint"]
    assert run("report", "own.json", "apart.json", "paper.json") == 0
    printed = capsys.readouterr().out
    assert all(words in printed for words in ("px, own thresholds)", "thresholds 0.4 and 0.3)", "threshold 0.5)"))


def test_a_warning_names_the_classes_that_the_head_saw_in_training(
    photos: Path, tiny_head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"settings": json.dumps({"fold": 0}), "classes": json.dumps(["bar", "slab"])}
    write_tensors(Path("head.safetensors"), load_file(tiny_head), {**read_metadata(tiny_head), **told})
    words = ("--model", "head.safetensors", "--data", photos, "--folds", 2, "--tasks", 2, "--device", "cpu")
    assert run("eval", *words, "-o", "own.json") == 0
    assert {cell["fold"] for cell in json.loads(Path("own.json").read_text())["cells"]} == {0}
    assert run("eval", *words, "--fold", "all", "-o", "run.json") == 0
    errors = capsys.readouterr().err
    assert "emat: head.safetensors has seen classes of fold 0 in training: bar\n" in errors
    assert "emat: head.safetensors has seen classes of fold 1 in training: slab\n" in errors


def test_a_training_free_method_may_be_given_as_model(photos: Path) -> None:
    words = ("--folds", 2, "--fold", 0, "--tasks", 2)
    assert evaluate(photos, *words, "-o", "method.json") == 0
    assert run("eval", "--model", "prototype", "--size", 64, "--data", photos, *words, "-o", "model.json") == 0
    method, model = (json.loads(Path(f"{name}.json").read_text()) for name in ("method", "model"))
    assert method["fingerprint"] == model["fingerprint"]


def test_size_splits_are_reported(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--folds", 2, "--object-size", "0-15,0-30", "--tasks", 3, "-o", "sizes.json")
    assert evaluate(photos, *words) == 0
    assert "objects of 0-30 % of the photo" in capsys.readouterr().out
    assert run("report", "sizes.json", "-o", "tables.tex", "--figures", "figures") == 0
    assert r"\toprule" in Path("tables.tex").read_text()
    assert {path.suffix for path in Path("figures").iterdir()} == {".svg", ".png"}
    assert run("report", "ours=sizes.json") == 0
    assert "| ours |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--way", "two"), "--way is 'two'"),
        (("--shot", "0"), "--shot is '0'"),
        (("--fold", "7"), "there is no fold 7"),
        (("--setting", "half"), "no setting 'half'"),
        (("--way", "3", "--folds", "2"), "too few for 3 ways"),
        (("--tasks", "absent.jsonl"), "give a number of tasks, or a task file of emat tasks freeze"),
        (("--tasks", "taken", "--way", "1"), "are already drawn, so --way cannot change them"),
        (("--tasks", "taken", "--theta", "0"), "are already drawn, so --theta cannot change them"),
        (("--tasks", "taken", "--query-has-class"), "already drawn, so --query-has-class cannot change them"),
        (("--tasks", "taken", "--shot", "5"), "are already drawn, so --shot cannot change them"),
        (("--tasks", "taken", "--object-size", "0-5"), "already drawn, so --object-size cannot change them"),
        (("--object-size", "small"), "not a range of object sizes"),
        (("--device", "abacus"), "no device 'abacus'"),
        (("--model", "absent"), "neither a file nor a head"),
        (("--cache-memory", "inf"), "--cache-memory is inf; give a number of gigabytes"),
        (("--folds", "2", "--tasks", "2", "-o", "taken/run.json"), "taken/run.json cannot be written"),
        (("--threshold", "high"), "--threshold is 'high'"),
        (("--threshold", "0.1,0.2,0.3"), "--threshold is '0.1,0.2,0.3'"),
        (("--threshold-presence", "0.5", "--own-thresholds"), "thresholds are given twice"),
        (("--threshold-mask", "30"), "mask threshold is a probability between 0 and 1, not 30"),
    ],
)
def test_wrong_options_are_one_sentence_and_code_2(
    photos: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("taken").write_text("a file where a folder should be")
    assert evaluate(photos, *words) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_results_of_another_run_are_not_overwritten(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--folds", 2, "--fold", 0, "--tasks", 2, "-o", "run.json")
    assert evaluate(photos, *words) == 0
    before = Path("run.json").read_bytes()
    assert evaluate(photos, *words, "--threshold-mask", 0.6) == 2
    assert "another run" in capsys.readouterr().err
    assert Path("run.json").read_bytes() == before


def test_report_refuses_other_files_and_formats(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.json").write_text("{}")
    assert run("report", "other.json") == 2
    assert "not a results file" in capsys.readouterr().err
    assert run("report", "other.json", "-o", "tables.docx") == 2
    assert ".md, .tex, .csv" in capsys.readouterr().err


def test_data_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("eval", "--method", "prototype") == 2
    assert "--data" in capsys.readouterr().err


def test_a_setting_given_twice_is_evaluated_once(photos: Path) -> None:
    words = ("--folds", 2, "--fold", 0, "--tasks", 4, "--setting", "original,original", "-o", "run.json")
    assert evaluate(photos, *words) == 0
    assert len(json.loads(Path("run.json").read_text())["cells"]) == 1


def test_an_evaluation_that_cannot_start_writes_nothing(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    words = ("--folds", 2, "--fold", 0, "-o", "results/run.json")
    for more, told in (
        (("--tasks", "abc"), "give a number of tasks, or a task file of emat tasks freeze"),
        (("--tasks", 4, "--dataset", "pascl"), "there is no kind of data set 'pascl'"),
        (("--tasks", 4, "--cache", "file"), "it is not a folder"),
    ):
        assert evaluate(photos, *words, *more) == 2
        assert told in capsys.readouterr().err
        assert not list(Path().glob("results/*"))


def test_a_task_file_says_which_photos(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tasks", "freeze", "--data", photos, "--folds", 2, "--fold", 0, "--tasks", 3, "-o", "tasks.jsonl") == 0
    for option in ("--folds", "--names", "--min-area"):
        assert evaluate(photos, "--tasks", "tasks.jsonl", option, "0.5") == 2
        assert f"{option} cannot change them" in capsys.readouterr().err


def test_a_report_checks_its_paths_first(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(photos, "--folds", 2, "--fold", 0, "--tasks", 3, "-o", "run.json") == 0
    Path("file").touch()
    assert run("report", "run.json", "-o", "tables.md", "--figures", "file") == 2
    assert "file is not a folder" in capsys.readouterr().err
    assert not Path("tables.md").exists()
    assert run("report", "EMAT=") == 2
    assert "'EMAT=' has a label but no file" in capsys.readouterr().err
