"""Reading and writing files of fold lists: the published `.txt` and `.pkl`, and emat's own `.list`.

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

import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from emat.datasets.fold_lists import COCO_CLASS_COUNT, PUBLISHED_DATASETS, FoldList, entry_lines, fold_classes, spaced
from emat.errors import EmatError
from emat.files import read_text, write_text

FIRST_LINE = "# emat fold list 1"
SUFFIX = ".list"
SUFFIXES = (SUFFIX, ".txt", ".pkl")
FILE_NAME = re.compile(r"fold(\d+)")
SIZE_RANGE = re.compile(r"\d+-\d+")
SPLIT_FOLDERS = {"trn": "train", "train": "train", "val": "val"}
SPLIT_ORDER = ("train", "val")  # size splits come after these
LARGEST_PICKLE = 256 * 1024 * 1024  # bytes; the largest published list has 3.3 million bytes
PLAIN_TYPES = (dict, list, str, int)
WAY_OUT = "only dict, list, str and int are read from a pickle"


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
    if path.suffix not in SUFFIXES:
        raise EmatError(f"{path} is not a fold list; lists end in {', '.join(SUFFIXES)}")
    text = "" if path.suffix == ".pkl" else read_text(path)
    if text.startswith(FIRST_LINE):
        return parse_fold_list(text, path)
    dataset = dataset or next((part for part in reversed(path.parts) if part in PUBLISHED_DATASETS), None)
    match = FILE_NAME.fullmatch(path.stem)
    fold = int(match[1]) if fold is None and match else fold
    split = split or _split_of_folder(path.parent.name)
    if dataset is None or fold is None or split is None:
        raise EmatError(f"{path} is a list of an unknown data set, fold or split; keep the layout pascal/val/fold0.txt")
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
    splits = [name for name, meaning in SPLIT_FOLDERS.items() if meaning == split] or [
        f"custom/{split}",
        split,
    ]
    for root in (folder / dataset, folder):
        for name in splits:
            for suffix in SUFFIXES:
                path = root / name / f"fold{fold}{suffix}"
                if path.is_file():
                    return read_fold_list(path, dataset, fold, split)
    if not folder.is_dir():
        raise EmatError(f"{folder} is not a folder; give the one that has {dataset}/{splits[0]}/fold{fold}.txt or .pkl")
    raise EmatError(
        f"{folder} has no list of {dataset} fold {fold}, split {split}; "
        f"looked for {dataset}/{splits[0]}/fold{fold} with {', '.join(SUFFIXES)}"
    )


def find_fold_lists(folder: Path) -> Iterator[Path]:
    """Give the paths of all fold lists below `folder`, sorted."""
    for path in sorted(folder.rglob("fold*")):
        if path.suffix in SUFFIXES and FILE_NAME.fullmatch(path.stem) and path.is_file():
            yield path


def _text_entries(text: str, path: Path) -> tuple[tuple[str, int], ...]:
    entries = []
    for number, line in enumerate(text.splitlines(), start=1):
        name, _, class_id = line.strip().rpartition("__")
        if not name or not class_id.isdecimal():
            raise EmatError(f"{path}, line {number}: {line[:80]!r} is not a name, two underscores and a class id")
        entries.append((name, int(class_id)))
    return tuple(entries)


def _pickled_entries(path: Path) -> tuple[tuple[str, int], ...]:
    photos_of_class = read_plain_pickle(path)
    if not isinstance(photos_of_class, dict):
        raise EmatError(f"{path} holds a {type(photos_of_class).__name__}, not class ids with photo names")
    entries: list[tuple[str, int]] = []
    for class_id, names in photos_of_class.items():
        if not isinstance(class_id, int) or not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise EmatError(f"{path}: class {class_id!r} is not a number with a list of photo names")
        entries.extend((name, class_id + 1) for name in names)  # the pickles number classes from 0
    return tuple(entries)


def _split_of_folder(name: str) -> str | None:
    return SPLIT_FOLDERS.get(name) or (name if SIZE_RANGE.fullmatch(name) else None)


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
        FIRST_LINE,
        f"# dataset: {fold_list.dataset}",
        f"# fold: {fold_list.fold}",
        f"# split: {fold_list.split}",
        f"# classes: {spaced(fold_list.class_ids)}",
        f"# counts: {spaced(fold_list.counts.values())}",
        f"# sha256: {fold_list.sha256}",
    ]
    write_text(path, "\n".join(header) + "\n" + entry_lines(fold_list.entries))


def parse_fold_list(text: str, path: Path) -> FoldList:
    """Parse a list in emat's own format and verify its counts and SHA-256.

    Args:
        text: The content of the file.
        path: The path of the file, for messages.

    Returns:
        The fold list.

    Raises:
        EmatError: The text is not complete, or was changed after it was written.
    """
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
            f"{path} is not a complete fold list: its header or a line is damaged; write it again"
        ) from None
    if list(fold_list.counts.values()) != counts or fold_list.sha256 != stated:
        raise EmatError(
            f"{path} was changed after it was written: its {len(entries)} entries hash to "
            f"{fold_list.sha256[:12]}..., its header says {stated[:12]}...; restore it or write it again"
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
        raise EmatError(f"{folder} is not a folder; give the one that has the fold lists")
    found = []
    for path in find_fold_lists(folder.resolve()):
        named = next((part for part in reversed(path.parts) if part in PUBLISHED_DATASETS), None)
        if path.suffix != SUFFIX and dataset and named and named != dataset:
            continue
        fold_list = read_fold_list(path, named or dataset)
        if dataset is None or fold_list.dataset == dataset:
            found.append(fold_list)
    if not found:
        what = f"of {dataset} " if dataset else ""
        raise EmatError(f"{folder} has no fold lists {what}such as pascal/val/fold0.txt; check the folder")
    return sorted(found, key=_order)


def list_path(fold_list: FoldList) -> Path:
    """Return the path below the folder of lists at which `load_fold_list` finds this list."""
    split = fold_list.split if fold_list.split in SPLIT_ORDER else f"custom/{fold_list.split}"
    return Path(fold_list.dataset, split, f"fold{fold_list.fold}{SUFFIX}")


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
        raise EmatError(f"refers to {module_name}.{global_name}; {WAY_OUT}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise EmatError(f"refers to an object outside itself; {WAY_OUT}")


def read_plain_pickle(path: Path) -> object:
    """Read a pickle that consists of dict, list, str and int only.

    Raises:
        EmatError: The file cannot be read, or has a value of another type at any depth.
    """
    try:
        size = path.stat().st_size
        if size > LARGEST_PICKLE:
            raise EmatError(f"has {size} bytes, more than the {LARGEST_PICKLE} that a fold list may have")
        with path.open("rb") as file:
            value = _PlainUnpickler(file).load()
        _refuse_other_types(value)
    except EmatError as error:
        raise EmatError(f"{path} {error}") from None
    except OSError as error:
        raise EmatError(f"{path} cannot be read: {error.strerror}") from None
    except Exception as error:  # a damaged pickle can raise almost any error
        raise EmatError(f"{path} is not a readable pickle ({type(error).__name__}); fetch the list again") from None
    return value


def _refuse_other_types(value: object) -> None:
    # Each container is visited once, because a malicious pickle may contain one a billion times, or inside itself.
    seen: set[int] = set()
    pending = [value]
    while pending:
        item = pending.pop()
        if type(item) not in PLAIN_TYPES:
            raise EmatError(f"holds a {type(item).__name__}; {WAY_OUT}")
        if isinstance(item, (dict, list)) and id(item) not in seen:
            seen.add(id(item))
            pending.extend(item)
            if isinstance(item, dict):
                pending.extend(item.values())
