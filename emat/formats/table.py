"""A CSV table of single objects, a row for each, as `emat predict --table` writes it."""

import csv
import re
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from emat.errors import EmatError

COLUMNS = ("photo", "class", "id", "area_px", "left", "top", "width", "height", "centroid_x", "centroid_y", "score")
SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(nm|um|µm|μm|mm|cm|m|km)")


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
    def read(cls, text: str) -> "PixelSize":
        """Read a number and a unit; EmatError if it is neither."""
        found = SIZE.fullmatch(text.strip())
        if found is None or float(found[1]) == 0:
            raise EmatError(
                f"--pixel-size is {text!r}; give a number and a unit of nm, um, mm, cm, m or km, as in 0.32um"
            )
        return cls(float(found[1]), found[2].replace("µ", "u").replace("μ", "u"))

    @property
    def column(self) -> str:
        """The name of the column of areas."""
        return f"area_{self.unit}2"


class ObjectTable:
    """A CSV file that grows photo by photo.

    Args:
        path: The file.
        pixel_size: The side of a pixel, for a column of areas in real units.
        keep: Photos whose rows are kept if the file exists already.
    """

    def __init__(self, path: Path, pixel_size: PixelSize | None, keep: Set[str]) -> None:
        self._pixel_size = pixel_size
        header = [*COLUMNS, *([pixel_size.column] if pixel_size else [])]
        kept = [row for row in _rows(path) if row and row[0] in keep]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8", newline="")
        except OSError as error:
            raise EmatError(f"{path} cannot be written: {error.strerror}; choose another file with --table") from None
        self._writer = csv.writer(self._file)
        self._writer.writerows([header, *kept])

    def add(self, photo: str, objects: Mapping[str, Sequence[ObjectRow]]) -> None:
        """Append a row for each object of one photo.

        Args:
            photo: The photo's name.
            objects: The objects of each class, by the class's name.
        """
        for name, rows in objects.items():
            for row in rows:
                centre = [f"{coordinate:.2f}" for coordinate in row.centroid]
                real = [f"{row.area * self._pixel_size.side**2:.6g}"] if self._pixel_size else []
                self._writer.writerow([photo, name, row.id, row.area, *row.box, *centre, f"{row.score:.4f}", *real])
        self._file.flush()

    def __enter__(self) -> "ObjectTable":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _rows(path: Path) -> list[list[str]]:
    with suppress(OSError, UnicodeDecodeError, csv.Error), path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]
    return []
