"""Objects of finished masks: fringes are removed, objects that touch are separated, and all are numbered and measured.

A fringe is a thin rim of one class around an object of another class. Where two classes resemble each other, the second
often wins along the outline of the first, because both are uncertain there. A part of an object that belongs to another
class than the rest, and is thin for its area or a mere speck, goes to the rest. So does a small part whose class is
hardly ahead of the rest's class there. A small object that touches a larger one of another class is compact, its class
is clearly ahead, and it stays.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from emat.formats.regions import TOUCHING
from emat.formats.results import ObjectRow

Labels = NDArray[np.int32]
Mask = NDArray[np.bool_]

NECK = 0.75  # two bulges are one object if the neck between them is at least this wide, as a share of the smaller bulge
SMOOTHING = 1.0  # pixels; a jagged outline would otherwise have a bulge at every step

RIM = 0.01  # of the photo's longer side: what a mask has beside a known object, and no farther, is its rim

LARGEST_SHARE = 0.25  # of the object's area: a larger part is not a rim
SMALLEST_SHARE_WON = 0.5  # of a region, for what is left of it to be an object
SPECK_SHARE = 0.02  # a part this small is not an object of its own either, whatever its shape
CLEAR_LEAD = 0.15  # of probability, on average over a part: PASCAL train-list tasks gave the same mIoU from 0.1 to 0.2
THIN = 0.3  # half the part's thickness over the root of its area: a disc has 0.56, a square 0.5, a 6 : 1 strip 0.2


def absorb_fringes(
    label_map: NDArray[np.uint8], probability: Callable[[int], NDArray[np.float32]] | None = None
) -> NDArray[np.uint8]:
    """Return the label map (H, W) in which every fringe has the class of the object that it belongs to.

    Args:
        label_map: (H, W): 0 is background.
        probability: Returns the map (H, W) of the class with a label; without it, only the shape of a part counts.

    >>> label_map = np.full((20, 40), 1, np.uint8)
    >>> label_map[:2] = 2  # a strip along the upper edge
    >>> np.unique(absorb_fringes(label_map)).tolist()
    [1]
    """
    if len(np.unique(label_map[label_map > 0])) < 2:
        return label_map
    result = label_map.copy()
    objects, count = ndimage.label(label_map > 0, TOUCHING)
    for index, window in enumerate(ndimage.find_objects(objects, count), start=1):
        labels = np.where(objects[window] == index, label_map[window], 0)
        areas = np.bincount(labels.ravel(), minlength=2)
        areas[0] = 0
        if np.count_nonzero(areas) < 2:
            continue
        main, whole = int(areas.argmax()), int(areas.sum())
        for other in np.flatnonzero(areas):
            if other == main:
                continue
            lead = None if probability is None else (probability(int(other)) - probability(main))[window]
            result[window][_fringes(labels == other, whole, lead)] = main
    return result


def find_remnants(mask: NDArray[np.bool_], won: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the regions of a class's `mask` (H, W) that other classes have mostly taken: where it `won` under a half.

    What is left of such a region is not an object: another class has the object.

    >>> mask = np.ones((4, 10), bool)
    >>> won = np.arange(10) < 3
    >>> bool(find_remnants(mask, mask & won).all()), bool(find_remnants(mask, mask & ~won).any())
    (True, False)
    """
    regions, count = ndimage.label(mask, TOUCHING)
    numbers = np.arange(1, count + 1)
    lost = np.asarray(ndimage.mean(won, regions, numbers)) < SMALLEST_SHARE_WON
    return np.isin(regions, numbers[lost])


def _fringes(mask: NDArray[np.bool_], whole: int, lead: NDArray[np.float32] | None) -> NDArray[np.bool_]:
    """The parts of `mask` (h, w) that are fringes of an object of `whole` pixels; `lead` is how far they are ahead."""
    parts, count = ndimage.label(mask, TOUCHING)
    numbers = np.arange(1, count + 1)
    areas = ndimage.sum_labels(mask, parts, numbers)
    # The photo's border does not make a part thin: what lies outside is unknown, so the mask goes on there.
    inside = ndimage.distance_transform_edt(np.pad(mask, 1, mode="edge"))[1:-1, 1:-1]
    thickness = ndimage.maximum(inside, parts, numbers)
    thin = (areas <= LARGEST_SHARE * whole) & (thickness < THIN * np.sqrt(areas) + 1)
    fringe = thin | (areas <= SPECK_SHARE * whole)
    if lead is not None:
        fringe |= (areas <= LARGEST_SHARE * whole) & (ndimage.mean(lead, parts, numbers) < CLEAR_LEAD)
    return np.isin(parts, numbers[fringe])


@dataclass(frozen=True)
class Instances:
    """The objects of one class on one photo."""

    label_image: Labels  # (H, W): 0 is background, i is the object whose row has id i
    rows: tuple[ObjectRow, ...]

    def __len__(self) -> int:
        return len(self.rows)


