"""Class names and their indices in a label map: `names[i]` has index i + 1, and 0 is background.

Index 255 always means void. The class list of a data set with more than 254 classes therefore has a reserved name for
index 255, which does not occur in any mask, and its label maps are uint16.
"""

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from emat.errors import EmatError
from emat.files import read_text
from emat.images import VOID

VOID_NAME = "(void)"
BACKGROUND_NAMES = ("background", "_background_", "__background__")
IGNORED_NAMES = ("__ignore__", "void", "void/ignore", "ignore")
VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair",
    "cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip
MOST_LINES = 1_000_000  # of a list of classes
NUMBERED = re.compile(r"(\d{1,9})[\s:,]+(\S.*)")


def tidy_name(name: str) -> str:
    """Return the name of a class as it is kept everywhere: without spaces around it, accents joined to their letters.

    Some systems write an accent after its letter and others both as one sign (Unicode's NFD and NFC).

    >>> tidy_name("cafe\u0301 ") == "caf\u00e9"
    True
    """
    return unicodedata.normalize("NFC", name).strip()


def check_class_name(name: str) -> None:
    """Check that annotation files can hold the name of a class.

    Raises:
        EmatError: It is empty, has spaces around it or signs that cannot be seen, or means background or void.
    """
    if not name.strip() or name != name.strip() or not name.isprintable():
        raise EmatError(
            "bad-class-name", f"the class name {name!r} cannot be written; use letters, digits and single spaces"
        )
    if name.lower() in (*BACKGROUND_NAMES, *IGNORED_NAMES):
        raise EmatError(
            "reserved-class-name", f"the class name {name!r} means background or void in annotation files; rename it"
        )


def number_classes(names: Sequence[str]) -> tuple[str, ...]:
    """Return `names` with the reserved name inserted for index 255, if there are so many.

    Raises:
        EmatError: There are more classes than a mask can hold.

    >>> number_classes(["cat", "dog"])
    ('cat', 'dog')
    >>> number_classes([str(i) for i in range(300)])[253:256]
    ('253', '(void)', '254')
    """
    if len(names) < VOID:
        return tuple(names)
    if len(names) > np.iinfo(np.uint16).max - 1:
        raise EmatError("too-many-classes", f"{len(names)} classes are more than the 65534 that a mask can hold")
    return (*names[: VOID - 1], VOID_NAME, *names[VOID - 1 :])


def label_type(classes: Sequence[str]) -> type[np.uint8] | type[np.uint16]:
    """Return the type of label maps for these classes."""
    return np.uint8 if len(classes) < VOID else np.uint16


def read_class_names(path: Path) -> tuple[str, ...]:
    """Read the class names of a text file, in the format of `class_names_in`.

    Raises:
        EmatError: The file cannot be read, or its content is wrong.
    """
    return class_names_in(read_text(path), str(path))


def class_names_in(text: str, path: str) -> tuple[str, ...]:
    """Parse class names: one on each line in the order of their indices, or `index name` on each line.

    Lines for background and void are skipped. The first class has index 1.

    Args:
        text: The lines.
        path: The path of the file, for messages.

    Raises:
        EmatError: There is no class, a class occurs twice, or the indices have gaps.

    >>> class_names_in("0 background\\n1 cat\\n2 dog\\n255 void", "classes.txt")
    ('cat', 'dog')
    """
    if text.count("\n") > MOST_LINES:
        raise EmatError(
            "file-too-large", f"{path} has {text.count(chr(10))} lines, which are not class names; check what it is"
        )
    lines = [tidy_name(line) for line in text.splitlines() if line.strip()]
    matches = [NUMBERED.fullmatch(line) for line in lines]
    numbered = [(int(match[1]), match[2]) for match in matches if match]
    if lines and len(numbered) == len(lines):
        return number_classes(_in_order(numbered, path))
    names = [line for line in lines if line.lower() not in IGNORED_NAMES]
    if names and names[0].lower() in BACKGROUND_NAMES:
        names = names[1:]
    return number_classes(without_repeats(names, path))


def _in_order(numbered: Sequence[tuple[int, str]], path: str) -> list[str]:
    names = {index: name for index, name in numbered if index not in (0, VOID)}
    if sorted(names) != list(range(1, len(names) + 1)):
        raise EmatError(
            "class-numbers", f"{path} numbers its classes {sorted(names)}; they must be 1, 2, 3 and so on without gaps"
        )
    return without_repeats([names[index] for index in sorted(names)], path)


def without_repeats(names: list[str], path: str) -> list[str]:
    """Return `names`; EmatError if there is none, or one is empty or occurs twice."""
    if not names:
        raise EmatError("no-classes", f"{path} has no class name; write one on each line, the first for index 1")
    if not all(name.strip() for name in names):
        raise EmatError("bad-class-name", f"{path} has a class without a name; give it one")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise EmatError("given-twice", f"{path} has the class {twice!r} twice; remove one of the lines")
    return names
