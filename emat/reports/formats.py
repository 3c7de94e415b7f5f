"""A table as Markdown, LaTeX or CSV."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from emat.reports.tables import Cell, ReportTable

LATEX_SPECIAL = {
    "%": r"\%",
    "&": r"\&",
    "_": r"\_",
    "#": r"\#",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
}


def markdown(tables: Sequence[ReportTable]) -> str:
    """Tables under headings; the best of a column is bold, ± is half the 95 % interval."""
    return "\n".join(_markdown(table) for table in tables)


def latex(tables: Sequence[ReportTable]) -> str:
    """`table` environments for the package booktabs."""
    return "\n".join(_latex(table) for table in tables)


def comma_separated(tables: Sequence[ReportTable]) -> str:
    """One row for each score: table, method, group, name, value in percent, half of the 95 % interval."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "method", "group", "score", "percent", "half_interval"])
    for table in tables:
        for row in table.rows:
            for (group, name), cell in zip(table.columns[1:], row[1:], strict=True):
                value = cell.text if cell.value is None else f"{cell.value:.4f}"
                margin = "" if cell.margin is None else f"{cell.margin:.4f}"
                writer.writerow([table.title, row[0].text, group, name, value, margin])
    return text.getvalue()


FORMATS: Mapping[str, Callable[[Sequence[ReportTable]], str]] = {
    ".md": markdown,
    ".tex": latex,
    ".csv": comma_separated,
}


def _markdown(table: ReportTable) -> str:
    names = [f"{group} {name}".strip() for group, name in table.columns]
    lines = [f"## {table.title}", "", _pipes(names), _pipes(["---", *["---:"] * (len(names) - 1)])]
    lines += [_pipes([_cell(cell, "**", "**", " ± ").replace("|", r"\|") for cell in row]) for row in table.rows]
    return "\n".join(lines) + "\n"


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell, start: str, end: str, plus_minus: str) -> str:
    text = cell.text if cell.margin is None else f"{cell.text}{plus_minus}{cell.margin:.1f}"
    return f"{start}{text}{end}" if cell.best else text


def _latex(table: ReportTable) -> str:
    groups, rules, place = [], [], 1
    for group, columns in groupby(table.columns, key=lambda column: column[0]):
        width = len(list(columns))
        groups.append(rf"\multicolumn{{{width}}}{{c}}{{{_escaped(group)}}}")
        if group:
            rules.append(rf"\cmidrule(lr){{{place}-{place + width - 1}}}")
        place += width
    rows = [
        " & ".join(_cell(_escaped_cell(cell), r"\textbf{", "}", r"\,$\pm$\,") for cell in row) + r" \\"
        for row in table.rows
    ]
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{_escaped(table.title)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
            r"\toprule",
            " & ".join(groups) + r" \\",
            *([" ".join(rules)] if rules else []),
            " & ".join(_escaped(name) for _, name in table.columns) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _escaped_cell(cell: Cell) -> Cell:
    return Cell(_escaped(cell.text), cell.value, cell.margin, cell.best)


def _escaped(text: str) -> str:
    return "".join(LATEX_SPECIAL.get(letter, letter) for letter in text)
