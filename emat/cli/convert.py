"""`emat convert`: write the masks of a data set, and its photos if asked for, in another format."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from emat.cli.options import AsJson, Shapes, Tolerance
from emat.datasets.dataset import Dataset, PackedPhoto
from emat.datasets.layouts import LAYOUTS, open_dataset
from emat.errors import EmatError
from emat.files import WriteError, inner_name, whole_file
from emat.formats.class_names import VOID_NAME, label_type, number_classes
from emat.formats.drawing import LabelMap
from emat.formats.results import ResultWriter
from emat.formats.writing import WriteOptions, open_writer, read_formats
from emat.images import PHOTO_SUFFIXES, VOID
from emat.progress import follow

FORMATS = ("coco", "labelme", "yolo", "png")
SKIPPED = 3  # exit code if some photos could not be converted
NO_ARGS_IS_HELP = True


def command(
    sources: Annotated[list[Path], typer.Argument(metavar="SRC...", help="Folders, zips or COCO JSON files.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="The folder to write.")],
    to: Annotated[str, typer.Option("--to", help=f"The format to write, or several: {', '.join(FORMATS)}.")],
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

    Several data sets become one: classes of the same name are one class, and photos go into a folder for each data set.
    An interrupted run continues when it is started again. A photo that cannot be read is reported and left out, and the
    exit code is then 3.

    Example: emat convert VOCdevkit/VOC2012 -o voc-coco --to coco --copy-photos
    """
    formats = read_formats(to)
    if unknown := [name for name in formats if name not in FORMATS]:
        raise EmatError(f"there is no format {unknown[0]!r} to convert to; the formats are {', '.join(FORMATS)}")
    datasets = _open(sources, kind, out)
    for dataset in datasets.values():
        if copy_photos and not dataset.has_photos:
            raise EmatError(f"{dataset.root} has masks but no photos to copy; leave out --copy-photos")
    names = dict.fromkeys(name for dataset in datasets.values() for name in dataset.classes if name != VOID_NAME)
    classes = number_classes(list(names))
    options = WriteOptions(shapes, tolerance)
    console = Console(stderr=True, highlight=False, markup=False)
    photos = skipped = 0
    run = "|".join(str(dataset.root.resolve()) for dataset in datasets.values())
    every = [(prefix, name) for prefix, dataset in datasets.items() for name in dataset.names]
    with open_writer(formats, out, classes, options=options, run=run) as writer:
        done = writer.done()
        for prefix, name in follow(every, len(every), "converted"):
            dataset = datasets[prefix]
            try:
                photo = (dataset.photo_file(name) or dataset.packed_photo(name)) if dataset.has_photos else None
                written = prefix + _name_to_write(dataset, name, photo)
                if written not in done:
                    _convert(dataset, name, photo, written, writer, copy_photos)
                photos += 1
            except WriteError:
                raise  # the next photo could not be written either
            except EmatError as error:
                skipped += 1
                console.print(f"left out {name}: {error}")
    _tell(photos, skipped, out, to, as_json)
    if skipped:
        raise typer.Exit(SKIPPED)


def _open(sources: Sequence[Path], kind: str | None, out: Path) -> dict[str, Dataset]:
    """Open the data sets. The keys are put before the names of their photos; with one data set, the key is empty."""
    found: dict[str, Dataset] = {}
    for number, source in enumerate(sources, start=1):
        dataset = open_dataset(source, kind)
        if source.resolve() == out.resolve():
            raise EmatError(f"{out} is the data set itself; give another folder for the result")
        if source.resolve() in out.resolve().parents:  # the result would be taken for a part of the data set
            raise EmatError(f"{out} is inside of the data set {source}; give a folder outside of it for the result")
        if any(source.resolve() == other.root.resolve() for other in found.values()):
            raise EmatError(f"{source} is given twice; give every data set once")
        prefix = f"{source.resolve().stem}/" if len(sources) > 1 else ""
        found[prefix if prefix not in found else f"{prefix[:-1]}-{number}/"] = dataset
    return found


def _convert(
    dataset: Dataset, name: str, photo: Path | PackedPhoto | None, written: str, writer: ResultWriter, copy: bool
) -> None:
    """Write the label map of one photo, and copy the photo if that is asked for."""
    label_map = _in_classes(dataset.mask(name), dataset.classes, writer.classes)
    file = photo if isinstance(photo, Path) else None
    if photo is not None:
        if dataset.image_size(name) != label_map.shape:
            raise EmatError("its mask has another size than its photo; save the mask with the photo's size")
        if copy:
            file = writer.out / writer.photo_path(written)
            _copy(photo, file)
    writer.write(written, label_map, photo_file=file)


def _in_classes(label_map: LabelMap, own: Sequence[str], classes: Sequence[str]) -> LabelMap:
    """Return a label map with the indices of `classes` in place of a data set's own ones."""
    if tuple(own) == tuple(classes):
        return label_map
    if (unknown := np.where(label_map == VOID, 0, label_map).max()) > len(own):
        raise EmatError(
            f"its mask has class {unknown}, but there are {len(own)} classes; check the mask or the list of classes"
        )
    index = {name: number for number, name in enumerate(classes, start=1)}
    table = np.zeros(max(VOID, len(own)) + 1, label_type(classes))
    table[1 : len(own) + 1] = [index.get(name, VOID) for name in own]
    table[VOID] = VOID
    return table[label_map]


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
