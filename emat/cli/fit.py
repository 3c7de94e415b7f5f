"""`emat fit`: a few masked photos in, one file that `emat predict` takes out."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from emat.cli.progress import follow
from emat.datasets.opening import open_dataset
from emat.errors import EmatError
from emat.images import PHOTO_SUFFIXES
from emat.inference.example import Example
from emat.inference.segmenter import Segmenter

NO_ARGS_IS_HELP = True
SLOW_FROM = 20  # examples of a class; each costs every later prediction a comparison


def command(
    examples: Annotated[
        Path, typer.Argument(help="A data set (folder, COCO JSON, LabelMe, VOC, YOLO-seg), or one photo with --mask.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write, such as pets.emat.")],
    mask: Annotated[
        list[str] | None, typer.Option(help="CLASS=MASK for a single photo: an image, or a box left,top,right,bottom.")
    ] = None,
    model: Annotated[str, typer.Option(help="The head: default, a name from `emat weights list`, or a file.")] = (
        "default"
    ),
    backbone: Annotated[str | None, typer.Option(help="Where the head's file does not say which.")] = None,
    classes: Annotated[str | None, typer.Option(help="Only these classes: cat,dog.")] = None,
    shots: Annotated[int | None, typer.Option(min=1, help="At most this many examples of a class.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    thumbnails: Annotated[bool, typer.Option(help="Keep small pictures of the examples in the file.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Learn classes from a few masked photos.

    Examples: emat fit my_pets/ -o pets.emat --shots 5

    emat fit a.jpg --mask cat=a_mask.png -o cat.emat
    """
    _refuse_unwritable(out)
    segmenter = Segmenter.load(model, backbone=backbone, device=device)
    shown = _single(examples, mask) if mask or _is_photo(examples) else _from_dataset(examples, classes, shots)
    segmenter.fit(shown).save(out, thumbnails=thumbnails)
    counts = Counter(name for example in segmenter.examples_ for name in example.classes)
    if as_json:
        answer = {"file": str(out), "examples": len(segmenter.examples_), "classes": dict(counts)}
        typer.echo(json.dumps(answer))
        return
    _show(out, counts)


def _is_photo(path: Path) -> bool:
    return path.suffix.lower() in PHOTO_SUFFIXES and not path.is_dir()


def _single(photo: Path, masks: list[str] | None) -> Iterator[Example]:
    if not masks:
        raise EmatError(f"{photo} is one photo; say what it shows: --mask cat=cat_mask.png")
    given: dict[str, str | tuple[float, ...]] = {}
    for text in masks:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise EmatError(f"--mask {text} cannot be read; write CLASS=MASK, as in --mask cat=cat_mask.png")
        given[name] = _as_box(value) or value
    yield Example(photo, given)


def _as_box(text: str) -> tuple[float, ...] | None:
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        return None
    return numbers if len(numbers) == 4 else None


def _from_dataset(path: Path, only: str | None, shots: int | None) -> Iterator[Example]:
    """The data set's photos with their masks, as many as asked for, read when they are needed."""
    dataset = open_dataset(path)
    wanted = set(dataset.classes)
    if only is not None:
        wanted = {name.strip() for name in only.split(",")}
        if unknown := sorted(wanted - set(dataset.classes)):
            raise EmatError(f"{path} has no class {unknown[0]!r}; its classes are {', '.join(dataset.classes)}")
    taken: Counter[str] = Counter()
    for entry in follow(dataset.entries, len(dataset.names), "examples read"):
        names = [dataset.classes[index - 1] for index in entry.classes]
        chosen = [name for name in names if name in wanted and (shots is None or taken[name] < shots)]
        if chosen:
            taken.update(chosen)
            label_map = dataset.mask(entry.name)
            masks = {name: label_map == 1 + dataset.classes.index(name) for name in chosen}
            yield Example(dataset.image(entry.name), masks, name=entry.name)
        if shots is not None and all(taken[name] >= shots for name in wanted):
            return


def _refuse_unwritable(out: Path) -> None:
    """Before the work, not after it."""
    if out.is_dir():
        raise EmatError(f"{out} is a folder; name the file to write, such as {out / 'pets.emat'}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        probe = out.with_name(f".{out.name}.probe")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise EmatError(f"{out} cannot be written: {error.strerror}; choose another place") from None


def _show(out: Path, counts: Counter[str]) -> None:
    console = Console()
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("class")
    table.add_column("examples", justify="right")
    for name, count in counts.items():
        table.add_row(escape(name), str(count))
    console.print(table)
    console.print(f"{escape(str(out))}, {out.stat().st_size / 1e6:.1f} MB", highlight=False)
    if max(counts.values()) > SLOW_FROM:
        console.print("More examples make predictions slower; --shots 5 is often enough.", highlight=False)
