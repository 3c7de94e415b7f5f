"""Classes that a head has seen are told by their names where its file lists them, else by the fold's number."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from emat.errors import EmatError
from emat.evaluation.seen_classes import Training, training_of, warning, without_test
from emat.tasks.benchmark import Benchmark, open_benchmark
from emat.tensor_files import write_tensors

KEPT_APART = Training(fold=1, kept_apart=True, classes=frozenset({"disc", "slab"}))


@pytest.fixture(scope="module")
def benchmark(photos: Path) -> Benchmark:
    """Folds disc, bar and blob, slab."""
    return open_benchmark(None, None, photos, folds="2")


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, Training()),
        ({"settings": json.dumps({"fold": 2})}, Training(2, True)),
        ({"settings": '{"fold": null}', "classes": '["Fire hat"]'}, Training(None, False, frozenset({"firehat"}))),
        ({"settings": json.dumps({"exclude_classes": ["cat"]}), "classes": "[]"}, Training(None, True, frozenset())),
        ({"settings": "[1]"}, Training()),
        ({"settings": "{", "classes": "7"}, Training()),
    ],
)  # fmt: skip
def test_a_file_tells_how_its_head_was_trained(
    metadata: dict[str, str], expected: Training, head: Path, tmp_path: Path
) -> None:
    path = tmp_path / "head.safetensors"
    write_tensors(path, load_file(head), metadata)
    assert training_of(path) == expected


def test_a_method_that_needs_no_training_has_seen_nothing() -> None:
    assert training_of("prototype") == Training()


def test_classes_that_were_seen_are_named_whatever_the_fold_s_number() -> None:
    said = warning("mine", KEPT_APART, 1, ["Disc", "bar"])
    assert said == "mine has seen classes of fold 1 in training: Disc"
    assert warning("mine", KEPT_APART, 0, ["bar", "blob"]) is None


def test_without_names_the_fold_s_number_tells() -> None:
    assert warning("mine", Training(fold=1), 1, ["bar"]) is None
    assert warning("mine", Training(), 0, ["bar"]) is None
    assert "was trained for fold 1; it has seen the classes of fold 0" in str(warning("mine", Training(1), 0, ["bar"]))


def test_what_was_kept_from_a_head_is_left_out_by_name(benchmark: Benchmark) -> None:
    remaining = without_test(benchmark, KEPT_APART)
    assert [each.class_ids for each in remaining.benchmark.fold_lists] == [(1,), (4,)]
    assert {class_id for each in remaining.benchmark.fold_lists for _, class_id in each.entries} == {1, 4}
    assert remaining.left_out == "bar, blob"


def test_a_head_that_nothing_was_kept_from_leaves_nothing_out(benchmark: Benchmark) -> None:
    assert without_test(benchmark, Training(classes=frozenset({"cat"}))).benchmark is benchmark
    assert without_test(benchmark, Training()).left_out is None


@pytest.mark.parametrize(("training", "fold"), [(Training(1, True), None), (Training(), 1), (KEPT_APART, 1)])
def test_a_fold_that_is_named_is_left_out(benchmark: Benchmark, training: Training, fold: int | None) -> None:
    remaining = without_test(benchmark, training, fold)
    assert [each.fold for each in remaining.benchmark.fold_lists] == [0]
    assert remaining.left_out == "fold 1"


@pytest.mark.parametrize(("training", "fold"), [(Training(), 9), (Training(9, True), None)])
def test_a_fold_that_is_not_there_cannot_be_left_out(
    benchmark: Benchmark, training: Training, fold: int | None
) -> None:
    with pytest.raises(EmatError, match="there is no fold 9; there are 0, 1"):
        without_test(benchmark, training, fold)


def test_a_head_that_knows_none_of_the_classes_asks_which_fold_to_leave_out(benchmark: Benchmark) -> None:
    with pytest.raises(EmatError, match=r"trained on no class of .* by --fold"):
        without_test(benchmark, Training(0, True, frozenset({"cat"})))
