"""`emat convert`: write the masks of a data set, and its photos if asked for, in another format."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from emat import __version__
from emat.cli.options import AsJson, Overwrite, Shapes, Tolerance
from emat.datasets.dataset import Dataset, PackedPhoto
from emat.datasets.layouts import LAYOUTS, open_dataset
from emat.errors import EmatError
from emat.files import content_state, inner_name
from emat.formats.class_names import VOID_NAME, label_type, number_classes
from emat.formats.drawing import LabelMap
from emat.formats.results import ResultWriter
from emat.formats.writing import WriteOptions, open_writer, read_formats
from emat.images import PHOTO_SUFFIXES, VOID
from emat.outputs import WriteError, claim_folder, whole_file
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
    overwrite: Overwrite = False,
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
        raise EmatError(
            "unknown-choice", f"there is no format {unknown[0]!r} to convert to; the formats are {', '.join(FORMATS)}"
        )
    datasets = _open(sources, kind, out)
    for dataset in datasets.values():
        if copy_photos and not dataset.has_photos:
            raise EmatError("no-photos", f"{dataset.root} has masks but no photos to copy; leave out --copy-photos")
    claim_folder(out, reads=sources, overwrite=overwrite)
    names = dict.fromkeys(name for dataset in datasets.values() for name in dataset.classes if name != VOID_NAME)
    classes = number_classes(list(names))
    options = WriteOptions(shapes, tolerance)
    photos = skipped = 0
    roots = [[prefix, str(dataset.root.resolve()), dataset.kind] for prefix, dataset in datasets.items()]
    run = json.dumps([__version__, roots, copy_photos])
    every = [_Source(dataset, name, prefix) for prefix, dataset in datasets.items() for name in dataset.names]
    with open_writer(formats, out, classes, options=options, run=run) as writer:
        done = _done(writer, every, copy_photos)
        for source in follow(every, len(every), "converted"):
            try:
                if source not in done:
                    _convert(source, writer, copy_photos)
                photos += 1
            except WriteError:
                raise  # the next photo could not be written either
            except EmatError as error:
                skipped += 1
                typer.echo(f"left out {source.name}: {error}", err=True)
    _tell(photos, skipped, out, to, as_json)
    if skipped:
        raise typer.Exit(SKIPPED)


def _open(sources: Sequence[Path], kind: str | None, out: Path) -> dict[str, Dataset]:
    """Open the data sets. The keys are put before the names of their photos; with one data set, the key is empty."""
    datasets: dict[str, Dataset] = {}
    for number, source in enumerate(sources, start=1):
        dataset = open_dataset(source, kind)
        if source.resolve() == out.resolve():
            raise EmatError("output-is-input", f"{out} is the data set itself; give another folder for the result")
        if source.resolve() in out.resolve().parents:  # the result would be taken for a part of the data set
            raise EmatError(
                "output-is-input",
                f"{out} is inside of the data set {source}; give a folder outside of it for the result",
            )
        if any(source.resolve() == other.root.resolve() for other in datasets.values()):
            raise EmatError("given-twice", f"{source} is given twice; give every data set once")
        prefix = f"{source.resolve().stem}/" if len(sources) > 1 else ""
        datasets[prefix if prefix not in datasets else f"{prefix[:-1]}-{number}/"] = dataset
    return datasets


@dataclass(frozen=True)
class _Source:
    """A photo of a data set, with its mask."""

    dataset: Dataset
    name: str
    prefix: str  # of its name in the result

    def photo(self) -> Path | PackedPhoto | None:
        """The photo's file; None if the data set has masks alone."""
        if not self.dataset.has_photos:
            return None
        return self.dataset.photo_file(self.name) or self.dataset.packed_photo(self.name)

    def written(self, photo: Path | PackedPhoto | None) -> str:
        """Its name in the result."""
        return self.prefix + _name_to_write(self.dataset, self.name, photo)


def _done(writer: ResultWriter, every: Sequence[_Source], copy: bool) -> set[_Source]:
    """Find what an interrupted run has written: from the same mask, and with a copy of the same photo if asked for."""
    sources: dict[str, _Source] = {}
    for source in every:
        with suppress(EmatError):  # it is reported when it is its turn
            sources[source.written(source.photo())] = source
    writer.refuse_overwriting(sources)

    def state(written: str) -> str | None:
        try:
            source = sources[written]
            if copy and not (writer.out / writer.photo_path(written)).is_file():
                return None
            return _state(source.photo(), _label_map(source, writer.classes), copy)
        except (EmatError, KeyError):
            return None

    return {sources[written] for written in writer.done(state)}


def _label_map(source: _Source, classes: Sequence[str]) -> LabelMap:
    return _in_classes(source.dataset.mask(source.name), source.dataset.classes, classes)


def _state(photo: Path | PackedPhoto | None, label_map: LabelMap, copy: bool) -> str:
    """What the result of a photo depends on: its mask, and the photo if it is copied."""
    of_mask = hashlib.sha256(f"{label_map.shape} {label_map.dtype} ".encode() + label_map.tobytes()).hexdigest()
    if photo is None or not copy:
        return of_mask
    of_photo = content_state(photo) if isinstance(photo, Path) else hashlib.sha256(photo.content).hexdigest()
    return f"{of_mask} {of_photo}"


def _convert(source: _Source, writer: ResultWriter, copy: bool) -> None:
    """Write the label map of one photo, and copy the photo if that is asked for."""
    photo, label_map = source.photo(), _label_map(source, writer.classes)
    written, state = source.written(photo), _state(photo, label_map, copy)
    file = photo if isinstance(photo, Path) else None
    if photo is not None:
        if source.dataset.image_size(source.name) != label_map.shape:
            raise EmatError(
                "mask-size", "its mask has another size than its photo; save the mask with the photo's size"
            )
        if copy:
            file = writer.out / writer.photo_path(written)
            _copy(photo, file)
    writer.write(written, label_map, photo_file=file, state=state)


def _in_classes(label_map: LabelMap, own: Sequence[str], classes: Sequence[str]) -> LabelMap:
    """Return a label map with the indices of `classes` in place of a data set's own ones."""
    if tuple(own) == tuple(classes):
        return label_map
    if (unknown := np.where(label_map == VOID, 0, label_map).max()) > len(own):
        raise EmatError(
            "unknown-class",
            f"its mask has class {unknown}, but there are {len(own)} classes; check the mask or the list of classes",
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
    if isinstance(photo, Path) and target.is_file() and target.samefile(photo):
        return  # it is where the format expects it already
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
