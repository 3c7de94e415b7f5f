"""COCO's run lengths: the numbers of pixels outside, inside, outside and so on, column by column from the top left.

Files contain them as a list, or packed into a string with five bits in each character; from the fourth on, the string
has the difference from the number two before. This module reads and writes both without other packages.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from emat.formats.regions import Region

Counts: TypeAlias = NDArray[np.int64]

BITS, SIGN, MORE, FIRST_CHARACTER = 5, 0x10, 0x20, 48
LARGEST_SUM = 2**62  # of the numbers in a packed string, far from where int64 wraps


def counts_of_mask(mask: NDArray[np.bool_]) -> Counts:
    """Return the run lengths of `mask` (H, W); the first run is outside.

    >>> counts_of_mask(np.array([[0, 1], [0, 1]], bool)).tolist()
    [2, 2]
    """
    columns = np.asarray(mask, bool).ravel(order="F")
    changes = np.flatnonzero(columns[1:] != columns[:-1]) + 1
    start = [0, 0] if len(columns) and columns[0] else [0]
    bounds: Counts = np.concatenate([start, changes, [len(columns)]]).astype(np.int64)
    return np.diff(bounds)


def counts_of_regions(regions: Sequence[Region], size: tuple[int, int]) -> Counts:
    """Return the run lengths of regions in a photo of `size` (H, W), computed from their outlines."""
    height, width = size
    rings = [ring for region in regions for ring in (region.outer, *region.holes)]
    edges = [np.stack([ring, np.roll(ring, -1, axis=0)], axis=1) for ring in rings]
    ends = np.concatenate(edges)  # (edges, 2, 2) of start and end, x and y
    level = ends[ends[:, 0, 1] == ends[:, 1, 1]]
    left, right = level[:, :, 0].min(axis=1), level[:, :, 0].max(axis=1)
    steps = right - left
    column = np.repeat(left - np.concatenate([[0], np.cumsum(steps)[:-1]]), steps) + np.arange(steps.sum())
    # A horizontal edge is a change between inside and outside in each of its columns; two at one pixel cancel out.
    changes, times = np.unique(column * height + np.repeat(level[:, 0, 1], steps), return_counts=True)
    changes = changes[times % 2 == 1]
    changes = changes[changes < height * width]
    return np.diff(np.concatenate([[0], changes, [height * width]]))


def mask_of_region(region: Region) -> NDArray[np.bool_]:
    """Return the pixels of a region within its box, (box height, box width) bool."""
    left, top, width, height = region.box
    shift = np.array([left, top])
    moved = Region(region.outer - shift, tuple(hole - shift for hole in region.holes))
    return mask_of_counts(counts_of_regions([moved], (height, width)), (height, width))


def mask_of_counts(counts: Sequence[int] | Counts, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return the mask (H, W) bool that has these run lengths.

    Raises:
        ValueError: A run length is not a whole number of at least 0, or their sum is not the number of pixels of `size`
            (H, W).
    """
    height, width = size
    values = counts.tolist() if isinstance(counts, np.ndarray) else counts
    # Python's integers have no largest value. A sum of int64 could wrap to the number of pixels, and `np.repeat` would
    # then write beyond its result.
    if any(type(value) is not int or value < 0 for value in values) or sum(values) != height * width:
        raise ValueError("its run lengths are not whole numbers that fill the photo")
    runs = np.array(values, np.int64)
    inside = np.arange(len(runs)) % 2 == 1
    return np.repeat(inside, runs).reshape((height, width), order="F")


def pack(counts: Sequence[int] | Counts) -> str:
    """Pack run lengths into the string that COCO files contain.

    >>> pack([6, 1, 40, 4])
    '61X13'
    """
    values = np.array(counts, np.int64)
    values[3:] -= np.asarray(counts, np.int64)[1:-2]
    characters: list[NDArray[np.int64]] = []  # for each position within a number, that character of all numbers
    used: list[NDArray[np.bool_]] = []
    active = np.ones(len(values), bool)
    while active.any():
        low = values & 0x1F
        values = values >> BITS
        more = active & np.where(low & SIGN, values != -1, values != 0)
        characters.append(low + np.where(more, MORE, 0) + FIRST_CHARACTER)
        used.append(active)
        active = more
    if not characters:
        return ""
    return np.stack(characters, 1)[np.stack(used, 1)].astype(np.uint8).tobytes().decode("ascii")


def unpack(text: str | bytes) -> Counts:
    """Return the run lengths in a packed string.

    Raises:
        ValueError: The string has a character that does not belong there, or a number that is too large.

    >>> unpack("61X13").tolist()
    [6, 1, 40, 4]
    """
    codes = np.frombuffer(text.encode("latin-1") if isinstance(text, str) else text, np.uint8).astype(np.int64)
    codes = codes - FIRST_CHARACTER
    if not len(codes):
        return np.zeros(0, np.int64)
    last = (codes & MORE) == 0
    if codes.min() < 0 or codes.max() >= 2 * MORE or not last[-1]:
        raise ValueError("its packed run lengths have a wrong character")
    begins = np.concatenate([[0], np.flatnonzero(last)[:-1] + 1])
    digits = np.diff(np.concatenate([begins, [len(codes)]]))
    if digits.max() > 12:
        raise ValueError("its packed run lengths have a number that is too large")
    position = np.arange(len(codes)) - np.repeat(begins, digits)
    values = np.add.reduceat((codes & 0x1F) << (BITS * position), begins)
    negative = (codes[last] & SIGN) != 0
    values = values - np.where(negative, np.int64(1) << (BITS * digits), 0)
    if int(np.abs(values).max()) * len(values) > LARGEST_SUM:
        raise ValueError("its packed run lengths have a number that is too large")
    values[1::2] = np.cumsum(values[1::2])
    values[2::2] = np.cumsum(values[2::2])
    return values
