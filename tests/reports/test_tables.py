"""The paper's tables, as far as there are results, as Markdown, LaTeX and CSV."""

import csv
import io

from emat.reports.runs import read_lines
from emat.reports.tables import ReportTable, TableEntry, comma_separated, latex, markdown, tables
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
