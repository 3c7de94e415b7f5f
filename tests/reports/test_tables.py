"""Files of one method become one line of the paper's tables, which are written as Markdown, LaTeX and CSV."""

import csv
import io

import pytest

from emat.errors import EmatError
from emat.reports.tables import ReportTable, TableEntry, comma_separated, latex, markdown, overall, read_lines, tables
from tests.reports.conftest import Writer


def made(write_run: Writer, **more: tuple[int, ...] | tuple[str, ...]) -> list[ReportTable]:
    files = [write_run("a.json", **more), write_run("b.json", method="cst", quality=0.5, **more)]
    return tables(read_lines(list(map(str, files))))


def test_settings_are_side_by_side_and_the_best_is_marked(write_run: Writer) -> None:
    table = made(write_run)[0]
    assert table.title == "PASCAL-5i, 2-way 1-shot: mean over folds"
    assert [group for group, name in table.columns if name == "mIoU"] == ["Original", "Fully augmented"]
    assert [row[0].text for row in table.rows] == ["emat", "cst"]
    accuracy = [row[2] for row in table.rows]
    assert [entry.best for entry in accuracy] == [True, False]
    assert all(entry.margin and entry.margin > 0 for entry in accuracy)


def test_the_fewest_false_masks_are_the_best(write_run: Writer) -> None:
    table = made(write_run)[0]
    column = [name for _, name in table.columns].index("False masks")
    values = [row[column].value for row in table.rows]
    assert values == [100.0, 100.0]
    assert all(row[column].best for row in table.rows)


def test_folds_are_side_by_side(write_run: Writer) -> None:
    by_fold = [table for table in made(write_run) if table.title.endswith("by fold")]
    assert len(by_fold) == 2
    assert [group for group, name in by_fold[0].columns if name == "mIoU"] == ["Fold 0", "Fold 1", "Mean"]
    fold0, fold1, mean = (by_fold[0].rows[0][column].value for column in (2, 4, 6))
    assert fold0 is not None
    assert fold1 is not None
    assert mean is not None
    assert abs(mean - (fold0 + fold1) / 2) < 1e-3


def test_ways_and_sizes_have_tables(write_run: Writer) -> None:
    found = made(write_run, ways=(1, 2, 3), splits=("val", "0-5", "5-10"))
    by_way = next(table for table in found if table.title.endswith("by number of ways"))
    assert [group for group, name in by_way.columns if name == "Acc."] == ["1-way", "2-way", "3-way"]
    by_size = next(table for table in found if "object size" in table.title)
    assert [group for group, name in by_size.columns if name == "Acc."] == ["0-5 %", "5-10 %"]


TABLE = ReportTable(
    "A & B",
    (("", "Method"), ("Original", "Acc."), ("Original", "mIoU")),
    ((TableEntry("x_1|y"), TableEntry("82.7", 82.7, 1.2, best=True), TableEntry("-")),),
)


def test_markdown_has_bold_scores_with_their_intervals() -> None:
    lines = markdown([TABLE]).splitlines()
    assert lines[2:] == [
        "| Method | Original Acc. | Original mIoU |",
        "| --- | ---: | ---: |",
        r"| x_1\|y | **82.7 ± 1.2** | - |",
    ]


def test_latex_groups_columns_and_escapes() -> None:
    text = latex([TABLE])
    assert r"\caption{A \& B}" in text
    assert r"\multicolumn{1}{c}{} & \multicolumn{2}{c}{Original} \\" in text
    assert r"\cmidrule(lr){2-3}" in text
    assert r"x\_1|y & \textbf{82.7\,$\pm$\,1.2} & - \\" in text


def test_csv_has_a_row_for_each_score() -> None:
    rows = list(csv.DictReader(io.StringIO(comma_separated([TABLE]))))
    assert len(rows) == 2
    assert (rows[0]["method"], rows[0]["percent"], rows[0]["half_interval"]) == ("x_1|y", "82.7000", "1.2000")


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
