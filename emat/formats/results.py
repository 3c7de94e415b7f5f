"""The results of many photos in one folder: several formats and CSV tables from one run, which can be continued.

`ObjectTable` is the table of single objects that `emat predict --table` writes.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.files import inner_name
from emat.formats.drawing import LabelMap
from emat.images import VOID, Pixels, size_in_words
from emat.images.masks import IndexedPngStream
from emat.journal import Journal
from emat.outputs import refuse_overwriting, whole_file

if TYPE_CHECKING:
    from emat.formats.writing import WriteOptions, Writer

JOURNAL = ".emat-journal.jsonl"
COLUMNS = ("photo", "class", "id", "area_px", "left", "top", "width", "height", "centroid_x", "centroid_y", "score")
SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(nm|um|µm|μm|mm|cm|m|km)")
SMALLEST_SIDE, LARGEST_SIDE = 1e-12, 1e12  # of a pixel, in any of these units
FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # how they begin in spreadsheets
# Files with the results of all photos. A photo of the same name would have its own result there in another format.
FOR_ALL = ("annotations.json",)


@dataclass(frozen=True)
class ResultTable:
    """A CSV file that is written from the journal when a run ends.

    Attributes:
        path: The file.
        header: The names of its columns.
        key: Under which `ResultWriter.write` is given its rows.
    """

    path: Path
    header: Sequence[str]
    key: str


class ResultWriter:
    """Writes the results of photos into a folder, in one format or several. Use it from one thread.

    Use it in a `with` block, or call `close` when all photos are written. If the block ends with an error, the run can
    be continued: a new writer with the same arguments names in `done` the photos that are written already. What an
    earlier run knows of other photos is left out. Only one process at a time writes to a folder.

    Args:
        writers: The formats.
        tables: The tables.
        run: Distinguishes runs that must not continue each other.

    Raises:
        EmatError: The folder cannot be written, or another process is writing to it.
    """

    def __init__(
        self,
        out: Path,
        classes: Sequence[str],
        writers: Sequence[Writer],
        tables: Sequence[ResultTable],
        options: WriteOptions,
        run: str,
    ) -> None:
        self.out = out
        self.classes = tuple(classes)
        self._writers = tuple(writers)
        self._tables = tuple(tables)
        formats = [writer.format for writer in writers]
        header = {"version": 4, "formats": formats, "classes": list(classes), "options": vars(options), "run": run}
        self._journal = Journal(out / JOURNAL, header)
        try:
            self._process = 1  # the number of this process among those that have written to the journal
            self._last: dict[str, _Last] = {}  # by the names of photos
            before: dict[str, str | None] = {}
            for record in self._journal.records():
                self._process = max(self._process, record["process"] + 1)
                if not record.get("part"):
                    self._note(record)
                    before[record["name"]] = record["state"]
            self._before = {name: state for name, state in before.items() if self._is_written(name)}
            self._kept: set[str] = set()  # the photos of this run: written, or written before and still the same
            self._paths: dict[str, str] = {}
            for_all = [out / file for writer in writers for file in writer.files]
            for path in (*for_all, *(table.path for table in tables)):
                refuse_overwriting(path)
            for writer in self._writers:
                # A method of this object would make a cycle of references, and an unused writer would keep its lock.
                writer.journal = partial(_last_records, self._journal, self._last, self._kept)
                writer._begin()
        except BaseException:
            self._journal.leave()
            raise

    def done(self, state: Callable[[str], str | None] | None = None) -> set[str]:
        """Return the names of photos that an earlier, interrupted run has written; they are part of this run's results.

        Args:
            state: Gives the present state of a photo by its name, None if it is not there any more. A photo whose
                state is not the one that it was written with is not done.
        """
        same = {name for name, before in self._before.items() if state is None or state(name) == before}
        for name in same:
            self._take(name)
        self._kept |= same
        return same

    def refuse_overwriting(self, names: Iterable[str]) -> None:
        """Raise a WriteError if the result of a photo would replace a file that this command may not replace."""
        for name in names:
            with suppress(EmatError):  # a name that cannot be written is reported when its photo is
                name = inner_name(name)
            for writer in self._writers:
                writer._refuse_overwriting(name)

    def result_path(self, name: str) -> str:
        """Return the path, relative to `out`, of a photo's file in the first format."""
        return self._writers[0].result_path(name)

    def photo_path(self, name: str) -> str:
        """Return the path, relative to `out`, at which tools that read the first format expect the photo."""
        return self._writers[0].photo_path(name)

    def write(
        self,
        name: str,
        label_map: LabelMap,
        photo: Pixels | None = None,
        photo_file: Path | None = None,
        objects: NDArray[np.int32] | None = None,
        rows: Mapping[str, Sequence[Sequence[str]]] | None = None,
        state: str | None = None,
    ) -> None:
        """Write the results of one photo.

        Args:
            name: The path of the photo relative to the folder of photos, with suffix.
            label_map: Class indices, (H, W): 0 is background, i is `classes[i - 1]`, 255 is void.
            photo: The pixels, (H, W, 3) uint8, for formats that show the photo.
            photo_file: The path of the photo, for formats that refer to it.
            objects: The number of the single object at each pixel, (H, W), for formats that write objects
                (`WITH_OBJECTS`).
            rows: The photo's rows of each table, by its key.
            state: What the results depend on, for `done`.

        Raises:
            EmatError: The label map does not fit the photo or the classes, two photos would have the same result, or
                the file cannot be written.
        """
        name = inner_name(name)
        self._refuse_foreign(name, label_map, photo)
        self._take(name)
        record: dict[str, Any] = {"name": name}
        for writer in self._writers:
            writer._objects = objects
            record[writer.format] = writer._write(name, label_map, photo, photo_file)
        self._enter(record, rows, state)

    def write_bands(
        self,
        name: str,
        size: tuple[int, int],
        bands: Iterable[Pixels],
        rows: Callable[[], Mapping[str, Sequence[Sequence[str]]]],
        state: str | None = None,
    ) -> None:
        """Write the result of a slide whose label map is too large for the memory; only PNG can be written so.

        Args:
            name: As in `write`.
            size: Height and width of the slide.
            bands: The label map from top to bottom, in bands (h, W).
            rows: Gives the rows of the tables when all bands are written.
            state: As in `write`.

        Raises:
            EmatError: Another format is asked for, or the file cannot be written.
        """
        name = inner_name(name)
        others = [writer.format for writer in self._writers if writer.format != "png"]
        if others:
            raise EmatError(
                "photo-too-large", f"{name} is so large that it can be written as png alone, not as {others[0]}"
            )
        self._take(name)
        record: dict[str, Any] = {"name": name, **{writer.format: {} for writer in self._writers}}
        if not self._writers:
            for _ in bands:
                pass
        for writer in self._writers:
            with whole_file(self.out / writer.result_path(name)) as unfinished, unfinished.open("wb") as file:
                stream = IndexedPngStream(file, size)
                for band in bands:
                    stream.add(band)
                stream.close()
        self._enter(record, rows(), state)

    def write_rows(self, name: str, rows: Mapping[str, Sequence[Sequence[str]]]) -> None:
        """Write some rows of a slide before it is complete, so that not all of them have to be in memory.

        Args:
            name: As in `write_bands`, which is called afterwards; without it these rows do not count.
            rows: Rows of each table, by its key.
        """
        self._add({"name": inner_name(name), "part": True, **{writer.format: {} for writer in self._writers}}, rows)

    def rows(self, key: str) -> Iterator[list[str]]:
        """Give the rows of a table so far, in order."""
        return (row for record in self.records() for row in record.get("rows", {}).get(key, ()))

    def records(self) -> Iterator[dict[str, Any]]:
        """Give what is known of each photo, in order; only the last if a photo was written twice."""
        return _last_records(self._journal, self._last, self._kept)

    def close(self) -> None:
        """Complete the results, after all photos are written."""
        try:
            for writer in self._writers:
                writer._finish()
            self._write_tables()
        except BaseException:
            self._journal.leave()
            raise
        self._journal.remove()

    def leave(self) -> None:
        """Close an unfinished run, which another one can continue. The tables get the rows written so far."""
        with suppress(EmatError):  # the disk may be full
            if self._kept:
                self._write_tables()
        self._journal.leave()

    def _enter(
        self, record: dict[str, Any], rows: Mapping[str, Sequence[Sequence[str]]] | None, state: str | None
    ) -> None:
        record["state"] = state
        self._add(record, rows)
        self._note(record)
        self._kept.add(record["name"])

    def _add(self, record: dict[str, Any], rows: Mapping[str, Sequence[Sequence[str]]] | None) -> None:
        record["process"] = self._process
        if rows is not None:
            record["rows"] = {key: [list(row) for row in several] for key, several in rows.items()}
        self._journal.add(record)

    def _note(self, record: Mapping[str, Any]) -> None:
        """Note that a photo is written, once more perhaps."""
        times = self._last[record["name"]].times if record["name"] in self._last else 0
        self._last[record["name"]] = _Last(times + 1, record["process"])

    def _take(self, name: str) -> None:
        """Refuse a photo whose result would replace that of another."""
        for path in [writer.result_path(name) for writer in self._writers]:
            if path in FOR_ALL:
                raise EmatError(
                    "same-output-name",
                    f"the result of {name} would be {path}, which is for all photos; rename the photo",
                )
            other = self._paths.setdefault(path, name)
            if other != name:
                raise EmatError(
                    "same-output-name", f"{other} and {name} would both be written to {path}; rename one of the photos"
                )

    def _is_written(self, name: str) -> bool:
        return all(writer._is_there(writer.result_path(name)) for writer in self._writers)

    def _write_tables(self) -> None:
        for table in self._tables:
            with whole_file(table.path) as unfinished, unfinished.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(csv_cells(table.header))
                writer.writerows(map(csv_cells, self.rows(table.key)))

    def _refuse_foreign(self, name: str, label_map: LabelMap, photo: Pixels | None) -> None:
        if label_map.ndim != 2 or 0 in label_map.shape or label_map.dtype.kind not in "ui":
            raise EmatError(
                "mask-shape", f"the label map of {name} must be (H, W) class indices, not {label_map.shape}"
            )
        highest = int(np.where(label_map == VOID, 0, label_map).max())
        if highest > len(self.classes):
            raise EmatError(
                "unknown-class",
                f"the label map of {name} has class {highest}, but there are {len(self.classes)} classes",
            )
        for writer in self._writers:
            if writer.needs_photo and photo is None:
                raise EmatError(
                    "no-such-photo",
                    f"the format {writer.format} shows the photos, but {name} is missing; add the photos",
                )
        if photo is not None and photo.shape[:2] != label_map.shape:
            raise EmatError(
                "mask-size",
                f"the mask of {name} is {size_in_words(label_map.shape)} but its photo is {size_in_words(photo.shape)}"
                "; save the mask at the photo's size",
            )

    def __enter__(self) -> ResultWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.leave()


