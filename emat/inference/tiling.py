"""What of a photo the network looks at: the whole, and on request overlapping tiles, each at the trained size.

Photos are squashed to the square that the network was trained with, as in training and in benchmarks. Keeping the
photo's aspect at the same number of pixels was measured beside it with an early head on 240 1-way 1-shot tasks of
voc2012-mini's val list at 192 px: mIoU 33.4 against 33.2, AUC of presence 0.909 against 0.897, no more than chance
gives.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from emat.errors import EmatError

Tiles: TypeAlias = int | Literal["auto"] | None  # how many in a row and in a column

OVERLAP = 0.25  # share of a tile that its neighbour sees as well
MOST_TILES = 4  # a side of "auto": 16 tiles and the whole take 17 times as long


@dataclass(frozen=True)
class View:
    """A rectangle of a photo in pixels."""

    top: int
    left: int
    height: int
    width: int

    @property
    def area(self) -> tuple[slice, slice]:
        """Rows and columns."""
        return slice(self.top, self.top + self.height), slice(self.left, self.left + self.width)

    def scaled(self, size: tuple[int, int], to: tuple[int, int]) -> "View":
        """The same part of a photo of `size` (H, W) at another size."""
        (height, width), (new_height, new_width) = size, to
        top, bottom = (round(y * new_height / height) for y in (self.top, self.top + self.height))
        left, right = (round(x * new_width / width) for x in (self.left, self.left + self.width))
        return View(top, left, max(1, bottom - top), max(1, right - left))


def check_tiles(tiles: object) -> None:
    """EmatError unless `tiles` is None, "auto" or a number from 1."""
    if tiles is None or tiles == "auto" or (isinstance(tiles, int) and not isinstance(tiles, bool) and tiles >= 1):
        return
    raise EmatError(f"tiles is None, 'auto' or a number of tiles a side from 1, not {tiles!r}")


def views(size: tuple[int, int], image_size: int, tiles: Tiles) -> list[View]:
    """The whole photo of `size` (H, W) first, then its tiles, row by row.

    "auto" takes as many tiles as let the network see the photo's own pixels, at most 4 a side, none for photos that
    are hardly larger than the network's `image_size`.

    >>> len(views((800, 800), 400, 2)), len(views((500, 450), 400, "auto")), len(views((1600, 800), 400, "auto"))
    (5, 1, 9)
    """
    height, width = size
    whole = View(0, 0, height, width)
    if tiles == "auto":
        rows, columns = (min(MOST_TILES, round(side / image_size)) for side in size)
    else:
        rows, columns = (min(tiles or 1, side) for side in size)
    if rows <= 1 and columns <= 1:
        return [whole]
    vertical, horizontal = _spans(height, max(1, rows)), _spans(width, max(1, columns))
    return [whole, *(View(top, left, h, w) for top, h in vertical for left, w in horizontal)]


def _spans(length: int, count: int) -> list[tuple[int, int]]:
    """Start and length of `count` equal spans that cover `length` and overlap.

    >>> _spans(100, 3)
    [(0, 40), (30, 40), (60, 40)]
    """
    if count == 1:
        return [(0, length)]
    span = min(length, -int(-length // (count - (count - 1) * OVERLAP)))
    return [(round(place * (length - span) / (count - 1)), span) for place in range(count)]
