"""Figures of real tasks: predictions for small objects (1) and for queries with none, some and all of the classes (4);
and, without any model, what each setting keeps and adds (2, 7), and masks as the attention layers see them (5).

Tasks are chosen by a rule from all tasks or from the outcomes of all measured ones, never by hand.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from emat.datasets.dataset import Dataset
from emat.errors import EmatError
from emat.evaluation.metrics import TaskOutcome
from emat.evaluation.one_pass import OnePass, QueryWork, SharedTask
from emat.evaluation.run import EvaluatedMethod
from emat.features import FeatureCache
from emat.formats.drawing import LabelMap
from emat.images import VOID, Pixels, resize_mask
from emat.model import FORMS
from emat.model.encoding import kept_cells
from emat.reports.paper.attention_cost import GRID, MASK
from emat.reports.paper.measuring import Ledger
from emat.reports.paper.panels import LONGEST, SMALL_PANEL, Panel, PanelRow, TaskPainter, draw_panels, side_by_side
from emat.reports.paper.parts import SMALL, THREE_SETTINGS, Need, PaperTasks, other_model
from emat.tasks.benchmark import object_sizes
from emat.tasks.task import Setting, Task

SMALL_RULE = (
    "Of all measured tasks whose object covers less than 15 % of the photo: those in which EMAT's IoU is the best, the "
    "median and the worst."
)
QUERY_RULE = (
    "Top: of the measured tasks whose query shows none, one, or both of the classes, that with EMAT's median IoU; "
    "where no class is shown, that with the median area of wrongly marked pixels. Bottom: the first measured task, by "
    "fold and index, that all three settings make different; if there is none, the first that one of them changes."
)
FIRST_RULE = (
    "The first task, by fold and index, to which the partially augmented setting adds a shot and the fully augmented "
    "setting also a way; if there is none, the first that the fully augmented setting changes."
)
MASK_RULE = "Of all listed objects of the four folds, sorted by size, those at the 15th and at the 50th percentile."
MASK_PERCENTILES = (15, 50)
MASK_COLOUR, GROUND_COLOUR = (0, 114, 178), (233, 236, 239)
MASK_PICTURE = 300  # pixels
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


class TaskPredictor:
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
    predictor = TaskPredictor(ledger)
    rows = []
    for index, (words, each) in enumerate(chosen.items()):
        support = painter.with_classes(each.task.shots[0][0], each.task.ways)
        class_name = ledger.tasks.dataset.classes[each.task.ways[0] - 1]
        panels = [
            Panel(support, "support" if index == 0 else "", class_name, way=0),
            *_answers(ledger, painter, predictor, each, index == 0),
        ]
        rows.append(PanelRow(tuple(panels), words))
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
    predictor = TaskPredictor(ledger)
    for words, fits in kinds.items():
        some = [each for each in found if fits(each.outcome.truth)]
        if some:
            some.sort(key=lambda each: each.iou if any(each.outcome.truth) else -each.marked)
            row = PanelRow((), words)
            rows.append(_task_row(ledger, painter, predictor, some[len(some) // 2], row, not rows))
    heading = "One task in the three settings"
    for setting, each in zip(("original", "partially\naugmented", "fully\naugmented"), _changed(ledger), strict=False):
        rows.append(_task_row(ledger, painter, predictor, each, PanelRow((), setting, heading), False))
        heading = ""
    return draw_panels("Queries that show none, some and all of the classes; 2-way 1-shot", rows)


def _task_row(
    ledger: Ledger, painter: TaskPainter, predictor: TaskPredictor, each: MeasuredTask, row: PanelRow, head: bool
) -> PanelRow:
    """Fill a row: two ways with all their shots, the query, the true masks, and what the models predict."""
    task, panels = each.task, []
    for way, names in enumerate(task.shots[:2]):
        name = ledger.tasks.dataset.classes[task.ways[way] - 1]
        different = list(dict.fromkeys(names))
        pictures = [painter.with_classes(photo, task.ways, [task.ways[way]]) for photo in different]
        repeated = f", {len(names)} shots" if len(names) > len(different) else ""
        panels.append(Panel(side_by_side(pictures), f"support {way + 1}" if head else "", f"{name}{repeated}", way))
    panels += _answers(ledger, painter, predictor, each, head)
    return replace(row, panels=tuple(panels))


def _answers(
    ledger: Ledger, painter: TaskPainter, predictor: TaskPredictor, each: MeasuredTask, head: bool
) -> list[Panel]:
    """The query, its true masks, the other model's and EMAT's predictions."""
    task, query = each.task, each.task.query
    other = other_model(list(ledger.methods))
    extra = ", ".join(ledger.tasks.dataset.classes[way - 1] for way in task.ways[2:])
    below = f"also a way: {extra}" if extra else ""
    panels = [Panel(painter.photo(query), "query" if head else "")] if painter.photos else []
    panels.append(Panel(painter.with_classes(query, task.ways), "truth" if head else "", below))
    for label in (other or "CST*", "EMAT"):
        if each.fold in ledger.methods.get(label, {}):
            predicted = np.asarray(predictor.label_map(label, each.fold, task), np.uint8)
            said = _overlap(predicted, ledger.tasks.dataset.mask(query), task.ways)
            panels.append(Panel(painter.with_map(query, predicted), label if head else "", said))
        else:
            panels.append(Panel(None, label if head else "", absent="not run"))
    return panels


def _overlap(predicted: LabelMap, mask: LabelMap, ways: Sequence[int]) -> str:
    """Say how well a label map fits: the IoU of all ways together, or how much is marked where nothing should be."""
    counted = mask != VOID
    found = [(predicted == index) & counted for index in range(1, len(ways) + 1)]
    true = [mask == way for way in ways]
    if not any(each.any() for each in true):
        marked = float(np.logical_or.reduce(found).sum() / max(counted.sum(), 1))
        return "nothing marked" if marked == 0 else f"{100 * marked:.0f} % wrongly marked"
    inside = sum(int((a & b).sum()) for a, b in zip(found, true, strict=True))
    either = sum(int((a | b).sum()) for a, b in zip(found, true, strict=True))
    return f"IoU {100 * inside / either:.0f} %"


def _measured(ledger: Ledger, need: Need) -> list[MeasuredTask]:
    return [
        MeasuredTask(fold.configuration.fold, task, outcome)
        for fold in ledger.folds("EMAT", need)
        for task, outcome in zip(fold.configuration.tasks, fold.outcomes, strict=True)
    ]


def _changed(ledger: Ledger) -> list[MeasuredTask]:
    """One task in the three settings, chosen by the second part of `QUERY_RULE`; nothing if no task is changed."""
    every = [{(each.fold, each.task.index): each for each in _measured(ledger, need)} for need in THREE_SETTINGS]
    together = [[found[where] for found in every] for where in every[0] if all(where in found for found in every)]
    different = [len({(each.task.ways, each.task.shots) for each in same}) for same in together]
    for wanted in (3, 2):
        if wanted in different:
            return together[different.index(wanted)]
    return []


def settings_figure(tasks: PaperTasks, painter: TaskPainter) -> Any:
    """Figure 2: which annotations of a 2-way 1-shot support set each setting keeps."""
    by_setting = example_task(tasks, way=2, shot=1)
    original, full = by_setting[Setting.ORIGINAL], by_setting[Setting.FULLY_AUGMENTED]
    colours = _all_classes(tasks, full)
    rows = []
    for index, (way, names) in enumerate(zip(original.ways, original.shots, strict=True)):
        name = names[0]
        shown = [class_id for class_id in tasks.areas[name] if class_id in colours]
        head = index == 0
        panels = [Panel(painter.photo(name), "photo" if head else "")] if painter.photos else []
        panels.append(_shown(tasks, painter, name, colours, shown, "available" if head else ""))
        for setting, task in by_setting.items():
            kept = [c for c, shots in zip(task.ways, task.shots, strict=True) if name in shots]
            title = setting.value.replace("-", " ").replace("augmented", "aug.") if head else ""
            panels.append(_shown(tasks, painter, name, colours, kept, title))
        rows.append(PanelRow(tuple(panels), f"way {index + 1}:\n{tasks.dataset.classes[way - 1]}"))
    return draw_panels("What each setting keeps of a 2-way 1-shot support set", rows)


def augmentation_figure(tasks: PaperTasks, painter: TaskPainter) -> Any:
    """Figure 7: how a 2-way 2-shot support set grows in the augmented settings; every row is a way."""
    by_setting = example_task(tasks, way=2, shot=2)
    original, full = by_setting[Setting.ORIGINAL], by_setting[Setting.FULLY_AUGMENTED]
    colours = _all_classes(tasks, full)
    drawn = dict(zip(original.ways, original.shots, strict=True))
    rows = []
    for index, way in enumerate(full.ways):
        panels: list[Panel] = []
        for task in by_setting.values():
            shots = len(task.shots[0])
            names = task.shots[task.ways.index(way)] if way in task.ways else ()
            panels += _shots(painter, names, colours, way, drawn.get(way, ()))
            panels += [Panel(None)] * (shots - len(names))
        rows.append(PanelRow(tuple(panels), f"way {index + 1}:\n{tasks.dataset.classes[way - 1]}"))
    groups = [
        (f"{setting.value.replace('-', ' ')}: {len(task.ways)}-way {len(task.shots[0])}-shot", len(task.shots[0]))
        for setting, task in by_setting.items()
    ]
    return draw_panels("How each setting augments a 2-way 2-shot task", rows, groups, SMALL_PANEL)


def _shots(
    painter: TaskPainter, names: Sequence[str], colours: Sequence[int], way: int, drawn: Sequence[str]
) -> list[Panel]:
    """The shots of a way, with what is known of each: drawn for the task, added by the setting, or repeated."""
    panels, seen = [], set[str]()
    for name in names:
        status = "repeated" if name in seen else "drawn" if name in drawn else "added"
        seen.add(name)
        panels.append(Panel(painter.with_classes(name, colours, [way]), below=status, way=colours.index(way)))
    return panels


def mask_figure(tasks: PaperTasks) -> Any:
    """Figure 5: the masks of two objects as the attention layers of CST and EMAT see them."""
    cst, emat = FORMS["cst"], FORMS["emat"]
    grids = (
        ("full", MASK),
        ("tokens", GRID),
        ("CST, layer 1", cst.support_grid),
        ("CST, layer 2", cst.support_grid // cst.windows[0].side),
        ("EMAT, layer 1", emat.support_grid),
        ("EMAT, layer 2", emat.support_grid // emat.windows[0].side),
    )
    rows = []
    for index, (name, class_id) in enumerate(_objects_at(tasks, MASK_PERCENTILES)):
        mask = resize_mask((tasks.dataset.mask(name) == class_id).astype(np.uint8), (MASK, MASK))
        panels = []
        for words, side in grids:
            title = f"{words}\n{side} × {side}" if index == 0 else ""
            panels.append(Panel(_mask_picture(mask, side), title))
        size = tasks.areas[name][class_id]
        rows.append(PanelRow(tuple(panels), f"{tasks.dataset.classes[class_id - 1]}\n{100 * size:.1f} % of\nthe photo"))
    return draw_panels("Support masks at the resolutions of the attention layers", rows)


def example_task(tasks: PaperTasks, way: int, shot: int) -> dict[Setting, Task]:
    """Return the same task in the three settings, chosen by `FIRST_RULE`.

    Raises:
        EmatError: If no setting changes any task.
    """
    needs = {setting: Need(way, shot, setting) for setting in Setting}
    found: dict[Setting, Task] | None = None
    for of_fold in zip(*map(tasks.samplers, needs.values()), strict=True):
        for same in zip(*of_fold, strict=True):
            task = dict(zip(needs, same, strict=True))
            full = task[Setting.FULLY_AUGMENTED]
            if full.augmented and found is None:
                found = task
            if task[Setting.PARTIALLY_AUGMENTED].augmented and len(full.ways) > way:
                return task
    if found is None:
        raise EmatError("no task of these lists is changed by an augmented setting, so there is none to show")
    return found


def _all_classes(tasks: PaperTasks, task: Task) -> list[int]:
    """The ways of the fully augmented task, and then every other class that its supports show."""
    others = [class_id for names in task.shots for name in names for class_id in tasks.areas[name]]
    return list(dict.fromkeys([*task.ways, *sorted(others)]))


def _shown(
    tasks: PaperTasks, painter: TaskPainter, name: str, colours: Sequence[int], classes: Sequence[int], title: str
) -> Panel:
    words = ", ".join(tasks.dataset.classes[class_id - 1] for class_id in classes)
    return Panel(replace(painter, photos=False).with_classes(name, colours, classes), title, words)


def _objects_at(tasks: PaperTasks, percentiles: Sequence[int]) -> list[tuple[str, int]]:
    entries, sizes = [], []
    for fold_list in tasks.benchmark.fold_lists:
        entries += list(fold_list.entries)
        sizes += object_sizes(fold_list, tasks.areas).tolist()
    order = np.argsort(sizes, kind="stable")
    return [entries[order[round(percent / 100 * (len(order) - 1))]] for percent in percentiles]


def _mask_picture(mask: Pixels, side: int) -> Pixels:
    """A mask (H, W) at a grid of `side`, as the network resizes it, enlarged."""
    if side >= len(mask):
        small = mask > 0
    else:
        small = np.zeros(side * side, bool)
        small[kept_cells(torch.from_numpy(mask), side).numpy()] = True
        small = small.reshape(side, side)
    large = resize_mask(small.astype(np.uint8), (min(LONGEST, MASK_PICTURE),) * 2) > 0
    return np.where(large[..., None], np.array(MASK_COLOUR, np.uint8), np.array(GROUND_COLOUR, np.uint8))
