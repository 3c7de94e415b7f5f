"""Figures of real tasks and masks without any model: the settings (2, 7), and masks at coarse grids (5).

A figure consists of rows of panels: photos with masks in the colours of their ways, and words above and beside them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from emat.datasets.dataset import Dataset
from emat.errors import EmatError
from emat.formats.drawing import LabelMap
from emat.images import Pixels, resize_mask, resize_photo
from emat.model import FORMS
from emat.model.encoding import kept_cells
from emat.pictures.palette import PRINT_COLOURS, Colour
from emat.reports.figures import QUIET, hex_colour, new_figure, title_figure
from emat.reports.paper.attention_cost import GRID, MASK
from emat.reports.paper.parts import Need, PaperTasks
from emat.tasks.benchmark import object_sizes
from emat.tasks.task import Setting, Task

LONGEST = 320  # pixels of a panel's longer side
PANEL_WIDTH, PANEL_HEIGHT, LABEL_ROOM, TITLE_ROOM = 1.55, 1.16, 0.3, 0.5  # inches
BLANK: Colour = (233, 236, 239)  # instead of photos that must not be shown
TINT = 0.55  # the share of a way's colour inside its mask
FIRST_RULE = (
    "The first task, by fold and index, to which the partially augmented setting adds a shot and the fully augmented "
    "setting also a way; if there is none, the first that the fully augmented setting changes."
)
MASK_RULE = "Of all listed objects of the four folds, sorted by size, those at the 15th and at the 50th percentile."
MASK_PERCENTILES = (15, 50)
MASK_COLOUR, GROUND_COLOUR = (0, 114, 178), (233, 236, 239)
MASK_PICTURE = 300  # pixels


@dataclass(frozen=True)
class Panel:
    """A picture, and the words above and below it; those below may be in the colour of a way."""

    picture: Pixels | None  # None for an empty panel
    above: str = ""
    below: str = ""
    way: int | None = None


@dataclass(frozen=True)
class PanelRow:
    """Panels side by side, with words at their left."""

    panels: tuple[Panel, ...]
    words: str = ""


def draw_panels(title: str, rows: Sequence[PanelRow]) -> Any:
    """Draw rows of panels."""
    columns = max(len(row.panels) for row in rows)
    has_words = any(row.words for row in rows)
    side = 1.0 if has_words else 0.0
    height = len(rows) * (PANEL_HEIGHT + LABEL_ROOM) + TITLE_ROOM
    figure = new_figure(columns * (PANEL_WIDTH + 0.1) + side, height)
    title_figure(figure, title)
    widths = [side, *[PANEL_WIDTH] * columns] if has_words else [PANEL_WIDTH] * columns
    grid = figure.add_gridspec(len(rows), len(widths), width_ratios=widths)
    for index, row in enumerate(rows):
        if has_words:
            axes = figure.add_subplot(grid[index, 0])
            axes.axis("off")
            axes.text(0.5, 0.5, row.words, ha="center", va="center", fontsize=8, transform=axes.transAxes)
        for column, panel in enumerate(row.panels):
            _draw_panel(figure.add_subplot(grid[index, column + has_words]), panel)
    return figure


def _draw_panel(axes: Any, panel: Panel) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.set_title(panel.above, fontsize=8, pad=3)
    if panel.picture is None:
        axes.axis("off")
        axes.set_title(panel.above, fontsize=8, pad=3, color=QUIET)
    else:
        axes.imshow(panel.picture, interpolation="nearest")
    colour = QUIET if panel.way is None else _dark(PRINT_COLOURS[panel.way % len(PRINT_COLOURS)])
    axes.text(0.5, -0.03, panel.below, ha="center", va="top", fontsize=7, color=colour, transform=axes.transAxes)


def _dark(colour: Colour) -> str:
    """A way's colour, dark enough to be read as letters on white."""
    red, green, blue = (round(0.72 * part) for part in colour)
    return hex_colour((red, green, blue))


@dataclass(frozen=True)
class TaskPainter:
    """Draws photos of a data set with masks; without `photos`, masks stand on an empty ground."""

    dataset: Dataset
    photos: bool = True

    def photo(self, name: str) -> Pixels:
        """Return the photo as it is."""
        return self.with_map(name, np.zeros(self.dataset.mask(name).shape, np.uint8))

    def with_classes(self, name: str, ways: Sequence[int], shown: Sequence[int] | None = None) -> Pixels:
        """Return the photo with the true masks of some classes.

        Args:
            name: The photo.
            ways: Class ids; the position of a class is its colour.
            shown: Which of `ways` to draw; None for all.
        """
        mask = self.dataset.mask(name)
        label_map = np.zeros(mask.shape, np.uint8)
        for index, class_id in enumerate(ways, start=1):
            if shown is None or class_id in shown:
                label_map[mask == class_id] = index
        return self.with_map(name, label_map)

    def with_map(self, name: str, label_map: LabelMap) -> Pixels:
        """Return the photo with a label map, whose label i is drawn in the colour of way i - 1."""
        height, width = label_map.shape
        scale = min(1.0, LONGEST / max(height, width))
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        if self.photos:
            ground = resize_photo(self.dataset.image(name), size)
        else:
            ground = np.broadcast_to(np.array(BLANK, np.uint8), (*size, 3))
        return _tinted(ground, resize_mask(np.asarray(label_map, np.uint8), size))


def _tinted(photo: Pixels, label_map: NDArray[np.uint8]) -> Pixels:
    picture = photo.astype(np.float32)
    for label in np.unique(label_map):
        if label:
            inside = label_map == label
            colour = np.array(PRINT_COLOURS[(int(label) - 1) % len(PRINT_COLOURS)], np.float32)
            picture[inside] = (1 - TINT) * picture[inside] + TINT * colour
            padded = np.pad(inside, 1, mode="edge")
            core = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
            picture[inside & ~core] = colour
    return picture.round().astype(np.uint8)


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
