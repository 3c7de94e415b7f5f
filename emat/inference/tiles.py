"""The tiles of a large photo.

A tile of a photo shows everything larger than the photo does, so it is compared with tiles of the examples, which are
cut into as many.

Photos are resized to the square that the head was trained with, as in training and in benchmarks, whatever their
aspect. Keeping the aspect at the same number of pixels was measured beside it, with an early head on 240 tasks (1-way
1-shot) of voc2012-mini's val list at 192 px: mIoU 33.4 against 33.2 and an AUC of presence of 0.909 against 0.897,
which is within chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from emat.errors import EmatError

MOST_DETAIL = 1024  # side, in pixels, at which probabilities are kept; masks come from a far coarser grid
OVERLAP = 0.25  # share of a tile that its neighbour covers as well
FINEST_TILES = 64  # a side: each tile takes as long as a photo
MOST_TILES = 4  # a side for "auto": 16 tiles and the whole photo take 17 times as long
UNCUT = (1, 1)  # rows and columns of tiles of a photo that is not cut

Tiles: TypeAlias = int | Literal["auto"] | None  # number of tiles in a row and in a column


@dataclass(frozen=True)
class View:
    """A rectangle of a photo in pixels."""

    top: int
    left: int
    height: int
    width: int

    @property
    def area(self) -> tuple[slice, slice]:
        """Its rows and columns."""
        return slice(self.top, self.top + self.height), slice(self.left, self.left + self.width)

    def shares(self, size: tuple[int, int]) -> tuple[float, float, float, float]:
        """Top, left, height and width as shares of a photo of `size` (H, W)."""
        height, width = size
        return self.top / height, self.left / width, self.height / height, self.width / width

    def scaled(self, size: tuple[int, int], to: tuple[int, int]) -> View:
        """Return the same part of a photo of `size` (H, W) after the photo is resized to another size."""
        (height, width), (new_height, new_width) = size, to
        top, bottom = (round(y * new_height / height) for y in (self.top, self.top + self.height))
        left, right = (round(x * new_width / width) for x in (self.left, self.left + self.width))
        return View(top, left, max(1, bottom - top), max(1, right - left))


def check_tiles(tiles: object) -> None:
    """Raise an EmatError unless `tiles` is None, "auto" or a number from 1 to 64."""
    if tiles is None or tiles == "auto":
        return
    if isinstance(tiles, int) and not isinstance(tiles, bool) and 1 <= tiles <= FINEST_TILES:
        return
    raise EmatError(
        "unknown-choice", f"tiles is None, 'auto' or a number of tiles a side from 1 to {FINEST_TILES}, not {tiles!r}"
    )


def tile_grid(size: tuple[int, int], image_size: int, tiles: Tiles) -> tuple[int, int]:
    """Return how many rows and columns of tiles a photo of `size` (H, W) is cut into; (1, 1) if it stays whole.

    "auto" takes as many tiles as are needed to see the photo at its own resolution, at most 4 a side, and none for
    photos that are hardly larger than `image_size`.

    >>> tile_grid((800, 800), 400, 2), tile_grid((500, 450), 400, "auto"), tile_grid((1600, 800), 400, "auto")
    ((2, 2), (1, 1), (4, 2))
    """
    if tiles == "auto":
        rows, columns = (max(1, min(MOST_TILES, round(side / image_size))) for side in size)
    else:
        rows, columns = (min(tiles or 1, side) for side in size)
    return rows, columns


def cut(size: tuple[int, int], grid: tuple[int, int]) -> list[View]:
    """Return the tiles of a photo of `size` (H, W), row by row.

    >>> len(cut((800, 800), (2, 3))), cut((8, 6), (1, 1))
    (6, [View(top=0, left=0, height=8, width=6)])
    """
    vertical, horizontal = (_spans(side, min(count, side)) for side, count in zip(size, grid, strict=True))
    return [View(top, left, h, w) for top, h in vertical for left, w in horizontal]


def _spans(length: int, count: int) -> list[tuple[int, int]]:
    """Start and length of `count` equal spans that overlap and together cover `length`.

    >>> _spans(100, 3)
    [(0, 40), (30, 40), (60, 40)]
    """
    if count == 1:
        return [(0, length)]
    span = min(length, -int(-length // (count - (count - 1) * OVERLAP)))
    return [(round(index * (length - span) / (count - 1)), span) for index in range(count)]