def split_touching(mask: Mask) -> Labels:
    """Number the objects of a mask (H, W) from 1. Objects that touch are separated where they are narrowest.

    Every pixel belongs to the peak of the distance to the background that it reaches by going uphill (a watershed).
    Neighbours whose neck is hardly narrower than themselves are put together again.

    >>> mask = np.zeros((20, 40), bool)
    >>> y, x = np.ogrid[:20, :40]
    >>> mask |= ((y - 10) ** 2 + (x - 10) ** 2 <= 64) | ((y - 10) ** 2 + (x - 24) ** 2 <= 64)
    >>> int(split_touching(mask).max())
    2
    """
    if not mask.any():
        return np.zeros(mask.shape, np.int32)
    distance = ndimage.distance_transform_edt(np.pad(mask, 1))[1:-1, 1:-1]
    smooth = np.where(mask, ndimage.gaussian_filter(distance, SMOOTHING), 0)
    peaks = mask & (smooth >= ndimage.maximum_filter(smooth, size=3))
    markers, count = ndimage.label(peaks, TOUCHING)
    basins = np.where(mask, markers.ravel()[_uphill(smooth)].reshape(mask.shape), 0).astype(np.int32)
    return _numbered(_merged(basins, smooth, count))


def separate(mask: Mask, objects: Labels | None = None) -> Labels:
    """Number the objects of `mask` (H, W): those that `objects` knows by its numbers, the rest by `split_touching`.

    `objects` may have been resized, so the mask often has a rim around what it knows. The rim belongs to the object, or
    each of its pieces would count as one.
    """
    if objects is None or not objects.any():
        return split_touching(mask)
    numbers = _with_rims(np.where(mask, objects, 0), mask)
    rest = split_touching(mask & (numbers == 0))
    return _numbered(np.where(numbers > 0, numbers, np.where(rest > 0, rest + numbers.max(), 0)).astype(np.int32))


def _with_rims(numbers: Labels, mask: Mask) -> Labels:
    """Return `known` (H, W) with the parts of `mask` beside it that are nowhere farther than a rim from an object."""
    parts, count = ndimage.label(mask & (numbers == 0), TOUCHING)
    if not count or not numbers.any():
        return numbers
    distance, nearest = ndimage.distance_transform_edt(numbers == 0, return_indices=True)
    farthest = ndimage.maximum(distance, parts, np.arange(1, count + 1))
    is_rim = np.concatenate([[False], np.asarray(farthest) <= max(2.0, RIM * max(mask.shape))])
    return np.where(is_rim[parts], numbers[tuple(nearest)], numbers)


def measure(labels: Labels, probability: NDArray[np.float32], smallest: int = 1) -> Instances:
    """Measure the objects of a label image; those of fewer than `smallest` pixels are left out, the rest renumbered."""
    areas = np.bincount(labels.ravel())
    keep = [index for index in range(1, len(areas)) if areas[index] >= max(1, smallest)]
    renumber = np.zeros(len(areas), np.int32)
    renumber[keep] = np.arange(1, len(keep) + 1)
    labels = renumber[labels]
    numbers = np.arange(1, len(keep) + 1)
    centres = ndimage.center_of_mass(labels > 0, labels, numbers) if keep else []
    scores = ndimage.mean(probability, labels, numbers) if keep else []
    rows = []
    for number, slices, (y, x), score in zip(numbers, ndimage.find_objects(labels), centres, scores, strict=True):
        rows_, columns = slices
        box = columns.start, rows_.start, columns.stop - columns.start, rows_.stop - rows_.start
        rows.append(ObjectRow(int(number), int(areas[keep[number - 1]]), box, (float(x), float(y)), float(score)))
    return Instances(labels, tuple(rows))


def _uphill(height: NDArray[np.floating]) -> NDArray[np.intp]:
    """For every pixel, flat, the index of the peak that it reaches by always going to its highest neighbour."""
    rows, columns = height.shape
    padded = np.pad(height, 1, constant_values=-1)
    steps = [(dy, dx) for dy in (0, -1, 1) for dx in (0, -1, 1)]  # staying comes first, so equal heights stay
    around = np.stack([padded[1 + dy : 1 + dy + rows, 1 + dx : 1 + dx + columns] for dy, dx in steps])
    offsets = np.array([dy * columns + dx for dy, dx in steps])
    goal = np.arange(height.size) + offsets[around.argmax(axis=0).ravel()]
    while not np.array_equal(goal, further := goal[goal]):  # paths double in length each time
        goal = further
    return goal


def _merged(basins: Labels, height: NDArray[np.floating], count: int) -> Labels:
    """Basins whose common border is nearly as high as the lower of their peaks become one."""
    peak = np.zeros(count + 1)
    np.maximum.at(peak, basins.ravel(), height.ravel())
    saddle: dict[tuple[int, int], float] = {}
    for here, other in ((np.s_[:, :-1], np.s_[:, 1:]), (np.s_[:-1], np.s_[1:])):
        a, b, level = basins[here], basins[other], np.minimum(height[here], height[other])
        touch = (a != b) & (a > 0) & (b > 0)
        for low, high, value in zip(np.minimum(a, b)[touch], np.maximum(a, b)[touch], level[touch], strict=True):
            pair = int(low), int(high)
            saddle[pair] = max(saddle.get(pair, 0.0), float(value))
    leader = list(range(count + 1))

    def find(index: int) -> int:
        while leader[index] != index:
            index = leader[index]
        return index

    for (low, high), level in sorted(saddle.items(), key=lambda item: -item[1]):  # the widest necks first
        first, second = find(low), find(high)
        if first != second and level >= NECK * min(peak[first], peak[second]):
            leader[second] = first
            peak[first] = max(peak[first], peak[second])
    return np.array([find(index) for index in range(count + 1)], np.int32)[basins]


def _numbered(labels: Labels) -> Labels:
    """The same objects, numbered from 1 without gaps."""
    return np.unique(labels, return_inverse=True)[1].reshape(labels.shape).astype(np.int32) + int(labels.min() > 0)
