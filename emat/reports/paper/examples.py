"""Figures that show real tasks and masks without any model: the settings (2, 7), and masks at coarse grids (5)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from emat.errors import EmatError
from emat.images import Pixels, resize_mask
from emat.model import FORMS
from emat.model.encoding import kept_cells
from emat.reports.paper.attention_cost import GRID, MASK
from emat.reports.paper.panels import LONGEST, Panel, PanelRow, TaskPainter, draw_panels
from emat.reports.paper.paper_tasks import PaperTasks
from emat.reports.paper.parts import Need
from emat.tasks.sizes import object_sizes
from emat.tasks.task import Setting, Task

FIRST_RULE = (
    "The first task, by fold and index, to which the partially augmented setting adds a shot and the fully augmented "
    "setting also a way; if there is none, the first that the fully augmented setting changes."
)
MASK_RULE = "Of all listed objects of the four folds, sorted by size, those at the 15th and at the 50th percentile."
MASK_PERCENTILES = (15, 50)
MASK_COLOUR, GROUND_COLOUR = (0, 114, 178), (233, 236, 239)
MASK_PICTURE = 300  # pixels


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
        for setting, task in by_setting.items():
            shots = len(task.shots[0])
            title = f"{setting.value.replace('-', ' ')}\n{len(task.ways)}-way {shots}-shot" if index == 0 else ""
            names = task.shots[task.ways.index(way)] if way in task.ways else ()
            panels += _shots(painter, names, colours, way, drawn.get(way, ()))
            panels += [Panel(None)] * (shots - len(names))
            panels[-shots] = replace(panels[-shots], above=title)
        rows.append(PanelRow(tuple(panels), f"way {index + 1}:\n{tasks.dataset.classes[way - 1]}"))
    return draw_panels("How each setting augments a 2-way 2-shot task", rows)


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
        rows.append(PanelRow(tuple(panels), f"{tasks.dataset.classes[class_id - 1]}\n{size:.1%} of\nthe photo"))
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
