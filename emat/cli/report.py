"""`emat report`: the paper's tables and figures from the results of `emat eval`."""

from pathlib import Path
from typing import Annotated

import typer

from emat.cli.options import Overwrite
from emat.errors import EmatError
from emat.outputs import claim_file, claim_folder, write_text
from emat.reports.comparison import comparison_tables, read_methods
from emat.reports.figures import figures as make_figures
from emat.reports.tables import FORMATS, markdown

NO_ARGS_IS_HELP = True
FIGURE_SUFFIXES = (".svg", ".png")


def command(
    runs: Annotated[list[str], typer.Argument(help="Results of emat eval: FILE, or LABEL=FILE to name a method.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write: .md, .tex or .csv. Default: print Markdown.")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for figures, each as SVG and PNG.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Make the paper's tables and figures: settings, folds, ways and object sizes, as far as there are results.

    Files of the same method are combined, so every fold may have its own file. ± is half of the 95 % interval. Figures
    need the extra `report`.

    Example: emat report runs/emat-*.json CST=runs/cst.json -o tables.md --figures figures
    """
    if figures is not None and figures.exists() and not figures.is_dir():
        raise EmatError("not-a-folder", f"{figures} is not a folder; choose another one with --figures")
    files = [Path(run) for run in (*runs, *(run.partition("=")[2] for run in runs))]
    if out is not None:
        claim_file(out, FORMATS, reads=files, overwrite=overwrite)
    if figures is not None:
        claim_folder(figures, reads=files, overwrite=overwrite, flag="--figures")
    methods = read_methods(runs)
    tables = comparison_tables(methods)
    if out is None:
        typer.echo(markdown(tables))
    else:
        write_text(out, FORMATS[out.suffix.lower()](tables))
        typer.echo(f"{out}: {len(tables)} tables of {len(methods)} methods")
    if figures is None:
        return
    drawn = make_figures(methods)
    for figure in drawn:
        for suffix in FIGURE_SUFFIXES:
            figure.save(figures / f"{figure.name}{suffix}")
    typer.echo(f"{figures}: {len(drawn)} figures; there is one wherever several ways or object sizes were evaluated")
