"""Fold lists: which photos stand for which class in a fold of a data set.

Lists are read from files, or made from the masks of a data set, whose classes are divided into folds evenly or as the
user says. Class ids start at 1 as in the masks. The SHA-256 of a list is computed from its entries, so it is the same
in all file formats: the published `.txt` and `.pkl`, and emat's own `.list`.

The published layout is `pascal/val/fold0.txt` or `coco/trn/fold0.pkl`, with object-size splits in
`pascal/custom/0-5/`. A `.list` file may replace any of these files. Its header describes its content:

    # emat fold list 1
    # dataset: pascal
    # fold: 0
    # split: val
    # classes: 1 2 3 4 5
    # counts: 80 57 86 58 65
    # sha256: 5b0c...
    2007_000033<tab>1
    2007_000061<tab>4

The published lists of COCO are pickles. A pickle can run any program when it is loaded, so these files are read by an
unpickler that refuses to import anything, and the result may only consist of dict, list, str and int.
"""

import csv
import hashlib
import io
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from emat.datasets.dataset import Dataset
from emat.errors import EmatError
from emat.files import is_number, open_input, read_text
from emat.formats.class_names import VOID_NAME, tidy_name
from emat.outputs import write_text

PASCAL_CLASS_COUNT, COCO_CLASS_COUNT, FOLDS = 20, 80, 4
PUBLISHED_DATASETS = ("pascal", "coco")  # data sets with published folds
LIST_HEADER = "# emat fold list 1"
LIST_SUFFIX = ".list"
LIST_SUFFIXES = (LIST_SUFFIX, ".txt", ".pkl")
LIST_FILE = re.compile(r"fold(\d+)")
SIZE_RANGE = re.compile(r"\d+-\d+")
SPLIT_FOLDERS = {"trn": "train", "train": "train", "val": "val"}
SPLIT_ORDER = ("train", "val")  # size splits come after these
LARGEST_PICKLE = 256 * 1024 * 1024  # bytes; the largest published list has 3.3 million bytes
PLAIN_TYPES = (dict, list, str, int)
WAY_OUT = "only dict, list, str and int are read from a pickle"


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
                "unknown-class",
                f"{where} has class {min(strangers)}, which is not one of its classes {_spaced(self.class_ids)}; "
                "check the data set and the fold",
            )
        if len(set(self.entries)) != len(self.entries):
            (name, class_id), times = Counter(self.entries).most_common(1)[0]
            raise EmatError(
                "given-twice", f"{where} has {name} with class {class_id} {times} times; keep one of these entries"
            )
        for name in {name for name, _ in self.entries}:
            if not _is_safe_name(name):
                raise EmatError(
                    "path-leads-out", f"{where} has the name {name!r}; a name is a relative path without '..' or tabs"
                )

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
        return hashlib.sha256(_entry_lines(self.entries).encode()).hexdigest()


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
        raise EmatError("unknown-fold", f"{dataset} has folds 0 to {FOLDS - 1}, not {fold}")
    if dataset == "pascal":
        return even_folds(PASCAL_CLASS_COUNT, FOLDS)[fold]
    if dataset == "coco":
        return tuple(range(fold + 1, COCO_CLASS_COUNT + 1, FOLDS))
    raise EmatError(
        "unknown-fold", f"published folds are known for pascal and coco, not for {dataset}; make lists from its masks"
    )


def even_folds(classes: int, folds: int = FOLDS) -> tuple[tuple[int, ...], ...]:
    """Divide the class ids 1 to `classes` into `folds` consecutive ranges whose lengths differ by at most one.

    >>> even_folds(5, 2)
    ((1, 2, 3), (4, 5))
    """
    if not 1 <= folds <= classes:
        raise EmatError(
            "bad-number", f"{classes} classes cannot be divided into {folds} folds; choose 1 to {classes} folds"
        )
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


def _entry_lines(entries: Iterable[tuple[str, int]]) -> str:
    """Return the entries as lines of text. The SHA-256 of a list is computed from them."""
    return "".join(f"{name}\t{class_id}\n" for name, class_id in entries)


