"""`emat tasks`: evaluation tasks as a hash, as counts, as a task file and as a picture."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from emat.cli.options import AsJson, Overwrite, TaskOptions, takes
from emat.datasets.fold_lists import equals_published, list_path, write_fold_list
from emat.errors import EmatError
from emat.outputs import claim_file, claim_folder, whole_file
from emat.pictures.task import draw_task
from emat.progress import follow
from emat.tasks.benchmark import HISTOGRAM_END, PUBLISHED_SIZES, Benchmark, size_histogram, size_split
from emat.tasks.task import Task, digest, write_task_file

HISTOGRAM_STEP = 5  # percent

EXAMPLE = "Example: emat tasks count --dataset pascal --lists splits --fold 0 --way 2"

app = typer.Typer(rich_markup_mode=None)

Fold = Annotated[int, typer.Option(help="Which fold, counted from 0.")]


@app.command("digest", epilog="Example: emat tasks digest --dataset pascal --lists splits --fold 0 --way 2 --shot 1")
@takes(TaskOptions)
def digest_command(options: TaskOptions, fold: Fold = 0) -> None:
    """Print the SHA-256 of a fold's tasks, to compare them with the tasks of another program."""
    typer.echo(digest(_draw(options, options.open(only=[fold]), fold)))


@app.command(
    "count",
    epilog="Example: emat tasks count --dataset pascal --lists splits --masks masks.zip --setting fully-augmented",
)
@takes(TaskOptions)
def count_command(
    options: TaskOptions,
    fold: Annotated[list[int] | None, typer.Option(help="Only these folds. Default: all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Count the tasks to which a setting adds something, per fold and in total."""
    benchmark = options.open(only=fold)
    folds = fold or [fold_list.fold for fold_list in benchmark.fold_lists]
    rows = [_count_row(number, _draw(options, benchmark, number)) for number in folds]
    counts = {
        "dataset": benchmark.fold_lists[0].dataset,
        "setting": options.setting.value,
        "way": options.way,
        "shot": options.shot,
        "theta": benchmark.sampler(folds[0], options).protocol.theta,
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
@takes(TaskOptions)
def freeze_command(
    options: TaskOptions,
    out: Annotated[Path, typer.Option("--out", "-o", help="The task file to write, as JSON lines.")],
    fold: Fold = 0,
    overwrite: Overwrite = False,
) -> None:
    """Write a fold's tasks to a task file, with which `emat eval --tasks` repeats them on any machine."""
    claim_file(out, (".jsonl",), overwrite=overwrite)
    benchmark = options.open(only=[fold])
    configuration = benchmark.sampler(fold, options).configuration()
    _keep_areas(benchmark)
    write_task_file(configuration, out)
    typer.echo(f"{out}: {len(configuration.tasks)} tasks, digest {configuration.digest}")


@app.command("show", epilog="Example: emat tasks show --data VOC2012 --fold 2 --way 2 --shot 1 --index 731 -o task.png")
@takes(TaskOptions)
def show_command(
    options: TaskOptions,
    out: Annotated[Path, typer.Option("--out", "-o", help="The picture to write, as PNG.")],
    index: Annotated[int, typer.Option(help="Which task, counted from 0.")],
    fold: Fold = 0,
    overwrite: Overwrite = False,
) -> None:
    """Draw a task: the support photos with their masks, and the query with its true mask."""
    claim_file(out, (".png",), overwrite=overwrite)
    benchmark = options.open(only=[fold])
    sampler = benchmark.sampler(fold, options)
    if benchmark.dataset is None:
        raise EmatError("missing-option", "a picture needs photos and masks; give the data set with --data")
    if not 0 <= index < len(sampler):
        raise EmatError("bad-number", f"there is no task {index}; tasks are 0 to {len(sampler) - 1}")
    picture = draw_task(sampler[index], benchmark.dataset)
    _keep_areas(benchmark)
    with whole_file(out) as unfinished:
        picture.save(unfinished, "PNG")
    typer.echo(f"{out}: task {index} of fold {fold}, {picture.width} x {picture.height} pixels")


@app.command("sizes", epilog="Example: emat tasks sizes --dataset pascal --lists splits --masks voc2012-masks.zip")
@takes(TaskOptions)
def sizes_command(
    options: TaskOptions,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write the lists of the size splits to.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Count objects by size, and compare size splits made from the masks with the published ones."""
    if out is not None:
        claim_folder(out, overwrite=overwrite)
    benchmark = options.open()
    if benchmark.areas is None:
        raise EmatError("missing-option", "object sizes are counted in masks; give them with --masks or --data")
    areas, rows = benchmark.areas, []
    for fold_list in benchmark.fold_lists:
        splits = [size_split(fold_list, areas, size) for size in PUBLISHED_SIZES]
        rows.append(
            {
                "fold": fold_list.fold,
                "histogram": size_histogram(fold_list, areas, HISTOGRAM_STEP).tolist(),
                "splits": {split.split: len(split.entries) for split in splits},
                "equal_published": {split.split: equals_published(split) for split in splits},
            }
        )
        if out is not None:
            for split in splits:
                write_fold_list(split, out / list_path(split))
    _keep_areas(benchmark)
    if as_json:
        typer.echo(json.dumps({"step_percent": HISTOGRAM_STEP, "folds": rows}, indent=2))
    else:
        _print_sizes(benchmark.fold_lists[0].dataset, rows)


def _draw(options: TaskOptions, benchmark: Benchmark, fold: int) -> list[Task]:
    sampler = benchmark.sampler(fold, options)
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
    table = Table(title=f"{dataset}: objects by size, percent of the photo")
    table.add_column("Size", justify="right")
    for row in rows:
        table.add_column(f"Fold {row['fold']}", justify="right")
    edges = list(range(0, HISTOGRAM_END + 1, HISTOGRAM_STEP))
    for index, low in enumerate(edges):
        name = f"{low}-{low + HISTOGRAM_STEP}" if low < HISTOGRAM_END else f"{low} and more"
        table.add_row(name, *(str(row["histogram"][index]) for row in rows))
    Console().print(table)
    for size in PUBLISHED_SIZES:
        verdicts = [row["equal_published"][size] for row in rows]
        lengths = ", ".join(str(row["splits"][size]) for row in rows)
        equal = "not on record" if None in verdicts else "equal" if all(verdicts) else "DIFFERENT"
        typer.echo(f"split {size}: {lengths} objects; compared with the published lists: {equal}")
