"""Files of one method become one line, and a configuration that occurs twice is refused."""

import pytest

from emat.errors import EmatError
from emat.reports.runs import overall, read_lines
from tests.reports.conftest import Writer


def test_folds_of_two_files_are_one_line(write_run: Writer) -> None:
    files = [write_run("b.json", folds=(1,)), write_run("a.json", folds=(0,))]
    whole = write_run("whole.json", folds=(0, 1))
    (joined,), (one,) = read_lines(list(map(str, files))), read_lines([str(whole)])
    assert joined.summaries == one.summaries
    assert joined.label == "emat"


def test_every_method_has_its_own_line(write_run: Writer) -> None:
    files = [write_run("a.json"), write_run("b.json", method="cst")]
    assert [line.label for line in read_lines(list(map(str, files)))] == ["emat", "cst"]


def test_runs_with_different_sizes_have_different_labels(write_run: Writer) -> None:
    files = [write_run("a.json"), write_run("b.json", size=400)]
    labels = [line.label for line in read_lines(list(map(str, files)))]
    assert labels[1] == "emat (efficientnet-lite2, 400 px, threshold 0.5)"


def test_runs_with_different_thresholds_have_different_labels(write_run: Writer) -> None:
    files = [
        write_run("a.json", thresholds={"threshold": 0.5}),  # as emat wrote it while there was one
        write_run("b.json", thresholds={"thresholds": {"presence": 0.4, "mask": 0.3}}),
        write_run("c.json", thresholds={"thresholds": "own"}),
        write_run("d.json", thresholds={"thresholds": {"presence": 0.5, "mask": 0.5}}, folds=(2,)),
    ]
    labels = [line.label for line in read_lines(list(map(str, files)))]
    named = ["threshold 0.5", "thresholds 0.4 and 0.3", "own thresholds"]
    assert labels == [f"emat (efficientnet-lite2, 256 px, {name})" for name in named]


def test_labels_of_the_user_are_kept(write_run: Writer) -> None:
    files = [write_run("a.json"), write_run("b.json")]
    labels = ["EMAT (ours)", "longer"]
    assert [line.label for line in read_lines([f"{labels[0]}={files[0]}", f"{labels[1]}={files[1]}"])] == labels
    assert [line.label for line in read_lines([f"EMAT (ours)={files[0]}", str(files[1])])] == ["EMAT (ours)", "emat"]


def test_the_same_fold_twice_is_refused(write_run: Writer) -> None:
    files = [write_run("a.json"), write_run("b.json")]
    with pytest.raises(EmatError, match="LABEL=FILE"):
        read_lines(list(map(str, files)))


def test_the_mean_or_the_only_fold_is_the_overall_summary(write_run: Writer) -> None:
    (line,) = read_lines([str(write_run("a.json"))])
    assert [each.fold for each in overall(line.summaries)] == [None, None]
    (single,) = read_lines([str(write_run("b.json", folds=(1,)))])
    assert [each.fold for each in overall(single.summaries)] == [1, 1]
