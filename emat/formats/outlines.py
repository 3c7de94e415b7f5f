"""Regions as the single outlines that annotation files hold: simplified if wished, holes cut open from the left.

COCO, LabelMe and YOLO polygons have no holes. A hole is joined to the ring around it by a cut of no width that
runs through the region: the outline goes in along the cut, around the hole, and out along the same cut.
"""

import math

import numpy as np
from numpy.typing import NDArray

from emat.formats.polygons import Region, Ring, signed_area

SIMPLIFIED_AREA = (0.5, 1.5)  # of the exact area; a ring that would change more, thin or tiny, stays exact


def outline(region: Region, tolerance: float = 0.0) -> NDArray[np.float64]:
    """The corners (n, 2) of one closed line around `region`, off the exact one by at most `tolerance` pixels.

    With tolerance 0 pycocotools fills the outline to exactly the region's pixels.
    """
    outer = simplify(region.outer, tolerance).astype(np.float64)
    holes = [simplify(hole, tolerance).astype(np.float64) for hole in region.holes]
    for hole in sorted(holes, key=lambda hole: float(hole[:, 0].min())):
        outer = _cut_open(outer, hole)
    return outer


def simplify(ring: Ring, tolerance: float) -> Ring:
    """`ring` with as few of its corners as Douglas and Peucker's rule needs to stay within `tolerance` pixels.

    >>> stairs = np.array([[0, 0], [1, 0], [1, 1], [2, 1], [2, 2], [9, 2], [9, 9], [0, 9]])
    >>> simplify(stairs, 1.0).tolist()
    [[0, 0], [2, 2], [9, 2], [9, 9], [0, 9]]
    """
    if tolerance <= 0 or len(ring) <= 4:
        return ring
    start = int(np.lexsort((ring[:, 1], ring[:, 0]))[0])
    ring = np.roll(ring, -start, axis=0)
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
    """Distance of each point from the line through `start` and `end`."""
    dx, dy = (end - start).tolist()
    offset = points - start
    return np.abs(dx * offset[:, 1] - dy * offset[:, 0]) / math.hypot(dx, dy)


def _cut_open(outer: NDArray[np.float64], hole: NDArray[np.float64]) -> NDArray[np.float64]:
    """`outer` with a way to the hole's leftmost corner, around the hole and back."""
    start = int(np.lexsort((hole[:, 1], hole[:, 0]))[0])
    around = np.roll(hole, -start, axis=0)
    x, y = around[0]
    here, there = outer, np.roll(outer, -1, axis=0)
    rise = there[:, 1] - here[:, 1]
    meets = (rise != 0) & (np.minimum(here[:, 1], there[:, 1]) <= y) & (y <= np.maximum(here[:, 1], there[:, 1]))
    edges = np.flatnonzero(meets)
    crossings = here[edges, 0] + (y - here[edges, 1]) / rise[edges] * (there[edges, 0] - here[edges, 0])
    to_the_left = crossings <= x
    if not to_the_left.any():  # simplified rings may have moved past each other by the tolerance
        edges, crossings = np.array([int(((outer - around[0]) ** 2).sum(axis=1).argmin())]), np.array([np.nan])
        meeting = outer[edges[0]]
    else:
        nearest = int(np.where(to_the_left, crossings, -np.inf).argmax())
        edges, meeting = edges[nearest : nearest + 1], np.array([crossings[nearest], y])
    place = int(edges[0]) + 1
    way = np.concatenate([meeting[None], around, around[:1], meeting[None]])
    return np.concatenate([outer[:place], way, outer[place:]])