def _spaced(numbers: Iterable[int]) -> str:
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
            raise EmatError("no-classes", f"fold {fold} has no class; name at least one")
        for name in members:
            if name not in index:
                some = ", ".join(classes[:8]) + (" ..." if len(classes) > 8 else "")
                raise EmatError(
                    "unknown-class", f"fold {fold} has the class {name!r}, which is not in the data set; it has {some}"
                )
            if name in seen:
                raise EmatError(
                    "given-twice", f"the class {name!r} is in folds {seen[name]} and {fold}; leave it in one of them"
                )
            seen[name] = fold
    return tuple(tuple(sorted(index[name] for name in members)) for members in names)


def read_folds(path: Path, classes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Read the class indices of each fold from a text file: one fold on each line, class names separated by commas."""
    lines = [line.partition("#")[0].strip() for line in read_text(path).splitlines()]
    names = [[tidy_name(name) for name in line.split(",") if name.strip()] for line in lines if line]
    if not names:
        raise EmatError(
            "empty-list", f"{path} has no fold; write one fold on each line, class names separated by commas"
        )
    return folds_by_name(classes, names)


def split_evenly(classes: Sequence[str], folds: int) -> tuple[tuple[int, ...], ...]:
    """Divide the classes into `folds` consecutive parts whose lengths differ by at most one.

    >>> split_evenly(["ant", "bee", "cat"], 2)
    ((1, 2), (3,))
    """
    indices = [number for number, name in enumerate(classes, start=1) if name != VOID_NAME]
    return tuple(tuple(indices[number - 1] for number in fold) for fold in even_folds(len(indices), folds))


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
    return split_evenly(dataset.classes, int(folds)) if is_number(folds) else read_folds(Path(folds), dataset.classes)


@dataclass(frozen=True)
class PublishedList:
    """The numbers of entries and of different photos of a published list, and its `FoldList.sha256`."""

    entries: int
    photos: int
    sha256: str


def published_list(fold_list: FoldList) -> PublishedList | None:
    """Return the published list of the same data set, split and fold; None if the table does not have it."""
    return published_lists().get((fold_list.dataset, fold_list.split, fold_list.fold))


def equals_published(fold_list: FoldList) -> bool | None:
    """Whether the list has the same entries as the published one; None if the table does not have that."""
    published = published_list(fold_list)
    return None if published is None else published.sha256 == fold_list.sha256


@cache
def published_lists() -> Mapping[tuple[str, str, int], PublishedList]:
    """Return the published lists of PASCAL-5i and COCO-20i by data set, split and fold.

    With `published_lists.csv`, emat can tell whether a list is the published one without containing the lists. COCO's
    training lists of folds 1 to 3 are not in it.
    """
    text = (resources.files("emat.datasets") / "published_lists.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {
        (row["dataset"], row["split"], int(row["fold"])): PublishedList(
            int(row["entries"]), int(row["photos"]), row["sha256"]
        )
        for row in rows
    }


def read_fold_list(
    path: Path, dataset: str | None = None, fold: int | None = None, split: str | None = None
) -> FoldList:
    """Read a fold list in any of the three formats.

    Args:
        path: A `.txt`, `.pkl` or `.list` file.
        dataset: The data set. The published files do not contain their data set, fold and split. What is not given
            here is taken from the path.
        fold: The fold.
        split: "train", "val" or a range of object sizes such as "0-5".

    Returns:
        The fold list.

    Raises:
        EmatError: The file is damaged, or neither the arguments nor the path give its data set, fold and split.
    """
    if path.suffix not in LIST_SUFFIXES:
        raise EmatError("wrong-file-kind", f"{path} is not a fold list; lists end in {', '.join(LIST_SUFFIXES)}")
    text = "" if path.suffix == ".pkl" else read_text(path, LARGEST_PICKLE)
    if text.startswith(LIST_HEADER):
        return _parse_fold_list(text, path)
    dataset = dataset or next((part for part in reversed(path.parts) if part in PUBLISHED_DATASETS), None)
    match = LIST_FILE.fullmatch(path.stem)
    fold = int(match[1]) if fold is None and match else fold
    folder = path.parent.name
    split = split or SPLIT_FOLDERS.get(folder) or (folder if SIZE_RANGE.fullmatch(folder) else None)
    if dataset is None or fold is None or split is None:
        raise EmatError(
            "bad-file-name",
            f"{path} is a list of an unknown data set, fold or split; keep the layout pascal/val/fold0.txt",
        )
    entries = _pickled_entries(path) if path.suffix == ".pkl" else _text_entries(text, path)
    return FoldList(dataset, fold, split, entries, _class_ids(dataset, fold, split, entries))


def load_fold_list(folder: Path, dataset: str, fold: int, split: str = "val") -> FoldList:
    """Find the list of one fold below a folder and read it.

    Args:
        folder: The folder of all lists, or the folder of those of `dataset`.
        dataset: The name of the data set.
        fold: The fold.
        split: "train", "val" or a range of object sizes such as "0-5".

    Returns:
        The fold list.

    Raises:
        EmatError: There is no such list, or it is damaged.
    """
    splits = [name for name, meaning in SPLIT_FOLDERS.items() if meaning == split] or [f"custom/{split}", split]
    for root in (folder / dataset, folder):
        for name in splits:
            for suffix in LIST_SUFFIXES:
                path = root / name / f"fold{fold}{suffix}"
                if path.is_file():
                    return read_fold_list(path, dataset, fold, split)
    if not folder.is_dir():
        raise EmatError(
            "not-a-folder",
            f"{folder} is not a folder; give the one that has {dataset}/{splits[0]}/fold{fold}.txt or .pkl",
        )
    raise EmatError(
        "no-such-list",
        f"{folder} has no list of {dataset} fold {fold}, split {split}; "
        f"looked for {dataset}/{splits[0]}/fold{fold} with {', '.join(LIST_SUFFIXES)}",
    )


def find_fold_lists(folder: Path) -> Iterator[Path]:
    """Give the paths of all fold lists below `folder`, sorted."""
    for path in sorted(folder.rglob("fold*")):
        if path.suffix in LIST_SUFFIXES and LIST_FILE.fullmatch(path.stem) and path.is_file():
            yield path


def _text_entries(text: str, path: Path) -> tuple[tuple[str, int], ...]:
    entries = []
    for number, line in enumerate(text.splitlines(), start=1):
        name, _, class_id = line.strip().rpartition("__")
        if not name or not is_number(class_id):
            raise EmatError(
                "damaged-file", f"{path}, line {number}: {line[:80]!r} is not a name, two underscores and a class id"
            )
        entries.append((name, int(class_id)))
    return tuple(entries)


def _pickled_entries(path: Path) -> tuple[tuple[str, int], ...]:
    photos_of_class = read_plain_pickle(path)
    if not isinstance(photos_of_class, dict):
        raise EmatError(
            "damaged-file", f"{path} holds a {type(photos_of_class).__name__}, not class ids with photo names"
        )
    entries: list[tuple[str, int]] = []
    for class_id, names in photos_of_class.items():
        if not isinstance(class_id, int) or not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise EmatError("damaged-file", f"{path}: class {class_id!r} is not a number with a list of photo names")
        entries.extend((name, class_id + 1) for name in names)  # the pickles number classes from 0
    return tuple(entries)


def _class_ids(dataset: str, fold: int, split: str, entries: tuple[tuple[str, int], ...]) -> tuple[int, ...]:
    if dataset not in PUBLISHED_DATASETS:
        return tuple(sorted({class_id for _, class_id in entries}))
    test_classes = fold_classes(dataset, fold)
    if dataset == "coco" and split == "train":
        return tuple(class_id for class_id in range(1, COCO_CLASS_COUNT + 1) if class_id not in test_classes)
    return test_classes


def write_fold_list(fold_list: FoldList, path: Path) -> None:
    """Write a list to `path` in emat's own format, with its counts and SHA-256."""
    header = [
        LIST_HEADER,
        f"# dataset: {fold_list.dataset}",
        f"# fold: {fold_list.fold}",
        f"# split: {fold_list.split}",
        f"# classes: {_spaced(fold_list.class_ids)}",
        f"# counts: {_spaced(fold_list.counts.values())}",
        f"# sha256: {fold_list.sha256}",
    ]
    write_text(path, "\n".join(header) + "\n" + _entry_lines(fold_list.entries))


def _parse_fold_list(text: str, path: Path) -> FoldList:
    """Parse a list in emat's own format, from the file at `path`, and verify its counts and SHA-256."""
    lines = text.removesuffix("\n").split("\n")  # splitlines would also split at rare separators that names may contain
    header = dict(line[2:].split(": ", 1) for line in lines[1:7] if line.startswith("# ") and ": " in line)
    try:
        class_ids = tuple(int(word) for word in header["classes"].split())
        counts = [int(word) for word in header["counts"].split()]
        pairs = [line.rsplit("\t", 1) for line in lines[7:]]
        entries = tuple((name, int(class_id)) for name, class_id in pairs)
        fold_list = FoldList(header["dataset"], int(header["fold"]), header["split"], entries, class_ids)
        stated = header["sha256"]
    except (KeyError, ValueError):
        raise EmatError(
            "damaged-file", f"{path} is not a complete fold list: its header or a line is damaged; write it again"
        ) from None
    if list(fold_list.counts.values()) != counts or fold_list.sha256 != stated:
        raise EmatError(
            "changed-file",
            f"{path} was changed after it was written: its {len(entries)} entries hash to "
            f"{fold_list.sha256[:12]}..., its header says {stated[:12]}...; restore it or write it again",
        )
    return fold_list


def fold_lists_in(folder: Path, dataset: str | None = None) -> list[FoldList]:
    """Read all fold lists below a folder.

    Args:
        folder: The folder.
        dataset: Read only the lists of this data set.

    Returns:
        The lists, sorted by data set, split and fold.

    Raises:
        EmatError: There is no list, or one of them is damaged.
    """
    if not folder.is_dir():
        raise EmatError("not-a-folder", f"{folder} is not a folder; give the one that has the fold lists")
    lists = []
    for path in find_fold_lists(folder.resolve()):
        named = next((part for part in reversed(path.parts) if part in PUBLISHED_DATASETS), None)
        if path.suffix != LIST_SUFFIX and dataset and named and named != dataset:
            continue
        fold_list = read_fold_list(path, named or dataset)
        if dataset is None or fold_list.dataset == dataset:
            lists.append(fold_list)
    if not lists:
        what = f"of {dataset} " if dataset else ""
        raise EmatError(
            "no-such-list", f"{folder} has no fold lists {what}such as pascal/val/fold0.txt; check the folder"
        )
    return sorted(lists, key=_order)


def list_path(fold_list: FoldList) -> Path:
    """Return the path below the folder of lists at which `load_fold_list` finds this list."""
    split = fold_list.split if fold_list.split in SPLIT_ORDER else f"custom/{fold_list.split}"
    return Path(fold_list.dataset, split, f"fold{fold_list.fold}{LIST_SUFFIX}")


def _order(fold_list: FoldList) -> tuple[str, int, int, int, int]:
    split = fold_list.split
    if split in SPLIT_ORDER:
        return fold_list.dataset, SPLIT_ORDER.index(split), 0, 0, fold_list.fold
    low, _, high = split.partition("-")
    sizes = (int(high), -int(low)) if low.isdecimal() and high.isdecimal() else (0, 0)
    return fold_list.dataset, len(SPLIT_ORDER), *sizes, fold_list.fold


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that refuses everything that would import or call something."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise EmatError("unsafe-pickle", f"refers to {module_name}.{global_name}; {WAY_OUT}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise EmatError("unsafe-pickle", f"refers to an object outside itself; {WAY_OUT}")


def read_plain_pickle(path: Path) -> object:
    """Read a pickle that consists of dict, list, str and int only.

    Raises:
        EmatError: The file cannot be read, or has a value of another type at any depth.
    """
    with open_input(path) as file:
        content = file.read(LARGEST_PICKLE + 1)
    try:
        if len(content) > LARGEST_PICKLE:
            raise EmatError("file-too-large", f"has more than the {LARGEST_PICKLE} bytes that a fold list may have")
        value = _PlainUnpickler(io.BytesIO(content)).load()
        _refuse_other_types(value)
    except EmatError as error:
        raise EmatError(error.code, f"{path} {error}") from None
    except Exception as error:  # a damaged pickle can raise almost any error
        raise EmatError(
            "damaged-file", f"{path} is not a readable pickle ({type(error).__name__}); fetch the list again"
        ) from None
    return value


def _refuse_other_types(value: object) -> None:
    # Each container is visited once, because a malicious pickle may contain one a billion times, or inside itself.
    seen: set[int] = set()
    pending = [value]
    while pending:
        item = pending.pop()
        if type(item) not in PLAIN_TYPES:
            raise EmatError("unsafe-pickle", f"holds a {type(item).__name__}; {WAY_OUT}")
        if isinstance(item, (dict, list)) and id(item) not in seen:
            seen.add(id(item))
            pending.extend(item)
            if isinstance(item, dict):
                pending.extend(item.values())
