"""The numbers that the paper publishes, each with its table, row and column.

They are in `published.csv`, one cell a line, as the paper prints them. A test compares the file with the paper's text.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

NUMBER = re.compile(r"≈?\s*(-?\d+(?:\.\d+)?)")


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
