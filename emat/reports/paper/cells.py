"""The cells of the paper's tables: what was measured here beside what is published, and the difference in words.

Published numbers are in `published.csv`, one cell a line, as the paper prints them. A test compares the file with the
paper's text.
"""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from itertools import groupby

from emat.evaluation.results import Summary
from emat.reports.tables import MISSING, ReportTable, TableEntry

NUMBER = re.compile(r"≈?\s*(-?\d+(?:\.\d+)?)")
SCORES = {"accuracy": "Acc.", "miou": "mIoU"}
NOT_RUN, PAPER, HERE, DIFFERENCE = "not run", "paper", "here", "difference"
INSIDE = "inside"
YES, NO = "✓", "–"  # whether a row of Table 2 has a modification


@dataclass(frozen=True)
class PublishedCell:
    """One cell of a table, or one number of a caption or of the text, as the paper prints it."""

    table: str  # "table-1" ... "table-5", "figure-9", or the section of a number in the text
    row: str
    column: str
    text: str


@cache
def _by_address() -> Mapping[tuple[str, str, str], PublishedCell]:
    text = (resources.files("emat.reports.paper") / "published.csv").read_text(encoding="utf-8")
    cells = [PublishedCell(**row) for row in csv.DictReader(text.splitlines())]
    return {(cell.table, cell.row, cell.column): cell for cell in cells}


def published_cells(table: str | None = None) -> list[PublishedCell]:
    """Return every published cell, or those of one table, in the paper's order."""
    return [cell for cell in _by_address().values() if table in (None, cell.table)]


def published_text(table: str, row: str, column: str) -> str | None:
    """Return what the paper prints in a cell; None if it has no such cell."""
    cell = _by_address().get((table, row, column))
    return None if cell is None else cell.text


def published_number(table: str, row: str, column: str) -> float | None:
    """Return the number in a cell; None if the paper has no such cell or no number there.

    >>> published_number("table-1", "pascal EMAT", "original accuracy")
    82.7
    """
    match = NUMBER.fullmatch(published_text(table, row, column) or "")
    return float(match[1]) if match else None


@dataclass(frozen=True)
class PaperCell:
    """One cell: the published text and number, and the measured number with its interval, as far as there are any."""

    published_text: str | None = None
    published: float | None = None
    measured: float | None = None
    interval: tuple[float, float] | None = None
    digits: int = 1
    unit: str = "points"
    words: str | None = None  # instead of a measured number
    only: str | None = None  # such as "fold 0 only", if not all folds were measured; the published number is of all

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

    def here(self) -> TableEntry:
        """What was measured."""
        if self.measured is None:
            return TableEntry(self.words or MISSING)
        margin = None if self.interval is None else (self.interval[1] - self.interval[0]) / 2
        value = f"{self.measured:.{self.digits}f}"
        return TableEntry(value if self.only is None else f"{self.only}: {value}", self.measured, margin)

    def compared(self) -> TableEntry:
        """The difference, and whether the published number lies in the interval."""
        if self.difference is None:
            return TableEntry("")
        text = f"{self.difference:+.{self.digits}f}".replace("-", "−")
        return TableEntry(f"{text} ({INSIDE})" if self.published_inside else text)


@dataclass(frozen=True)
class PaperRow:
    """One method. `measured` says whether it was run here, and `published` whether the paper has a row of it."""

    label: str
    cells: tuple[PaperCell, ...]
    measured: bool
    published: bool = True
    quoted: bool = False  # a method that is only quoted and never run here


