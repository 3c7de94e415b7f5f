"""All the fold lists of a folder, or all that a data set's masks give."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from emat.datasets.circulated_lists import DATASETS, find_fold_lists, read_fold_list
from emat.datasets.class_areas import ClassAreas
from emat.datasets.dataset import Dataset
from emat.datasets.fold_lists import FOLDS, SUFFIX, FoldList, fold_classes, fold_list_from_areas
from emat.datasets.folds import read_folds, split_evenly
from emat.errors import EmatError

SPLIT_ORDER = ("train", "val")  # size splits follow


def fold_lists_in(folder: Path, dataset: str | None = None) -> list[FoldList]:
    """Every fold list below `folder`, or those of `dataset` alone, by data set, split and fold."""
    if not folder.is_dir():
        raise EmatError(f"{folder} is no folder; give the one that holds the fold lists")
    found = []
    for path in find_fold_lists(folder.resolve()):
        named = next((part for part in reversed(path.parts) if part in DATASETS), None)
        if path.suffix != SUFFIX and dataset and named and named != dataset:
            continue
        fold_list = read_fold_list(path, named or dataset)
        if dataset is None or fold_list.dataset == dataset:
            found.append(fold_list)
    if not found:
        what = f"of {dataset} " if dataset else ""
        raise EmatError(f"{folder} holds no fold lists {what}such as pascal/val/fold0.txt; check the folder")
    return sorted(found, key=_order)


def lists_from_masks(
    dataset: Dataset,
    folds: str | None = None,
    min_area: float = 0.0,
    follow: Callable[[Sequence[str]], Iterable[str]] = iter,
) -> list[FoldList]:
    """A list for each fold, of all photos in whose masks a class covers more than the fraction `min_area`.

    `folds` is a number or a folds file; without it PASCAL and COCO have their published folds, others four
    even ones.
    """
    areas = ClassAreas.of_source(dataset.mask, dataset.root)
    counted = list(areas.of(follow(dataset.names)))
    areas.keep()
    return [
        fold_list_from_areas(dataset.name, fold, "val", class_ids, counted, min_area)
        for fold, class_ids in enumerate(_folds(dataset, folds))
    ]


def place_of(fold_list: FoldList) -> Path:
    """Where a written list goes below its folder, so that it is found again by data set, split and fold."""
    split = fold_list.split if fold_list.split in SPLIT_ORDER else f"custom/{fold_list.split}"
    return Path(fold_list.dataset, split, f"fold{fold_list.fold}{SUFFIX}")


def _folds(dataset: Dataset, folds: str | None) -> tuple[tuple[int, ...], ...]:
    if folds is None and dataset.name in DATASETS:
        return tuple(fold_classes(dataset.name, fold) for fold in range(FOLDS))
    if folds is None:
        return split_evenly(dataset.classes, min(FOLDS, len(dataset.classes)))
    return split_evenly(dataset.classes, int(folds)) if folds.isdecimal() else read_folds(Path(folds), dataset.classes)


def _order(fold_list: FoldList) -> tuple[str, int, int, int, int]:
    split = fold_list.split
    if split in SPLIT_ORDER:
        return fold_list.dataset, SPLIT_ORDER.index(split), 0, 0, fold_list.fold
    low, _, high = split.partition("-")
    sizes = (int(high), -int(low)) if low.isdecimal() and high.isdecimal() else (0, 0)
    return fold_list.dataset, len(SPLIT_ORDER), *sizes, fold_list.fold
