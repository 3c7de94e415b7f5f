"""Object sizes, which are the fraction of its photo that a listed class covers: size splits and distributions."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from emat.datasets.dataset import ClassAreas
from emat.datasets.fold_lists import FoldList
from emat.errors import EmatError

PUBLISHED_SIZES = ("0-5", "5-10", "10-15", "0-15")  # percent of the photo
HISTOGRAM_END = 50  # percent, where the paper's figure of the distribution ends


def parse_size(size: str) -> tuple[float, float]:
    """Return the fractions [low, high) for a range of object sizes in percent.

    >>> parse_size("5-10")
    (0.05, 0.1)
    """
    match = re.fullmatch(r"(\d+)-(\d+)", size)
    low, high = (int(match[1]), int(match[2])) if match else (0, 0)
    if not low < high <= 100:
        raise EmatError(
            f"{size!r} is not a range of object sizes; write percent of the photo, such as {PUBLISHED_SIZES[0]}"
        )
    return low / 100, high / 100


def object_sizes(fold_list: FoldList, areas: ClassAreas) -> NDArray[np.float64]:
    """Return for every entry the fraction of the photo that its class covers; 0 if the mask lacks the class."""
    return np.array([areas[name].get(class_id, 0.0) for name, class_id in fold_list.entries])


def size_split(fold_list: FoldList, areas: ClassAreas, size: str) -> FoldList:
    """Return the list of the entries whose class covers a fraction of the photo in the range `size`."""
    low, high = parse_size(size)
    sizes = object_sizes(fold_list, areas)
    entries = tuple(entry for entry, s in zip(fold_list.entries, sizes, strict=True) if low <= s < high)
    return FoldList(fold_list.dataset, fold_list.fold, size, entries, fold_list.class_ids)


def size_histogram(fold_list: FoldList, areas: ClassAreas, step: int = 5) -> NDArray[np.int64]:
    """Count the entries per `step` percent of the photo up to `HISTOGRAM_END`, and then all larger ones."""
    # The edges are divided as in parse_size, so that a bin and the split of the same range agree to the last entry.
    edges = [percent / 100 for percent in range(0, HISTOGRAM_END + 1, step)]
    bins = np.searchsorted(edges, object_sizes(fold_list, areas), side="right") - 1
    return np.bincount(bins, minlength=len(edges))


def quartile_theta(fold_lists: Sequence[FoldList], areas: ClassAreas) -> float:
    """Return the 25th percentile of object sizes, which is how the paper chose theta for its data sets."""
    return float(np.percentile(np.concatenate([object_sizes(each, areas) for each in fold_lists]), 25))
