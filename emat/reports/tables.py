"""Tables of scores, of one kind, and how they are written: as Markdown, LaTeX, CSV and HTML.

A cell has a measured number, or words, and in tables of the paper the published number beside it. Such a table is shown
with up to three lines for each row: paper, here, and the difference.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby
from typing import Any, NamedTuple

from emat.evaluation.results import Summary

MISSING = "-"
NOT_RUN, PAPER, HERE, DIFFERENCE = "not run", "paper", "here", "difference"
INSIDE = "inside"
YES, NO = "✓", "–"  # whether a row of Table 2 has a modification
COMPARISON_COLUMNS = (
    "table", "title", "row", "group", "column", "published", "measured", "low", "high", "difference",
    "published_inside", "folds",  # the last is empty if the number is of all folds that the published one is of
)  # fmt: skip
LATEX = {  # characters that mean something in LaTeX, and letters that pdfLaTeX does not know
    "%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
    "−": "$-$", "✓": r"\checkmark", "≈": r"$\approx$",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One cell: the measured number with its interval, or words, and the published number, as far as there are any."""

    measured: float | None = None
    interval: tuple[float, float] | None = None
    margin: float | None = None  # half of the width of the interval
    digits: int = 1
    words: str | None = None  # instead of a measured number
    published_text: str | None = None
    published: float | None = None
    unit: str = "points"
    only: str | None = None  # such as "fold 0 only", if not all folds were measured; the published number is of all
    best: bool = False  # the best of its column

    @staticmethod
    def of(summary: Summary | None, score: str, **further: Any) -> "Cell":
        """Return the cell of a score in percent, with further fields."""
        value = None if summary is None else summary.scores[score]
        interval = None if summary is None else summary.intervals[score]
        if value is None or interval is None:
            return Cell(None if value is None else 100 * value, **further)
        low, high = interval
        return Cell(100 * value, (100 * low, 100 * high), 50 * (high - low), **further)

    @property
    def difference(self) -> float | None:
        """Measured less published; None if one of them is missing, or if only some folds were measured."""
        if self.measured is None or self.published is None or self.only is not None:
            return None
        return self.measured - self.published

    @property
    def published_inside(self) -> bool | None:
        """Whether the published number lies in the measured interval; None if one of them is missing."""
        if self.difference is None or self.published is None or self.interval is None:
            return None
        return self.interval[0] <= self.published <= self.interval[1]

    def here(self) -> "Entry":
        """What was measured."""
        if self.measured is None:
            return Entry(self.words or MISSING)
        value = f"{self.measured:.{self.digits}f}" + ("" if self.margin is None else f" ± {self.margin:.1f}")
        return Entry(value if self.only is None else f"{self.only}: {value}", self.best)

    def compared(self) -> "Entry":
        """The difference, and whether the published number lies in the interval."""
        if self.difference is None:
            return Entry("")
        text = f"{self.difference:+.{self.digits}f}".replace("-", "−")
        return Entry(f"{text} ({INSIDE})" if self.published_inside else text)

    def compared_in_words(self, name: str) -> str:
        """Say how far the measured number, which has a name, is from the published one."""
        assert self.measured is not None
        assert self.difference is not None
        amount = f"{abs(self.difference):.{self.digits}f}"
        side = "above" if self.difference > 0 else "below"
        relation = f"{amount} {self.unit} {side} the paper's {self.published_text}"
        text = f"{name} {self.measured:.{self.digits}f} is {relation if float(amount) else 'as in the paper'}"
        if self.interval is None or self.published_inside is None:
            return text
        within = "lies inside" if self.published_inside else "lies outside"
        return f"{text}, which {within} the interval {self.interval[0]:.1f} to {self.interval[1]:.1f}"


@dataclass(frozen=True)
class Row:
    """One method. `measured` says whether it was run here, and `published` whether the paper has a row of it."""

    label: str
    cells: tuple[Cell, ...]
    measured: bool = True
    published: bool = True
    quoted: bool = False  # a method that is only quoted and never run here


