"""A few-shot task as plain data, and the hash that two implementations can compare."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray


class Setting(str, Enum):
    """Which annotations of a support image count (paper, section "Proposed Evaluation Settings")."""

    ORIGINAL = "original"
    PARTIALLY_AUGMENTED = "partially-augmented"
    FULLY_AUGMENTED = "fully-augmented"


@dataclass(frozen=True)
class Task:
    """Support images by way and shot, and a query image; all images by name, all classes by id.

    `query_class` is the class the query was drawn for, which need not be among the ways. `augmented` says
    whether the setting added anything to the support set that was drawn.
    """

    index: int
    query: str
    query_class: int
    ways: tuple[int, ...]
    shots: tuple[tuple[str, ...], ...]  # shots[w] are the support images of ways[w]
    setting: Setting = Setting.ORIGINAL
    augmented: bool = False

    @property
    def images(self) -> tuple[str, ...]:
        """The different images of the task, query first."""
        return tuple(dict.fromkeys((self.query, *(name for shots in self.shots for name in shots))))

    def present(self, query_mask: NDArray[np.integer]) -> NDArray[np.bool_]:
        """For every way, whether it has a pixel in the query's mask (H, W) at original size.

        >>> Task(0, "q", 3, (3, 5), (("a",), ("b",))).present(np.array([[0, 3]], dtype=np.uint8)).tolist()
        [True, False]
        """
        return np.isin(self.ways, np.unique(query_mask))


def digest(tasks: Iterable[Task]) -> str:
    """SHA-256 of the tasks as compact JSON `[[query, query_class, ways, shots], ...]`.

    >>> digest([Task(0, "q", 3, (3,), (("a",),))]) == hashlib.sha256(b'[["q",3,[3],[["a"]]]]').hexdigest()
    True
    """
    rows = [[task.query, task.query_class, task.ways, task.shots] for task in tasks]
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()
