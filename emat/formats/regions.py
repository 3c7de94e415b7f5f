"""The regions of a mask as exact outlines, and as the closed polygons that annotation files contain.

This is written by hand because libraries trace the centres of pixels: they lose half a pixel on each side, and thin
objects completely. Here a ring is a closed line along the borders of pixels. Its corners are corners of pixels: (0, 0)
is the top left corner of the photo, and a single pixel is a square of side 1. Pixels that touch at a corner belong to
one region (8-connected), as everywhere in emat, so that all outputs have the same objects; the ring goes through that
corner twice. Filling the rings by the even-odd rule, or with pycocotools, gives exactly the mask.

COCO, LabelMe and YOLO polygons cannot have holes. A hole is therefore joined to the ring around it by a cut of no width
through the region: the outline follows the cut, goes around the hole, and comes back along the same cut.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from emat.images import VOID

Ring: TypeAlias = NDArray[np.int64]  # (corners, 2) of x, y; an edge leads from the last corner to the first

Indices: TypeAlias = NDArray[np.int64]
TOUCHING = np.ones((3, 3), bool)  # pixels that touch at a corner belong to one connected component


@dataclass(frozen=True)
class Region:
    """Connected pixels: the ring around them, clockwise, and the rings of their holes, anticlockwise."""

    outer: Ring
    holes: tuple[Ring, ...] = ()

    @property
    def area(self) -> int:
        """The number of pixels."""
        return round(sum(signed_area(ring) for ring in (self.outer, *self.holes)))

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, width and height of the box around the region, in pixels."""
        (left, top), (right, bottom) = self.outer.min(axis=0).tolist(), self.outer.max(axis=0).tolist()
        return left, top, right - left, bottom - top


def trace_regions(mask: NDArray[np.bool_]) -> list[Region]:
    """Find the regions of `mask` (H, W), ordered by their first pixel, row by row.

    >>> [(region.area, region.box) for region in trace_regions(np.array([[1, 1, 0, 0], [0, 0, 1, 0]], bool))]
    [(3, (0, 0, 3, 2))]
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


def trace_objects(
    label_map: NDArray[Any], objects: NDArray[np.int32] | None = None
) -> Iterator[tuple[int, list[Region]]]:
    """Give the regions of every object with its class index, class by class, without background and void.

    Args:
        label_map: Class indices, (H, W).
        objects: The number of the single object at each pixel, (H, W). All pixels of one number are an object, and
            objects are separate even where they touch. If not given, every region is an object.
    """
    for index in np.unique(label_map).tolist():  # np.bincount would need eight bytes for each pixel
        if index in (0, VOID):
            continue
        mask = label_map == index
        if objects is None:
            yield from ((index, [region]) for region in trace_regions(mask))
        else:
            numbers = np.unique(objects[mask])
            yield from ((index, trace_regions(mask & (objects == number))) for number in numbers)


def signed_area(ring: NDArray[np.generic]) -> float:
    """Return the area inside `ring`, positive if it runs clockwise on the screen."""
    x, y = ring[:, 0].astype(np.float64), ring[:, 1].astype(np.float64)
    return float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2


@dataclass(frozen=True)
class _Corners:
    """The corners of all rings, row by row, and the index of the corner that follows each.

    `columnwise` has the indices of the corners column by column; each pair in it is the ends of a vertical edge.
    """

    x: Indices
    y: Indices
    following: Indices
    columnwise: Indices


def _corners(padded: NDArray[np.bool_]) -> _Corners:
    """Find the corners of a mask (h, w) whose outermost pixels are background."""
    above_left, above_right = padded[:-1, :-1], padded[:-1, 1:]
    below_left, below_right = padded[1:, :-1], padded[1:, 1:]
    # The outline turns where the four pixels do not consist of two equal rows or two equal columns.
    turns = (above_left ^ above_right ^ below_left ^ below_right) | (
        (above_left == below_right) & (above_left != above_right) & (above_right == below_left)
    )
    y, x = np.nonzero(turns)
    first, second = above_left[y, x], above_right[y, x]
    third, fourth = below_left[y, x], below_right[y, x]
    crossing = (first == fourth) & (second == third)  # two pixels touch at their corners: two corners at one point
    # One of the two is the end of an edge from the left, the other the start of an edge to the right.
    times = np.where(crossing, 2, 1)
    point = np.repeat(np.arange(len(x)), times)
    is_second = np.zeros(len(point), np.int64)
    is_second[1:] = point[1:] == point[:-1]
    # If the touching pixels are above left and below right, the left edge joins the lower edge, else the upper one.
    lower = np.where(crossing[point], is_second ^ first[point], 0)
    x, y = x[point], y[point]
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
    """Follow the corners to closed rings, each from its first corner.

    Returns:
        The index at which each ring starts in the points, the points of all rings, and the ring of each corner.
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
    """Return the signed area inside each ring."""
    following = np.concatenate([points[1:], points[:1]])
    following[np.append(starts[1:], len(points)) - 1] = points[starts]
    doubled = points[:, 0] * following[:, 1] - points[:, 1] * following[:, 0]
    return np.add.reduceat(doubled, starts) // 2


