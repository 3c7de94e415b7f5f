"""Folds of a data set's classes, given by the user or made by cutting the class list evenly.

A folds file has one fold a line, its class names separated by commas; `#` starts a remark.
"""

from collections.abc import Sequence
from pathlib import Path

from emat.datasets.fold_lists import even_folds
from emat.errors import EmatError
from emat.formats.class_names import VOID_NAME
from emat.formats.whole_files import read_text


def folds_by_name(classes: Sequence[str], names: Sequence[Sequence[str]]) -> tuple[tuple[int, ...], ...]:
    """Class indices of each fold from class names; a class is in one fold at most.

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
                    f"fold {fold} has the class {name!r}, which the data set lacks; it has {_some(classes)}"
                )
            if name in seen:
                raise EmatError(f"the class {name!r} is in folds {seen[name]} and {fold}; leave it in one of them")
            seen[name] = fold
    return tuple(tuple(sorted(index[name] for name in members)) for members in names)


def read_folds(path: Path, classes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Class indices of each fold from a file of class names."""
    lines = [line.partition("#")[0].strip() for line in read_text(path).splitlines()]
    names = [[name.strip() for name in line.split(",") if name.strip()] for line in lines if line]
    if not names:
        raise EmatError(f"{path} has no fold; write one fold a line, class names separated by commas")
    return folds_by_name(classes, names)


def split_evenly(classes: Sequence[str], folds: int) -> tuple[tuple[int, ...], ...]:
    """The class list cut into `folds` runs of neighbours whose lengths differ by one at most.

    >>> split_evenly(["ant", "bee", "cat"], 2)
    ((1, 2), (3,))
    """
    indices = [number for number, name in enumerate(classes, start=1) if name != VOID_NAME]
    return tuple(tuple(indices[place - 1] for place in fold) for fold in even_folds(len(indices), folds))


def _some(classes: Sequence[str]) -> str:
    return ", ".join(classes[:8]) + (" ..." if len(classes) > 8 else "")
