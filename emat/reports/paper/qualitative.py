"""Figures of predictions: small objects (1), and queries with none, some and all of the classes (4).

Tasks are chosen by a rule from the outcomes of all measured tasks, never by hand.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emat.datasets.dataset import Dataset
from emat.errors import EmatError
from emat.evaluation.metrics import TaskOutcome
from emat.evaluation.one_pass import OnePass, QueryWork, SharedTask
from emat.evaluation.run import EvaluatedMethod
from emat.features import FeatureCache
from emat.formats.drawing import LabelMap
from emat.reports.paper.measuring import Ledger
from emat.reports.paper.panels import Panel, PanelRow, TaskPainter, draw_panels
from emat.reports.paper.parts import SMALL, THREE_SETTINGS, Need, other_model
from emat.tasks.task import Task

SMALL_RULE = (
    "Of all measured tasks whose object covers less than 15 % of the photo: those in which EMAT's IoU is the best, the "
    "median and the worst."
)
QUERY_RULE = (
    "Top: of the measured tasks whose query shows none, one, or both of the classes, that with EMAT's median IoU; "
    "where no class is shown, that with the median area of wrongly marked pixels. Bottom: the first measured task, by "
    "fold and index, that all three settings make different; if there is none, the first that one of them changes."
)
CACHE_BYTES = 1 << 28


@dataclass(frozen=True)
class MeasuredTask:
    """A task of a fold, and how EMAT did in it."""

    fold: int
    task: Task
    outcome: TaskOutcome

    @property
    def iou(self) -> float:
        """Intersection over union of all ways together."""
        return sum(self.outcome.intersections) / max(sum(self.outcome.unions), 1)

    @property
    def marked(self) -> int:
        """Pixels that were wrongly marked in a query that shows none of the ways."""
        return sum(self.outcome.unions)


class Predictor:
    """Predicts single tasks with the models of a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._passes: dict[int, OnePass] = {}

    def label_map(self, label: str, fold: int, task: Task) -> LabelMap:
        """Return the label map that a model predicts for a task, at the query's own size."""
        answering = self._pass(self._ledger.methods[label][fold], self._ledger.tasks.dataset)
        size = self._ledger.tasks.dataset.mask(task.query).shape
        work = QueryWork(task.query, (SharedTask(task.ways, task.shots, ()),))
        (found,) = answering.decisions(work, (size[0], size[1]), lambda _, decision: decision.label_map)
        return found

    def _pass(self, evaluated: EvaluatedMethod, dataset: Dataset) -> OnePass:
        key = id(evaluated)
        if key not in self._passes:
            cache = FeatureCache(evaluated.method, memory_bytes=CACHE_BYTES)
            self._passes[key] = OnePass(evaluated.method, dataset, cache, support_bytes=CACHE_BYTES)
        return self._passes[key]


def small_objects_figure(ledger: Ledger, painter: TaskPainter) -> Any:
    """Figure 1: EMAT and another model on small objects."""
    found = sorted(_measured(ledger, SMALL), key=lambda each: each.iou)
    if not found:
        raise EmatError("EMAT was not measured on small objects")
    chosen = {"best": found[-1], "median": found[len(found) // 2], "worst": found[0]}
    predictor = Predictor(ledger)
    rows = []
    for index, (words, each) in enumerate(chosen.items()):
        support = painter.with_classes(each.task.shots[0][0], each.task.ways)
        class_name = ledger.tasks.dataset.classes[each.task.ways[0] - 1]
        panels = [
            Panel(support, "support" if index == 0 else "", class_name, way=0),
            *_answers(ledger, painter, predictor, each, index == 0),
        ]
        rows.append(PanelRow(tuple(panels), f"{words}\nIoU {100 * each.iou:.0f} %"))
    return draw_panels("Small objects: less than 15 % of the photo, 1-way 1-shot", rows)


def queries_figure(ledger: Ledger, painter: TaskPainter) -> Any:
    """Figure 4: queries with none, some and all classes, and one task in three settings."""
    found = _measured(ledger, THREE_SETTINGS[0])
    if not found:
        raise EmatError("EMAT was not measured on 2-way 1-shot tasks")
    kinds: dict[str, Callable[[Sequence[bool]], bool]] = {
        "none of the\nclasses": lambda truth: not any(truth),
        "some of the\nclasses": lambda truth: any(truth) and not all(truth),
        "all classes": all,
    }
    rows: list[PanelRow] = []
    predictor = Predictor(ledger)
    for words, fits in kinds.items():
        some = [each for each in found if fits(each.outcome.truth)]
        if some:
            some.sort(key=lambda each: each.iou if any(each.outcome.truth) else -each.marked)
            rows.append(_task_row(ledger, painter, predictor, some[len(some) // 2], words, not rows))
    for setting, each in zip(("original", "partially\naugmented", "fully\naugmented"), _changed(ledger), strict=False):
        rows.append(_task_row(ledger, painter, predictor, each, setting, False))
    return draw_panels("Queries with none, some and all classes; below, one task in the three settings", rows)


def _task_row(
    ledger: Ledger, painter: TaskPainter, predictor: Predictor, each: MeasuredTask, words: str, head: bool
) -> PanelRow:
    """Two supports, the query, the true masks, and what the models predict."""
    task, panels = each.task, []
    for way, names in enumerate(task.shots[:2]):
        name = ledger.tasks.dataset.classes[task.ways[way] - 1]
        shots = f" ({len(names)} shots)" if len(names) > 1 else ""
        picture = painter.with_classes(names[0], task.ways, [task.ways[way]])
        panels.append(Panel(picture, f"support {way + 1}" if head else "", f"{name}{shots}", way))
    panels += _answers(ledger, painter, predictor, each, head)
    return PanelRow(tuple(panels), words)


def _answers(ledger: Ledger, painter: TaskPainter, predictor: Predictor, each: MeasuredTask, head: bool) -> list[Panel]:
    """The query, its true masks, the other model's and EMAT's predictions."""
    task, query = each.task, each.task.query
    other = other_model(list(ledger.methods))
    extra = ", ".join(ledger.tasks.dataset.classes[way - 1] for way in task.ways[2:])
    below = f"also asked: {extra}" if extra else ""
    panels = [Panel(painter.photo(query), "query" if head else "")] if painter.photos else []
    panels.append(Panel(painter.with_classes(query, task.ways), "truth" if head else "", below))
    for label in (other or "CST*", "EMAT"):
        if label in ledger.methods:
            predicted = predictor.label_map(label, each.fold, task)
            panels.append(Panel(painter.with_map(query, np.asarray(predicted, np.uint8)), label if head else ""))
        else:
            panels.append(Panel(None, f"{label}: not run" if head else ""))
    return panels


def _measured(ledger: Ledger, need: Need) -> list[MeasuredTask]:
    return [
        MeasuredTask(fold.configuration.fold, task, outcome)
        for fold in ledger.folds("EMAT", need)
        for task, outcome in zip(fold.configuration.tasks, fold.outcomes, strict=True)
    ]


def _changed(ledger: Ledger) -> list[MeasuredTask]:
    """One task in the three settings, chosen by the second part of `QUERY_RULE`; nothing if no task is changed."""
    every = [_measured(ledger, need) for need in THREE_SETTINGS]
    together = list(zip(*every, strict=True))
    different = [len({(each.task.ways, each.task.shots) for each in same}) for same in together]
    for wanted in (3, 2):
        if wanted in different:
            return list(together[different.index(wanted)])
    return []