def _owners(
    holes: Indices, starts: Indices, points: Ring, ring_of: Indices, padded: NDArray[np.bool_], corners: _Corners
) -> list[int]:
    """Return for each hole the number of the outer ring around it.

    To the left of a hole's leftmost edge there is a run of the region's pixels. It begins at an edge of the outer ring,
    or at an edge of a hole further to the left. Holes are processed from left to right, so that one's owner is known.
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
    for index in np.argsort(x, kind="stable").tolist():
        owner[numbers[index]] = owner.get(hit[index], hit[index])
    return [owner[number] for number in numbers]


Corner: TypeAlias = tuple[float, float]  # x, y
Number = TypeVar("Number", np.int64, np.float64)

# Fractions of the exact area. A ring whose area would change more, because it is thin or small, is not simplified.
SIMPLIFIED_AREA = (0.5, 1.5)


def outline(region: Region, tolerance: float = 0.0) -> NDArray[np.float64]:
    """Return one closed polygon around a region and its holes.

    Args:
        region: The region.
        tolerance: How many pixels the polygon may be from the exact outline. With 0, pycocotools fills it to exactly
            the pixels of the region.

    Returns:
        The corners, (n, 2) of x, y.
    """
    outer = simplify(region.outer, tolerance).astype(np.float64)
    if not region.holes:
        return outer
    holes = [_from_leftmost(simplify(hole, tolerance).astype(np.float64)) for hole in region.holes]
    return _joined([outer, *sorted(holes, key=lambda hole: (hole[0, 0], hole[0, 1]))])


def simplify(ring: Ring, tolerance: float) -> Ring:
    """Leave out corners of a ring by the algorithm of Douglas and Peucker, within `tolerance` pixels.

    >>> stairs = np.array([[0, 0], [1, 0], [1, 1], [2, 1], [2, 2], [9, 2], [9, 9], [0, 9]])
    >>> simplify(stairs, 1.0).tolist()
    [[0, 0], [2, 2], [9, 2], [9, 9], [0, 9]]
    """
    if tolerance <= 0 or len(ring) <= 4:
        return ring
    ring = _from_leftmost(ring)
    farthest = int(((ring - ring[0]) ** 2).sum(axis=1).argmax())
    closed = np.concatenate([ring, ring[:1]])
    kept = np.zeros(len(closed), bool)
    kept[[0, farthest]] = True
    waiting = [(0, farthest), (farthest, len(ring))]
    while waiting:
        first, last = waiting.pop()
        if last - first < 2:
            continue
        off = _distances(closed[first + 1 : last], closed[first], closed[last])
        worst = int(off.argmax())
        if off[worst] > tolerance:
            middle = first + 1 + worst
            kept[middle] = True
            waiting += [(first, middle), (middle, last)]
    simple = ring[kept[:-1]]
    exact, now = signed_area(ring), signed_area(simple)
    low, high = SIMPLIFIED_AREA
    return simple if low <= now / exact <= high else ring


def _distances(points: Ring, start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the distance of each point from the line segment between two points, which may be the same."""
    way = (end - start).astype(np.float64)
    share = np.clip((points - start) @ way / max(float(way @ way), 1.0), 0, 1)
    return np.hypot(*(points - start - share[:, None] * way).T)


