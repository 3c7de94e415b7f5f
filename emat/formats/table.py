"""A CSV table of single objects, a row for each, as `emat predict --table` writes it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    """The columns and rows of the table of objects.

    Args:
        pixel_size: The side of a pixel, for a column of areas in real units.
    """

    key = "objects"

    def __init__(self, pixel_size: PixelSize | None) -> None:
        self._pixel_size = pixel_size
        self.header = [*COLUMNS, *([pixel_size.column] if pixel_size else [])]

    def rows(self, photo: str, objects: Mapping[str, Sequence[ObjectRow]]) -> list[list[str]]:
        """Return a row for each object of one photo.

        Args:
            photo: The photo's name.
            objects: The objects of each class, by the class's name.
        """
        found = []
        for name, measured in objects.items():
            for row in measured:
                numbers = [str(number) for number in (row.id, row.area, *row.box)]
                centre = [f"{coordinate:.2f}" for coordinate in row.centroid]
                real = [f"{row.area * self._pixel_size.side**2:.6g}"] if self._pixel_size else []
                found.append([photo, name, *numbers, *centre, f"{row.score:.4f}", *real])
        return found