class Entry(NamedTuple):
    """What is written in one place of a table, and whether it is emphasised."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Table:
    """A table: its title, columns (a group, or "", and a name), rows and footnotes."""

    title: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]
    name: str = ""
    notes: tuple[str, ...] = ()
    compares: bool = False  # whether published numbers stand beside the measured ones
    rows_are: str = "Method"  # what stands above the labels of the rows
    all_folds_too: bool = False  # whether lines have numbers of all folds beside scores of some

    @property
    def shown_columns(self) -> list[tuple[str, str]]:
        """All columns of `lines`: those of the labels, and those of the cells."""
        return [("", self.rows_are), *([("", "")] if self.compares else []), *self.columns]

    def lines(self) -> list[list[Entry]]:
        """Return what is written in each line."""
        if not self.compares:
            return [[Entry(row.label), *(cell.here() for cell in row.cells)] for row in self.rows]
        lines = []
        for row in self.rows:
            if row.published:
                texts = [Entry(cell.published_text or MISSING) for cell in row.cells]
                lines.append([Entry(row.label), Entry(PAPER), *texts])
            if row.quoted:
                continue
            first = Entry("" if row.published else row.label)
            if not row.measured:
                lines.append([first, Entry(HERE), Entry(NOT_RUN), *[Entry("")] * (len(row.cells) - 1)])
                continue
            only = {cell.only for cell in row.cells if cell.interval is not None}
            same = None if self.all_folds_too or len(only) != 1 else next(iter(only))  # is said once for the line
            cells = [replace(cell, only=None) if same else cell for cell in row.cells]
            lines.append([first, Entry(f"{HERE}, {same}" if same else HERE), *(cell.here() for cell in cells)])
            compared = [cell.compared() for cell in row.cells]
            if row.published and any(entry.text for entry in compared):
                lines.append([Entry(""), Entry(DIFFERENCE), *compared])
        return lines

    @property
    def sentences(self) -> list[str]:
        """A sentence on each group of columns of every measured row: how it differs from the paper."""
        sentences = []
        for row in self.rows if self.compares else ():
            if not (row.measured and row.published):
                continue
            paired = zip(self.columns, row.cells, strict=True)
            for group, some in groupby(paired, key=lambda pair: pair[0][0]):
                cells = [cell.compared_in_words(name) for (_, name), cell in some if cell.difference is not None]
                if cells:
                    sentences.append(f"{row.label}{', ' if group else ''}{group}: {'; '.join(cells)}.")
        return sentences


def with_best_marked(table: Table, lowest: str = "") -> Table:
    """Mark the best score of each column that has several; in the columns with the name `lowest` it is the lowest."""
    rows = [list(row.cells) for row in table.rows]
    for column, (_, name) in enumerate(table.columns):
        values = [row[column].measured for row in rows if row[column].measured is not None]
        choose: Callable[..., float] = min if name == lowest else max
        for row in rows if len(values) > 1 else ():
            cell = row[column]
            if cell.measured is not None and f"{cell.measured:.1f}" == f"{choose(values):.1f}":
                row[column] = replace(cell, best=True)
    return replace(
        table, rows=tuple(replace(row, cells=tuple(cells)) for row, cells in zip(table.rows, rows, strict=True))
    )


def markdown(tables: Sequence[Table]) -> str:
    """Write tables as Markdown; the best score of a column is bold, and ± is half of the 95 % interval."""
    return "\n".join(map(_markdown, tables))


def _markdown(table: Table) -> str:
    names = [f"{group} {name}".strip() for group, name in table.shown_columns]
    lines = [f"## {table.title}", "", _pipes(names), _pipes(["---", *["---:"] * (len(names) - 1)])]
    lines += [
        _pipes([(f"**{entry.text}**" if entry.best else entry.text).replace("|", r"\|") for entry in line])
        for line in table.lines()
    ]
    lines += [text for note in table.notes for text in ("", note)]
    lines += ["", *(f"- {sentence}" for sentence in table.sentences)] if table.sentences else []
    return "\n".join(lines) + "\n"


def _pipes(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"


def latex(tables: Sequence[Table]) -> str:
    """Write tables as LaTeX, for the package booktabs; notes become comments."""
    return "\n".join(map(_latex, tables))


def _latex(table: Table) -> str:
    groups, rules, first = [], [], 1
    for group, columns in groupby(table.shown_columns, key=lambda column: column[0]):
        width = len(list(columns))
        groups.append(rf"\multicolumn{{{width}}}{{c}}{{{_for_latex(group)}}}")
        rules += [rf"\cmidrule(lr){{{first}-{first + width - 1}}}"] if group else []
        first += width
    lines = [[_for_latex(text, best) for text, best in line] for line in table.lines()]
    rows = [
        *(f"% {sentence}" for sentence in (*table.notes, *table.sentences)),
        r"\begin{table}",
        rf"\caption{{{_for_latex(table.title)}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(table.shown_columns) - 1)}}}",
        r"\toprule",
        " & ".join(groups) + r" \\",
        *([" ".join(rules)] if rules else []),
        " & ".join(_for_latex(name) for _, name in table.shown_columns) + r" \\",
        r"\midrule",
        *(" & ".join(line) + r" \\" for line in lines),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(rows) + "\n"


def _for_latex(text: str, bold: bool = False) -> str:
    text = "".join(LATEX.get(letter, letter) for letter in text).replace(" ± ", r"\,$\pm$\,")
    return rf"\textbf{{{text}}}" if bold else text


def comma_separated(tables: Sequence[Table]) -> str:
    """Write tables as CSV, with one row for each score and half of its interval, in percent."""
    rows = [["table", "method", "group", "score", "percent", "half_interval"]]
    for table, row, (group, name), cell in _cells(tables):
        value = cell.here().text if cell.words or cell.measured is None else _digits(cell.measured)
        rows.append([table.title, row.label, group, name, value, _digits(cell.margin)])
    return _csv(rows)


def comparison_csv(tables: Sequence[Table]) -> str:
    """Write tables of the paper as CSV, with one row for each cell."""
    rows: list[Sequence[str]] = [COMPARISON_COLUMNS]
    for table, row, (group, name), cell in _cells(tables):
        numbers = (cell.measured, *(cell.interval or (None, None)), cell.difference)
        inside = "" if cell.published_inside is None else str(cell.published_inside).lower()
        address = [table.name, table.title, row.label, group, name]
        rows.append([*address, cell.published_text or "", *map(_digits, numbers), inside, cell.only or ""])
    return _csv(rows)


def _cells(tables: Sequence[Table]) -> list[tuple[Table, Row, tuple[str, str], Cell]]:
    every = [(table, row) for table in tables for row in table.rows]
    return [
        (table, row, column, cell)
        for table, row in every
        for column, cell in zip(table.columns, row.cells, strict=True)
    ]


def _digits(number: float | None) -> str:
    return "" if number is None else f"{number:.4f}"


def _csv(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


FORMATS: Mapping[str, Callable[[Sequence[Table]], str]] = {".md": markdown, ".tex": latex, ".csv": comma_separated}


def html(table: Table) -> str:
    """Write a table of the paper as HTML, with classes for a style sheet."""
    columns = table.shown_columns
    by_group = groupby(columns, key=lambda column: column[0])
    groups = "".join(_html_group(group, len(list(some))) for group, some in by_group)
    names = "".join(f"<th>{escape(name)}</th>" for _, name in columns)
    rows, ours = [], False
    for line in table.lines():
        starts = bool(line[0].text)
        if starts:  # EMAT's row, but not those of its incomplete forms in Table 2
            ours = line[0].text.split(",")[0] in ("EMAT", "EMAT_s") and all(entry.text != NO for entry in line)
        kind = line[1].text.split(",")[0] if table.compares else HERE
        classes = [{PAPER: "paper", HERE: "here-line", DIFFERENCE: "difference"}.get(kind, "")]
        classes += ["first"] * starts + ["ours"] * ours
        rows.append(f'<tr class="{" ".join(classes)}">{_html_cells(line, table.compares)}</tr>')
    return f"<table><thead><tr>{groups}</tr><tr>{names}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _html_group(group: str, width: int) -> str:
    return f'<th class="group" colspan="{width}">{escape(group)}</th>' if group else "<th></th>" * width


def _html_cells(line: Sequence[Entry], compares: bool) -> str:
    texts = [entry.text for entry in line]
    if compares and texts[1] == HERE and all(text in (NOT_RUN, "") for text in texts[2:]):
        absent = f'<td class="absent" colspan="{len(texts) - 2}">{NOT_RUN}</td>'
        return f'<td>{escape(texts[0])}</td><td class="line">{HERE}</td>{absent}'
    cells = []
    for position, text in enumerate(texts):
        kind = "line" if compares and position == 1 else "inside" if text.endswith(f"({INSIDE})") else ""
        kind = "absent" if text in (NOT_RUN, MISSING) else kind
        cells.append(f'<td class="{kind}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>")
    return "".join(cells)
