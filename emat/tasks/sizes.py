"""Object sizes: how much of its image the listed class covers; splits by size, and their distribution."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from emat.datasets.class_areas import ClassAreas
from emat.datasets.fold_lists import FoldList
from emat.errors import EmatError

PUBLISHED_SIZES = ("0-5", "5-10", "10-15", "0-15")  # percent of the image
HISTOGRAM_END = 50  # percent; the paper's figure of the distribution ends there


def parse_size(size: str) -> tuple[float, float]:
    """The fractions [low, high) that a size range in percent stands for.

    >>> parse_size("5-10")
    (0.05, 0.1)
    """
    match = re.fullmatch(r"(\d+)-(\d+)", size)
    low, high = (int(match[1]), int(match[2])) if match else (0, 0)
    if not low < high <= 100:
        raise EmatError(f"{size!r} is no size range; write percent of the image, such as {PUBLISHED_SIZES[0]}")
    return low / 100, high / 100


def object_sizes(fold_list: FoldList, areas: ClassAreas) -> NDArray[np.float64]:
    """For every entry, the fraction of the image that its class covers; 0 where the mask lacks the class."""
    return np.array([areas[name].get(class_id, 0.0) for name, class_id in fold_list.entries])


def size_split(fold_list: FoldList, areas: ClassAreas, size: str) -> FoldList:
    """The entries whose class covers a fraction in the range `size` of the image, in their order."""
    low, high = parse_size(size)
    sizes = object_sizes(fold_list, areas)
    entries = tuple(entry for entry, s in zip(fold_list.entries, sizes, strict=True) if low <= s < high)
    return FoldList(fold_list.dataset, fold_list.fold, size, entries, fold_list.class_ids)


def size_histogram(fold_list: FoldList, areas: ClassAreas, step: int = 5) -> NDArray[np.int64]:
    """Number of entries per `step` percent of the image up to `HISTOGRAM_END`, then all larger ones."""
    # Edges divide as parse_size does, so that a bin and the split of the same range agree to the last entry.
    edges = [percent / 100 for percent in range(0, HISTOGRAM_END + 1, step)]
    bins = np.searchsorted(edges, object_sizes(fold_list, areas), side="right") - 1
    return np.bincount(bins, minlength=len(edges))


def quartile_theta(fold_lists: Sequence[FoldList], areas: ClassAreas) -> float:
    """The 25th percentile of object sizes, which is how the paper chose theta for its own data sets."""
    return float(np.percentile(np.concatenate([object_sizes(each, areas) for each in fold_lists]), 25))
