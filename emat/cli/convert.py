"""`emat convert`: the masks of any data set that is recognised, written in another format, its photos with them."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer
from rich.console import Console

from emat.cli.progress import follow
from emat.datasets.dataset import Dataset
from emat.datasets.file_tree import FileTree
from emat.datasets.opening import LAYOUTS, open_dataset
from emat.errors import EmatError
from emat.formats.labelme import read_labelme
from emat.formats.photo_names import inner_name, without_suffix
from emat.formats.whole_files import whole_file
from emat.formats.writing import WriteOptions, Writer, open_writer
from emat.images import PHOTO_SUFFIXES

FORMATS = ("coco", "labelme", "yolo", "png")
PHOTO_FOLDERS = ("images", "JPEGImages")
SKIPPED = 3  # the rest was written, but not everything
NO_ARGS_IS_HELP = True


@dataclass(frozen=True)
class Photo:
    """Where a photo is, below the data set's folder, and its file or its content when that is a zip."""

    path: str
    source: Path | bytes


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
    photo_of = _finder(dataset)
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
                photo = photo_of(name) if has_photos else None
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


def _convert(dataset: Dataset, name: str, photo: Photo | None, written: str, writer: Writer, copy: bool) -> None:
    """Write one photo's label map, and the photo itself beside it if it is to be copied."""
    label_map = dataset.mask(name)
    file = photo.source if photo is not None and isinstance(photo.source, Path) else None
    if photo is not None:
        if dataset.image_size(name) != label_map.shape:
            raise EmatError("its mask has another size than its photo; save the mask at the photo's size")
        if copy:
            file = writer.out / writer.photo_place(written)
            _copy(photo.source, file)
    writer.write(written, label_map, photo_file=file)


def _name_to_write(dataset: Dataset, name: str, photo: Photo | None) -> str:
    """The photo's path as the result has it: below its folder of photos, with suffix."""
    if dataset.kind == "yolo":  # images/train/a and train/images/a are both train/a
        *folders, stem = name.split("/")
        del folders[len(folders) - 1 - folders[::-1].index("images")]
        name = "/".join([*folders, stem])
    if not name.lower().endswith(PHOTO_SUFFIXES):
        name += ".jpg" if photo is None else PurePosixPath(photo.path).suffix
    return inner_name(name)


def _finder(dataset: Dataset) -> Callable[[str], Photo]:
    """How the data set's photos are found by name: LabelMe's files say where theirs is, others by their path."""
    if dataset.kind == "labelme":
        return partial(_beside_json, dataset.root)
    root = dataset.root
    if root.is_file() and root.suffix.lower() == ".json":
        root = root.parent.parent if root.parent.name == "annotations" else root.parent
    tree = FileTree(root)
    return partial(_in_tree, tree, _by_name(tree))


def _beside_json(root: Path, name: str) -> Photo:
    path = root / f"{name}.json"
    photo = path.parent / read_labelme(path).photo
    if not photo.is_file():
        raise EmatError(f"its photo {photo} does not exist; add it, or correct imagePath in {path}")
    return Photo(photo.name, photo)


def _in_tree(tree: FileTree, index: Mapping[str, str], name: str) -> Photo:
    path = index.get(name)
    if path is None:
        raise EmatError(f"{tree.root} has no photo for {name}; add it, or remove its mask")
    return Photo(path, tree.source(path))


def _by_name(tree: FileTree) -> dict[str, str]:
    """Photos by path with and without suffix, whole and below each folder of photos, the shortest path first."""
    index: dict[str, str] = {}
    photos = [
        str(PurePosixPath(folder, file))
        for folder, names in tree.folders.items()
        for file in names
        if file.lower().endswith(PHOTO_SUFFIXES)
    ]
    # Masks are often PNG too: of photos and masks of one name, the files that are surely photos come first.
    for path in sorted(photos, key=lambda path: (path.lower().endswith(".png"), path.count("/"), path)):
        parts = path.split("/")
        below = ["/".join(parts[place + 1 :]) for place, part in enumerate(parts[:-1]) if part in PHOTO_FOLDERS]
        for key in (path, *below):
            index.setdefault(key, path)
            index.setdefault(without_suffix(key), path)
    return index


def _copy(source: Path | bytes, target: Path) -> None:
    with whole_file(target) as unfinished:
        if isinstance(source, bytes):
            unfinished.write_bytes(source)
        else:
            shutil.copyfile(source, unfinished)


def _tell(photos: int, skipped: int, out: Path, to: str, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"out": str(out), "format": to, "photos": photos, "left_out": skipped}))
        return
    rest = f", {skipped:,} left out" if skipped else ""
    typer.echo(f"{photos:,} photos written to {out} as {to}{rest}")
