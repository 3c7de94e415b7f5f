"""The paper's two scores, exact-match accuracy and mean IoU over classes, from counts that can be added.

A task is judged to a `TaskOutcome`, an outcome is counted to `ScoreCounts`, the counts of many tasks are added, and
`compute` turns the sum into `Scores`. Processes that evaluated different tasks add their counts in any order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError

# What is counted beside pixels: tasks; those for which presence was predicted (none by a method that only segments);
# those whose presence was predicted correctly; ways whose class is not in the query; those of them that were given a
# pixel; and the sum of the shares of the query's pixels that these were given.
COUNTED = ("tasks", "judged", "right", "absent", "false_masks", "false_area")


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
    scores: tuple[float, ...] | None = None  # the predicted probability of presence

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
        if any(len(values) != len(ways) for values in per_way) or any(len(side) != 2 for side in sides):
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
            "mask-size",
            f"the label map is {label_map.shape} but the query's mask is {mask.shape}; resize the label map",
        )
    if label_map.size and not 0 <= int(label_map.min()) <= int(label_map.max()) <= len(ways):
        raise EmatError(
            "mask-values",
            f"the label map has labels {int(label_map.min())} to {int(label_map.max())}, "
            f"but {len(ways)} ways have labels 0 to {len(ways)}",
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
        scores=None if scores is None else tuple(map(float, scores)),
    )


def true_labels(ways: Sequence[int], mask: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return a label map (H, W) with i where a mask of class ids has `ways[i - 1]`, and 0 elsewhere."""
    label_of_class = np.zeros(max([*ways, int(mask.max(initial=0))]) + 1, dtype=np.int64)
    label_of_class[list(ways)] = np.arange(1, len(ways) + 1)
    return label_of_class[mask]


@dataclass(frozen=True)
class ScoreCounts:
    """Sums over any number of tasks, for the classes in `class_ids`, in one row that can be added.

    The row (6 + 2 C + 4,) begins with the numbers in `COUNTED`. The intersections and the unions of each class follow,
    in pixels over the tasks in which the class is a way, and then intersection and union of the background and of the
    foreground (any way). float64 holds numbers of pixels exactly.
    """

    class_ids: tuple[int, ...]
    row: NDArray[np.float64]

    @classmethod
    def of(cls, outcomes: Iterable[TaskOutcome], class_ids: Sequence[int]) -> "ScoreCounts":
        """Return the sum of the counts of some outcomes; see `count_outcome`."""
        return sum((count_outcome(outcome, class_ids) for outcome in outcomes), start=cls.none(class_ids))

    @classmethod
    def none(cls, class_ids: Sequence[int]) -> "ScoreCounts":
        """Return the counts of zero tasks, which change nothing when they are added."""
        return cls(tuple(class_ids), np.zeros(len(COUNTED) + 2 * len(class_ids) + 4))

    def __add__(self, other: "ScoreCounts") -> "ScoreCounts":
        if self.class_ids != other.class_ids:
            raise EmatError(
                "class-lists-differ", f"counts of the classes {self.class_ids} and {other.class_ids} cannot be added"
            )
        return ScoreCounts(self.class_ids, self.row + other.row)

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return int(self.row[0])

    @property
    def right(self) -> int:
        """The number of tasks in which the presence of every way was judged correctly."""
        return int(self.row[2])

    @property
    def intersections(self) -> NDArray[np.float64]:
        """The pixels of each class that were predicted correctly, (C,)."""
        return _parts(self.row)[1]

    @property
    def unions(self) -> NDArray[np.float64]:
        """The pixels of each class, true or predicted, (C,)."""
        return _parts(self.row)[2]

    @property
    def binary(self) -> NDArray[np.float64]:
        """Background and foreground (rows), intersection and union (columns)."""
        return _parts(self.row)[3]


