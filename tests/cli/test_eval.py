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


def evaluate(photos: Path, *words: object) -> int | str:
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
    assert evaluate(data, *words, "-o", first["results"]) == "other-run"


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
    assert {path.suffix for path in Path("figures").iterdir() if not path.name.startswith(".")} == {".svg", ".png"}
    assert run("report", "ours=sizes.json") == 0
    assert "| ours |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--way", "two"), "bad-number"),
        (("--shot", "0"), "bad-number"),
        (("--fold", "7"), "unknown-fold"),
        (("--setting", "half"), "unknown-choice"),
        (("--way", "3", "--folds", "2"), "too-few-photos"),
        (("--tasks", "absent.jsonl"), "bad-number"),
        (("--tasks", "taken", "--way", "1"), "conflicting-options"),
        (("--tasks", "taken", "--theta", "0"), "conflicting-options"),
        (("--tasks", "taken", "--query-has-class"), "conflicting-options"),
        (("--tasks", "taken", "--shot", "5"), "conflicting-options"),
        (("--tasks", "taken", "--object-size", "0-5"), "conflicting-options"),
        (("--object-size", "small"), "unclear-option"),
        (("--device", "abacus"), "unknown-device"),
        (("--model", "absent"), "unknown-head"),
        (("--cache-memory", "inf"), "bad-number"),
        (("--precision", "int4"), "unknown-choice"),
        (("--precision", "bfloat16", "--as-fitted"), "conflicting-options"),
        (("--folds", "2", "--tasks", "2", "-o", "taken/run.json"), "cannot-write"),
        (("--threshold", "high"), "unclear-option"),
        (("--threshold", "0.1,0.2,0.3"), "unclear-option"),
        (("--threshold-presence", "0.5", "--own-thresholds"), "given-twice"),
        (("--threshold-mask", "30"), "bad-number"),
    ],
)
def test_wrong_options_are_one_sentence_and_code_2(photos: Path, words: tuple[str, ...], code: str) -> None:
    Path("taken").write_text("a file where a folder should be")
    assert evaluate(photos, *words) == code


def test_results_of_another_run_are_not_overwritten(photos: Path) -> None:
    words = ("--folds", 2, "--fold", 0, "--tasks", 2, "-o", "run.json")
    assert evaluate(photos, *words) == 0
    before = Path("run.json").read_bytes()
    assert evaluate(photos, *words, "--threshold-mask", 0.6) == "other-run"
    assert Path("run.json").read_bytes() == before


def test_report_refuses_other_files_and_formats(photos: Path) -> None:
    Path("other.json").write_text("{}")
    assert run("report", "other.json") == "wrong-file-kind"
    assert run("report", "other.json", "-o", "tables.docx") == "wrong-suffix"


def test_data_is_needed() -> None:
    assert run("eval", "--method", "prototype") == "missing-option"


def test_a_setting_given_twice_is_evaluated_once(photos: Path) -> None:
    words = ("--folds", 2, "--fold", 0, "--tasks", 4, "--setting", "original,original", "-o", "run.json")
    assert evaluate(photos, *words) == 0
    assert len(json.loads(Path("run.json").read_text())["cells"]) == 1


def test_an_evaluation_that_cannot_start_writes_nothing(photos: Path) -> None:
    Path("file").touch()
    words = ("--folds", 2, "--fold", 0, "-o", "results/run.json")
    for more, code in (
        (("--tasks", "abc"), "bad-number"),
        (("--tasks", 4, "--dataset", "pascl"), "unknown-choice"),
        (("--tasks", 4, "--cache", "file"), "not-a-folder"),
    ):
        assert evaluate(photos, *words, *more) == code
        assert not list(Path().glob("results/*"))


def test_a_task_file_says_which_photos(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tasks", "freeze", "--data", photos, "--folds", 2, "--fold", 0, "--tasks", 3, "-o", "tasks.jsonl") == 0
    for option in ("--folds", "--names", "--min-area"):
        assert evaluate(photos, "--tasks", "tasks.jsonl", option, "0.5") == "conflicting-options"
        assert f"{option} cannot change them" in capsys.readouterr().err


def test_a_report_checks_its_paths_first(photos: Path) -> None:
    assert evaluate(photos, "--folds", 2, "--fold", 0, "--tasks", 3, "-o", "run.json") == 0
    Path("file").touch()
    assert run("report", "run.json", "-o", "tables.md", "--figures", "file") == "not-a-folder"
    assert not Path("tables.md").exists()
    assert run("report", "EMAT=") == "unclear-option"


def test_absent_queries_have_a_table_of_their_own(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(photos, "--folds", 2, "--tasks", 3, "--absent", "-o", "run.json") == 0
    printed = capsys.readouterr().out
    assert "Queries without the class" in printed
    assert "AUROC" in printed
    content = json.loads(Path("run.json").read_text())
    assert content["cells"][0]["protocol"]["query_has_class"]
    assert 0 <= content["absence"]["levels"][0]["auroc"] <= 1
    assert (
        evaluate(photos, "--folds", 2, "--tasks", 3, "--absent", "--way", 2, "-o", "two.json") == "conflicting-options"
    )
