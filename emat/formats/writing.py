"""Writing label maps in the formats of annotation tools, one photo after the other.

A run that was interrupted can be continued.

>>> import tempfile
>>> folder = Path(tempfile.mkdtemp())
>>> with open_writer("png", folder, ["cat"]) as writer:
...     writer.write("pets/a.jpg", np.array([[0, 1, 255]], np.uint8))
>>> sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))
['classes.txt', 'masks/pets/a.png']
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.files import without_suffix
from emat.formats.class_names import check_class_name
from emat.formats.drawing import LabelMap
from emat.formats.regions import Region, trace_objects
from emat.formats.results import ResultTable, ResultWriter
from emat.images import PHOTO_SUFFIXES, VOID, Pixels, write_indexed_png
from emat.outputs import refuse_overwriting, write_text

SHAPES = ("masks", "polygons")
FILE_SUFFIXES = (*PHOTO_SUFFIXES, ".json", ".jsonl", ".csv", ".txt", ".yaml", ".zip", ".emat", ".onnx", ".safetensors")

WRITERS = {
    "png": "emat.formats.writing:PngWriter",
    "coco": "emat.formats.coco:CocoWriter",
    "labelme": "emat.formats.labelme:LabelMeWriter",
    "yolo": "emat.formats.yolo:YoloWriter",
    "overlay": "emat.pictures.overlay:OverlayWriter",
    "sheet": "emat.pictures.overlay:SheetWriter",
}
WITH_OBJECTS = ("coco", "labelme", "yolo")  # formats that can keep touching objects apart


@dataclass(frozen=True)
class WriteOptions:
    """How regions are written.

    Attributes:
        shapes: "masks" (exact) or "polygons". If not given, COCO files have masks, LabelMe and YOLO files polygons.
        tolerance: Polygons are simplified by at most this many pixels from the exact border; 0 keeps every corner.

    Raises:
        EmatError: A value is not allowed.
    """

    shapes: str | None = None
    tolerance: float = 1.0

    def __post_init__(self) -> None:
        if self.shapes is not None and self.shapes not in SHAPES:
            raise EmatError("unknown-choice", f"shapes must be {' or '.join(SHAPES)}, not {self.shapes!r}")
        if not 0 <= self.tolerance < float("inf"):
            raise EmatError(
                "bad-number", f"the tolerance must be a number of pixels of at least 0, not {self.tolerance}"
            )


class Writer(ABC):
    """One format of results. `ResultWriter` calls it for every photo, and keeps the journal.

    Args:
        out: The folder; it is made if it does not exist.
        classes: The names of the classes; `classes[i]` has index i + 1 in label maps.
        options: How regions are written.

    Raises:
        EmatError: A class name cannot be written in this format.
    """

    format: ClassVar[str]
    files: ClassVar[tuple[str, ...]] = ()  # those that are for all photos, relative to `out`
    needs_photo: ClassVar[bool] = False  # whether `write` needs the pixels of the photo

    def __init__(self, out: Path, classes: Sequence[str], options: WriteOptions) -> None:
        self.out = out
        self.classes = tuple(classes)
        self.options = options
        self.journal: Callable[[], Iterator[dict[str, Any]]] = lambda: iter(())
        self._objects: NDArray[np.int32] | None = None  # of the photo that is being written

    @abstractmethod
    def result_path(self, name: str) -> str:
        """Return the path, relative to `out`, of the file that is written for a photo."""

    def photo_path(self, name: str) -> str:
        """Return the path, relative to `out`, at which tools that read this format expect the photo."""
        return f"images/{name}"

    @abstractmethod
    def _write(self, name: str, label_map: LabelMap, photo: Pixels | None, photo_file: Path | None) -> dict[str, Any]:
        """Write the file at `result_path(name)`, and return the JSON values that `_finish` needs."""

    def _begin(self) -> None:  # noqa: B027 - some formats have nothing to do
        """Write what does not depend on photos, such as the list of classes."""

    def _finish(self) -> None:  # noqa: B027
        """Write what depends on all photos."""

    def _traced(self, label_map: LabelMap) -> Iterator[tuple[int, list[Region]]]:
        """Give the class index and the regions of every object of the photo that is being written."""
        return trace_objects(label_map, self._objects)

    def _records(self) -> Iterator[dict[str, Any]]:
        """Give the name of each photo with what `_write` returned for it, in order."""
        return ({"name": record["name"], **record[self.format]} for record in self.journal())

    def _is_there(self, path: str) -> bool:
        return (self.out / path).is_file()

    def _refuse_overwriting(self, name: str) -> None:
        refuse_overwriting(self.out / self.result_path(name))


class PngWriter(Writer):
    """Writes `masks/<name>.png` with VOC's palette, and `classes.txt`. `open_dataset` reads this layout."""

    format = "png"
    files = ("classes.txt",)

    def __init__(self, out: Path, classes: Sequence[str], options: WriteOptions) -> None:
        if len(classes) >= VOID:
            raise EmatError(
                "too-many-classes",
                f"an indexed PNG holds up to {VOID - 1} classes, not {len(classes)}; write coco instead",
            )
        super().__init__(out, classes, options)

    def result_path(self, name: str) -> str:
        """Return the path of the mask."""
        return f"masks/{without_suffix(name)}.png"

    def _write(self, name: str, label_map: LabelMap, photo: Pixels | None, photo_file: Path | None) -> dict[str, Any]:
        write_indexed_png(self.out / self.result_path(name), label_map)
        return {}

    def _begin(self) -> None:
        # With an index before every name, a class name may start with a number, such as "3 series".
        lines = ["0 background", *(f"{i} {name}" for i, name in enumerate(self.classes, start=1)), f"{VOID} void"]
        write_text(self.out / "classes.txt", "\n".join(lines) + "\n")