class Scores(NamedTuple):
    """Scores between 0 and 1. `accuracy` is NaN if presence was not predicted for any task.

    `false_mask_rate` is the share of absent ways whose predicted mask is not empty. `false_area` is the mean share of
    the query that the masks of absent ways cover. Both are NaN if no way was ever absent.
    """

    accuracy: float
    miou: float
    foreground_background_iou: float
    false_mask_rate: float
    false_area: float


def count_outcome(outcome: TaskOutcome, class_ids: Sequence[int]) -> ScoreCounts:
    """Return the counts of one task.

    Args:
        outcome: The outcome of the task.
        class_ids: The fold's test classes, which are scored. A way outside them counts for accuracy and as foreground.

    >>> outcome = judge_task([9, 7], [False, True], np.array([[0, 2]]), np.array([[0, 7]], dtype=np.uint8))
    >>> counts = count_outcome(outcome, [7, 9])
    >>> counts.right, counts.intersections.tolist(), counts.unions.tolist()
    (1, [1.0, 0.0], [1.0, 0.0])
    """
    pixels = dict(zip(outcome.ways, zip(outcome.intersections, outcome.unions, strict=True), strict=True))
    of_classes = [pixels.get(class_id, (0, 0)) for class_id in class_ids]
    false_areas = [union for union, there in zip(outcome.unions, outcome.truth, strict=True) if not there]
    row = [
        1,
        int(outcome.present is not None),
        int(outcome.present == outcome.truth),
        len(false_areas),
        sum(area > 0 for area in false_areas),
        sum(false_areas) / max(outcome.pixels, 1),
        *(intersection for intersection, _ in of_classes),
        *(union for _, union in of_classes),
        *outcome.background,
        *outcome.foreground,
    ]
    return ScoreCounts(tuple(class_ids), np.array(row, dtype=np.float64))


def compute(counts: ScoreCounts) -> Scores:
    """Compute the scores of summed counts.

    The IoU of a class is I / max(U, 1) and mIoU is its mean over all of `class_ids`. So a class that never occurred
    counts as 0, and background does not count. Foreground-background IoU is the mean of the IoUs of background and
    of foreground, where all ways together are the foreground.

    Raises:
        EmatError: If there is no task or no class to score.
    """
    if counts.tasks == 0:
        raise EmatError(
            "nothing-evaluated", "no task was evaluated, so there is nothing to score; check the number of tasks"
        )
    if not counts.class_ids:
        raise EmatError("no-classes", "there is no class to average IoU over; name the fold's test classes")
    return Scores(*compute_rows(counts.row).tolist())


def compute_rows(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the scores of many sums of counts at once: from rows (..., 6 + 2 C + 4) to scores (5, ...)."""
    numbers, intersections, unions, binary = _parts(rows)
    _, judged, right, absent, false_masks, false_area = np.moveaxis(numbers, -1, 0)
    with np.errstate(invalid="ignore"):  # NaN without predicted presence or absent ways
        accuracy, false_mask_rate, mean_false_area = right / judged, false_masks / absent, false_area / absent
    miou = (intersections / np.maximum(unions, 1)).mean(-1)
    both = (binary[..., 0] / np.maximum(binary[..., 1], 1)).mean(-1)
    return np.stack([accuracy, miou, both, false_mask_rate, mean_false_area])


def _parts(rows: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """The numbers (..., 6), intersections (..., C), unions (..., C) and the binary counts (..., 2, 2) of rows."""
    numbers, classes = len(COUNTED), (rows.shape[-1] - len(COUNTED) - 4) // 2
    *parts, binary = np.split(rows, [numbers, numbers + classes, numbers + 2 * classes], axis=-1)
    return [*parts, binary.reshape(*rows.shape[:-1], 2, 2)]


def _bits(flags: Sequence[bool]) -> str:
    return "".join("1" if flag else "0" for flag in flags)


def _flags(values: Any) -> tuple[bool, ...]:
    return tuple(value == "1" if isinstance(value, str) else bool(value) for value in values)


def _numbers(values: Any) -> tuple[int, ...]:
    return tuple(map(int, values))
