"""The paper's two numbers, exact-match accuracy and mean IoU over classes, from counts that add up.

A task gives counts, counts of many tasks add, and scores come from the sum. Processes that evaluated
different tasks add their counts; no order matters.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.evaluation.outcome import TaskOutcome, judge_task


@dataclass(frozen=True)
class Counts:
    """Sums over tasks, for the classes in `class_ids`; those of a single task are its outcome.

    `judged` counts the tasks for which presence was predicted at all: a segmentation-only method has none.
    """

    class_ids: tuple[int, ...]
    tasks: int
    judged: int
    right: int
    intersections: NDArray[np.int64]  # (C,) pixels of each class, over the tasks in which it is a way
    unions: NDArray[np.int64]  # (C,)
    binary: NDArray[np.int64]  # (2, 2): rows background and foreground (any way), columns intersection and union
    absent: int = 0  # ways, over all tasks, whose class is not in the query
    false_masks: int = 0  # those of them that were given a pixel all the same
    false_area: float = 0.0  # sum over them of the share of the query that they were given

    def __add__(self, other: "Counts") -> "Counts":
        if self.class_ids != other.class_ids:
            raise EmatError(f"counts of classes {self.class_ids} and {other.class_ids} do not add up")
        return Counts(
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


@dataclass(frozen=True)
class ClassScore:
    """A row of the per-class table. A class that no task asked for or showed has union 0 and IoU 0."""

    class_id: int
    intersection: int
    union: int
    iou: float


@dataclass(frozen=True)
class Scores:
    """Scores between 0 and 1; `accuracy` is NaN where no task's presence was predicted.

    `false_mask_rate` is the share of absent ways whose predicted mask is not empty, `false_area` the mean share of the
    query that such a mask covers, over all absent ways; both are NaN where every way was always there.
    """

    tasks: int
    accuracy: float
    miou: float
    foreground_background_iou: float
    classes: tuple[ClassScore, ...]
    false_mask_rate: float
    false_area: float


def no_counts(class_ids: Sequence[int]) -> Counts:
    """The counts of no task, which change nothing when added."""
    zeros = np.zeros(len(class_ids), dtype=np.int64)
    return Counts(tuple(class_ids), 0, 0, 0, zeros, zeros.copy(), np.zeros((2, 2), dtype=np.int64))


def count_task(
    class_ids: Sequence[int],
    ways: Sequence[int],
    present: Sequence[bool] | NDArray[np.bool_] | None,
    label_map: NDArray[np.integer],
    mask: NDArray[np.integer],
) -> Counts:
    """The outcome of one task.

    `class_ids` are the fold's test classes, which are scored; a way outside them counts for accuracy and as
    foreground. `present` says for every way whether it was predicted to be in the query, None if it was not
    predicted. `label_map` (H, W) is 0 for background and i for `ways[i - 1]`; `mask` (H, W) is the query's
    own, at its original size, as class ids. Void and classes that are no way are background.

    >>> mask = np.array([[0, 7], [7, 255]], dtype=np.uint8)
    >>> label_map = np.array([[0, 2], [0, 0]])
    >>> outcome = count_task([7, 9], ways=[9, 7], present=[False, True], label_map=label_map, mask=mask)
    >>> outcome.right, outcome.intersections.tolist(), outcome.unions.tolist()
    (1, [1, 0], [2, 0])
    """
    return count_outcome(judge_task(ways, present, label_map, mask), class_ids)


def count_outcome(outcome: TaskOutcome, class_ids: Sequence[int]) -> Counts:
    """The counts of one task."""
    counts = no_counts(class_ids)
    for place, class_id in enumerate(class_ids):
        if class_id in outcome.ways:
            way = outcome.ways.index(class_id)
            counts.intersections[place], counts.unions[place] = outcome.intersections[way], outcome.unions[way]
    false_areas = [union for union, there in zip(outcome.unions, outcome.truth, strict=True) if not there]
    return Counts(
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


def merge(counts: Iterable[Counts], class_ids: Sequence[int]) -> Counts:
    """The sum of all `counts`, whose classes are `class_ids`."""
    return sum(counts, start=no_counts(class_ids))


def compute(counts: Counts) -> Scores:
    """Scores of summed counts: IoU of a class is I / max(U, 1), and mIoU its mean over all of `class_ids`.

    So a class that never occurred counts as 0 in mIoU, and background is not averaged in.
    Foreground-background IoU is the mean of the two IoUs when all ways are one foreground.
    """
    if counts.tasks == 0:
        raise EmatError("no task was evaluated, so there is nothing to score; check the number of tasks")
    if not counts.class_ids:
        raise EmatError("mean IoU over no class is undefined; name the fold's test classes")
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
