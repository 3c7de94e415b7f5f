"""Fold lists: which photos stand for which class in a fold of a data set.

Lists are read from files by `fold_files`, or made here from the masks of a data set, whose classes are divided into
folds evenly or as the user says. Class ids start at 1 as in the masks. The SHA-256 of a list is computed from its
entries, so it is the same in all file formats.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from emat.datasets.dataset import Dataset
from emat.errors import EmatError
from emat.files import read_text
from emat.formats.class_names import VOID_NAME

PASCAL_CLASS_COUNT, COCO_CLASS_COUNT, FOLDS = 20, 80, 4
PUBLISHED_DATASETS = ("pascal", "coco")  # data sets with published folds


@dataclass(frozen=True)
class FoldList:
    """The photos of one fold, each with the class that it stands for.

    The published training lists differ: the list `fold0` of PASCAL has the classes of fold 0, that of COCO has the
    classes of the three other folds. `class_ids` says which classes a list has.

    Attributes:
        dataset: The name of the data set.
        fold: The fold, from 0.
        split: "train", "val" or a range of object sizes such as "0-5".
        entries: Pairs of photo name and class id, in the order of the file.
        class_ids: The classes of the list; one without photos may be among them.

    Raises:
        EmatError: An entry has another class, occurs twice, or has a name that is not a relative path.

    >>> animals = FoldList("pets", 0, "val", (("a", 1), ("b", 2), ("c", 1)), (1, 2))
    >>> animals.photos_of_class[1]
    ('a', 'c')
    >>> animals.counts
    {1: 2, 2: 1}
    """

    dataset: str
    fold: int
    split: str
    entries: tuple[tuple[str, int], ...]
    class_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        where = f"the {self.split} list of {self.dataset} fold {self.fold}"
        strangers = {class_id for _, class_id in self.entries} - set(self.class_ids)
        if strangers:
            raise EmatError(
                f"{where} has class {min(strangers)}, which is not one of its classes {spaced(self.class_ids)}; "
                "check the data set and the fold"
            )
        if len(set(self.entries)) != len(self.entries):
            (name, class_id), times = Counter(self.entries).most_common(1)[0]
            raise EmatError(f"{where} has {name} with class {class_id} {times} times; keep one of these entries")
        for name in {name for name, _ in self.entries}:
            if not _is_safe_name(name):
                raise EmatError(f"{where} has the name {name!r}; a name is a relative path without '..' or tabs")

    @cached_property
    def photos_of_class(self) -> Mapping[int, tuple[str, ...]]:
        """The photo names of every class id, in the order of the file; empty for a class without photos."""
        names_of: dict[int, list[str]] = {class_id: [] for class_id in self.class_ids}
        for name, class_id in self.entries:
            names_of[class_id].append(name)
        return {class_id: tuple(names) for class_id, names in names_of.items()}

    @property
    def counts(self) -> dict[int, int]:
        """The number of entries of every class id."""
        return {class_id: len(names) for class_id, names in self.photos_of_class.items()}

    @property
    def photos(self) -> int:
        """The number of different photos."""
        return len({name for name, _ in self.entries})

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the entries in their order, the same for every file format."""
        return hashlib.sha256(entry_lines(self.entries).encode()).hexdigest()


def fold_classes(dataset: str, fold: int) -> tuple[int, ...]:
    """Return the test classes of a published fold: five consecutive ones of "pascal", every fourth of "coco".

    Args:
        dataset: "pascal" or "coco".
        fold: The fold, 0 to 3.

    Raises:
        EmatError: There is no such fold, or the data set has no published folds.

    >>> fold_classes("pascal", 1)
    (6, 7, 8, 9, 10)
    >>> fold_classes("coco", 1)[:4]
    (2, 6, 10, 14)
    """
    if not 0 <= fold < FOLDS:
        raise EmatError(f"{dataset} has folds 0 to {FOLDS - 1}, not {fold}")
    if dataset == "pascal":
        return even_folds(PASCAL_CLASS_COUNT, FOLDS)[fold]
    if dataset == "coco":
        return tuple(range(fold + 1, COCO_CLASS_COUNT + 1, FOLDS))
    raise EmatError(f"published folds are known for pascal and coco, not for {dataset}; make lists from its masks")


def even_folds(classes: int, folds: int = FOLDS) -> tuple[tuple[int, ...], ...]:
    """Divide the class ids 1 to `classes` into `folds` consecutive ranges whose lengths differ by at most one.

    >>> even_folds(5, 2)
    ((1, 2, 3), (4, 5))
    """
    if not 1 <= folds <= classes:
        raise EmatError(f"{classes} classes cannot be divided into {folds} folds; choose 1 to {classes} folds")
    short, longer = divmod(classes, folds)
    starts = [fold * short + min(fold, longer) + 1 for fold in range(folds + 1)]
    return tuple(tuple(range(start, end)) for start, end in pairwise(starts))


