"""`emat fit`: learn classes from a few masked photos, and write one file for `emat predict`."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from emat.cli.options import (
    AsJson,
    BackboneName,
    DeviceName,
    HeadName,
    Overwrite,
    ReadingOptions,
    Refine,
    TilesOption,
    read_tiles,
    refinement,
    takes,
)
from emat.datasets.dataset import Dataset
from emat.datasets.layouts import open_dataset
from emat.errors import EmatError
from emat.files import is_number
from emat.images import PHOTO_SUFFIXES
from emat.images.sources import split_page
from emat.inference.decisions import best_size
from emat.inference.example import MOST_EMPTY, Example, examples_of, wanted_classes
from emat.inference.forecast import Forecasts
from emat.inference.segmenter import Segmenter
from emat.outputs import claim_file
from emat.progress import follow

NO_ARGS_IS_HELP = True
SLOW_FROM = 20  # examples of a class; every prediction is compared with each of them


@takes(ReadingOptions)
def command(
    how: ReadingOptions,
    examples: Annotated[
        Path, typer.Argument(help="A data set (folder, COCO JSON, LabelMe, VOC, YOLO-seg), or one photo with --mask.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write, such as pets.emat.")],
    mask: Annotated[
        list[str] | None,
        typer.Option(
            help="CLASS=MASK for a single photo. MASK is an image file, one value of it as in mask.png:1, or a box "
            "left,top,right,bottom."
        ),
    ] = None,
    model: HeadName = "default",
    backbone: BackboneName = None,
    classes: Annotated[
        str | None, typer.Option(help="Learn only these classes, such as cat,dog. Default: all.")
    ] = None,
    shots: Annotated[
        int | None, typer.Option(min=1, help="Use at most this many examples of a class. Default: all.")
    ] = None,
    learn: Annotated[
        bool, typer.Option("--learn/--no-learn", help="Also train a pixel classifier on the examples.")
    ] = True,
    sparse: Annotated[
        bool, typer.Option(help="With --mask: only painted pixels are known; CLASS may be background.")
    ] = False,
    size: Annotated[
        str | None,
        typer.Option(
            help="Learn from photos of at most this many pixels a side. auto chooses by the forecast. Default: 400, "
            "or more if masks are thin."
        ),
    ] = None,
    overlap: Annotated[
        str | None, typer.Option(help="Classes that lie on each other, the upper one first, such as lesion,leaf.")
    ] = None,
    tiles: TilesOption = None,
    refine: Refine = "auto",
    device: DeviceName = "auto",
    overwrite: Overwrite = False,
    thumbnails: Annotated[bool, typer.Option(help="Keep small pictures of the examples in the file.")] = True,
    as_json: AsJson = False,
) -> None:
    """Learn classes from a few masked photos.

    Example: emat fit my_pets/ -o pets.emat --shots 5

    Example: emat fit a.jpg --mask cat=a_mask.png -o cat.emat
    """
    masks_read = [Path(text.partition("=")[2].rpartition(":")[0] or text.partition("=")[2]) for text in mask or []]
    claim_file(out, (".emat",), reads=[examples, split_page(examples)[0], *masks_read], overwrite=overwrite)
    single = _is_photo(examples)
    if mask and examples.is_dir():
        raise EmatError(
            "conflicting-options",
            f"--mask is for a single photo, but {examples} is a folder; leave --mask out, or give a photo",
        )
    for flag, value in (("--classes", classes), ("--shots", shots)):
        if value is not None and (mask or single):
            raise EmatError(
                "conflicting-options", f"{flag} is for a data set, but {examples} is a single photo; leave {flag} out"
            )
    reading = how.reading()
    choice = None if learn else False

    def fitted(side: int | None) -> Segmenter:
        loaded = Segmenter.load(
            model,
            backbone=backbone,
            device=device,
            tiles=read_tiles(tiles),
            overlap=() if overlap is None else tuple(name.strip() for name in overlap.split(",")),
            refine=refinement(refine),
            learn=choice,
            size=side,
            reading=reading,
        )
        if mask or single:
            return loaded.fit(_single(examples, mask, sparse))
        if sparse:
            raise EmatError(
                "missing-option", "--sparse is for a single photo with --mask; give more of them as Example in Python"
            )
        dataset = open_dataset(examples)
        dataset.reading = reading
        wanted = wanted_classes(dataset, classes)
        # Results number the classes as the data set does, whichever of them its first photo shows.
        return loaded.fit(_from_dataset(dataset, wanted, shots, learn, classes is not None), wanted)

    segmenter, comparison = best_size(fitted) if size == "auto" and learn else (fitted(_side(size)), None)
    segmenter.save(out, thumbnails=thumbnails)
    counts = {name: sum(name in example.classes for example in segmenter.examples_) for name in segmenter.classes_}
    forecast = segmenter.forecast_
    if as_json:
        answer = {"file": str(out), "examples": len(segmenter.examples_), "classes": counts}
        if forecast:
            answer["forecast"] = {name: asdict(expected) for name, expected in forecast.items()}
            answer["size"] = segmenter.working_side
        answer["decisions"] = segmenter.decisions_.to_json()
        typer.echo(json.dumps(answer))
        return
    _show(out, counts, forecast)
    if comparison:
        typer.echo(comparison)
    for sentence in segmenter.decisions_.sentences():
        typer.echo(sentence)
    typer.echo(f"Next: emat predict {shlex.quote(str(out))} PHOTOS -o masks --format png,overlay")


def _is_photo(path: Path) -> bool:
    file, _ = split_page(path)
    return file.suffix.lower() in PHOTO_SUFFIXES and not file.is_dir()


def _side(text: str | None) -> int | None:
    if text is None or text == "auto":
        return None
    if not is_number(text):
        raise EmatError("bad-number", f"--size is {text!r}; it is a number of pixels, such as 800, or auto")
    return int(text)


def _single(photo: Path, masks: list[str] | None, sparse: bool) -> Iterator[Example]:
    if not masks:
        raise EmatError(
            "missing-option", f"{photo} is a single photo; say what it shows, as in --mask cat=cat_mask.png"
        )
    given: dict[str, str | tuple[float, ...]] = {}
    for text in masks:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise EmatError(
                "unclear-option", f"--mask {text} cannot be read; write CLASS=MASK, as in --mask cat=cat_mask.png"
            )
        if name in given:
            raise EmatError("given-twice", f"--mask gives {name} twice; draw both into one mask, or give a data set")
        given[name] = _as_box(value) or value
    yield Example(photo, given, sparse=sparse)


def _as_box(text: str) -> tuple[float, ...] | None:
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        return None
    return numbers if len(numbers) == 4 else None


def _from_dataset(
    dataset: Dataset, wanted: Sequence[str], shots: int | None, learn: bool, need_all: bool
) -> Iterator[Example]:
    """Give the photos of a data set with their masks, and if a classifier is trained also some without the classes.

    With `need_all`, it is an error if no photo shows one of the classes.
    """
    names, shown = follow(dataset.names, len(dataset.names), "examples read"), set[str]()
    for example in examples_of(dataset, names, wanted, shots, MOST_EMPTY if learn else 0):
        shown.update(example.masks)
        yield example
    if need_all and (missing := [name for name in wanted if name not in shown]):
        raise EmatError(
            "no-examples",
            f"no photo of {dataset.root} shows {missing[0]!r}; leave it out of --classes, or add one with its mask",
        )


def _show(out: Path, counts: Mapping[str, int], forecast: Forecasts) -> None:
    console = Console()
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("class")
    table.add_column("examples", justify="right")
    if forecast:
        table.add_column("expected IoU", justify="right")
        table.add_column("expected presence", justify="right")
    for name, count in counts.items():
        row = [escape(name), str(count)]
        if forecast:
            expected = forecast[name]
            row.append("-" if expected.iou is None else f"{expected.iou:.2f}")
            row.append("-" if expected.presence is None else f"{expected.presence:.0%}")
        table.add_row(*row)
    console.print(table)
    for sentence in forecast.sentences():
        typer.echo(sentence)
    typer.echo(f"{out}, {out.stat().st_size / 1e6:.1f} MB")
    if max(counts.values()) > SLOW_FROM:
        typer.echo("More examples make predictions slower; --shots 5 is often enough.")
