"""The paper's two scores, exact-match accuracy and mean IoU over classes, from counts that can be added.

A task is judged to a `TaskOutcome`, an outcome is counted to `ScoreCounts`, the counts of many tasks are added, and
`compute` turns the sum into `Scores`. Processes that evaluated different tasks add their counts in any order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError

SCORE_DIGITS = 4  # decimals of a presence score that are kept: enough for any threshold, and short in a file


@dataclass(frozen=True)
class TaskOutcome:
    """The prediction for one task, compared with the query's mask. Pixels are counted at the query's own size."""

    ways: tuple[int, ...]
    truth: tuple[bool, ...]  # whether each way is in the query
    present: tuple[bool, ...] | None  # what was predicted for it; None if presence was not predicted
    intersections: tuple[int, ...]  # of each way, in pixels
    unions: tuple[int, ...]  # for an absent way, the pixels that were wrongly predicted
    background: tuple[int, int]  # intersection and union when all ways are one foreground
    foreground: tuple[int, int]
    scores: tuple[float, ...] | None = None  # the predicted probability of presence, rounded

    @property
    def pixels(self) -> int:
        """The number of pixels of the query."""
        return self.background[1] + self.foreground[0]

    def row(self) -> list[Any]:
        """Return the outcome as a short JSON value."""
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
        """Return the outcome that `row` was made from; raises ValueError if `row` is damaged."""
        ways, truth, present, intersections, unions, background, foreground, scores = row
        sides = (_numbers(background), _numbers(foreground))
        per_way = [truth, present or truth, intersections, unions, scores or ways]
        if any(len(each) != len(ways) for each in per_way) or any(len(side) != 2 for side in sides):
            raise ValueError(f"an outcome of {len(ways)} ways has values for another number of ways")
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
    """Compare the prediction for one task with the query's mask.

    Args:
        ways: The class ids of the task's ways.
        present: For every way, whether it was predicted to be in the query; None if that was not predicted.
        label_map: The predicted label map (H, W): 0 for background and i for `ways[i - 1]`.
        mask: The query's mask (H, W) as class ids. Void and classes that are not a way count as background.
        scores: For every way, the predicted probability that it is in the query.

    Raises:
        EmatError: If the label map has another size than the mask, or labels without a way.

    >>> mask = np.array([[0, 7], [7, 255]], dtype=np.uint8)
    >>> outcome = judge_task([9, 7], [False, True], np.array([[0, 2], [0, 0]]), mask)
    >>> outcome.truth, outcome.intersections, outcome.unions
    ((False, True), (0, 1), (0, 2))
    """
    if label_map.shape != mask.shape:
        raise EmatError(
            f"the label map is {label_map.shape} but the query's mask is {mask.shape}; resize the label map"
        )
    if label_map.size and not 0 <= int(label_map.min()) <= int(label_map.max()) <= len(ways):
        raise EmatError(
            f"the label map has labels {int(label_map.min())} to {int(label_map.max())}, "
            f"but {len(ways)} ways have labels 0 to {len(ways)}"
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
    """Return the outcome of a task from its pixel counts (1 + N, 1 + N): rows are truth, columns prediction."""
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
    """Return a label map (H, W) with i where a mask of class ids has `ways[i - 1]`, and 0 elsewhere."""
    label_of_class = np.zeros(max([*ways, int(mask.max(initial=0))]) + 1, dtype=np.int64)
    label_of_class[list(ways)] = np.arange(1, len(ways) + 1)
    return label_of_class[mask]


@dataclass(frozen=True)
class ScoreCounts:
    """Sums over any number of tasks, for the classes in `class_ids`.

    `judged` counts the tasks for which presence was predicted; a method that only segments has none.
    """

    class_ids: tuple[int, ...]
    tasks: int
    judged: int
    right: int
    intersections: NDArray[np.int64]  # (C,) pixels of each class, over the tasks in which the class is a way
    unions: NDArray[np.int64]  # (C,)
    binary: NDArray[np.int64]  # (2, 2) rows: background and foreground (any way); columns: intersection and union
    absent: int = 0  # number of ways, over all tasks, whose class is not in the query
    false_masks: int = 0  # number of absent ways that were given at least one pixel
    false_area: float = 0.0  # sum over absent ways of the share of the query's pixels that they were given

    def __add__(self, other: "ScoreCounts") -> "ScoreCounts":
        if self.class_ids != other.class_ids:
            raise EmatError(f"counts of the classes {self.class_ids} and {other.class_ids} cannot be added")
        return ScoreCounts(
            self.class_ids,
            self.tasks + other.tasks,
            self.judged + other.judged,
            self.right + other.right,
            self.intersections + other.intersections,
            self.unions + other.unions,
            self.binary + other.binary,
            self.absent + other.absent,
            self.false_masks + other.false_masks,
            self.false_area + other.false_area,
        )

    def as_row(self) -> NDArray[np.float64]:
        """Return all counts in one row (6 + 2 C + 4,), so that a single addition sums them over tasks or processes.

        float64 holds numbers of pixels exactly.
        """
        numbers = [self.tasks, self.judged, self.right, self.absent, self.false_masks, self.false_area]
        parts = [np.asarray(numbers), self.intersections, self.unions, self.binary.ravel()]
        return np.concatenate(parts).astype(np.float64)

    @classmethod
    def from_row(cls, row: NDArray[np.float64], class_ids: tuple[int, ...]) -> "ScoreCounts":
        """Return the counts of a row from `as_row`, or of a sum of such rows."""
        *whole, false_area = row[:6].tolist()
        tasks, judged, right, absent, false_masks = map(int, whole)
        intersections, unions, binary = np.split(row[6:].astype(np.int64), [len(class_ids), 2 * len(class_ids)])
        binary = binary.reshape(2, 2)
        return cls(class_ids, tasks, judged, right, intersections, unions, binary, absent, false_masks, false_area)


@dataclass(frozen=True)
class ClassScore:
    """The score of one class. A class that no task asked for or showed has union 0 and IoU 0."""

    class_id: int
    intersection: int
    union: int
    iou: float


@dataclass(frozen=True)
class Scores:
    """Scores between 0 and 1. `accuracy` is NaN if presence was not predicted for any task.

    `false_mask_rate` is the share of absent ways whose predicted mask is not empty. `false_area` is the mean share of
    the query that the masks of absent ways cover. Both are NaN if no way was ever absent.
    """

    tasks: int
    accuracy: float
    miou: float
    foreground_background_iou: float
    classes: tuple[ClassScore, ...]
    false_mask_rate: float
    false_area: float


def no_counts(class_ids: Sequence[int]) -> ScoreCounts:
    """Return the counts of zero tasks, which change nothing when they are added."""
    zeros = np.zeros(len(class_ids), dtype=np.int64)
    return ScoreCounts(tuple(class_ids), 0, 0, 0, zeros, zeros.copy(), np.zeros((2, 2), dtype=np.int64))


def count_outcome(outcome: TaskOutcome, class_ids: Sequence[int]) -> ScoreCounts:
    """Return the counts of one task.

    Args:
        outcome: The outcome of the task.
        class_ids: The fold's test classes, which are scored. A way outside them counts for accuracy and as foreground.

    >>> outcome = judge_task([9, 7], [False, True], np.array([[0, 2]]), np.array([[0, 7]], dtype=np.uint8))
    >>> counts = count_outcome(outcome, [7, 9])
    >>> counts.right, counts.intersections.tolist(), counts.unions.tolist()
    (1, [1, 0], [1, 0])
    """
    counts = no_counts(class_ids)
    for index, class_id in enumerate(class_ids):
        if class_id in outcome.ways:
            way = outcome.ways.index(class_id)
            counts.intersections[index], counts.unions[index] = outcome.intersections[way], outcome.unions[way]
    false_areas = [union for union, there in zip(outcome.unions, outcome.truth, strict=True) if not there]
    return ScoreCounts(
        counts.class_ids,
        tasks=1,
        judged=int(outcome.present is not None),
        right=int(outcome.present == outcome.truth),
        intersections=counts.intersections,
        unions=counts.unions,
        binary=np.array([outcome.background, outcome.foreground], dtype=np.int64),
        absent=len(false_areas),
        false_masks=sum(area > 0 for area in false_areas),
        false_area=sum(false_areas) / max(outcome.pixels, 1),
    )


def merge(counts: Iterable[ScoreCounts], class_ids: Sequence[int]) -> ScoreCounts:
    """Return the sum of all `counts`, which are for the classes `class_ids`."""
    return sum(counts, start=no_counts(class_ids))


def compute(counts: ScoreCounts) -> Scores:
    """Compute the scores of summed counts.

    The IoU of a class is I / max(U, 1) and mIoU is its mean over all of `class_ids`. So a class that never occurred
    counts as 0, and background does not count. Foreground-background IoU is the mean of the IoUs of background and
    of foreground, where all ways together are the foreground.

    Raises:
        EmatError: If there is no task or no class to score.
    """
    if counts.tasks == 0:
        raise EmatError("no task was evaluated, so there is nothing to score; check the number of tasks")
    if not counts.class_ids:
        raise EmatError("there is no class to average IoU over; name the fold's test classes")
    rows = zip(counts.class_ids, counts.intersections.tolist(), counts.unions.tolist(), strict=True)
    classes = tuple(ClassScore(class_id, i, u, i / max(u, 1)) for class_id, i, u in rows)
    binary = counts.binary[:, 0] / np.maximum(counts.binary[:, 1], 1)
    return Scores(
        tasks=counts.tasks,
        accuracy=counts.right / counts.judged if counts.judged else float("nan"),
        miou=float(np.mean([row.iou for row in classes])),
        foreground_background_iou=float(binary.mean()),
        classes=classes,
        false_mask_rate=counts.false_masks / counts.absent if counts.absent else float("nan"),
        false_area=counts.false_area / counts.absent if counts.absent else float("nan"),
    )


def _bits(flags: Sequence[bool]) -> str:
    return "".join("1" if flag else "0" for flag in flags)


def _flags(values: Any) -> tuple[bool, ...]:
    return tuple(value == "1" if isinstance(value, str) else bool(value) for value in values)


def _numbers(values: Any) -> tuple[int, ...]:
    return tuple(map(int, values))
