"""The tables as Markdown, LaTeX and CSV files, and the page `index.html`, one file with the pictures inside."""

import base64
import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

from emat.files import write_text
from emat.reports.paper.cells import DIFFERENCE, HERE, INSIDE, NO, NOT_RUN, PAPER, PaperTable
from emat.reports.tables import MISSING, ReportTable, TableEntry, latex, markdown

CSV_COLUMNS = ("table", "title", "row", "group", "column", "published", "measured", "low", "high", "difference")
FOLDS_COLUMN = "folds"  # empty if the number is of all folds that the published one is of
FINDINGS = "What the paper finds, and what was found here"
LATEX_COMMANDS = {"−": "$-$", "✓": r"\checkmark", "≈": r"$\approx$"}  # letters that pdfLaTeX does not know
HEADING = "# Tables of the paper, measured here"
INSIDE_COLUMN = "published_inside"
STYLE = """
:root { --ink: #212529; --quiet: #6c757d; --rule: #dee2e6; --ours: #e6e6ff; --good: #2b8a3e; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 2rem 1.25rem 4rem; color: var(--ink); background: #fff;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.75rem; line-height: 1.25; margin: 0 0 .75rem; }
h2 { font-size: 1.15rem; margin: 2.75rem 0 .5rem; }
nav { margin: 1.25rem 0; font-size: .92rem; } nav a { margin-right: .9rem; white-space: nowrap; }
a { color: #0b5394; }
.said { border-left: 4px solid #0072b2; background: #f1f6fb; padding: .7rem 1rem; margin: 1rem 0; }
.said p { margin: .3rem 0; }
.here { color: var(--quiet); font-size: .85rem; margin: .25rem 0 .5rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .22rem .6rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: #fff; }
td:nth-child(2).line { text-align: left; color: var(--quiet); }
thead tr:last-child th { border-bottom: 1.5px solid var(--ink); }
th.group { border-bottom: 1px solid var(--rule); text-align: center; }
tr.first td { border-top: 1px solid var(--rule); }
tr.ours td, tr.ours td:first-child { background: var(--ours); }
tr.paper td { color: #495057; } tr.here-line td { font-weight: 600; } tr.difference td { color: var(--quiet); }
tbody td:first-child { color: var(--ink); font-weight: 400 !important; }
td.inside { color: var(--good); } tbody td.absent { color: var(--quiet); font-weight: 400; }
td[colspan].absent { text-align: left; }
.note { font-size: .88rem; color: #495057; max-width: 60rem; margin: .45rem 0; }
details { margin: .5rem 0; font-size: .88rem; } summary { cursor: pointer; color: #0b5394; }
figure { margin: .25rem 0 0; } figure img { max-width: 100%; height: auto; }
figcaption { font-size: .9rem; color: #495057; max-width: 60rem; }
@media (max-width: 700px) { figure img { max-width: none; width: 720px; } h1 { font-size: 1.4rem; } }
.not-run { border: 1px dashed var(--rule); padding: 1rem; color: var(--quiet); }
"""


@dataclass(frozen=True)
class PaperFigure:
    """A figure that was drawn, or the reason why it was not; `measured` if it shows what models predict."""

    name: str
    title: str
    caption: str
    files: tuple[Path, ...] = ()
    reason: str | None = None
    measured: bool = False


@dataclass(frozen=True)
class Account:
    """What is said of everything that was measured."""

    short: str  # stands at every table and figure with measured scores
    statement: tuple[str, ...]  # what was measured, with what, and what was not run
    findings: tuple[str, ...]  # what holds here of what the paper finds


