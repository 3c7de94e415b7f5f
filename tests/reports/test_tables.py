"""Tables are written as Markdown, LaTeX and CSV."""

import csv
import io

from emat.reports.tables import Cell, Row, Table, comma_separated, latex, markdown

TABLE = Table(
    "A & B",
    (("Original", "Acc."), ("Original", "mIoU")),
    (Row("x_1|y", (Cell(82.7, (81.5, 83.9), 1.2, best=True), Cell())),),
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
