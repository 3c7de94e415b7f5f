"""Thin things such as cracks, vessels and roots, measured along their centre line.

The centre line is scikit-image's skeleton without spurs. Its pixels are put in the middle of their neighbours, so that
a slanted line is not a staircase. Its length goes on from its ends to the outline, which is scikit-image's contour at
the half between object and background. Every pixel of the object belongs to the nearest point of the centre line. The
mean width is the area that belongs to the centre line, divided by its length, without what lies at tips and branch
points. The largest width is the distance between the outline's nearest point and the one opposite of it, at the widest
point of the centre line; where the object is only a few pixels wide, it is the area around that point for its length.

Everything is in pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial import cKDTree

from emat.measure.scene import ALL_AROUND, Mask

Points = NDArray[np.float64]  # (n, 2) of y, x

NEAR = 3.0  # pixels: the neighbours that a pixel of the centre line is put in the middle of
SPUR = 1.5  # half widths: a shorter branch with a free end leads to a corner of the outline
THIN = 2.0  # pixels from the centre line to the outline, below which pixels are counted instead
WINDOW = 6.0  # pixels of the centre line around a point over which they are counted
OUTLINE_SMOOTHING = 5  # points
OFF = 1.0  # pixels that the centre line may lie beside the middle; what is farther across belongs to another part
AHEAD = 6.0  # pixels of the centre line that say how fast the object grows wider
STEEP = 0.45  # pixels of half width for each of length: a tip that opens so fast is a corner
STEP = 0.1  # pixels
TIP = 12.0  # pixels of the centre line that say in which direction it goes on


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
    skeleton = _without_corners(_without_spurs(skeletonize(padded), inside), inside)
    pixels = np.argwhere(skeleton)
    tree = cKDTree(pixels)
    steps = _steps(pixels, tree)
    degree = np.bincount(steps.ravel(), minlength=len(pixels))
    ends, forks = np.flatnonzero(degree <= 1), np.flatnonzero(degree >= 3)
    line = _smooth_line(pixels, tree, ends)
    contours = find_contours(padded.astype(np.float32), 0.5)
    outline = np.concatenate([_smooth_outline(contour[:-1]) for contour in contours])
    half, nearest = cKDTree(outline).query(line)
    # Every pixel of the centre line has its share of the length, and the area that is nearest to it.
    long = np.linalg.norm(line[steps[:, 0]] - line[steps[:, 1]], axis=1)
    lengths = np.bincount(steps.ravel(), np.repeat(long / 2, 2), len(pixels))
    for end in ends:
        before = pixels[tree.query_ball_point(pixels[end], TIP)]
        lengths[end] += _to_the_outline(line[end], before, padded)
    areas = _areas(padded, skeleton)
    blobs = degree == 0  # an object may be of several, if a mask image says so
    lengths[blobs] = np.maximum(2 * half, areas**0.5)[blobs]
    off_ends = _first_with_any(_away_from(ends, pixels, half))
    even = _first_with_any(off_ends & _away_from(forks, pixels, half), off_ends)
    widths = np.where(off_ends, _widths(line, outline, nearest, half), 0)
    for thin in np.flatnonzero(off_ends & (half < THIN)):
        around = [neighbour for neighbour in tree.query_ball_point(pixels[thin], WINDOW) if off_ends[neighbour]]
        widths[thin] = areas[around].sum() / max(lengths[around].sum(), 1e-9)
    return LineMeasures(
        float(lengths.sum()),
        float(areas[even].sum() / lengths[even].sum()),
        float(widths.max()),
        int(ndimage.label(skeleton & (_neighbours(skeleton) >= 3), ALL_AROUND)[1]),
    )


def _neighbours(skeleton: Mask) -> NDArray[np.uint8]:
    return np.asarray(
        ndimage.convolve(skeleton.astype(np.uint8), ALL_AROUND.astype(np.uint8), mode="constant") - skeleton
    )


def _without_spurs(skeleton: Mask, inside: NDArray[np.float64]) -> Mask:
    """Remove the short branches that lead from the centre line to corners of the outline."""
    from skimage.morphology import skeletonize

    count = _neighbours(skeleton)
    forks = skeleton & (count >= 3)
    if not forks.any():
        return skeleton
    around = ndimage.binary_dilation(forks, ALL_AROUND)
    width_of_fork = np.where(around, ndimage.maximum_filter(np.where(forks, inside, 0), 3), 0)
    branches, most = ndimage.label(skeleton & ~forks, ALL_AROUND)
    numbers = np.arange(1, most + 1)
    is_free = np.asarray(ndimage.maximum(count <= 1, branches, numbers), bool)
    width = np.asarray(ndimage.maximum(width_of_fork, branches, numbers))
    pixels = np.asarray(ndimage.sum_labels(skeleton, branches, numbers))
    spurs = is_free & (width > 0) & (pixels <= SPUR * width + 1)
    if spurs.all() and forks.sum() < 3:  # a blob: what is left of it is its middle
        return forks if forks.any() else skeleton
    return _with_thin_ends(np.asarray(skeletonize(skeleton & ~np.isin(branches, numbers[spurs]))))


def _with_thin_ends(skeleton: Mask) -> Mask:
    """Remove the pixels of an end that is two pixels wide, which would be a fork with two branches of a pixel."""
    padded = np.pad(skeleton, 1)
    shifts = ((-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1))  # around a pixel
    around = np.stack([np.roll(padded, shift, (0, 1)) for shift in shifts])[:, 1:-1, 1:-1]
    side_by_side = (around & np.roll(around, 1, axis=0)).any(axis=0)
    fat = skeleton & (around.sum(axis=0) == 2) & side_by_side
    return skeleton if (fat == skeleton).all() else skeleton & ~fat


def _without_corners(skeleton: Mask, inside: NDArray[np.float64]) -> Mask:
    """Remove the ends of the centre line that turn aside into a corner of the outline, where the object ends."""
    pixels = np.argwhere(skeleton)
    depth = inside[skeleton]
    pairs = cKDTree(pixels).query_pairs(AHEAD, output_type="ndarray").reshape(-1, 2)
    pairs = np.concatenate([pairs, pairs[:, ::-1]])
    slopes = np.zeros(len(pixels))
    far = np.linalg.norm(pixels[pairs[:, 0]] - pixels[pairs[:, 1]], axis=1)
    np.maximum.at(slopes, pairs[:, 0], (depth[pairs[:, 1]] - depth[pairs[:, 0]]) / far)
    steep = np.zeros_like(skeleton)
    steep[skeleton] = slopes > STEEP
    branches = ndimage.label(steep, ALL_AROUND)[0]
    corners = np.isin(branches, branches[steep & (_neighbours(skeleton) == 1)])
    return skeleton if corners.sum() == len(pixels) else skeleton & ~corners


def _smooth_line(pixels: NDArray[np.int64], tree: cKDTree, ends: NDArray[np.int64]) -> Points:
    """Put pixels of the centre line in the middle of their neighbours, of as many on both sides; ends stay."""
    radius = np.full(len(pixels), NEAR if len(pixels) > 4 * NEAR else 0.0)  # smaller loops would shrink
    if len(ends):
        radius = np.minimum(NEAR, cKDTree(pixels[ends]).query(pixels)[0])
    return np.array([pixels[group].mean(axis=0) for group in tree.query_ball_point(pixels, radius)])


def _smooth_outline(contour: Points) -> Points:
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
    """Return the distances across, which do not change if the centre line lies beside the middle."""
    here = outline[nearest]
    opposite = outline[cKDTree(outline).query(2 * line - here)[1]]
    return np.minimum(np.linalg.norm(here - opposite, axis=1), 2 * half + 2 * OFF)


def _areas(mask: Mask, skeleton: Mask) -> NDArray[np.int64]:
    """Return how many pixels of an object are nearest to each pixel of its centre line."""
    index = np.zeros(mask.shape, np.int64)
    index[skeleton] = np.arange(int(skeleton.sum()))
    rows, columns = ndimage.distance_transform_edt(~skeleton, return_distances=False, return_indices=True)
    return np.bincount(index[rows, columns][mask], minlength=int(skeleton.sum()))


def _away_from(points: NDArray[np.int64], pixels: NDArray[np.int64], half: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether pixels of the centre line are so far from some, tips or forks, that their width is not that of these."""
    if not len(points):
        return np.ones(len(pixels), bool)
    distance = cKDTree(pixels[points]).query(pixels)[0]
    return np.asarray(distance > np.maximum(half, NEAR))


def _first_with_any(*choices: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the first choice of pixels that has any, or all pixels."""
    return next((choice for choice in choices if choice.any()), np.ones_like(choices[0]))


def _to_the_outline(end: Points, before: NDArray[np.int64], mask: Mask) -> float:
    """Return how far the tip of an object is from an end of its centre line, in the line's direction."""
    away = end - before.mean(axis=0)
    size = float(np.linalg.norm(away))
    if size < 1e-6:
        return 0.5
    steps = np.arange(0, sum(mask.shape), STEP)
    points = end + steps[:, None] * (away / size)
    inside = ndimage.map_coordinates(mask.astype(np.float32), points.T, order=1)
    return float(steps[np.argmax(inside < 0.5)])