def read_formats(text: str, further: Sequence[str] = ()) -> tuple[str, ...]:
    """Read a list of formats such as `png,coco`.

    Args:
        text: The formats with commas between them.
        further: Names that are allowed beside those of `WRITERS`.

    Raises:
        EmatError: There is no such format, one is there twice, or two would write to the same files.

    >>> read_formats("png, coco")
    ('png', 'coco')
    """
    formats = tuple(part.strip() for part in text.split(","))
    allowed = (*WRITERS, *further)
    for name in formats:
        if name not in allowed:
            raise EmatError("unknown-choice", f"there is no format {name!r}; the formats are {', '.join(allowed)}")
    if len(set(formats)) != len(formats):
        raise EmatError("given-twice", f"--format {text} has a format twice; give each once")
    return formats


def open_writer(
    formats: str | Sequence[str],
    out: Path,
    classes: Sequence[str],
    *,
    options: WriteOptions | None = None,
    run: str = "",
    tables: Sequence[ResultTable] = (),
) -> ResultWriter:
    """Open a folder for results.

    Args:
        formats: One of `WRITERS` such as "coco", several of them such as "png,coco", or a sequence of them.
        out: The folder for the results; it is made if it does not exist.
        classes: The names of the classes; `classes[i]` has index i + 1 in label maps.
        options: How regions are written.
        run: Distinguishes runs that must not continue each other, such as predictions of two different heads.
        tables: Tables that are written from the rows of the photos.

    Returns:
        The writer.

    Raises:
        EmatError: There is no such format, `out` is a file or is being written by another process, or a class name
            cannot be written.
    """
    names = read_formats(formats) if isinstance(formats, str) else tuple(formats)
    options = options or WriteOptions()
    _refuse_unusable(out, tuple(classes))
    writers: list[Writer] = []
    for format in names:
        module, _, name = WRITERS[format].partition(":")
        form: type[Writer] = getattr(import_module(module), name)
        writers.append(form(out, classes, options))
    return ResultWriter(out, classes, writers, tables, options, run)


def _refuse_unusable(out: Path, classes: tuple[str, ...]) -> None:
    if out.is_file() or (not out.exists() and out.suffix.lower() in FILE_SUFFIXES):
        raise EmatError("not-a-folder", f"{out} is the name of a file; give a folder for the results")
    if not classes:
        raise EmatError("no-classes", "there are no classes to write; name at least one")
    for name in classes:
        check_class_name(name)
    if len(set(classes)) != len(classes):
        twice = next(name for name in classes if classes.count(name) > 1)
        raise EmatError("given-twice", f"the class {twice!r} is given twice; rename one of them")