def fold_list_from_areas(
    dataset: str,
    fold: int,
    split: str,
    class_ids: Sequence[int],
    areas: Iterable[tuple[str, Mapping[int, float]]],
    minimum_area: float = 0.0,
) -> FoldList:
    """Make a fold list from the areas of classes in masks.

    Args:
        dataset: The name of the data set.
        fold: The fold.
        split: The name of the split.
        class_ids: The classes of the fold.
        areas: The names of photos, each with the fraction of the photo that every class covers.
        minimum_area: A photo stands for each class that covers more than this fraction of it.

    Returns:
        The fold list.

    >>> areas = [("a", {1: 0.2, 2: 0.001}), ("b", {2: 0.4, 3: 0.1})]
    >>> fold_list_from_areas("pets", 0, "val", [1, 2], areas, minimum_area=0.01).entries
    (('a', 1), ('b', 2))
    """
    wanted = sorted(class_ids)
    entries = [
        (name, class_id)
        for name, fractions in areas
        for class_id in wanted
        if fractions.get(class_id, 0.0) > minimum_area
    ]
    return FoldList(dataset, fold, split, tuple(entries), tuple(wanted))


def entry_lines(entries: Iterable[tuple[str, int]]) -> str:
    """Return the entries as lines of text. The SHA-256 of a list is computed from them."""
    return "".join(f"{name}\t{class_id}\n" for name, class_id in entries)


def spaced(numbers: Iterable[int]) -> str:
    """Return the numbers as text, separated by spaces."""
    return " ".join(map(str, numbers))


def _is_safe_name(name: str) -> bool:
    parts = name.split("/")
    return bool(name) and ".." not in parts and parts[0] != "" and not any(c in name for c in "\\\t\r\n\0")


def folds_by_name(classes: Sequence[str], names: Sequence[Sequence[str]]) -> tuple[tuple[int, ...], ...]:
    """Return the class indices of each fold, given the names of its classes.

    Args:
        classes: The names of all classes, in the order of their indices.
        names: The names of the classes of each fold.

    Raises:
        EmatError: A fold is empty, a name is unknown, or a class is in two folds.

    >>> folds_by_name(["ant", "bee", "cat"], [["cat"], ["ant", "bee"]])
    ((3,), (1, 2))
    """
    index = {name: number for number, name in enumerate(classes, start=1) if name != VOID_NAME}
    seen: dict[str, int] = {}
    for fold, members in enumerate(names):
        if not members:
            raise EmatError(f"fold {fold} has no class; name at least one")
        for name in members:
            if name not in index:
                raise EmatError(
                    f"fold {fold} has the class {name!r}, which is not in the data set; it has {_some(classes)}"
                )
            if name in seen:
                raise EmatError(f"the class {name!r} is in folds {seen[name]} and {fold}; leave it in one of them")
            seen[name] = fold
    return tuple(tuple(sorted(index[name] for name in members)) for members in names)


def read_folds(path: Path, classes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Read the class indices of each fold from a text file: one fold on each line, class names separated by commas."""
    lines = [line.partition("#")[0].strip() for line in read_text(path).splitlines()]
    names = [[name.strip() for name in line.split(",") if name.strip()] for line in lines if line]
    if not names:
        raise EmatError(f"{path} has no fold; write one fold on each line, class names separated by commas")
    return folds_by_name(classes, names)


def split_evenly(classes: Sequence[str], folds: int) -> tuple[tuple[int, ...], ...]:
    """Divide the classes into `folds` consecutive parts whose lengths differ by at most one.

    >>> split_evenly(["ant", "bee", "cat"], 2)
    ((1, 2), (3,))
    """
    indices = [number for number, name in enumerate(classes, start=1) if name != VOID_NAME]
    return tuple(tuple(indices[number - 1] for number in fold) for fold in even_folds(len(indices), folds))


def _some(classes: Sequence[str]) -> str:
    return ", ".join(classes[:8]) + (" ..." if len(classes) > 8 else "")


def lists_from_masks(
    dataset: Dataset,
    folds: str | None = None,
    min_area: float = 0.0,
    follow: Callable[[Sequence[str]], Iterable[str]] = iter,
) -> list[FoldList]:
    """Make a list for each fold from the masks of a data set.

    Args:
        dataset: The data set.
        folds: The number of folds, or the path of a file that `read_folds` reads. If not given, PASCAL and COCO have
            their published folds, and other data sets four even ones.
        min_area: A photo stands for each class that covers more than this fraction of it.
        follow: Passes on the names of photos while their masks are read, for showing progress.

    Returns:
        A list for each fold, with the split "val".

    Raises:
        EmatError: The folds do not fit the classes of the data set, or a mask cannot be read.
    """
    areas = dataset.class_areas()
    counted = list(areas.of(follow(dataset.names)))
    areas.keep()
    return [
        fold_list_from_areas(dataset.name, fold, "val", class_ids, counted, min_area)
        for fold, class_ids in enumerate(_folds(dataset, folds))
    ]


def _folds(dataset: Dataset, folds: str | None) -> tuple[tuple[int, ...], ...]:
    if folds is None and dataset.name in PUBLISHED_DATASETS:
        return tuple(fold_classes(dataset.name, fold) for fold in range(FOLDS))
    if folds is None:
        return split_evenly(dataset.classes, min(FOLDS, len(dataset.classes)))
    return split_evenly(dataset.classes, int(folds)) if folds.isdecimal() else read_folds(Path(folds), dataset.classes)