@dataclass(frozen=True)
class PaperTable:
    """A table, its columns (a group, or "", and a name), its rows, footnotes, and a sentence on every difference."""

    name: str
    title: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[PaperRow, ...]
    notes: tuple[str, ...] = ()
    compares: bool = True  # whether there is anything published to compare with
    rows_are: str = "Method"  # what stands above the names of the rows
    all_folds_too: bool = False  # whether lines have numbers of all folds beside scores of some
    sentences: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        if self.compares:
            object.__setattr__(self, "sentences", tuple(_sentences(self)))

    def report(self) -> ReportTable:
        """Return the table with up to three lines for each row: paper, here and difference."""
        if not self.compares:
            rows = [(TableEntry(row.label), *(cell.here() for cell in row.cells)) for row in self.rows]
            return ReportTable(self.title, (("", self.rows_are), *self.columns), tuple(rows))
        lines = []
        for row in self.rows:
            if row.published:
                texts = [TableEntry(cell.published_text or MISSING) for cell in row.cells]
                lines.append((TableEntry(row.label), TableEntry(PAPER), *texts))
            if row.quoted:
                continue
            first = TableEntry("" if row.published else row.label)
            if not row.measured:
                empty = [TableEntry("")] * (len(row.cells) - 1)
                lines.append((first, TableEntry(HERE), TableEntry(NOT_RUN), *empty))
                continue
            only = {cell.only for cell in row.cells if cell.interval is not None}
            same = None if self.all_folds_too or len(only) != 1 else next(iter(only))  # is said once for the line
            cells = [replace(cell, only=None) if same else cell for cell in row.cells]
            lines.append((first, TableEntry(f"{HERE}, {same}" if same else HERE), *(cell.here() for cell in cells)))
            compared = [cell.compared() for cell in row.cells]
            if row.published and any(each.text for each in compared):
                lines.append((TableEntry(""), TableEntry(DIFFERENCE), *compared))
        return ReportTable(self.title, (("", self.rows_are), ("", ""), *self.columns), tuple(lines))


def score_cell(summary: Summary | None, score: str, table: str, row: str, column: str, all_folds: int = 1) -> PaperCell:
    """Return the cell of a score in percent, with what the paper has at that row and column of its table.

    Args:
        summary: What was measured; None if nothing was.
        score: The name of the score.
        table: The paper's table, such as "table-1".
        row: The row of that table.
        column: The column of that table.
        all_folds: How many folds the published number is the mean of.
    """
    text, number = published_text(table, row, column), published_number(table, row, column)
    value = None if summary is None else summary.scores[score]
    if summary is None or value is None:
        return PaperCell(text, number, words=NOT_RUN if summary is None else None)
    interval = summary.intervals[score]
    percent = None if interval is None else (100 * interval[0], 100 * interval[1])
    only = None if len(summary.folds) == all_folds else f"{name_folds(summary.folds)} only"
    return PaperCell(text, number, 100 * value, percent, only=only)


def name_folds(folds: Sequence[int]) -> str:
    """Name some folds.

    >>> name_folds([0]), name_folds([0, 2])
    ('fold 0', 'folds 0 and 2')
    """
    *others, last = map(str, folds)
    return f"folds {', '.join(others)} and {last}" if others else f"fold {last}"


def _sentences(table: PaperTable) -> list[str]:
    """Say of every measured row how each group of its columns differs from the paper."""
    found = []
    for row in table.rows:
        if not (row.measured and row.published):
            continue
        paired = list(zip(table.columns, row.cells, strict=True))
        for group, some in groupby(paired, key=lambda each: each[0][0]):
            cells = [(name, cell) for (_, name), cell in some if cell.difference is not None]
            if cells:
                where = f"{row.label}, {group}" if group else row.label
                found.append(f"{where}: {'; '.join(_difference(name, cell) for name, cell in cells)}.")
    return found


def _difference(name: str, cell: PaperCell) -> str:
    assert cell.measured is not None
    assert cell.difference is not None
    digits = cell.digits
    amount = f"{abs(cell.difference):.{digits}f}"
    side = "above" if cell.difference > 0 else "below"
    relation = f"{amount} {cell.unit} {side} the paper's {cell.published_text}" if float(amount) else "as in the paper"
    text = f"{name} {cell.measured:.{digits}f} is {relation}"
    if cell.interval is None or cell.published_inside is None:
        return text
    within = "lies inside" if cell.published_inside else "lies outside"
    return f"{text}, which {within} the interval {cell.interval[0]:.1f} to {cell.interval[1]:.1f}"
