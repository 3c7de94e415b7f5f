"""`emat convert`: write the masks of a data set, and its photos if asked for, in another format."""

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from emat.cli.options import AsJson, Shapes, Tolerance
from emat.datasets.dataset import Dataset, PackedPhoto
from emat.datasets.layouts import LAYOUTS, open_dataset
from emat.errors import EmatError
from emat.files import inner_name, whole_file
from emat.formats.writing import WriteOptions, Writer, open_writer
from emat.images import PHOTO_SUFFIXES
from emat.progress import follow

FORMATS = ("coco", "labelme", "yolo", "png")
SKIPPED = 3  # exit code if some photos could not be converted
NO_ARGS_IS_HELP = True


def command(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="A folder, a zip, or a COCO JSON file.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="The folder to write.")],
    to: Annotated[str, typer.Option("--to", help=f"The format to write: {', '.join(FORMATS)}.")],
    kind: Annotated[
        str | None,
        typer.Option("--from", metavar="KIND", help=f"What SRC is: {', '.join(LAYOUTS)}. Default: recognised."),
    ] = None,
    copy_photos: Annotated[
        bool, typer.Option("--copy-photos", help="Copy the photos to where the format expects them.")
    ] = False,
    shapes: Shapes = None,
    tolerance: Tolerance = WriteOptions.tolerance,
    as_json: AsJson = False,
) -> None:
    """Convert annotations between COCO, LabelMe, YOLO-seg and indexed PNG.

    An interrupted run continues when it is started again. A photo that cannot be read is reported and left out, and the
    exit code is then 3.

    Example: emat convert VOCdevkit/VOC2012 -o voc-coco --to coco --copy-photos
    """
    if to not in FORMATS:
        raise EmatError(f"there is no format {to!r} to convert to; the formats are {', '.join(FORMATS)}")
    dataset = open_dataset(source, kind)
    if source.resolve() == out.resolve():
        raise EmatError(f"{out} is the data set itself; give another folder for the result")
    has_photos = dataset.has_photos
    if copy_photos and not has_photos:
        raise EmatError(f"{source} has masks but no photos to copy; leave out --copy-photos")
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
    """Write the label map of one photo, and copy the photo if that is asked for."""
    label_map = dataset.mask(name)
    file = photo if isinstance(photo, Path) else None
    if photo is not None:
        if dataset.image_size(name) != label_map.shape:
            raise EmatError("its mask has another size than its photo; save the mask with the photo's size")
        if copy:
            file = writer.out / writer.photo_path(written)
            _copy(photo, file)
    writer.write(written, label_map, photo_file=file)


def _name_to_write(dataset: Dataset, name: str, photo: Path | PackedPhoto | None) -> str:
    """Return the path of the photo below the folder of photos of the result, with its suffix."""
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
