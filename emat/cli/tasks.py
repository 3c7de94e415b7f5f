"""`emat tasks`: evaluation tasks as a hash, as counts, as a file and as a picture."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from emat.cli.progress import follow
from emat.cli.task_options import TaskOptions, with_task_options
from emat.datasets.circulated_lists import equals_published
from emat.datasets.fold_lists import write_fold_list
from emat.datasets.listing import place_of
from emat.errors import EmatError
from emat.tasks.benchmark import Benchmark
from emat.tasks.frozen import freeze, write_frozen_tasks
from emat.tasks.picture import draw_task
from emat.tasks.sizes import HISTOGRAM_END, PUBLISHED_SIZES, size_histogram, size_split
from emat.tasks.task import Task, digest

HISTOGRAM_STEP = 5  # percent

app = typer.Typer(rich_markup_mode=None)

Fold = Annotated[int, typer.Option(help="Which fold, from 0.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("digest", epilog="Example: emat tasks digest --dataset pascal --lists splits --fold 0 --way 2 --shot 1")
@with_task_options
def digest_command(options: TaskOptions, fold: Fold = 0) -> None:
    """Print the SHA-256 of a fold's tasks, to hold them against someone else's."""
    typer.echo(digest(_draw(options, options.open(only=[fold]), fold)))


@app.command(
    "count",
    epilog="Example: emat tasks count --dataset pascal --lists splits --masks masks.zip --setting fully-augmented",
)
@with_task_options
def count_command(
    options: TaskOptions,
    fold: Annotated[list[int] | None, typer.Option(help="Only these folds. Default: all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Count the tasks that a setting augments, in all and per fold."""
    benchmark = options.open(only=fold)
    folds = fold or [each.fold for each in benchmark.fold_lists]
    rows = [_count_row(number, _draw(options, benchmark, number)) for number in folds]
    counts = {
        "dataset": benchmark.fold_lists[0].dataset,
        "setting": options.setting.value,
        "way": options.way,
        "shot": options.shot,
        "theta": options.sampler(benchmark, folds[0]).protocol.theta,
        "new_ways": "all classes" if options.all_classes else "test classes of the fold",
        "tasks": sum(row["tasks"] for row in rows),
        "augmented": sum(row["augmented"] for row in rows),
        "folds": rows,
    }
    if as_json:
        typer.echo(json.dumps(counts, indent=2))
    else:
        _print_counts(counts)


@app.command(
    "freeze",
    epilog="Example: emat tasks freeze --dataset pascal --lists splits --fold 0 --way 2 --shot 1 -o tasks.jsonl",
)
@with_task_options
def freeze_command(
    options: TaskOptions,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, JSON lines.")],
    fold: Fold = 0,
) -> None:
    """Write a fold's tasks to a file, which an evaluation on any machine can repeat."""
    benchmark = options.open(only=[fold])
    frozen = freeze(options.sampler(benchmark, fold))
    _keep_areas(benchmark)
    write_frozen_tasks(frozen, output)
    typer.echo(f"{output}: {len(frozen.tasks)} tasks, digest {frozen.digest}")


@app.command("show", epilog="Example: emat tasks show --data VOC2012 --fold 2 --way 2 --shot 1 --index 731 -o task.png")
@with_task_options
def show_command(
    options: TaskOptions,
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture to write, PNG.")],
    index: Annotated[int, typer.Option(help="Which task, from 0.")],
    fold: Fold = 0,
) -> None:
    """Draw a task: support images with their masks, and the query with the truth."""
    benchmark = options.open(only=[fold])
    sampler = options.sampler(benchmark, fold)
    if benchmark.dataset is None:
        raise EmatError("a picture needs photos and masks; give the data set by --data")
    if not 0 <= index < len(sampler):
        raise EmatError(f"there is no task {index}; tasks are 0 to {len(sampler) - 1}")
    picture = draw_task(sampler[index], benchmark.dataset)
    _keep_areas(benchmark)
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.with_name(f".{output.name}.{os.getpid()}")
    picture.save(unfinished, "PNG")
    os.replace(unfinished, output)
    typer.echo(f"{output}: task {index} of fold {fold}, {picture.width} x {picture.height} pixels")


