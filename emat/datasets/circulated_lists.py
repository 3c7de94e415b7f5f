"""Reading fold lists from files: the `.txt` and `.pkl` that circulate, and our own `.list`.

The circulated layout is `pascal/val/fold0.txt` or `coco/trn/fold0.pkl`, with object-size splits under
`pascal/custom/0-5/`. Our own lists may replace any of these files.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from emat.datasets.fold_lists import (
    COCO_CLASSES,
    FIRST_LINE,
    SUFFIX,
    FoldList,
    fold_classes,
    parse_fold_list,
)
from emat.datasets.published_lists import PUBLISHED_LISTS, PublishedList
from emat.datasets.safe_pickle import read_plain_pickle
from emat.errors import EmatError

SUFFIXES = (SUFFIX, ".txt", ".pkl")
FILE_NAME = re.compile(r"fold(\d+)")
SIZE_RANGE = re.compile(r"\d+-\d+")
SPLIT_FOLDERS = {"trn": "train", "train": "train", "val": "val"}
DATASETS = ("pascal", "coco")


def read_fold_list(
    path: Path, dataset: str | None = None, fold: int | None = None, split: str | None = None
) -> FoldList:
    """The list in `path`, in any of the three formats.

    Circulated files do not say what they are: what is not given is taken from the names of the folders above.
    """
    if path.suffix not in SUFFIXES:
        raise EmatError(f"{path} is no fold list; lists end in {', '.join(SUFFIXES)}")
    text = "" if path.suffix == ".pkl" else _read_text(path)
    if text.startswith(FIRST_LINE):
        return parse_fold_list(text, path)
    dataset = dataset or next((part for part in reversed(path.parts) if part in DATASETS), None)
    match = FILE_NAME.fullmatch(path.stem)
    fold = int(match[1]) if fold is None and match else fold
    split = split or _split_of_folder(path.parent.name)
    if dataset is None or fold is None or split is None:
        raise EmatError(f"{path} does not tell its data set, fold and split; keep the layout pascal/val/fold0.txt")
    entries = _pickled_entries(path) if path.suffix == ".pkl" else _text_entries(text, path)
    return FoldList(dataset, fold, split, entries, _class_ids(dataset, fold, split, entries))


def load_fold_list(folder: Path, dataset: str, fold: int, split: str = "val") -> FoldList:
    """The list of one fold under `folder`; `split` is "train", "val" or a size range such as "0-5"."""
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
        raise EmatError(f"{folder} is no folder; give the one that holds {dataset}/{splits[0]}/fold{fold}.txt or .pkl")
    raise EmatError(
        f"{folder} holds no list of {dataset} fold {fold}, split {split}; "
        f"looked for {dataset}/{splits[0]}/fold{fold} with {', '.join(SUFFIXES)}"
    )


def find_fold_lists(folder: Path) -> Iterator[Path]:
    """Every fold list under `folder`, in the order of their paths."""
    for path in sorted(folder.rglob("fold*")):
        if path.suffix in SUFFIXES and FILE_NAME.fullmatch(path.stem) and path.is_file():
            yield path


def published_list(fold_list: FoldList) -> PublishedList | None:
    """What was published for this data set, split and fold; None where nothing is on record."""
    return PUBLISHED_LISTS.get((fold_list.dataset, fold_list.split, fold_list.fold))


def equals_published(fold_list: FoldList) -> bool | None:
    """Whether the list is the published one, entry by entry; None where nothing is on record."""
    published = published_list(fold_list)
    return None if published is None else published.sha256 == fold_list.sha256


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise EmatError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise EmatError(f"{path} is no text; a fold list has lines such as 2007_000033__01") from None


def _text_entries(text: str, path: Path) -> tuple[tuple[str, int], ...]:
    entries = []
    for number, line in enumerate(text.splitlines(), start=1):
        name, _, class_id = line.strip().rpartition("__")
        if not name or not class_id.isdecimal():
            raise EmatError(f"{path}, line {number}: {line[:80]!r} is not a name, two underscores and a class id")
        entries.append((name, int(class_id)))
    return tuple(entries)


def _pickled_entries(path: Path) -> tuple[tuple[str, int], ...]:
    images_of_class = read_plain_pickle(path)
    if not isinstance(images_of_class, dict):
        raise EmatError(f"{path} holds a {type(images_of_class).__name__}, not class ids with their image names")
    entries: list[tuple[str, int]] = []
    for class_id, names in images_of_class.items():
        if not isinstance(class_id, int) or not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise EmatError(f"{path}: class {class_id!r} is not a number with a list of image names")
        entries.extend((name, class_id + 1) for name in names)  # the pickles count classes from 0
    return tuple(entries)


def _split_of_folder(name: str) -> str | None:
    return SPLIT_FOLDERS.get(name) or (name if SIZE_RANGE.fullmatch(name) else None)


def _class_ids(dataset: str, fold: int, split: str, entries: tuple[tuple[str, int], ...]) -> tuple[int, ...]:
    if dataset not in DATASETS:
        return tuple(sorted({class_id for _, class_id in entries}))
    test_classes = fold_classes(dataset, fold)
    if dataset == "coco" and split == "train":
        return tuple(class_id for class_id in range(1, COCO_CLASSES + 1) if class_id not in test_classes)
    return test_classes
