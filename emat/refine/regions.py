"""From a probability map to regions, and from a region to what MobileSAM is asked about it.

Nothing here depends on how a head's probabilities are calibrated: they are first turned into certainties, in which the
mask threshold is 0.5 and the typical foreground and background pixel are equally far from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Map = NDArray[np.float32]
Mask = NDArray[np.bool_]
Point = tuple[float, float]  # x, y

SMALLEST_REGION = 0.001  # of the photo's area; anything smaller is dropped or kept as it was drawn, never prompted
SADDLE_LEVELS = (0.6, 0.7, 0.8, 0.9)  # certainties at which a region is looked at for parts
SMALLEST_PART = 0.12  # of its region's area at the level where it comes apart
TYPICAL = 2.0  # the logit of a typical pixel's certainty
TINY = 1e-4
LEAST_OUTSIDE_CERTAINTY = 0.8  # of another class, at a point that is given to MobileSAM as outside of the object


@dataclass(frozen=True)
class MapRegion:
    """A region of a probability map, which may be one object."""

    mask: Mask  # (h, w)
    box: tuple[int, int, int, int]  # left, top, right, bottom; the last two are the first pixels outside
    points: tuple[Point, ...]  # its most certain pixels, well inside and apart from each other
    thickness: float  # the diameter of the largest disc in it

    @property
    def area(self) -> int:
        """Pixels."""
        return int(self.mask.sum())


def certainty(probability: Map, threshold: float) -> Map:
    """Move a probability map so that the threshold is at 0.5 and both sides of it are equally spread.

    The result does not depend on how well the probabilities are calibrated.

    >>> certainty(np.array([[0.1, 0.2, 0.4, 0.6]], np.float32), 0.3).astype(float).round(2).tolist()
    [[0.05, 0.24, 0.74, 0.95]]
    """
    logits = _logit(probability) - _logit(np.float32(threshold))
    out = np.zeros_like(logits)
    for side in (logits >= 0, logits < 0):
        if side.any():
            out[side] = TYPICAL * logits[side] / max(float(np.median(np.abs(logits[side]))), TINY)
    return np.asarray(1 / (1 + np.exp(-np.clip(out, -20, 20))), np.float32)


def belief(probability: Map, threshold: float) -> Map:
    """`probability` with the threshold at 0.5: as sure as the head is, so that classes can be compared.

    >>> belief(np.array([[0.1, 0.3, 0.6]], np.float32), 0.3).astype(float).round(2).tolist()
    [[0.21, 0.5, 0.78]]
    """
    logits = _logit(probability) - _logit(np.float32(threshold))
    return np.asarray(1 / (1 + np.exp(-logits)), np.float32)


def undecided_reach(probability: Map, threshold: float) -> float:
    """How many pixels it takes a map (h, w) to become certain on either side of its borders; 0 without a border.

    >>> ramp = np.linspace(0, 1, 41, dtype=np.float32)[None].repeat(9, axis=0)
    >>> round(undecided_reach(ramp, 0.5))
    20
    """
    inside = probability >= threshold
    border = np.zeros_like(inside)
    border[:, 1:] |= inside[:, 1:] != inside[:, :-1]
    border[1:] |= inside[1:] != inside[:-1]
    y, x = np.nonzero(border)
    if len(y) == 0:
        return 0.0

    def at(dy: int, dx: int) -> Map:
        rows, columns = np.clip(y + dy, 0, inside.shape[0] - 1), np.clip(x + dx, 0, inside.shape[1] - 1)
        return belief(probability[rows, columns], threshold)

    slope = np.hypot(at(1, 0) - at(-1, 0), at(0, 1) - at(0, -1)) / 2
    return 0.5 / max(float(np.median(slope)), 1e-6)


def find_regions(certain: Map) -> list[MapRegion]:
    """Return the connected regions of certainty 0.5 and more, the largest first.

    Regions that are joined only by a bridge of low certainty are split there.
    """
    labels, count = ndimage.label(certain >= 0.5)
    smallest = max(4.0, SMALLEST_REGION * certain.size)
    whole = [labels == index for index in range(1, count + 1)]
    regions = [part for mask in whole if mask.sum() >= smallest for part in _parts(mask, certain)]
    return sorted((describe_region(mask, certain) for mask in regions), key=lambda region: -region.area)


def describe_region(mask: Mask, certain: Map, points: int = 3) -> MapRegion:
    """Find the box and the most certain points of a mask, which must not be empty."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    box = int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
    inner = ndimage.distance_transform_edt(np.pad(mask, 1))[1:-1, 1:-1]
    merit = np.where(mask, certain * np.minimum(1, inner / max(inner.max() * 0.5, 1)), 0)
    reach = max(box[2] - box[0], box[3] - box[1]) / 4
    chosen: list[Point] = []
    y, x = np.ogrid[: mask.shape[0], : mask.shape[1]]
    while len(chosen) < points and merit.max() > 0:
        top, left = np.unravel_index(int(merit.argmax()), merit.shape)
        chosen.append((float(left) + 0.5, float(top) + 0.5))
        merit = np.where((y - top) ** 2 + (x - left) ** 2 <= reach**2, 0, merit)
    return MapRegion(mask, box, tuple(chosen), 2 * float(inner.max()))


def points_against(region: MapRegion, others: Sequence[Map], most: int = 2) -> tuple[Point, ...]:
    """Return the most certain point of each other class outside `region`, in order of certainty."""
    points: list[tuple[float, Point]] = []
    for other in others:
        rest = np.where(region.mask, 0, other)
        top, left = np.unravel_index(int(rest.argmax()), rest.shape)
        if rest[top, left] >= LEAST_OUTSIDE_CERTAINTY:
            points.append((float(rest[top, left]), (float(left) + 0.5, float(top) + 0.5)))
    return tuple(point for _, point in sorted(points, reverse=True)[:most])


def _parts(mask: Mask, certain: Map) -> list[Mask]:
    """Return the parts into which a mask falls at the lowest level that splits it; the mask itself if none does."""
    for level in SADDLE_LEVELS:
        above = mask & (certain >= level)
        labels, count = ndimage.label(above)
        if count < 2:
            continue
        areas = np.bincount(labels.ravel(), minlength=count + 1)[1:]
        large = 1 + np.flatnonzero(areas >= SMALLEST_PART * above.sum())
        if len(large) >= 2:
            cores = np.where(np.isin(labels, large), labels, 0)
            nearest = ndimage.distance_transform_edt(cores == 0, return_distances=False, return_indices=True)
            owner = cores[tuple(nearest)]
            return [mask & (owner == label) for label in large]
    return [mask]


def _logit(probability: NDArray[np.float32] | np.float32) -> Map:
    clipped = np.clip(probability, TINY, 1 - TINY)
    return np.asarray(np.log(clipped / (1 - clipped)), np.float32)
