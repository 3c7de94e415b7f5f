"""`emat data`: check a data set for faults, and compare fold lists with the published ones."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from emat.cli.options import AsJson, DatasetKind, FoldChoice, LeastArea, MasksPath, Overwrite
from emat.datasets.checking import Report, inspect_all, report
from emat.datasets.fold_lists import (
    FoldList,
    equals_published,
    fold_lists_in,
    list_path,
    lists_from_masks,
    published_list,
    write_fold_list,
)
from emat.datasets.layouts import open_dataset
from emat.errors import EmatError
from emat.formats.class_names import VOC_CLASSES
from emat.formats.coco import COCO_CLASSES
from emat.outputs import claim_folder
from emat.progress import follow

EXAMPLE = "Example: emat data check VOCdevkit/VOC2012"

app = typer.Typer()

FAULTS_FOUND = 2
CLASS_NAMES = {"pascal": VOC_CLASSES, "coco": COCO_CLASSES}


@app.command(epilog="Example: emat data check VOCdevkit/VOC2012 --dataset pascal")
def check(
    root: Annotated[Path, typer.Argument(metavar="DIR", help="A folder, a zip, or a COCO JSON file.")],
    masks: MasksPath = None,
    kind: DatasetKind = None,
    headers_only: Annotated[
        bool,
        typer.Option("--headers-only", help="Read only the sizes of photos, without decoding them; this is faster."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Count photos, masks and classes, find missing, unreadable and mismatched files, and say what to do.

    The exit code is 0 if there is nothing to fix, and 2 otherwise.
    """
    dataset = open_dataset(root, kind, masks)
    inspections = inspect_all(dataset, decode=not headers_only)
    outcome = report(dataset, follow(inspections, len(dataset.names), "checked"))
    if as_json:
        typer.echo(json.dumps({**asdict(outcome), "clean": outcome.clean}, indent=2))
    else:
        _show_report(outcome, root)
    if not outcome.clean:
        raise typer.Exit(FAULTS_FOUND)


@app.command(epilog="Example: emat data lists --dataset pascal --lists splits/ -o lists/")
def lists(
    folder: Annotated[
        Path | None, typer.Option("--lists", metavar="DIR", help="Folder of the lists: .txt, .pkl or .list files.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Only the lists of pascal or coco; with --data, the kind of data set.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Make lists from the masks of this data set instead.")] = None,
    min_area: LeastArea = 0.0,
    folds: FoldChoice = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write the lists to, as text files.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Show fold lists with their counts and SHA-256, and whether they are the published ones."""
    if (folder is None) == (data is None):
        raise EmatError(
            "missing-option", "give either --lists DIR to read fold lists, or --data DATA to make them from masks"
        )
    if out is not None:
        claim_folder(out, reads=[path for path in (folder, data) if path is not None], overwrite=overwrite)
    if folder is not None:
        read = fold_lists_in(folder, dataset)
        names = {}
    else:
        assert data is not None
        opened = open_dataset(data, dataset)
        names = {opened.name: opened.classes}
        read = lists_from_masks(opened, folds, min_area, lambda n: follow(n, len(opened.names), "masks read"))
    for fold_list in read if out is not None else ():
        assert out is not None
        write_fold_list(fold_list, out / list_path(fold_list))
    if as_json:
        typer.echo(json.dumps([_list_as_json(fold_list) for fold_list in read], indent=2))
        return
    _show_lists(read, {**CLASS_NAMES, **names})
    if out is not None:
        typer.echo(f"{len(read)} lists written to {out}")


def _show_report(outcome: Report, root: Path) -> None:
    console = Console(highlight=False)
    present = sum(1 for count in outcome.photos_of_class.values() if count)
    typer.echo(
        f"{root}: kind {outcome.kind}, {outcome.photos:,} photos, {outcome.masks:,} masks, "
        f"{present} of {len(outcome.photos_of_class)} classes present"
    )
    if outcome.photos_of_class:
        counts = (f"{escape(name)} {count:,}" for name, count in outcome.photos_of_class.items())
        console.print(", ".join(counts), style="dim")
    if outcome.findings:
        table = Table(box=box.SIMPLE_HEAD)
        for title in ("finding", "files", "for example", "what to do"):
            table.add_column(title, justify="right" if title == "files" else "left", overflow="fold")
        for finding in outcome.findings:
            style = "red" if finding.fault else "yellow"
            examples = "\n".join(escape(example) for example in finding.examples)
            table.add_row(f"[{style}]{finding.kind}[/]", f"{finding.count:,}", examples, finding.advice)
        console.print(table)
    console.print("[green]Nothing to fix.[/]" if outcome.clean else "[red]There are faults to fix.[/]")


def _show_lists(fold_lists: list[FoldList], class_names: dict[str, tuple[str, ...]]) -> None:
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("data set", "split", "fold", "entries", "photos", "SHA-256", "published?"):
        table.add_column(title, justify="right" if title in ("fold", "entries", "photos") else "left")
    for fold_list in fold_lists:
        table.add_row(
            escape(fold_list.dataset),
            fold_list.split,
            str(fold_list.fold),
            f"{len(fold_list.entries):,}",
            f"{fold_list.photos:,}",
            fold_list.sha256[:12],
            _verdict(fold_list),
        )
    console.print(table)
    for dataset in dict.fromkeys(fold_list.dataset for fold_list in fold_lists):
        of_dataset = [fold_list for fold_list in fold_lists if fold_list.dataset == dataset]
        console.print(_class_table(of_dataset, class_names.get(dataset, ())))


def _verdict(fold_list: FoldList) -> str:
    published = published_list(fold_list)
    if published is None:
        return "[dim]not on record[/]"
    return "[green]yes[/]" if equals_published(fold_list) else f"[red]no ({published.entries:,})[/]"


def _class_table(fold_lists: list[FoldList], names: tuple[str, ...]) -> Table:
    """Return the entries of each class in each split; the counts of several folds are side by side."""
    splits = list(dict.fromkeys(fold_list.split for fold_list in fold_lists))
    table = Table("class", "name", box=box.SIMPLE_HEAD, title=f"entries per class, {fold_lists[0].dataset}")
    for split in splits:
        table.add_column(split, justify="right")
    for number in sorted({number for fold_list in fold_lists for number in fold_list.class_ids}):
        counts = [
            " / ".join(f"{f.counts[number]:,}" for f in fold_lists if f.split == split and number in f.class_ids)
            for split in splits
        ]
        table.add_row(str(number), escape(names[number - 1]) if number <= len(names) else "", *counts)
    return table


def _list_as_json(fold_list: FoldList) -> dict[str, object]:
    return {
        "dataset": fold_list.dataset,
        "split": fold_list.split,
        "fold": fold_list.fold,
        "entries": len(fold_list.entries),
        "images": fold_list.photos,
        "sha256": fold_list.sha256,
        "published": equals_published(fold_list),
        "counts": fold_list.counts,
    }