@dataclass(frozen=True)
class _Last:
    """How often the journal has a photo, and which process wrote it the last time."""

    times: int
    process: int


def _last_records(journal: Journal, last: Mapping[str, _Last], kept: set[str]) -> Iterator[dict[str, Any]]:
    """Give the last record of each photo that is kept; of a slide also its parts, but of no earlier attempt."""
    seen: Counter[str] = Counter()
    for record in journal.records():
        name = record["name"]
        if name not in kept:
            continue
        if record.get("part"):
            if record["process"] == last[name].process:
                yield record
            continue
        seen[name] += 1
        if seen[name] == last[name].times:
            yield record


def csv_cells(row: Iterable[object]) -> list[str]:
    """Return the cells of a CSV file; one that a spreadsheet would run as a formula begins with an apostrophe.

    >>> csv_cells(["=cmd()", "cat", -0.5])
    ["'=cmd()", 'cat', '-0.5']
    """
    return [f"'{text}" if _is_formula(text) else text for text in map(str, row)]


def _is_formula(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text[:1] in FORMULAS and text != "-"
    return False


@dataclass(frozen=True)
class ObjectRow:
    """One object in numbers; lengths and areas are in pixels."""

    id: int  # its number in the label image, from 1
    area: int
    box: tuple[int, int, int, int]  # left, top, width, height
    centroid: tuple[float, float]  # x, y
    score: float  # mean probability of its pixels


@dataclass(frozen=True)
class PixelSize:
    """The side of a pixel in real units.

    >>> PixelSize.read("0.32um")
    PixelSize(side=0.32, unit='um')
    """

    side: float
    unit: str

    @classmethod
    def read(cls, text: str) -> PixelSize:
        """Read a number and a unit; EmatError if it is neither."""
        match = SIZE.fullmatch(text.strip())
        if match is None or not SMALLEST_SIDE <= float(match[1]) <= LARGEST_SIDE:
            raise EmatError(
                "unclear-option",
                f"--pixel-size is {text!r}; give a number and a unit of nm, um, mm, cm, m or km, as in 0.32um",
            )
        return cls(float(match[1]), match[2].replace("µ", "u").replace("μ", "u"))

    @property
    def column(self) -> str:
        """The name of the column of areas."""
        return f"area_{self.unit}2"


class ObjectTable:
    """The columns and rows of the table of objects.

    Args:
        pixel_size: The side of a pixel, for a column of areas in real units.
        frames: Whether some photos are frames of videos, for a column with their numbers.
    """

    key = "objects"

    def __init__(self, pixel_size: PixelSize | None, frames: bool = False) -> None:
        self._pixel_size, self._frames = pixel_size, frames
        self.header = [*COLUMNS, *([pixel_size.column] if pixel_size else []), *(["frame"] if frames else [])]

    def rows(
        self,
        photo: str,
        objects: Mapping[str, Sequence[ObjectRow]],
        frame: int | None = None,
        tracks: Mapping[str, Mapping[int, int]] | None = None,
    ) -> list[list[str]]:
        """Return a row for each object of one photo.

        Args:
            photo: The photo's name.
            objects: The objects of each class, by the class's name.
            frame: The number of the frame, if the photo is one of a video.
            tracks: By class and number, the number that an object has in all frames, which stands in its place.
        """
        rows = []
        for name, measured in objects.items():
            for row in measured:
                through = row.id if tracks is None else tracks[name][row.id]
                numbers = [str(number) for number in (through, row.area, *row.box)]
                centre = [f"{coordinate:.2f}" for coordinate in row.centroid]
                real = [f"{row.area * self._pixel_size.side**2:.6g}"] if self._pixel_size else []
                last = [] if not self._frames else ["" if frame is None else str(frame)]
                rows.append([photo, name, *numbers, *centre, f"{row.score:.4f}", *real, *last])
        return rows
