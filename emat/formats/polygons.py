"""The regions of a mask as exact outlines: rings that run along the borders of pixels, holes included.

A ring's corners are corners of pixels, so (0, 0) is the photo's top left corner and a single pixel is a square
of side 1. Pixels that touch at a corner alone belong to different regions (4-connected). Filling the rings by
even and odd, or with pycocotools, gives the mask back exactly.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from emat.images import VOID

Ring: TypeAlias = NDArray[np.int64]  # (corners, 2) of x, y; the last corner joins the first

Indices: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Region:
    """Pixels that hang together: the ring around them, clockwise, and the rings of their holes, anticlockwise."""

    outer: Ring
    holes: tuple[Ring, ...] = ()

    @property
    def area(self) -> int:
        """Number of pixels."""
        return round(sum(signed_area(ring) for ring in (self.outer, *self.holes)))

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, width and height in pixels."""
        (left, top), (right, bottom) = self.outer.min(axis=0).tolist(), self.outer.max(axis=0).tolist()
        return left, top, right - left, bottom - top


def trace_regions(mask: NDArray[np.bool_]) -> list[Region]:
    """The regions of `mask` (H, W), by their first pixel from top to bottom and from left to right.

    >>> [(region.area, region.box) for region in trace_regions(np.array([[1, 1, 0], [0, 0, 1]], bool))]
    [(2, (0, 0, 2, 1)), (1, (2, 1, 1, 1))]
    """
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return []
    top, left = int(rows[0]), int(columns[0])
    padded = np.pad(mask[top : rows[-1] + 1, left : columns[-1] + 1], 1)
    corners = _corners(padded)
    starts, points, ring_of = _rings(corners)
    areas = _signed_areas(starts, points)
    holes = np.flatnonzero(areas < 0)
    owners = _owners(holes, starts, points, ring_of, padded, corners)
    rings = np.split(points + np.array([left, top]), starts[1:])
    holes_of: dict[int, list[Ring]] = {}
    for hole, owner in zip(holes.tolist(), owners, strict=True):
        holes_of.setdefault(owner, []).append(rings[hole])
    outers = np.flatnonzero(areas > 0).tolist()
    return [Region(rings[number], tuple(holes_of.get(number, ()))) for number in outers]


def trace_classes(label_map: NDArray[Any]) -> Iterator[tuple[int, Region]]:
    """Every region of a label map (H, W) with its class index, class by class; background and void are left out."""
    for index in np.flatnonzero(np.bincount(label_map.ravel())).tolist():
        if index not in (0, VOID):
            yield from ((index, region) for region in trace_regions(label_map == index))


def signed_area(ring: NDArray[np.generic]) -> float:
    """The area inside `ring`, positive when it runs clockwise as seen on the screen."""
    x, y = ring[:, 0].astype(np.float64), ring[:, 1].astype(np.float64)
    return float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2


@dataclass(frozen=True)
class _Corners:
    """Where outlines turn, from top to bottom and from left to right, and the corner that follows each.

    `columnwise` lists the corners column by column; each two of them in a row are the ends of a vertical edge.
    """

    x: Indices
    y: Indices
    following: Indices
    columnwise: Indices


def _corners(padded: NDArray[np.bool_]) -> _Corners:
    """The corners of a mask (h, w) that has a background pixel on each side."""
    above_left, above_right = padded[:-1, :-1], padded[:-1, 1:]
    below_left, below_right = padded[1:, :-1], padded[1:, 1:]
    # An outline turns where not both pairs of neighbours are equal, neither side by side nor one over the other.
    turns = (above_left ^ above_right ^ below_left ^ below_right) | (
        (above_left == below_right) & (above_left != above_right) & (above_right == below_left)
    )
    y, x = np.nonzero(turns)
    first, second = above_left[y, x], above_right[y, x]
    third, fourth = below_left[y, x], below_right[y, x]
    crossing = (first == fourth) & (second == third)  # two regions touch here: two corners at one place
    # One of the two ends an edge that comes from the left, the other begins an edge to the right.
    times = np.where(crossing, 2, 1)
    place = np.repeat(np.arange(len(x)), times)
    is_second = np.zeros(len(place), np.int64)
    is_second[1:] = place[1:] == place[:-1]
    # Where the touching pixels lie above left and below right, the left end is the upper end; else the lower one.
    lower = np.where(crossing[place], is_second ^ ~first[place], 0)
    x, y = x[place], y[place]
    columnwise = np.lexsort((lower, y, x))

    following = np.empty(len(x), np.int64)
    left, right = np.arange(0, len(x), 2), np.arange(1, len(x), 2)
    object_below = padded[y[left] + 1, x[left] + 1]
    following[left[object_below]] = right[object_below]
    following[right[~object_below]] = left[~object_below]
    upper, bottom = columnwise[0::2], columnwise[1::2]
    object_left = padded[y[upper] + 1, x[upper]]
    following[upper[object_left]] = bottom[object_left]
    following[bottom[~object_left]] = upper[~object_left]
    return _Corners(x.astype(np.int64), y.astype(np.int64), following, columnwise)


def _rings(corners: _Corners) -> tuple[Indices, Ring, Indices]:
    """The closed ways along `following`, each from its first corner.

    Given as the place where each ring starts in the points of all, these points, and each corner's ring.
    """
    following = corners.following.tolist()
    ring_of = [-1] * len(following)
    starts: list[int] = []
    order: list[int] = []
    for start in range(len(following)):
        if ring_of[start] >= 0:
            continue
        number, corner = len(starts), start
        starts.append(len(order))
        while ring_of[corner] < 0:
            ring_of[corner] = number
            order.append(corner)
            corner = following[corner]
    return np.array(starts), np.stack([corners.x, corners.y], axis=1)[order], np.array(ring_of)


def _signed_areas(starts: Indices, points: Ring) -> Indices:
    """The area inside each ring, as `signed_area` gives it."""
    following = np.concatenate([points[1:], points[:1]])
    following[np.append(starts[1:], len(points)) - 1] = points[starts]
    doubled = points[:, 0] * following[:, 1] - points[:, 1] * following[:, 0]
    return np.add.reduceat(doubled, starts) // 2


def _owners(
    holes: Indices, starts: Indices, points: Ring, ring_of: Indices, padded: NDArray[np.bool_], corners: _Corners
) -> list[int]:
    """For each hole the number of the outer ring around it.

    To the left of a hole's leftmost edge lies a run of the region's pixels; where that run begins there is an
    edge of the outer ring, or of a hole that reaches further to the left, whose owner is known by then.
    """
    if not len(holes):
        return []
    height, width = padded.shape
    leftmost = np.minimum.reduceat(points[:, 0] * height + points[:, 1], starts)[holes]
    x, y = leftmost // height, leftmost % height  # the upper ends of the holes' leftmost edges
    flat = padded.ravel()
    begins = np.flatnonzero(flat[1:] & ~flat[:-1]) + 1
    begin = begins[np.searchsorted(begins, (y + 1) * width + x, side="right") - 1]
    run_x = begin % width - 1  # where the run of pixels beside that edge begins
    uppers = corners.columnwise[0::2]
    edge = np.searchsorted(corners.x[uppers] * height + corners.y[uppers], run_x * height + y, side="right") - 1
    hit = ring_of[uppers[edge]].tolist()
    numbers = holes.tolist()
    owner: dict[int, int] = {}
    for place in np.argsort(x, kind="stable").tolist():
        owner[numbers[place]] = owner.get(hit[place], hit[place])
    return [owner[number] for number in numbers]
