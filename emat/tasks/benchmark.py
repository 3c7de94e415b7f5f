"""A data set with its classes divided into folds, ready to draw tasks from, and the sizes of the objects in it.

The fold lists are read from files or made from the masks. The size of an object is the fraction of its photo that a
listed class covers. A size split is the part of a fold list whose objects have a size in a given range.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from emat.datasets.dataset import ClassAreas, Dataset
from emat.datasets.fold_lists import PUBLISHED_DATASETS, FoldList, fold_lists_in, lists_from_masks
from emat.datasets.layouts import LAYOUTS, open_dataset
from emat.errors import EmatError
from emat.files import read_names
from emat.tasks.sampling import (
    ORDINARY_SPLITS,
    THETA,
    TaskRequest,
    TaskSampler,
    load_split,
    published_protocol,
    size_split_tasks,
)

PUBLISHED_SIZES = ("0-5", "5-10", "10-15", "0-15")  # percent of the photo
HISTOGRAM_END = 50  # percent, where the paper's figure of the distribution ends

Watch: TypeAlias = Callable[[Sequence[str]], Iterable[str]]  # passes the items on, and may show progress


@dataclass(frozen=True)
class Benchmark:
    """The lists of a data set's folds, and the data set with its class areas if its masks are available."""

    fold_lists: tuple[FoldList, ...]
    dataset: Dataset | None = None
    areas: ClassAreas | None = None

    def fold_list(self, fold: int) -> FoldList:
        """Return the list of one fold."""
        for fold_list in self.fold_lists:
            if fold_list.fold == fold:
                return fold_list
        raise EmatError(
            "unknown-fold", f"there is no fold {fold}; the folds are {', '.join(str(x.fold) for x in self.fold_lists)}"
        )

    def sampler(self, fold: int, request: TaskRequest = TaskRequest()) -> TaskSampler:  # noqa: B008  # frozen
        """Return the tasks of one fold by the published protocol.

        If `request` names no theta, it is the published one. Other data sets get the lower quartile of their objects'
        sizes, which is how the published values were chosen.
        """
        fold_list = self.fold_list(fold)
        if fold_list.split not in ORDINARY_SPLITS and request.tasks is None:
            request = replace(request, tasks=size_split_tasks(self.fold_lists))
        if request.theta is None and self.areas is not None and fold_list.dataset not in THETA:
            request = replace(request, theta=quartile_theta(self.fold_lists, self.areas))
        return TaskSampler(fold_list, published_protocol(fold_list, request), self.areas)


def open_benchmark(
    dataset: str | None,
    lists: Path | None,
    data: Path | None,
    *,
    masks: Path | None = None,
    object_size: str | None = None,
    names: Path | None = None,
    folds: str | None = None,
    min_area: float = 0.0,
    only: Sequence[int] | None = None,
    watch: Watch = iter,
) -> Benchmark:
    """Open the benchmark of a data set, with fold lists from files or made from its masks.

    Args:
        dataset: A published name such as "pascal", or a layout such as "folder"; None recognises the layout.
        lists: The folder of the fold lists; None makes them from the masks at `data` (see `lists_from_masks`).
        data: The data set, photos and masks; or its photos, if `masks` are given.
        masks: A folder or zip of the masks, if they are not with the photos. Masks alone are enough to draw tasks.
        object_size: Keep only objects in this range of sizes, such as "0-5" percent of the photo.
        names: A file of the photos to use when lists are made, one name per line; None uses all photos.
        folds: The number of folds to make, or a file with the class names of one fold on each line.
        min_area: The fraction of a photo that a class must exceed to be put on a list that is made.
        only: Read only these folds, so that the files of others may be missing.
        watch: Is given the names of the masks that are read, and may show progress.

    Raises:
        EmatError: If there is neither a list nor a mask to draw tasks from, or one of them cannot be read.
    """
    if object_size is not None:
        parse_size(object_size)  # a mistake in it is reported before anything is opened
    if data is None:
        data, masks = masks, None  # masks alone are enough to draw tasks
    opened = None if data is None else open_dataset(data, _kind(dataset, lists), masks)
    if lists is not None:
        name = dataset or (opened.name if opened else None)
        if name is None:
            raise EmatError(
                "missing-option",
                "a folder of lists does not say which data set it is for; name it, for example --dataset pascal",
            )
        # The number of tasks of a size split depends on the lists of all its folds.
        return Benchmark(
            _read_lists(lists, name, object_size or "val", None if object_size else only), opened, _areas(opened)
        )
    if opened is None:
        raise EmatError(
            "missing-option",
            "tasks are drawn from fold lists or from masks; give --lists, or --data to make lists from its masks",
        )
    wanted = opened.names if names is None else _names_of(names, opened)
    fold_lists = tuple(lists_from_masks(opened, folds, min_area, lambda _: watch(wanted)))
    areas = _areas(opened)
    if object_size is not None and areas is not None:
        fold_lists = tuple(size_split(fold_list, areas, object_size) for fold_list in fold_lists)
    return Benchmark(fold_lists, opened, areas)


def _kind(dataset: str | None, lists: Path | None) -> str | None:
    """Return the layout that `dataset` names; when lists are given it may be the name of their data set instead."""
    return dataset if lists is None or dataset in LAYOUTS else None


def _areas(dataset: Dataset | None) -> ClassAreas | None:
    return None if dataset is None else dataset.class_areas()


def _read_lists(folder: Path, dataset: str, split: str, only: Sequence[int] | None) -> tuple[FoldList, ...]:
    if dataset in PUBLISHED_DATASETS:
        return load_split(folder, dataset, split, only)
    lists = tuple(fold_list for fold_list in fold_lists_in(folder, dataset) if fold_list.split == split)
    if not lists:
        raise EmatError(
            "no-such-list",
            f"{folder} has lists of {dataset}, but none for the split {split}; write them with emat data lists",
        )
    return lists


def _names_of(path: Path, dataset: Dataset) -> tuple[str, ...]:
    names = read_names(path)
    names_here = set(dataset.names)
    for name in names:
        if name not in names_here:
            raise dataset.unknown(name)
    return names


def parse_size(size: str) -> tuple[float, float]:
    """Return the fractions [low, high) for a range of object sizes in percent.

    >>> parse_size("5-10")
    (0.05, 0.1)
    """
    match = re.fullmatch(r"(\d+)-(\d+)", size)
    low, high = (int(match[1]), int(match[2])) if match else (0, 0)
    if not low < high <= 100:
        raise EmatError(
            "unclear-option",
            f"{size!r} is not a range of object sizes; write percent of the photo, such as {PUBLISHED_SIZES[0]}",
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
    return float(np.percentile(np.concatenate([object_sizes(fold_list, areas) for fold_list in fold_lists]), 25))