def write_tables(tables: Sequence[PaperTable], account: Account, folder: Path) -> list[Path]:
    """Write `tables.md`, `tables.tex` and `tables.csv`.

    Args:
        tables: The tables.
        account: What opens the Markdown and LaTeX files.
        folder: The folder to write to.

    Returns:
        The paths.
    """
    opening = [f"{each}\n" for each in (HEADING, *account.statement)]
    if account.findings:
        opening += [f"## {FINDINGS}\n", *(f"- {each}" for each in account.findings), ""]
    said = (*account.statement, *account.findings)
    texts = {
        "tables.md": "\n".join([*opening, *map(_markdown, tables)]),
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
    text = latex([table.report()])
    for letter, command in LATEX_COMMANDS.items():
        text = text.replace(letter, command)
    return said + text


def _comma_separated(tables: Sequence[PaperTable]) -> str:
    """One line for each cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*CSV_COLUMNS, INSIDE_COLUMN, FOLDS_COLUMN])
    for table in tables:
        for row in table.rows:
            for (group, name), cell in zip(table.columns, row.cells, strict=True):
                low, high = cell.interval or (None, None)
                numbers = (cell.measured, low, high, cell.difference)
                written = ["" if number is None else f"{number:.4f}" for number in numbers]
                inside = "" if cell.published_inside is None else str(cell.published_inside).lower()
                published = cell.published_text or ""
                address = [table.name, table.title, row.label, group, name]
                writer.writerow([*address, published, *written, inside, cell.only or ""])
    return text.getvalue()


def page(title: str, account: Account, tables: Sequence[PaperTable], figures: Sequence[PaperFigure]) -> str:
    """Return the page.

    Args:
        title: Its title.
        account: What was measured and what was found.
        tables: The tables.
        figures: The figures, whose PNG files are put into the page.
    """
    sections = [(table.name, table.title, _table_section(table), table.compares) for table in tables]
    sections += [(each.name, _heading(each), _figure_section(each), each.measured) for each in figures]
    links: dict[str, str] = {}
    body = []
    for name, heading, content, measured in sections:
        anchor = f' id="{name}"' if name not in links else ""
        links.setdefault(name, f'<a href="#{name}">{escape(_link(name))}</a>')
        short = f'<p class="here">{escape(account.short)}</p>' if measured else ""
        body.append(f"<section><h2{anchor}>{escape(heading)}</h2>{short}{content}</section>")
    statement = "".join(f"<p>{escape(each)}</p>" for each in account.statement)
    found = "".join(f"<li>{escape(each)}</li>" for each in account.findings)
    findings = f"<section><h2>{FINDINGS}</h2><ul>{found}</ul></section>" if found else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n"
        f'<div class="said">{statement}</div>\n<nav>{" ".join(links.values())}</nav>\n{findings}'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _link(name: str) -> str:
    """The name of a table or figure as it stands in the list of links.

    >>> _link("table-1"), _link("table-readings")
    ('Table 1', 'Readings')
    """
    kind, _, which = name.partition("-")
    return f"{kind.capitalize()} {which}" if which.isdecimal() else which.capitalize()


def _heading(figure: PaperFigure) -> str:
    number = figure.name.removeprefix("figure-")
    return f"Figure {number}: {figure.title}" if number.isdecimal() else figure.title


def _table_section(table: PaperTable) -> str:
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)
    details = ""
    if table.sentences:
        items = "".join(f"<li>{escape(sentence)}</li>" for sentence in table.sentences)
        details = (
            f"<details><summary>Every difference in words ({len(table.sentences)})</summary><ul>{items}</ul></details>"
        )
    return f'<div class="scroll">{_table(table.report(), table.compares)}</div>{notes}{details}'


def _table(table: ReportTable, compares: bool) -> str:
    groups = "".join(_group(group, len(list(some))) for group, some in groupby(table.columns, key=lambda each: each[0]))
    names = "".join(f"<th>{escape(name)}</th>" for _, name in table.columns)
    rows, ours = [], False
    for entries in table.rows:
        starts = bool(entries[0].text)
        if starts:  # EMAT's row, but not those of its incomplete forms in Table 2
            ours = entries[0].text.split(",")[0] in ("EMAT", "EMAT_s") and all(each.text != NO for each in entries)
        kind = entries[1].text.split(",")[0] if compares else HERE
        classes = [{PAPER: "paper", HERE: "here-line", DIFFERENCE: "difference"}.get(kind, "")]
        classes += ["first"] * starts + ["ours"] * ours
        rows.append(f'<tr class="{" ".join(classes)}">{_cells(entries, compares)}</tr>')
    return f"<table><thead><tr>{groups}</tr><tr>{names}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _group(group: str, width: int) -> str:
    return f'<th class="group" colspan="{width}">{escape(group)}</th>' if group else "<th></th>" * width


def _cells(entries: Sequence[TableEntry], compares: bool) -> str:
    if compares and entries[1].text == HERE and all(entry.text in (NOT_RUN, "") for entry in entries[2:]):
        label = f"<td>{escape(entries[0].text)}</td>"
        return f'{label}<td class="line">{HERE}</td><td class="absent" colspan="{len(entries) - 2}">{NOT_RUN}</td>'
    found = []
    for position, entry in enumerate(entries):
        text = entry.text if entry.margin is None else f"{entry.text} ± {entry.margin:.1f}"
        kind = "line" if compares and position == 1 else "inside" if entry.text.endswith(f"({INSIDE})") else ""
        kind = "absent" if entry.text in (NOT_RUN, MISSING) else kind
        found.append(f'<td class="{kind}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>")
    return "".join(found)


def _figure_section(figure: PaperFigure) -> str:
    caption = f"<figcaption>{escape(figure.caption)}</figcaption>"
    if figure.reason is not None:
        return f'<figure><div class="not-run">Not drawn: {escape(figure.reason)}</div>{caption}</figure>'
    picture = next(file for file in figure.files if file.suffix == ".png")
    image = f'<img alt="{escape(figure.title)}" src="{_inside(picture)}">'
    return f'<figure><div class="scroll">{image}</div>{caption}</figure>'


def _inside(picture: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"
