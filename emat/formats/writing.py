"""Writing label maps in the formats of annotation tools, photo by photo, in runs that can be interrupted.

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
from emat.formats.class_names import BACKGROUND_NAMES, IGNORED_NAMES
from emat.formats.drawing import LabelMap
from emat.formats.journal import Journal
from emat.formats.photo_names import inner_name
from emat.images import VOID, Pixels

JOURNAL = ".emat-journal.jsonl"
SHAPES = ("masks", "polygons")
FILE_SUFFIXES = (".json", ".jsonl", ".png", ".jpg", ".jpeg", ".txt", ".yaml", ".zip")

WRITERS = {
    "png": "emat.formats.voc_png:PngWriter",
    "coco": "emat.formats.coco_json:CocoWriter",
    "labelme": "emat.formats.labelme:LabelMeWriter",
    "yolo": "emat.formats.yolo_seg:YoloWriter",
    "overlay": "emat.formats.overlay:OverlayWriter",
    "sheet": "emat.formats.contact_sheet:SheetWriter",
}


@dataclass(frozen=True)
class WriteOptions:
    """How regions are written, for the formats that leave a choice.

    `shapes` is "masks" (exact) or "polygons"; without it COCO has masks, LabelMe and YOLO polygons.
    Polygons are simplified to at most `tolerance` pixels off the exact border; 0 keeps every corner.
    """

    shapes: str | None = None
    tolerance: float = 1.0

    def __post_init__(self) -> None:
        if self.shapes is not None and self.shapes not in SHAPES:
            raise EmatError(f"shapes are {' or '.join(SHAPES)}, not {self.shapes!r}")
        if not 0 <= self.tolerance < float("inf"):
            raise EmatError(f"the tolerance is a number of pixels from 0, not {self.tolerance}")


class Writer(ABC):
    """Writes label maps into the folder `out`; used from one thread.

    `done()` names what an interrupted run with the same format, classes, options and `run` has written.
    `close()` completes the results: call it when all photos are written, not after an error, or use `with`.
    """

    format: ClassVar[str]
    needs_photo: ClassVar[bool] = False  # whether `write` must be given the photo's pixels

    def __init__(self, out: Path, classes: Sequence[str], options: WriteOptions, run: str) -> None:
        self.out = out
        self.classes = tuple(classes)
        self.options = options
        _refuse_unusable(out, self.classes)
        header = {"format": self.format, "classes": self.classes, "options": vars(options), "run": run}
        self._journal = Journal(out / JOURNAL, {**header, "classes": list(self.classes)})
        self._written = {str(record["place"]): str(record["name"]) for record in self._journal.records()}
        self._times = Counter(str(record["name"]) for record in self._journal.records())
        self._begin()
        self._before = {name for place, name in self._written.items() if self._is_there(place)}

    def done(self) -> set[str]:
        """Names of photos that an earlier, interrupted run has written."""
        return set(self._before)

    def write(
        self, name: str, label_map: LabelMap, photo: Pixels | None = None, photo_file: Path | None = None
    ) -> None:
        """Write `label_map` (H, W): 0 = background, i = `classes[i - 1]`, 255 = void.

        `name` is the photo's path relative to the folder of photos, with suffix. `photo` (H, W, 3) is for
        pictures; `photo_file` is where the photo lies, for the formats that refer to it.
        """
        name = inner_name(name)
        self._refuse_foreign(name, label_map, photo)
        place = self.place(name)
        other = self._written.setdefault(place, name)
        if other != name:
            raise EmatError(f"{other} and {name} would both be written to {place}; rename one of the photos")
        record = self._write(name, label_map, photo, photo_file)
        self._journal.add({"name": name, "place": place, **record})
        self._times[name] += 1

    def close(self) -> None:
        """Complete the results."""
        self._finish()
        self._journal.remove()

    @abstractmethod
    def place(self, name: str) -> str:
        """What is written for photo `name`: a path relative to `out`."""

    def photo_place(self, name: str) -> str:
        """Where the format wants the photo `name`: a path relative to `out`."""
        return f"images/{name}"

    @abstractmethod
    def _write(self, name: str, label_map: LabelMap, photo: Pixels | None, photo_file: Path | None) -> dict[str, Any]:
        """Write the file at `place(name)`; returns what `_finish` must know, as JSON."""

    def _begin(self) -> None:  # noqa: B027 - nothing to do for some formats
        """Write what does not depend on the photos, such as the list of classes."""

    def _finish(self) -> None:  # noqa: B027
        """Write what takes all photos."""

    def _records(self) -> Iterator[dict[str, Any]]:
        """What was kept of each photo, in order; of a photo that was written again, the last."""
        left = Counter(self._times)
        for record in self._journal.records():
            left[record["name"]] -= 1
            if left[record["name"]] == 0:
                yield record

    def _is_there(self, place: str) -> bool:
        return (self.out / place).is_file()

    def _refuse_foreign(self, name: str, label_map: LabelMap, photo: Pixels | None) -> None:
        if label_map.ndim != 2 or 0 in label_map.shape or label_map.dtype.kind not in "ui":
            raise EmatError(f"the label map of {name} must be (H, W) class indices, not {label_map.shape}")
        highest = int(np.where(label_map == VOID, 0, label_map).max())
        if highest > len(self.classes):
            raise EmatError(f"the label map of {name} has class {highest}, but there are {len(self.classes)} classes")
        if self.needs_photo and photo is None:
            raise EmatError(f"{self.format} shows the photos, but that of {name} is not there; add the photos")
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
    """A writer for `format`, one of `WRITERS`, into the folder `out`, which is made when it is not there.

    `run` tells runs apart that must not continue each other, such as predictions of two different models.
    """
    if format not in WRITERS:
        raise EmatError(f"there is no format {format!r}; the formats are {', '.join(WRITERS)}")
    module, _, name = WRITERS[format].partition(":")
    writer: type[Writer] = getattr(import_module(module), name)
    return writer(out, classes, options or WriteOptions(), run)


def _refuse_unusable(out: Path, classes: tuple[str, ...]) -> None:
    if out.is_file() or (not out.exists() and out.suffix.lower() in FILE_SUFFIXES):
        raise EmatError(f"{out} is a file's name; results are written into a folder, give that")
    if not classes:
        raise EmatError("there are no classes to write; name at least one")
    for name in classes:
        if not name.strip() or name != name.strip() or not name.isprintable():
            raise EmatError(f"the class name {name!r} cannot be written; use letters, digits and single spaces")
        if name.lower() in (*BACKGROUND_NAMES, *IGNORED_NAMES):
            raise EmatError(f"the class name {name!r} stands for no class in annotation files; rename or unlist it")
    if len(set(classes)) != len(classes):
        twice = next(name for name in classes if classes.count(name) > 1)
        raise EmatError(f"the class {twice!r} is named twice; rename one of them")


def _size(pixels: NDArray[Any]) -> str:
    return f"{pixels.shape[1]} x {pixels.shape[0]}"
