"""`emat report`: the paper's tables and figures from the results of `emat eval`."""

from pathlib import Path
from typing import Annotated

import typer

from emat.errors import EmatError
from emat.files import write_text
from emat.reports.figures import figures as make_figures
from emat.reports.tables import FORMATS, markdown, read_lines, tables

NO_ARGS_IS_HELP = True
FIGURE_SUFFIXES = (".svg", ".png")


def command(
    runs: Annotated[list[str], typer.Argument(help="Results of emat eval: FILE, or LABEL=FILE to name a method.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write: .md, .tex or .csv. Default: print Markdown.")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for figures, each as SVG and PNG.")] = None,
) -> None:
    r"""Make the paper's tables and figures: settings, folds, ways and object sizes, as far as there are results.

    Files of the same method are combined, so every fold may have its own file. ± is half of the 95 % interval. Figures
    need the extra report: pip install "emat\[report]".

    Example: emat report runs/emat-*.json CST=runs/cst.json -o tables.md --figures figures
    """
    if out is not None and out.suffix not in FORMATS:
        raise EmatError(f"{out} must end in {', '.join(FORMATS)}, which says how the tables are written")
    if figures is not None and figures.exists() and not figures.is_dir():
        raise EmatError(f"{figures} is not a folder; choose another one with --figures")
    lines = read_lines(runs)
    made = tables(lines)
    if out is None:
        typer.echo(markdown(made))
    else:
        write_text(out, FORMATS[out.suffix](made))
        typer.echo(f"{out}: {len(made)} tables of {len(lines)} methods")
    if figures is None:
        return
    drawn = make_figures(lines)
    for figure in drawn:
        for suffix in FIGURE_SUFFIXES:
            figure.save(figures / f"{figure.name}{suffix}")
    typer.echo(f"{figures}: {len(drawn)} figures; there is one wherever several ways or object sizes were evaluated")