def _from_leftmost(ring: NDArray[Number]) -> NDArray[Number]:
    """Return the same ring, starting at its leftmost corner, the uppermost if there are several."""
    return np.roll(ring, -int(np.lexsort((ring[:, 1], ring[:, 0]))[0]), axis=0)


@dataclass(frozen=True)
class _Edges:
    """The edges of several rings, from `here` to `there`, and the vertical extent of those that are not horizontal."""

    here: NDArray[np.float64]  # (edges, 2)
    there: NDArray[np.float64]
    rising: NDArray[np.int64]  # indices of the edges that are not horizontal
    low: NDArray[np.float64]  # (rising,)
    high: NDArray[np.float64]


def _joined(rings: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Join an outer ring and its holes, sorted from left to right, to one closed line."""
    here = np.concatenate(rings)
    there = np.concatenate([np.roll(ring, -1, axis=0) for ring in rings])
    starts = np.cumsum([0, *(len(ring) for ring in rings)]).tolist()
    low, high = np.minimum(here[:, 1], there[:, 1]), np.maximum(here[:, 1], there[:, 1])
    rising = np.flatnonzero(low < high)
    edges = _Edges(here, there, rising, low[rising], high[rising])
    cuts: dict[int, list[tuple[float, Corner, int]]] = {}  # by edge: distance along it, point, hole
    for hole in range(1, len(rings)):
        # Each hole is joined to a ring before it, so that the joins cannot form a circle.
        edge, meeting = _nearest_to_the_left(edges, starts[hole], rings[hole][0])
        along = math.dist(meeting, here[edge])
        cuts.setdefault(edge, []).append((along, meeting, hole))
    corners: list[Corner] = []
    ways = [_way_around(0, rings[0], starts[0], cuts)]
    while ways:
        step = next(ways[-1], None)
        if step is None:
            ways.pop()
        elif isinstance(step, int):
            ways.append(_way_around(step, rings[step], starts[step], cuts))
        else:
            corners.append(step)
    return np.array(corners)


def _way_around(
    number: int, ring: NDArray[np.float64], start: int, cuts: Mapping[int, list[tuple[float, Corner, int]]]
) -> Iterator[Corner | int]:
    """Give the corners of a ring, and at each cut the number of the hole to go around."""
    for index, (x, y) in enumerate(ring.tolist()):
        yield x, y
        for _, meeting, hole in sorted(cuts.get(start + index, ())):
            yield meeting
            yield hole
            yield meeting
    if number:  # a hole is closed before the way back along its cut
        yield float(ring[0, 0]), float(ring[0, 1])


def _nearest_to_the_left(edges: _Edges, count: int, corner: NDArray[np.float64]) -> tuple[int, Corner]:
    """Find which of the first `known` edges is nearest to the left of `corner`, and where it is met."""
    x, y = corner.tolist()
    among = int(np.searchsorted(edges.rising, count))
    crossed = edges.rising[:among][(edges.low[:among] <= y) & (y <= edges.high[:among])]
    start, end = edges.here[crossed], edges.there[crossed]
    crossings = start[:, 0] + (y - start[:, 1]) / (end[:, 1] - start[:, 1]) * (end[:, 0] - start[:, 0])
    left = np.flatnonzero(crossings <= x)
    if not len(left):  # possible, because simplified rings may overlap
        closest = int(((edges.here[:count] - corner) ** 2).sum(axis=1).argmin())
        return closest, (float(edges.here[closest, 0]), float(edges.here[closest, 1]))
    nearest = left[crossings[left].argmax()]
    return int(crossed[nearest]), (float(crossings[nearest]), y)
