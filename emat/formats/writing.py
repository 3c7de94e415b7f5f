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
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.files import Journal, inner_name
from emat.formats.class_names import BACKGROUND_NAMES, IGNORED_NAMES
from emat.formats.drawing import LabelMap
from emat.formats.regions import Region, trace_classes
from emat.images import VOID, Pixels

JOURNAL = ".emat-journal.jsonl"
SHAPES = ("masks", "polygons")
FILE_SUFFIXES = (".json", ".jsonl", ".png", ".jpg", ".jpeg", ".txt", ".yaml", ".zip")

WRITERS = {
    "png": "emat.formats.png:PngWriter",
    "coco": "emat.formats.coco:CocoWriter",
    "labelme": "emat.formats.labelme:LabelMeWriter",
    "yolo": "emat.formats.yolo:YoloWriter",
    "overlay": "emat.pictures.overlay:OverlayWriter",
    "sheet": "emat.pictures.contact_sheet:SheetWriter",
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
            raise EmatError(f"shapes must be {' or '.join(SHAPES)}, not {self.shapes!r}")
        if not 0 <= self.tolerance < float("inf"):
            raise EmatError(f"the tolerance must be a number of pixels of at least 0, not {self.tolerance}")


class Writer(ABC):
    """Writes label maps into a folder. Use it from one thread.

    Use it in a `with` block, or call `close` when all photos are written. If the block ends with an error, the run can
    be continued: a new writer with the same arguments names in `done` the photos that are written already.

    Args:
        out: The folder; it is made if it does not exist.
        classes: The names of the classes; `classes[i]` has index i + 1 in label maps.
        options: How regions are written.
        run: Distinguishes runs that must not continue each other.

    Raises:
        EmatError: `out` is a file, or a class name cannot be written.
    """

    format: ClassVar[str]
    needs_photo: ClassVar[bool] = False  # whether `write` needs the pixels of the photo

    def __init__(self, out: Path, classes: Sequence[str], options: WriteOptions, run: str) -> None:
        self.out = out
        self.classes = tuple(classes)
        self.options = options
        _refuse_unusable(out, self.classes)
        header = {"format": self.format, "classes": self.classes, "options": vars(options), "run": run}
        self._journal = Journal(out / JOURNAL, {**header, "classes": list(self.classes)})
        # "place" is the result's path; the key has to stay, because journals of interrupted runs have it.
        self._written = {str(record["place"]): str(record["name"]) for record in self._journal.records()}
        self._times = Counter(str(record["name"]) for record in self._journal.records())
        self._objects: NDArray[np.int32] | None = None  # of the photo that is being written
        self._begin()
        self._before = {name for path, name in self._written.items() if self._is_there(path)}

    def done(self) -> set[str]:
        """Return the names of photos that an earlier, interrupted run has written."""
        return set(self._before)

    def write(
        self,
        name: str,
        label_map: LabelMap,
        photo: Pixels | None = None,
        photo_file: Path | None = None,
        objects: NDArray[np.int32] | None = None,
    ) -> None:
        """Write the result of one photo.

        Args:
            name: The path of the photo relative to the folder of photos, with suffix.
            label_map: Class indices, (H, W): 0 is background, i is `classes[i - 1]`, 255 is void.
            photo: The pixels, (H, W, 3) uint8, for formats that show the photo.
            photo_file: The path of the photo, for formats that refer to it.
            objects: The number of the single object at each pixel, (H, W), for formats that write objects
                (`WITH_OBJECTS`).

        Raises:
            EmatError: The label map does not fit the photo or the classes, two photos would have the same result, or
                the file cannot be written.
        """
        name = inner_name(name)
        self._refuse_foreign(name, label_map, photo)
        path = self.result_path(name)
        other = self._written.setdefault(path, name)
        if other != name:
            raise EmatError(f"{other} and {name} would both be written to {path}; rename one of the photos")
        self._objects = objects
        record = self._write(name, label_map, photo, photo_file)
        self._journal.add({"name": name, "place": path, **record})
        self._times[name] += 1

    def close(self) -> None:
        """Complete the results, after all photos are written."""
        self._finish()
        self._journal.remove()

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

    def _regions(self, label_map: LabelMap) -> Iterator[tuple[int, Region]]:
        """Give the regions of the photo that is being written, separated by single objects if these are known."""
        return trace_classes(label_map, self._objects)

    def _records(self) -> Iterator[dict[str, Any]]:
        """Give what `_write` returned for each photo, in order; only the last if a photo was written twice."""
        left = Counter(self._times)
        for record in self._journal.records():
            left[record["name"]] -= 1
            if left[record["name"]] == 0:
                yield record

    def _is_there(self, path: str) -> bool:
        return (self.out / path).is_file()

    def _refuse_foreign(self, name: str, label_map: LabelMap, photo: Pixels | None) -> None:
        if label_map.ndim != 2 or 0 in label_map.shape or label_map.dtype.kind not in "ui":
            raise EmatError(f"the label map of {name} must be (H, W) class indices, not {label_map.shape}")
        highest = int(np.where(label_map == VOID, 0, label_map).max())
        if highest > len(self.classes):
            raise EmatError(f"the label map of {name} has class {highest}, but there are {len(self.classes)} classes")
        if self.needs_photo and photo is None:
            raise EmatError(f"the format {self.format} shows the photos, but {name} is missing; add the photos")
        if photo is not None and photo.shape[:2] != label_map.shape:
            raise EmatError(
                f"the mask of {name} is {_size(label_map)} but its photo is {_size(photo)}; "
                "save the mask at the photo's size"
            )

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._journal.leave()


def open_writer(
    format: str, out: Path, classes: Sequence[str], *, options: WriteOptions | None = None, run: str = ""
) -> Writer:
    """Open a writer.

    Args:
        format: One of `WRITERS`, such as "coco".
        out: The folder for the results; it is made if it does not exist.
        classes: The names of the classes; `classes[i]` has index i + 1 in label maps.
        options: How regions are written.
        run: Distinguishes runs that must not continue each other, such as predictions of two different heads.

    Returns:
        The writer.

    Raises:
        EmatError: There is no such format, `out` is a file, or a class name cannot be written.
    """
    if format not in WRITERS:
        raise EmatError(f"there is no format {format!r}; the formats are {', '.join(WRITERS)}")
    module, _, name = WRITERS[format].partition(":")
    writer: type[Writer] = getattr(import_module(module), name)
    return writer(out, classes, options or WriteOptions(), run)


def _refuse_unusable(out: Path, classes: tuple[str, ...]) -> None:
    if out.is_file() or (not out.exists() and out.suffix.lower() in FILE_SUFFIXES):
        raise EmatError(f"{out} is the name of a file; give a folder for the results")
    if not classes:
        raise EmatError("there are no classes to write; name at least one")
    for name in classes:
        if not name.strip() or name != name.strip() or not name.isprintable():
            raise EmatError(f"the class name {name!r} cannot be written; use letters, digits and single spaces")
        if name.lower() in (*BACKGROUND_NAMES, *IGNORED_NAMES):
            raise EmatError(f"the class name {name!r} means background or void in annotation files; rename it")
    if len(set(classes)) != len(classes):
        twice = next(name for name in classes if classes.count(name) > 1)
        raise EmatError(f"the class {twice!r} is given twice; rename one of them")


def _size(pixels: NDArray[Any]) -> str:
    return f"{pixels.shape[1]} x {pixels.shape[0]}"
