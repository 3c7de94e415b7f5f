"""Lengths and widths of thin things such as cracks, vessels and roots, along their centre line.

The centre line is scikit-image's skeleton, without spurs. Its pixels are put in the middle of their neighbours, so that
a slanted line is not a staircase. The outline is scikit-image's contour at the half between object and background. The
width at a point of the centre line is the distance between the outline's nearest point and the one opposite of it.
Where the object is a few pixels wide, it is the number of its pixels for each pixel of length. The length goes on from
the ends of the centre line to the outline.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial import cKDTree

Mask = NDArray[np.bool_]
Points = NDArray[np.float64]  # (n, 2) of y, x

NEAR = 3.0  # pixels: the neighbours that a pixel of the centre line is put in the middle of
SPUR = 1.5  # half widths: a shorter branch with a free end leads to a corner of the outline
THIN = 2.0  # pixels from the centre line to the outline, below which pixels are counted instead
OUTLINE_SMOOTHING = 5  # points
TIP = 12.0  # pixels of the centre line that say in which direction it goes on
ALL_AROUND = np.ones((3, 3), np.uint8)


@dataclass(frozen=True)
class LineMeasures:
    """An object measured along its centre line, in pixels."""

    length: float
    width_mean: float
    width_max: float
    branch_points: int


def measure_line(mask: Mask) -> LineMeasures:
    """Measure one object (h, w) along its centre line.

    >>> bar = np.zeros((30, 120), bool)
    >>> bar[10:18, 10:110] = True
    >>> found = measure_line(bar)
    >>> round(found.length), round(found.width_mean, 1), found.branch_points
    (100, 8.0, 0)
    """
    from skimage.measure import find_contours
    from skimage.morphology import skeletonize

    padded = np.pad(mask, 2)
    inside = ndimage.distance_transform_edt(padded)
    skeleton = _without_spurs(skeletonize(padded), inside)
    pixels = np.argwhere(skeleton)
    tree = cKDTree(pixels)
    near = tree.query_ball_point(pixels, NEAR)
    line = np.array([pixels[each].mean(axis=0) for each in near])
    contours = [contour[:-1] for contour in find_contours(padded.astype(np.float32), 0.5)]
    outline = np.concatenate([_smooth(contour) for contour in contours])
    exact = np.concatenate(contours)
    steps = _steps(pixels, tree)
    degree = np.bincount(steps.ravel(), minlength=len(pixels))
    ends = np.flatnonzero(degree <= 1)
    half, nearest = cKDTree(outline).query(line)
    length = float(np.linalg.norm(line[steps[:, 0]] - line[steps[:, 1]], axis=1).sum())
    for end in ends:
        before = pixels[tree.query_ball_point(pixels[end], TIP)]
        length += _to_the_outline(line[end], before, exact, half[end] + NEAR)
    if len(pixels) == 1:
        length = 2 * float(half[0])
    widths = _widths(line, outline, nearest, half)
    thin = half < THIN
    if thin.any():
        widths = np.where(thin, _counted_widths(padded, skeleton, near, length), widths)
    away = _away_from_ends(pixels, ends, half)
    widths = widths[away] if away.any() else widths
    forks = ndimage.label(skeleton & (_neighbours(skeleton) >= 3), ALL_AROUND)[1]
    return LineMeasures(length, float(widths.mean()), float(widths.max()), int(forks))


def _neighbours(skeleton: Mask) -> NDArray[np.uint8]:
    return np.asarray(ndimage.convolve(skeleton.astype(np.uint8), ALL_AROUND, mode="constant") - skeleton)


def _without_spurs(skeleton: Mask, inside: NDArray[np.float64]) -> Mask:
    """Remove the short branches that lead from the centre line to corners of the outline."""
    from skimage.morphology import skeletonize

    count = _neighbours(skeleton)
    forks = skeleton & (count >= 3)
    if not forks.any():
        return skeleton
    around = ndimage.binary_dilation(forks, ALL_AROUND)
    width_of_fork = np.where(around, ndimage.maximum_filter(np.where(forks, inside, 0), 3), 0)
    branches, found = ndimage.label(skeleton & ~forks, ALL_AROUND)
    numbers = np.arange(1, found + 1)
    is_free = np.asarray(ndimage.maximum(count <= 1, branches, numbers), bool)
    width = np.asarray(ndimage.maximum(width_of_fork, branches, numbers))
    pixels = np.asarray(ndimage.sum_labels(skeleton, branches, numbers))
    spurs = is_free & (width > 0) & (pixels <= SPUR * width + 1)
    if spurs.all() and forks.sum() < 3:  # a blob: what is left of it is its middle
        return forks if forks.any() else skeleton
    return np.asarray(skeletonize(skeleton & ~np.isin(branches, numbers[spurs])))


def _smooth(contour: Points) -> Points:
    if len(contour) < 4 * OUTLINE_SMOOTHING:  # it would shrink
        return contour
    return np.asarray(ndimage.uniform_filter1d(contour, OUTLINE_SMOOTHING, axis=0, mode="wrap"))


def _steps(pixels: NDArray[np.int64], tree: cKDTree) -> NDArray[np.int64]:
    """Return the pairs of neighbouring pixels, without a diagonal beside two straight steps."""
    pairs = tree.query_pairs(1.5, output_type="ndarray").reshape(-1, 2)
    one, other = pixels[pairs[:, 0]], pixels[pairs[:, 1]]
    diagonal = (one != other).all(axis=1)
    there = np.zeros(pixels.max(axis=0) + 1, bool)
    there[pixels[:, 0], pixels[:, 1]] = True
    around_the_corner = there[one[:, 0], other[:, 1]] | there[other[:, 0], one[:, 1]]
    kept: NDArray[np.int64] = pairs[~(diagonal & around_the_corner)]
    return kept


def _widths(
    line: Points, outline: Points, nearest: NDArray[np.int64], half: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the distances across, which do not change if the centre line is half a pixel beside the middle."""
    here = outline[nearest]
    opposite = outline[cKDTree(outline).query(2 * line - here)[1]]
    return np.minimum(np.linalg.norm(here - opposite, axis=1), 2 * half + 1)


