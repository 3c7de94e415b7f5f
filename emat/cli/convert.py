"""`emat convert`: the masks of any data set that is recognised, written in another format, its photos with them."""

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from emat.cli.progress import follow
from emat.datasets.dataset import Dataset, PackedPhoto
from emat.datasets.opening import LAYOUTS, open_dataset
from emat.errors import EmatError
from emat.formats.photo_names import inner_name
from emat.formats.whole_files import whole_file
from emat.formats.writing import WriteOptions, Writer, open_writer
from emat.images import PHOTO_SUFFIXES

FORMATS = ("coco", "labelme", "yolo", "png")
SKIPPED = 3  # the rest was written, but not everything
NO_ARGS_IS_HELP = True


def command(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="A folder, a zip, or a COCO JSON file.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="OUT", help="The folder to write.")],
    to: Annotated[str, typer.Option("--to", help=f"What to write: {', '.join(FORMATS)}.")],
    kind: Annotated[
        str | None,
        typer.Option("--from", metavar="KIND", help=f"What SRC is, recognised if not given: {', '.join(LAYOUTS)}."),
    ] = None,
    copy_photos: Annotated[
        bool, typer.Option("--copy-photos", help="Copy the photos to where the format wants them.")
    ] = False,
    shapes: Annotated[
        str | None,
        typer.Option(help="masks (exact) or polygons; coco has masks, labelme and yolo polygons if not given."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="How far polygons may be off, in pixels; 0 keeps every corner of every pixel.")
    ] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Convert annotations between COCO, LabelMe, YOLO-seg and indexed PNG.

    An interrupted run continues where it stopped. What cannot be read is reported and left out; exit code 3 says so.

    Example: emat convert VOCdevkit/VOC2012 -o voc-coco --to coco --copy-photos
    """
    if to not in FORMATS:
        raise EmatError(f"there is no format {to!r} to convert to; the formats are {', '.join(FORMATS)}")
    dataset = open_dataset(source, kind)
    if source.resolve() == out.resolve():
        raise EmatError(f"{out} is the data set itself; give another folder for the result")
    has_photos = dataset.has_photos
    if copy_photos and not has_photos:
        raise EmatError(f"{source} holds masks alone, there are no photos to copy; leave --copy-photos out")
    options = WriteOptions(shapes, tolerance)
    console = Console(stderr=True, highlight=False, markup=False)
    photos = skipped = 0
    with open_writer(to, out, dataset.classes, options=options, run=str(source.resolve())) as writer:
        done = writer.done()
        for name in follow(dataset.names, len(dataset.names), "converted"):
            try:
                photo = (dataset.photo_file(name) or dataset.packed_photo(name)) if has_photos else None
                written = _name_to_write(dataset, name, photo)
                if written not in done:
                    _convert(dataset, name, photo, written, writer, copy_photos)
                photos += 1
            except EmatError as error:
                skipped += 1
                console.print(f"left out {name}: {error}")
    _tell(photos, skipped, out, to, as_json)
    if skipped:
        raise typer.Exit(SKIPPED)


def _convert(
    dataset: Dataset, name: str, photo: Path | PackedPhoto | None, written: str, writer: Writer, copy: bool
) -> None:
    """Write one photo's label map, and the photo itself beside it if it is to be copied."""
    label_map = dataset.mask(name)
    file = photo if isinstance(photo, Path) else None
    if photo is not None:
        if dataset.image_size(name) != label_map.shape:
            raise EmatError("its mask has another size than its photo; save the mask at the photo's size")
        if copy:
            file = writer.out / writer.photo_place(written)
            _copy(photo, file)
    writer.write(written, label_map, photo_file=file)


def _name_to_write(dataset: Dataset, name: str, photo: Path | PackedPhoto | None) -> str:
    """The photo's path as the result has it: below its folder of photos, with suffix."""
    if dataset.kind == "yolo":  # images/train/a and train/images/a are both train/a
        *folders, stem = name.split("/")
        del folders[len(folders) - 1 - folders[::-1].index("images")]
        name = "/".join([*folders, stem])
    if not name.lower().endswith(PHOTO_SUFFIXES):
        name += ".jpg" if photo is None else photo.suffix
    return inner_name(name)


def _copy(photo: Path | PackedPhoto, target: Path) -> None:
    with whole_file(target) as unfinished:
        if isinstance(photo, PackedPhoto):
            unfinished.write_bytes(photo.content)
        else:
            shutil.copyfile(photo, unfinished)


def _tell(photos: int, skipped: int, out: Path, to: str, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"out": str(out), "format": to, "photos": photos, "left_out": skipped}))
        return
    rest = f", {skipped:,} left out" if skipped else ""
    typer.echo(f"{photos:,} photos written to {out} as {to}{rest}")