@app.command("sizes", epilog="Example: emat tasks sizes --dataset pascal --lists splits --masks voc2012-masks.zip")
@with_task_options
def sizes_command(
    options: TaskOptions,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for the size splits' lists.")] = None,
    as_json: AsJson = False,
) -> None:
    """Count objects by size per fold, and hold size splits made from the masks against the published ones."""
    benchmark = options.open()
    if benchmark.areas is None:
        raise EmatError("object sizes are counted in masks; give them by --masks")
    areas, rows = benchmark.areas, []
    for fold_list in benchmark.fold_lists:
        splits = [size_split(fold_list, areas, size) for size in PUBLISHED_SIZES]
        rows.append(
            {
                "fold": fold_list.fold,
                "histogram": size_histogram(fold_list, areas, HISTOGRAM_STEP).tolist(),
                "splits": {each.split: len(each.entries) for each in splits},
                "equal_published": {each.split: equals_published(each) for each in splits},
            }
        )
        if output is not None:
            for each in splits:
                write_fold_list(each, output / place_of(each))
    _keep_areas(benchmark)
    if as_json:
        typer.echo(json.dumps({"step_percent": HISTOGRAM_STEP, "folds": rows}, indent=2))
    else:
        _print_sizes(benchmark.fold_lists[0].dataset, rows)


def _draw(options: TaskOptions, benchmark: Benchmark, fold: int) -> list[Task]:
    sampler = options.sampler(benchmark, fold)
    tasks = [sampler[index] for index in follow(range(len(sampler)), len(sampler), f"fold {fold}, tasks drawn")]
    _keep_areas(benchmark)
    return tasks


def _keep_areas(benchmark: Benchmark) -> None:
    if benchmark.areas is not None:
        benchmark.areas.keep()


def _count_row(fold: int, tasks: Sequence[Task]) -> dict[str, int]:
    return {
        "fold": fold,
        "tasks": len(tasks),
        "augmented": sum(task.augmented for task in tasks),
        "most_ways": max(len(task.ways) for task in tasks),
        "most_shots": max(len(task.shots[0]) for task in tasks),
    }


def _print_counts(counts: dict[str, Any]) -> None:
    table = Table(title=f"{counts['dataset']}, {counts['way']}-way {counts['shot']}-shot, {counts['setting']}")
    for heading in ("Fold", "Tasks", "Augmented", "Most ways", "Most shots"):
        table.add_column(heading, justify="right")
    for row in counts["folds"]:
        table.add_row(*map(str, row.values()))
    table.add_section()
    table.add_row("all", str(counts["tasks"]), str(counts["augmented"]))
    Console().print(table)


def _print_sizes(dataset: str, rows: Sequence[dict[str, Any]]) -> None:
    table = Table(title=f"{dataset}: objects by size, percent of the image")
    table.add_column("Size", justify="right")
    for row in rows:
        table.add_column(f"Fold {row['fold']}", justify="right")
    edges = list(range(0, HISTOGRAM_END + 1, HISTOGRAM_STEP))
    for place, low in enumerate(edges):
        name = f"{low}-{low + HISTOGRAM_STEP}" if low < HISTOGRAM_END else f"{low} and more"
        table.add_row(name, *(str(row["histogram"][place]) for row in rows))
    Console().print(table)
    for size in PUBLISHED_SIZES:
        verdicts = [row["equal_published"][size] for row in rows]
        lengths = ", ".join(str(row["splits"][size]) for row in rows)
        equal = "not on record" if None in verdicts else "equal" if all(verdicts) else "DIFFERENT"
        typer.echo(f"split {size}: {lengths} objects; against the published lists: {equal}")
