"""`emat reproduce`: every table and figure of the paper, measured on this machine beside the published ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from emat.cli.options import DataPath, DeviceName, FeatureFolder, MasksPath, Overwrite, takes
from emat.errors import EmatError
from emat.outputs import check_output, claim_folder
from emat.progress import follow
from emat.reports.paper.attention_cost import AttentionCase
from emat.reports.paper.contents import PARTS, choose_parts, models_here, parse_model
from emat.reports.paper.evaluations import MeasuringPlan, Pass, make_plan, measure, open_tasks
from emat.reports.paper.reproduction import Sources, cost_of, draw_figures, number_of_costs_left, write_paper

EXAMPLE = "Example: emat reproduce pascal --data VOC2012 --lists splits --tasks 100 -o paper"
MINUTE, HOUR = 60, 3600
Item = TypeVar("Item")

app = typer.Typer(help="Make the paper again.")

Out = Annotated[Path, typer.Option("--out", "-o", help="The folder to write to.")]
Only = Annotated[str | None, typer.Option("--only", help="Only these, such as table-1,figure-6.")]
More = Annotated[list[str] | None, typer.Argument(metavar="[LABEL=HEAD]...", help="Further models.")]


@dataclass(frozen=True)
class ReproduceOptions:
    """The options of `emat reproduce`, whichever the data set."""

    data: DataPath
    masks: MasksPath = None
    lists: Annotated[Path | None, "Folder of the published fold lists. Default: lists are made from the masks."] = None
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--models",
            help="Heads: LABEL=HEAD, {fold} for the fold; then ,method= ,backbone= ,size=. Default: those found here.",
        ),
    ] = None
    out: Out = Path("paper")
    tasks: Annotated[
        int | None, typer.Option(min=1, help="Tasks per fold, for a quick look. Default: as published, 1000.")
    ] = None
    only: Only = None
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be measured and how long it takes.")] = False
    run: Annotated[
        bool,
        typer.Option(
            "--run/--no-run", help="Whether to measure scores that are missing, or to use only those that are there."
        ),
    ] = True
    photos: Annotated[
        bool, typer.Option("--photos/--no-photos", help="Whether figures show photos of the data set.")
    ] = True
    results: Annotated[
        list[Path] | None, typer.Option(help="Folder with results of emat eval to use as well; may be repeated.")
    ] = None
    overwrite: Overwrite = False
    cache: FeatureFolder = None
    device: DeviceName = "auto"


@app.command("pascal", no_args_is_help=True)
@takes(ReproduceOptions)
def pascal(options: ReproduceOptions, more: More = None) -> None:
    """The tables and figures on PASCAL-5i: index.html, tables.md, .tex and .csv, figures/ and results/.

    Labels that the paper has are EMAT, CST*, CST, PANet, PFENet, HSNet, ASNet, and for Tables 2 and 5 CST*-large,
    EMAT-ME, EMAT-ME-LD and EMAT_s; other labels become rows of their own. An interrupted run goes on when the command
    is given again, and what was measured for one table is used by all others.

    Example: emat reproduce pascal --data VOC2012 --lists splits --models 'EMAT=emat-pascal-fold{fold}' -o paper
    """
    _reproduce("pascal", options, more or [])


@app.command("coco", no_args_is_help=True)
@takes(ReproduceOptions)
def coco(options: ReproduceOptions, more: More = None) -> None:
    """The tables and figures on COCO-20i; labels and files are those of `emat reproduce pascal`.

    Example: emat reproduce coco --data COCO2014 --lists splits --models 'EMAT=emat-coco-fold{fold}' -o paper-coco
    """
    _reproduce("coco", options, more or [])


@app.command("figures")
def figures(
    list_: Annotated[bool, typer.Option("--list", help="Name every table and figure, and stop.")] = False,
    out: Out = Path("paper"),
    only: Only = None,
    overwrite: Overwrite = False,
) -> None:
    """Draw the figures that need no data set, or name all tables and figures with --list.

    Example: emat reproduce figures --list
    """
    if list_:
        for part in PARTS:
            data_sets = "" if len(part.datasets) > 1 else f" ({part.datasets[0]} only)"
            without = "" if part.needs_data else " (needs no data set)"
            typer.echo(f"{part.name:16} {part.title}{data_sets}{without}")
        return
    claim_folder(out, overwrite=overwrite)
    parts = choose_parts(None, only)
    costs = cost_of(parts, out, _watch_costs)
    for figure in draw_figures(parts, Sources(None, None, costs), out):
        typer.echo(f"{figure.files[0].parent / figure.name}.svg, .png: {figure.title}")


def _reproduce(dataset: str, options: ReproduceOptions, more: list[str]) -> None:
    parts, out = choose_parts(dataset, options.only), options.out
    given = [parse_model(word) for word in (*(options.models or []), *more)]
    _refuse_doubled([model.label for model in given])
    measured_in = _folders(options.results)
    tasks = open_tasks(
        dataset, options.data, options.masks, options.lists, options.tasks, lambda names: _follow(names, "masks read")
    )
    models = given or models_here(dataset, tasks.folds)
    if not options.plan:
        claim_folder(out, overwrite=options.overwrite)
        check_output(out / "index.html")  # makes the folder, so only once the data set is known to be there
    plan = make_plan(parts, models, tasks, out, options.device, results_in=measured_in, estimate=options.run)
    _show(plan, [part.name for part in parts])
    if costs := number_of_costs_left(parts, out):
        typer.echo(f"The cost of attention is measured in {_count(costs, 'case')} as well, a few seconds each.")
    if options.plan:
        return
    if options.run:
        measure(plan, options.cache, lambda work: _follow(work, "queries answered"))
    written = write_paper(parts, plan, out, photos=options.photos, watch=_watch_costs)
    for figure in written.figures:
        if figure.reason is not None:
            typer.echo(f"{figure.name} was not drawn: {figure.reason}")
    shown = sum(figure.reason is None for figure in written.figures)
    counted = f"{_count(len(written.tables), 'table')} and {_count(shown, 'figure')}"
    typer.echo(f"{written.page}: {counted}; also tables.md, .tex, .csv" + (" and figures/" if shown else ""))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _follow(items: Sequence[Item], what: str) -> Iterator[Item]:
    return follow(items, len(items), what)


def _folders(given: list[Path] | None) -> list[Path]:
    for folder in given or []:
        if not folder.is_dir():
            raise EmatError(
                "not-a-folder", f"--results {folder} is not a folder; give one with results files of emat eval"
            )
    return given or []


def _refuse_doubled(labels: list[str]) -> None:
    for label in labels:
        if labels.count(label) > 1:
            raise EmatError("given-twice", f"the label {label!r} is given twice; give each model a label of its own")


def _show(plan: MeasuringPlan, names: list[str]) -> None:
    typer.echo(f"To make: {', '.join(names)}")
    for planned in plan.passes:
        typer.echo(f"  {planned.model.label}: {_work(planned)}")
    for label, reason in plan.not_run.items():
        typer.echo(f"  {label}: not run, {reason}")
    for label, reason in plan.partly_run.items():
        typer.echo(f"  {label}: not on every fold, {reason}")
    for path in plan.store.left_out:
        typer.echo(f"  {path}: not used, photo or mask files have changed since it was written")
    if plan.store.left_out:
        typer.echo("  If the data set was only copied, move these files to another folder and give it with --results.")
    seconds = sum(planned.seconds for planned in plan.passes)
    if seconds:
        typer.echo(f"About {_time(seconds)}, judging by two queries of each model; then the tables and figures.")


def _work(planned: Pass) -> str:
    if planned.work is None:
        return "everything is measured"
    work = planned.work
    return (
        f"{work.tasks} tasks in one pass, of which {work.shared_tasks} differ: {work.images} photos to encode, "
        f"{work.pairs} pairs to compare (of {work.pairs_apart}), about {_time(planned.seconds)}"
        if planned.seconds
        else f"{work.tasks} tasks are not measured"
    )


def _time(seconds: float) -> str:
    if seconds < 2 * MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / MINUTE:.0f} min" if seconds < 2 * HOUR else f"{seconds / HOUR:.1f} h"


def _watch_costs(cases: list[tuple[AttentionCase, float]]) -> Iterator[tuple[AttentionCase, float]]:
    return _follow(cases, "attention costs measured")