def _counted_widths(mask: Mask, skeleton: Mask, near: NDArray[np.object_], length: float) -> NDArray[np.float64]:
    """Return around each pixel of the centre line how many pixels the object has for each pixel of length."""
    index = np.zeros(mask.shape, np.int64)
    index[skeleton] = np.arange(int(skeleton.sum()))
    rows, columns = ndimage.distance_transform_edt(~skeleton, return_distances=False, return_indices=True)
    owners = index[rows, columns][mask]
    counts = np.bincount(owners, minlength=len(near))
    step = length / len(near)
    return np.array([counts[each].mean() for each in near]) / max(step, 1e-9)


def _away_from_ends(pixels: NDArray[np.int64], ends: NDArray[np.int64], half: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether a pixel of the centre line is so far from an end that the width there is not that of the tip."""
    if not len(ends):
        return np.ones(len(pixels), bool)
    distance = cKDTree(pixels[ends]).query(pixels)[0]
    return np.asarray(distance > np.maximum(half, NEAR))


def _to_the_outline(end: Points, before: NDArray[np.int64], outline: Points, farthest: float) -> float:
    """Return how far the tip of an object is from an end of its centre line, in the line's direction."""
    ahead = outline - end
    away = end - before.mean(axis=0)
    size = float(np.linalg.norm(away))
    nearest = float(np.linalg.norm(ahead, axis=1).min())
    if size < 1e-6:
        return nearest
    along, across = ahead @ (away / size), np.abs(ahead @ (np.array([-away[1], away[0]]) / size))
    met = along[(along > 0) & (across < 1)]
    if not len(met):
        return nearest
    return float(met[met <= farthest].max(initial=0) or met.min())  # beside a thin line, its sides are met first
