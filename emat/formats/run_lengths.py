"""COCO's run lengths: how many pixels are out, in, out and so on, column by column from the top left.

Files hold them as a list (`plain`) or packed into a string, five bits a character, most as differences from the
run before the last. Both are read and written here without further packages.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from emat.formats.polygons import Region

Counts: TypeAlias = NDArray[np.int64]

BITS, SIGN, MORE, FIRST_CHARACTER = 5, 0x10, 0x20, 48


def counts_of_mask(mask: NDArray[np.bool_]) -> Counts:
    """The runs of `mask` (H, W), the first of them out.

    >>> counts_of_mask(np.array([[0, 1], [0, 1]], bool)).tolist()
    [2, 2]
    """
    columns = np.asarray(mask, bool).ravel(order="F")
    changes = np.flatnonzero(columns[1:] != columns[:-1]) + 1
    start = [0, 0] if len(columns) and columns[0] else [0]
    places: Counts = np.concatenate([start, changes, [len(columns)]]).astype(np.int64)
    return np.diff(places)


def counts_of_region(region: Region, size: tuple[int, int]) -> Counts:
    """The runs of one region in a photo of `size` (H, W), from its outline alone."""
    height, width = size
    edges = [np.stack([ring, np.roll(ring, -1, axis=0)], axis=1) for ring in (region.outer, *region.holes)]
    ends = np.concatenate(edges)  # (edges, 2, 2) of start and end, x and y
    level = ends[ends[:, 0, 1] == ends[:, 1, 1]]
    left, right = level[:, :, 0].min(axis=1), level[:, :, 0].max(axis=1)
    steps = right - left
    column = np.repeat(left - np.concatenate([[0], np.cumsum(steps)[:-1]]), steps) + np.arange(steps.sum())
    # In each of its columns a level edge changes from in to out or back; two changes at one place are none.
    changes, times = np.unique(column * height + np.repeat(level[:, 0, 1], steps), return_counts=True)
    changes = changes[times % 2 == 1]
    changes = changes[changes < height * width]
    return np.diff(np.concatenate([[0], changes, [height * width]]))


def mask_of_region(region: Region) -> NDArray[np.bool_]:
    """The region's pixels in its own box, (box height, box width) bool."""
    left, top, width, height = region.box
    shift = np.array([left, top])
    moved = Region(region.outer - shift, tuple(hole - shift for hole in region.holes))
    return mask_of_counts(counts_of_region(moved, (height, width)), (height, width))


def mask_of_counts(counts: Sequence[int] | Counts, size: tuple[int, int]) -> NDArray[np.bool_]:
    """(H, W) bool; ValueError if the runs do not fill exactly `size` (H, W)."""
    height, width = size
    runs = np.asarray(counts, np.int64)
    if runs.ndim != 1 or runs.min(initial=0) < 0 or runs.sum() != height * width:
        raise ValueError("run lengths that do not fill the photo")
    inside = np.arange(len(runs)) % 2 == 1
    return np.repeat(inside, runs).reshape((height, width), order="F")


def pack(counts: Sequence[int] | Counts) -> str:
    """The string that stands for `counts` in COCO files.

    >>> pack([6, 1, 40, 4])
    '61X13'
    """
    values = np.array(counts, np.int64)
    values[3:] -= np.asarray(counts, np.int64)[1:-2]
    characters: list[NDArray[np.int64]] = []  # one column for each position within a number
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
    """The counts that a packed string stands for; ValueError if it is not one.

    >>> unpack("61X13").tolist()
    [6, 1, 40, 4]
    """
    codes = np.frombuffer(text.encode("latin-1") if isinstance(text, str) else text, np.uint8).astype(np.int64)
    codes = codes - FIRST_CHARACTER
    if not len(codes):
        return np.zeros(0, np.int64)
    last = (codes & MORE) == 0
    if codes.min() < 0 or codes.max() >= 2 * MORE or not last[-1]:
        raise ValueError("packed run lengths with a character that does not belong there")
    begins = np.concatenate([[0], np.flatnonzero(last)[:-1] + 1])
    digits = np.diff(np.concatenate([begins, [len(codes)]]))
    if digits.max() > 12:
        raise ValueError("packed run lengths with a number beyond all photos")
    position = np.arange(len(codes)) - np.repeat(begins, digits)
    values = np.add.reduceat((codes & 0x1F) << (BITS * position), begins)
    negative = (codes[last] & SIGN) != 0
    values = values - np.where(negative, np.int64(1) << (BITS * digits), 0)
    values[1::2] = np.cumsum(values[1::2])
    values[2::2] = np.cumsum(values[2::2])
    return values
