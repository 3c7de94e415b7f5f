"""Which heads are measured: what the user writes, what is on the machine, and what is missing."""

from pathlib import Path

import pytest

from emat.methods.trained_head import head_file
from emat.reports.paper.contents import (
    FSCS_ROWS,
    PARTS,
    PaperModel,
    choose_parts,
    fold_head_folder,
    models_here,
    models_of,
    other_model,
    parse_model,
    specs_of,
)
from tests.raises import raises_code


def test_a_model_has_a_label_a_head_and_choices() -> None:
    assert parse_model("CST*=cst-fold{fold},size=320,method=cst") == PaperModel(
        "CST*", "cst-fold{fold}", "cst", None, 320
    )
    assert parse_model("P=prototype") == PaperModel("P", None, "prototype")


@pytest.mark.parametrize("word", ["emat", "EMAT=", "=head", "EMAT=head,size=big", "EMAT=head,colour=red"])
def test_what_is_not_a_model_is_refused(word: str) -> None:
    with raises_code("unclear-option"):
        parse_model(word)


def test_published_heads_come_before_those_of_emat(heads: Path) -> None:
    folder = fold_head_folder()
    assert folder is not None
    before = {model.label: model for model in models_here("pascal", range(4))}
    assert before["EMAT"].comes_with_emat
    assert before["EMAT"].head_of(2) == str(folder / "emat-fold2.safetensors")
    kept = [head_file(f"emat-pascal-fold{fold}") for fold in range(4)]
    try:
        for fold, path in enumerate(kept):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((heads / f"emat-fold{fold}.safetensors").read_bytes())
        after = {model.label: model for model in models_here("pascal", range(4))}
        assert after["EMAT"].head == "emat-pascal-fold{fold}"
    finally:
        for path in kept:
            path.unlink()


def test_emat_brings_no_heads_for_coco() -> None:
    assert [model.label for model in models_here("coco", range(4))] == ["Prototype"]


def test_a_missing_fold_is_named(heads: Path) -> None:
    model = parse_model(f"EMAT={heads}/emat-fold{{fold}}.safetensors")
    assert model.folds_here([0, 1]) == ([0, 1], None)
    here, reason = model.folds_here([3, 4])
    assert here == [3]
    assert reason is not None
    assert "no head for fold 4" in reason


def test_emat_stands_beside_cst_star_or_else_the_first_other() -> None:
    assert other_model(["EMAT", "Prototype", "CST*"]) == "CST*"
    assert other_model(["EMAT", "EMAT_s", "Prototype"]) == "Prototype"
    assert other_model(["EMAT"]) is None


def test_each_model_is_measured_for_the_parts_that_show_it() -> None:
    labels = ["EMAT", "CST*", "EMAT_s", "EMAT-ME", "Prototype"]
    by_name = {part.name: models_of(part, labels) for part in PARTS}
    assert by_name["table-1"] == by_name["figure-9"] == ["EMAT", "CST*", "Prototype"]
    assert by_name["table-2"] == ["EMAT", "CST*", "EMAT-ME"]
    assert by_name["table-5"] == ["EMAT", "EMAT_s"]
    assert by_name["figure-6"] == ["EMAT", "CST*"]
    specs = specs_of(choose_parts("pascal"), "EMAT", labels)
    assert len(set(specs)) == len(specs)
    assert len(specs) > len(specs_of(choose_parts("pascal"), "EMAT_s", labels)) == 2


def test_parts_are_chosen_by_name_and_mistakes_are_named() -> None:
    assert [part.name for part in choose_parts("coco", "figure-6, table-1")] == ["table-1", "figure-6"]
    with raises_code("unknown-choice", "table-3"):
        choose_parts("coco", "table-3")
    assert {part.name for part in choose_parts(None)} == {"figure-3", "figure-dense"}
    assert len(FSCS_ROWS) == 7
