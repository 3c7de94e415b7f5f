"""Fold lists: which images, for which class, make up a fold of a data set.

Class ids count from 1 as in the masks, whatever a file's own habit is. The SHA-256 of a list is taken
from its entries, not from the bytes of a file, so a list has one hash as `.txt`, as `.pkl` and in our own
format:

    # emat fold list 1
    # dataset: pascal
    # fold: 0
    # split: val
    # classes: 1 2 3 4 5
    # counts: 80 57 86 58 65
    # sha256: 5b0c...
    2007_000033<tab>1
    2007_000061<tab>4
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from emat.errors import EmatError
from emat.formats.whole_files import write_text

FIRST_LINE = "# emat fold list 1"
SUFFIX = ".list"
PASCAL_CLASSES, COCO_CLASSES, FOLDS = 20, 80, 4


@dataclass(frozen=True)
class FoldList:
    """The (image name, class id) pairs of one fold, in the order of its file.

    `split` is "train", "val" or a range of object sizes such as "0-5". The training lists that circulate
    differ: PASCAL's `fold0` holds the classes of fold 0, COCO's those of the three other folds; `class_ids`
    says which.

    >>> animals = FoldList("pets", 0, "val", (("a", 1), ("b", 2), ("c", 1)), (1, 2))
    >>> animals.images_of_class[1]
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
                f"{where} holds class {min(strangers)}, none of its classes {_spaced(self.class_ids)}; "
                "check that the file is the fold and data set asked for"
            )
        if len(set(self.entries)) != len(self.entries):
            (name, class_id), times = Counter(self.entries).most_common(1)[0]
            raise EmatError(f"{where} holds {name} with class {class_id} {times} times; keep one of them")
        for name in {name for name, _ in self.entries}:
            if not _is_safe_name(name):
                raise EmatError(f"{where} holds the name {name!r}; a name is a relative path without '..' or tabs")

    @cached_property
    def images_of_class(self) -> Mapping[int, tuple[str, ...]]:
        """Image names of every class id, in the order of the file; empty for a class without images."""
        images: dict[int, list[str]] = {class_id: [] for class_id in self.class_ids}
        for name, class_id in self.entries:
            images[class_id].append(name)
        return {class_id: tuple(names) for class_id, names in images.items()}

    @property
    def counts(self) -> dict[int, int]:
        """Number of entries of every class id."""
        return {class_id: len(names) for class_id, names in self.images_of_class.items()}

    @property
    def images(self) -> int:
        """Number of different images."""
        return len({name for name, _ in self.entries})

    @cached_property
    def sha256(self) -> str:
        """Hash of the entries in their order, the same for every file format."""
        return hashlib.sha256(_lines(self.entries).encode()).hexdigest()


def fold_classes(dataset: str, fold: int) -> tuple[int, ...]:
    """Test classes of a fold of "pascal" (five neighbours) or "coco" (every fourth).

    >>> fold_classes("pascal", 1)
    (6, 7, 8, 9, 10)
    >>> fold_classes("coco", 1)[:4]
    (2, 6, 10, 14)
    """
    if not 0 <= fold < FOLDS:
        raise EmatError(f"{dataset} has folds 0 to {FOLDS - 1}, not {fold}")
    if dataset == "pascal":
        return even_folds(PASCAL_CLASSES, FOLDS)[fold]
    if dataset == "coco":
        return tuple(range(fold + 1, COCO_CLASSES + 1, FOLDS))
    raise EmatError(f"published folds are known for pascal and coco, not for {dataset}; make lists from its masks")


def even_folds(classes: int, folds: int = FOLDS) -> tuple[tuple[int, ...], ...]:
    """Class ids 1 to `classes` cut into `folds` runs whose lengths differ by one at most.

    >>> even_folds(5, 2)
    ((1, 2, 3), (4, 5))
    """
    if not 1 <= folds <= classes:
        raise EmatError(f"{classes} classes cannot be cut into {folds} folds; ask for 1 to {classes}")
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
    """A list made from masks: an image stands for each class that covers more than `minimum_area` of it.

    `areas` gives each image's name and the fraction of it that every class covers. Which images it gives
    decides what is training and what is validation.

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


def write_fold_list(fold_list: FoldList, path: Path) -> None:
    """Write `fold_list` to `path` in our own format, with its counts and SHA-256."""
    header = [
        FIRST_LINE,
        f"# dataset: {fold_list.dataset}",
        f"# fold: {fold_list.fold}",
        f"# split: {fold_list.split}",
        f"# classes: {_spaced(fold_list.class_ids)}",
        f"# counts: {_spaced(fold_list.counts.values())}",
        f"# sha256: {fold_list.sha256}",
    ]
    write_text(path, "\n".join(header) + "\n" + _lines(fold_list.entries))


def parse_fold_list(text: str, path: Path) -> FoldList:
    """The list in `text`, in our own format, its counts and SHA-256 verified; `path` is named in messages."""
    lines = text.removesuffix("\n").split("\n")  # splitlines would break names at exotic separators
    header = dict(line[2:].split(": ", 1) for line in lines[1:7] if line.startswith("# ") and ": " in line)
    try:
        class_ids = tuple(int(word) for word in header["classes"].split())
        counts = [int(word) for word in header["counts"].split()]
        pairs = [line.rsplit("\t", 1) for line in lines[7:]]
        entries = tuple((name, int(class_id)) for name, class_id in pairs)
        fold_list = FoldList(header["dataset"], int(header["fold"]), header["split"], entries, class_ids)
        stated = header["sha256"]
    except (KeyError, ValueError):
        raise EmatError(f"{path} is no complete fold list: its header or a line is damaged; write it again") from None
    if list(fold_list.counts.values()) != counts or fold_list.sha256 != stated:
        raise EmatError(
            f"{path} was changed after it was written: its {len(entries)} entries hash to "
            f"{fold_list.sha256[:12]}..., its header says {stated[:12]}...; restore it or write it again"
        )
    return fold_list


def _lines(entries: Iterable[tuple[str, int]]) -> str:
    return "".join(f"{name}\t{class_id}\n" for name, class_id in entries)


def _spaced(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers))


def _is_safe_name(name: str) -> bool:
    parts = name.split("/")
    return bool(name) and ".." not in parts and parts[0] != "" and not any(c in name for c in "\\\t\r\n\0")
