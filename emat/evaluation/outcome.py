"""What came of one task: which ways were there, which were said to be, and how many pixels agree."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError

SCORE_DIGITS = 4  # kept of a presence score: enough for any threshold, short in a file of thousands


@dataclass(frozen=True)
class TaskOutcome:
    """One task held against its query's mask; every number is of pixels at the query's original size."""

    ways: tuple[int, ...]
    truth: tuple[bool, ...]  # which ways are in the query
    present: tuple[bool, ...] | None  # which were predicted to be; None where that was not predicted
    intersections: tuple[int, ...]  # of each way
    unions: tuple[int, ...]  # of an absent way the area that was wrongly predicted
    background: tuple[int, int]  # intersection and union when all ways are one foreground
    foreground: tuple[int, int]
    scores: tuple[float, ...] | None = None  # predicted probability of presence, rounded

    @property
    def pixels(self) -> int:
        """Of the query."""
        return self.background[1] + self.foreground[0]

    def row(self) -> list[Any]:
        """All of it as a short JSON value."""
        return [
            self.ways,
            _bits(self.truth),
            None if self.present is None else _bits(self.present),
            self.intersections,
            self.unions,
            self.background,
            self.foreground,
            self.scores,
        ]

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> "TaskOutcome":
        """The outcome that `row` gave; a ValueError if it is none."""
        ways, truth, present, intersections, unions, background, foreground, scores = row
        sides = (_numbers(background), _numbers(foreground))
        per_way = [truth, present or truth, intersections, unions, scores or ways]
        if any(len(each) != len(ways) for each in per_way) or any(len(side) != 2 for side in sides):
            raise ValueError(f"an outcome of {len(ways)} ways has values for another number")
        return cls(
            _numbers(ways),
            _flags(truth),
            None if present is None else _flags(present),
            _numbers(intersections),
            _numbers(unions),
            (sides[0][0], sides[0][1]),
            (sides[1][0], sides[1][1]),
            None if scores is None else tuple(map(float, scores)),
        )


def judge_task(
    ways: Sequence[int],
    present: Sequence[bool] | NDArray[np.bool_] | None,
    label_map: NDArray[np.integer],
    mask: NDArray[np.integer],
    scores: Sequence[float] | None = None,
) -> TaskOutcome:
    """The outcome of a task with these `ways`.

    `present` says for every way whether it was predicted to be in the query. `label_map` (H, W) is 0 for background
    and i for `ways[i - 1]`; `mask` (H, W) is the query's own, as class ids: void and classes that are no way are
    background.

    >>> mask = np.array([[0, 7], [7, 255]], dtype=np.uint8)
    >>> outcome = judge_task([9, 7], [False, True], np.array([[0, 2], [0, 0]]), mask)
    >>> outcome.truth, outcome.intersections, outcome.unions
    ((False, True), (0, 1), (0, 2))
    """
    if label_map.shape != mask.shape:
        raise EmatError(f"the label map is {label_map.shape} but the query's mask is {mask.shape}; resize it first")
    if label_map.size and not 0 <= int(label_map.min()) <= int(label_map.max()) <= len(ways):
        raise EmatError(
            f"the label map holds {int(label_map.min())} to {int(label_map.max())}; "
            f"{len(ways)} ways have labels 0 to {len(ways)}"
        )
    labels = len(ways) + 1
    pairs = true_labels(ways, mask) * labels + label_map  # (H, W)
    confusion = np.bincount(pairs.ravel(), minlength=labels * labels).reshape(labels, labels)
    return outcome_of(confusion, ways, present, scores)


def outcome_of(
    confusion: NDArray[np.int64],
    ways: Sequence[int],
    present: Sequence[bool] | NDArray[np.bool_] | None,
    scores: Sequence[float] | None = None,
) -> TaskOutcome:
    """The outcome of a task whose pixels are counted in `confusion` (1 + N, 1 + N): rows truth, columns prediction."""
    intersections = np.diag(confusion)
    unions = confusion.sum(0) + confusion.sum(1) - intersections
    total, background, foreground = (int(x) for x in (confusion.sum(), confusion[0, 0], confusion[1:, 1:].sum()))
    return TaskOutcome(
        ways=tuple(map(int, ways)),
        truth=_flags(confusion[1:].sum(1) > 0),
        present=None if present is None else _flags(present),
        intersections=_numbers(intersections[1:]),
        unions=_numbers(unions[1:]),
        background=(background, total - foreground),
        foreground=(foreground, total - background),
        scores=None if scores is None else tuple(round(float(score), SCORE_DIGITS) for score in scores),
    )


def true_labels(ways: Sequence[int], mask: NDArray[np.integer]) -> NDArray[np.int64]:
    """(H, W): i where a mask of class ids shows `ways[i - 1]`, else 0."""
    label_of_class = np.zeros(max([*ways, int(mask.max(initial=0))]) + 1, dtype=np.int64)
    label_of_class[list(ways)] = np.arange(1, len(ways) + 1)
    return label_of_class[mask]


def _bits(flags: Sequence[bool]) -> str:
    return "".join("1" if flag else "0" for flag in flags)


def _flags(values: Any) -> tuple[bool, ...]:
    return tuple(value == "1" if isinstance(value, str) else bool(value) for value in values)


def _numbers(values: Any) -> tuple[int, ...]:
    return tuple(map(int, values))
