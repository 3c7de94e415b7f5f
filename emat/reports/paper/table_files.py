"""The tables of the paper as Markdown, LaTeX and CSV files."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from emat.files import write_text
from emat.reports.paper.cells import PaperTable
from emat.reports.tables import latex, markdown

CSV_COLUMNS = ("table", "title", "row", "group", "column", "published", "measured", "low", "high", "difference")
HEADING = "# Tables of the paper, measured here"
INSIDE_COLUMN = "published_inside"


def write_tables(tables: Sequence[PaperTable], said: Sequence[str], folder: Path) -> list[Path]:
    """Write `tables.md`, `tables.tex` and `tables.csv`.

    Args:
        tables: The tables.
        said: Sentences about what was measured, which open the Markdown and LaTeX files.
        folder: The folder to write to.

    Returns:
        The paths.
    """
    texts = {
        "tables.md": "\n".join([*(f"{each}\n" for each in (HEADING, *said)), *map(_markdown, tables)]),
        "tables.tex": "".join(f"% {each}\n" for each in said) + "\n" + "\n".join(map(_latex, tables)),
        "tables.csv": _comma_separated(tables),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def _markdown(table: PaperTable) -> str:
    text = markdown([table.report()])
    text += "".join(f"\n{note}\n" for note in table.notes)
    if table.sentences:
        text += "\n" + "".join(f"- {sentence}\n" for sentence in table.sentences)
    return text


def _latex(table: PaperTable) -> str:
    said = "".join(f"% {sentence}\n" for sentence in (*table.notes, *table.sentences))
    return said + latex([table.report()]).replace("−", "$-$").replace("✓", r"\checkmark")


def _comma_separated(tables: Sequence[PaperTable]) -> str:
    """One line for each cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*CSV_COLUMNS, INSIDE_COLUMN])
    for table in tables:
        for row in table.rows:
            for (group, name), cell in zip(table.columns, row.cells, strict=True):
                low, high = cell.interval or (None, None)
                numbers = (cell.measured, low, high, cell.difference)
                written = ["" if number is None else f"{number:.4f}" for number in numbers]
                inside = "" if cell.published_inside is None else str(cell.published_inside).lower()
                published = cell.published_text or ""
                writer.writerow([table.name, table.title, row.label, group, name, published, *written, inside])
    return text.getvalue()
