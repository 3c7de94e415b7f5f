"""`emat report`: the paper's tables and figures from results of `emat eval`."""

from pathlib import Path
from typing import Annotated

import typer

from emat.errors import EmatError
from emat.formats.whole_files import write_text
from emat.reports.figures import figures as draw_figures
from emat.reports.formats import FORMATS, markdown
from emat.reports.runs import read_lines
from emat.reports.tables import tables

NO_ARGS_IS_HELP = True
FIGURE_SUFFIXES = (".svg", ".png")


def command(
    runs: Annotated[list[str], typer.Argument(help="Results of emat eval: FILE, or LABEL=FILE to name a method.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write: .md, .tex or .csv. Default: Markdown, shown.")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for figures, each as SVG and PNG.")] = None,
) -> None:
    """Make the paper's tables and figures: settings, folds, ways and sizes of objects, whatever the results hold.

    Files of the same method are put together, so a fold may have a file of its own; ± is half of the 95 % interval.

    Example: emat report runs/emat-*.json CST=runs/cst.json -o tables.md --figures figures
    """
    if output is not None and output.suffix not in FORMATS:
        raise EmatError(f"{output} must end in {', '.join(FORMATS)}, which says how tables are written")
    if figures is not None and figures.exists() and not figures.is_dir():
        raise EmatError(f"{figures} is no folder; figures need one, choose another by --figures")
    lines = read_lines(runs)
    made = tables(lines)
    if output is None:
        typer.echo(markdown(made))
    else:
        write_text(output, FORMATS[output.suffix](made))
        typer.echo(f"{output}: {len(made)} tables of {len(lines)} methods")
    if figures is None:
        return
    drawn = draw_figures(lines)
    for figure in drawn:
        for suffix in FIGURE_SUFFIXES:
            figure.drawing.save(figures / f"{figure.name}{suffix}")
    typer.echo(f"{figures}: {len(drawn)} figures; results of several ways or size splits give one each")
