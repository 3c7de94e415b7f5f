"""Fringes: thin rims of one class around an object of another class, which are errors and are removed here.

Where two classes resemble each other, the second often wins along the outline of the first, because both are uncertain
there. A part of an object that belongs to another class than the rest, and is thin for its area or a mere speck, goes
to the rest. So does a small part whose class is hardly ahead of the rest's class there. A small object that touches a
larger one of another class is compact, its class is clearly ahead, and it stays.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

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
    objects, count = ndimage.label(label_map > 0)
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
    regions, count = ndimage.label(mask)
    kept = ndimage.mean(won, regions, np.arange(count + 1))
    lost = np.asarray(kept) < SMALLEST_SHARE_WON
    lost[0] = False
    return np.asarray(lost[regions], bool)


def _fringes(mask: NDArray[np.bool_], whole: int, lead: NDArray[np.float32] | None) -> NDArray[np.bool_]:
    """The parts of `mask` (h, w) that are fringes of an object of `whole` pixels; `lead` is how far they are ahead."""
    parts, count = ndimage.label(mask)
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
