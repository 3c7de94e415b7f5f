"""Regions as the single outlines that annotation files hold: simplified if wished, holes cut open from the left.

COCO, LabelMe and YOLO polygons have no holes. A hole is joined to the ring around it by a cut of no width that
runs through the region: the outline goes in along the cut, around the hole, and out along the same cut.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from emat.formats.polygons import Region, Ring, signed_area

Corner: TypeAlias = tuple[float, float]  # x, y
Number = TypeVar("Number", np.int64, np.float64)

SIMPLIFIED_AREA = (0.5, 1.5)  # of the exact area; a ring that would change more, thin or tiny, stays exact


def outline(region: Region, tolerance: float = 0.0) -> NDArray[np.float64]:
    """The corners (n, 2) of one closed line around `region`, off the exact one by at most `tolerance` pixels.

    With tolerance 0 pycocotools fills the outline to exactly the region's pixels.
    """
    outer = simplify(region.outer, tolerance).astype(np.float64)
    if not region.holes:
        return outer
    holes = [_from_leftmost(simplify(hole, tolerance).astype(np.float64)) for hole in region.holes]
    return _joined([outer, *sorted(holes, key=lambda hole: (hole[0, 0], hole[0, 1]))])


def simplify(ring: Ring, tolerance: float) -> Ring:
    """`ring` with as few of its corners as Douglas and Peucker's rule needs to stay within `tolerance` pixels.

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
    """Distance of each point from the straight line between `start` and `end`, which are two places."""
    way = (end - start).astype(np.float64)
    share = np.clip((points - start) @ way / (way @ way), 0, 1)
    return np.hypot(*(points - start - share[:, None] * way).T)


def _from_leftmost(ring: NDArray[Number]) -> NDArray[Number]:
    """The same ring, beginning with its leftmost corner, the upper one of several."""
    return np.roll(ring, -int(np.lexsort((ring[:, 1], ring[:, 0]))[0]), axis=0)


@dataclass(frozen=True)
class _Edges:
    """The edges of several rings, from `here` to `there`, and of those that are not level the heights they span."""

    here: NDArray[np.float64]  # (edges, 2)
    there: NDArray[np.float64]
    rising: NDArray[np.int64]  # which edges are not level
    low: NDArray[np.float64]  # (rising,)
    high: NDArray[np.float64]


def _joined(rings: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """One line around all rings: an outer one, then its holes from left to right, each from its leftmost corner."""
    here = np.concatenate(rings)
    there = np.concatenate([np.roll(ring, -1, axis=0) for ring in rings])
    starts = np.cumsum([0, *(len(ring) for ring in rings)]).tolist()
    low, high = np.minimum(here[:, 1], there[:, 1]), np.maximum(here[:, 1], there[:, 1])
    rising = np.flatnonzero(low < high)
    edges = _Edges(here, there, rising, low[rising], high[rising])
    cuts: dict[int, list[tuple[float, Corner, int]]] = {}  # on each edge: how far along, where, to which hole
    for hole in range(1, len(rings)):
        # A hole hangs on the rings before it, so that no circle can arise.
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
    """The corners of a ring, and at each cut the number of the hole to go around before going on."""
    for place, (x, y) in enumerate(ring.tolist()):
        yield x, y
        for _, meeting, hole in sorted(cuts.get(start + place, ())):
            yield meeting
            yield hole
            yield meeting
    if number:  # a hole is closed before its cut is gone back
        yield float(ring[0, 0]), float(ring[0, 1])


def _nearest_to_the_left(edges: _Edges, known: int, corner: NDArray[np.float64]) -> tuple[int, Corner]:
    """Which of the first `known` edges a way to the left from `corner` meets first, and where."""
    x, y = corner.tolist()
    among = int(np.searchsorted(edges.rising, known))
    crossed = edges.rising[:among][(edges.low[:among] <= y) & (y <= edges.high[:among])]
    start, end = edges.here[crossed], edges.there[crossed]
    crossings = start[:, 0] + (y - start[:, 1]) / (end[:, 1] - start[:, 1]) * (end[:, 0] - start[:, 0])
    left = np.flatnonzero(crossings <= x)
    if not len(left):  # simplified rings may have moved past each other by the tolerance
        closest = int(((edges.here[:known] - corner) ** 2).sum(axis=1).argmin())
        return closest, (float(edges.here[closest, 0]), float(edges.here[closest, 1]))
    nearest = left[crossings[left].argmax()]
    return int(crossed[nearest]), (float(crossings[nearest]), y)
