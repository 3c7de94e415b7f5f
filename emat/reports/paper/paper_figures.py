"""The paper's figures: charts, the diagram of the network, and real tasks with what models predict for them.

Charts show scores by object size (6), by theta (8) and by number of ways (9), object sizes (10), and memory by the
share of the photo that the mask covers. Figures of tasks are rows of panels: photos with masks in the colours of their
ways. Two of them show what models predict, for small objects (1) and for queries with none, some and all of the classes
(4). Three need no model: what each setting keeps and adds (2, 7), and masks as the attention layers see them (5). Tasks
are chosen by a rule from all tasks or from the outcomes of all measured ones, never by hand.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from emat.datasets.dataset import Dataset
from emat.errors import EmatError
from emat.evaluation.evaluator import Evaluator, QueryWork, SharedTask
from emat.evaluation.metrics import TaskOutcome
from emat.evaluation.results import Summary
from emat.features import FeatureCache
from emat.formats.drawing import LabelMap
from emat.images import VOID, Pixels, fitted_size, resize_mask, resize_photo
from emat.model import FORMS, build
from emat.model.encoding import kept_cells
from emat.pictures.palette import INK, PRINT_COLOURS, Colour
from emat.pictures.task import tint
from emat.reports.comparison import DATASETS
from emat.reports.figures import (
    QUIET,
    RULE_COLOUR,
    SCORE_TITLES,
    Chart,
    Curve,
    Mark,
    ScoreFigure,
    colour_number,
    hex_colour,
    mark_of,
    new_figure,
    plain_axes,
    title_figure,
)
from emat.reports.paper.attention_cost import (
    COVERS,
    DENSE_CASES,
    FILLED,
    GB,
    IN_CHUNKS,
    PAPER_CHANNELS,
    PAPER_GRID,
    PAPER_SIZE,
    AttentionCase,
    Costs,
)
from emat.reports.paper.contents import (
    CURVE_WAYS,
    CURVES,
    SIZE_SPLITS,
    SMALL_OBJECTS,
    SMALL_SPLITS,
    THREE_SETTINGS,
    WITH_THETA,
    WITHOUT_THETA,
    TaskSpec,
    compared,
    other_model,
)
from emat.reports.paper.evaluations import PaperTasks, ResultStore
from emat.tasks.benchmark import HISTOGRAM_END, object_sizes, size_histogram
from emat.tasks.task import Setting, Task

BAR_WIDTH = 0.36
BAR_HEIGHT = 3.4  # inches
MODEL_COLOURS = {"EMAT": 5, "CST*": 0, "CST": 1, "Prototype": 3}  # of the palette; others follow in order
FREE_COLOURS = (4, 2, 6, 1)
SPLIT_COLOURS, SMALL_END = (4, 0, 1), 15  # of the three splits of small objects, which end at this percentage
GREY = "#adb5bd"
FROZEN, INPUT, LAYER, BRANCH = "#dbe9f6", "#f1f3f5", "#e5dbff", "#d8f3dc"
DIAGRAM_WIDTH, DIAGRAM_HEIGHT = 10.5, 4.4  # inches
LONGEST = 320  # pixels of a panel's longer side
PANEL, SMALL_PANEL = (1.6, 1.2), (1.15, 0.95)  # the width and height that pictures may have; inches, as all of these
NARROWEST = 0.95
MARGIN, GAP, LINE, WORDS_ROOM = 0.15, 0.16, 0.15, 0.95
TITLE_ROOM, GROUP_ROOM, HEADING_ROOM = 0.45, 0.32, 0.36
LETTERS_PER_INCH = 16  # of the words below a panel
BLANK: Colour = (233, 236, 239)  # the ground of masks, and instead of photos that must not be shown
TINT = 0.55  # the share of a way's colour inside its mask
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
MASK_COLOUR = (0, 114, 178)
MASK_PICTURE = 300  # pixels
CACHE_BYTES = 1 << 28


def size_bars(store: ResultStore) -> Any:
    """Figure 6: EMAT beside another model, for objects of 0-5, 5-10 and 10-15 percent of the photo."""
    labels = list(store.methods)
    other = other_model(labels)
    shown = [label for label in (other, "EMAT") if label is not None and store.mean(label, SIZE_SPLITS[0])]
    first = {spec: store.common_tasks(shown, [spec]) for spec in SIZE_SPLITS}
    series = {label: [store.mean(label, spec, first[spec]) for spec in SIZE_SPLITS] for label in shown}
    title = f"Small objects on {DATASETS[store.tasks.name]}: 1-way 1-shot, the query has the class"
    return _bars(title, [f"{split} %" for split in SMALL_SPLITS], series, "Object size, share of the photo")


def theta_bars(store: ResultStore) -> Any:
    """Figure 8: EMAT in the augmented settings, with every object added and with those above theta only."""
    names = {Setting.PARTIALLY_AUGMENTED: "partially", Setting.FULLY_AUGMENTED: "fully"}
    ticks = [f"{names[spec.setting]} aug.\n{spec.way}-way" for spec in WITH_THETA]
    first = store.common_tasks(["EMAT"], (*WITH_THETA, *WITHOUT_THETA))
    series = {
        "EMAT, every object": [store.mean("EMAT", spec, first) for spec in WITHOUT_THETA],
        "EMAT, objects above theta": [store.mean("EMAT", spec, first) for spec in WITH_THETA],
    }
    return _bars(f"Object size filtering on {DATASETS[store.tasks.name]}, 1-shot", ticks, series, "")


def way_curves(store: ResultStore) -> Any:
    """Figure 9: accuracy and mIoU of every measured model with one to five ways."""
    labels = [label for label in compared(list(store.methods)) if store.mean(label, CURVES[0])]
    first = store.common_tasks(labels, CURVES)
    charts = []
    for score, title in SCORE_TITLES:
        curves = []
        for label in labels:
            marks = [mark_of(store.mean(label, spec, first), score, index) for index, spec in enumerate(CURVES)]
            curves.append(Curve(label, model_colour(label, labels), tuple(mark for mark in marks if mark)))
        charts.append(Chart(title, tuple(curves)))
    title = f"1- to 5-way 5-shot on {DATASETS[store.tasks.name]}, fully augmented setting"
    return ScoreFigure("figure-9", title, "Ways", tuple(map(str, CURVE_WAYS)), tuple(charts)).draw()


def size_histograms(store: ResultStore) -> Any:
    """Figure 10: how many objects of each fold's test list have which size, up to half of the photo."""
    tasks = store.tasks
    figure = new_figure(10.5, 3.0)
    title_figure(figure, f"Object sizes of the test lists of {DATASETS[tasks.name]} by fold")
    first = None
    for index, fold_list in enumerate(tasks.benchmark.fold_lists):
        axes = figure.add_subplot(1, len(tasks.folds), index + 1, sharey=first)
        first = first or axes
        counts = size_histogram(fold_list, tasks.areas, step=1)[:HISTOGRAM_END]
        percents = range(HISTOGRAM_END)
        colours = [colour_number(SPLIT_COLOURS[percent // 5]) if percent < SMALL_END else GREY for percent in percents]
        axes.bar([percent + 0.5 for percent in percents], counts, width=0.9, color=colours)
        plain_axes(axes, "Percent of the photo", "Objects" if index == 0 else "")
        axes.set_xlim(0, HISTOGRAM_END)
        larger = len(fold_list.entries) - int(counts.sum())
        by_split = ", ".join(str(int(counts[start : start + 5].sum())) for start in (0, 5, 10))
        axes.set_title(f"Fold {fold_list.fold}", fontsize=9)
        words = f"0-5, 5-10, 10-15 %:\n{by_split}\nabove 50 %: {larger}"
        axes.text(0.97, 0.95, words, transform=axes.transAxes, ha="right", va="top", fontsize=7.5, color=QUIET)
    return figure


def dense_curves(costs: Costs) -> Any:
    """The paper's limitation: what leaving masked tokens out saves shrinks as the mask grows."""
    figure = new_figure(6.2, 3.8)
    title_figure(figure, "Training memory of EMAT's network as the support mask grows")
    axes = figure.add_subplot()
    styles = {FILLED: (0, "--"), IN_CHUNKS: (2, "-")}
    for case in DENSE_CASES:
        colour, line = styles.get(case.masking, (5, "-"))
        values = [costs[case, cover].bytes / GB for cover in COVERS]
        at = [100 * cover for cover in COVERS]
        name = f"masked tokens {case.masking}"
        axes.plot(at, values, line, color=colour_number(colour), marker="o", markersize=4, label=name)
    plain_axes(axes, "Share of the support photo that the mask covers (%)", "GB for one task")
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, 102)
    figure.legend(loc="outside lower left", frameon=False, ncols=1)
    return figure


def dense_costs() -> list[tuple[AttentionCase, float]]:
    """Return which costs `dense_curves` shows."""
    return [(case, cover) for case in DENSE_CASES for cover in COVERS]


def model_colour(label: str, labels: Sequence[str]) -> int:
    """Return the palette index of a model's colour, which is the same in every figure."""
    if label in MODEL_COLOURS:
        return MODEL_COLOURS[label]
    others = [other for other in labels if other not in MODEL_COLOURS]
    return FREE_COLOURS[others.index(label) % len(FREE_COLOURS)]


def _bars(title: str, ticks: Sequence[str], series: Mapping[str, Sequence[Summary | None]], x_title: str) -> Any:
    """Draw accuracy and mIoU as bars with intervals; of two series, the second says its gain over the first."""
    figure = new_figure(8.4, BAR_HEIGHT)
    title_figure(figure, title)
    labels = list(series)
    for panel, (score, score_title) in enumerate(SCORE_TITLES):
        axes = figure.add_subplot(1, len(SCORE_TITLES), panel + 1)
        plain_axes(axes, x_title, score_title)
        axes.set_xticks(range(len(ticks)), ticks)
        before: list[Mark | None] = []
        for order, label in enumerate(labels):
            marks = [mark_of(summary, score, index) for index, summary in enumerate(series[label])]
            colour = colour_number(model_colour(label, labels)) if label in MODEL_COLOURS else (GREY, "#0072b2")[order]
            _draw_bars(axes, marks, (order - (len(labels) - 1) / 2) * (BAR_WIDTH + 0.03), colour, label)
            _write_gains(axes, before, marks, (order - (len(labels) - 1) / 2) * (BAR_WIDTH + 0.03))
            before = marks
        axes.set_ylim(0, 108)
        axes.set_yticks(range(0, 101, 20))
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower left", frameon=False, ncols=max(1, len(names)))
    return figure


def _draw_bars(axes: Any, marks: Sequence[Mark | None], offset: float, colour: str, label: str) -> None:
    drawn = [mark for mark in marks if mark is not None]
    at = [mark.index + offset for mark in drawn]
    axes.bar(at, [mark.value for mark in drawn], BAR_WIDTH, color=colour, label=label)
    axes.vlines(at, [mark.low for mark in drawn], [mark.high for mark in drawn], "#212529", linewidth=1)


def _write_gains(axes: Any, before: Sequence[Mark | None], marks: Sequence[Mark | None], offset: float) -> None:
    for first, second in zip(before, marks, strict=False):
        if first is not None and second is not None:
            text = f"{second.value - first.value:+.1f}".replace("-", "−")
            axes.text(second.index + offset, second.high + 1.5, text, ha="center", va="bottom", fontsize=8)


@dataclass(frozen=True)
class DiagramBox:
    """A box of the diagram: its middle and size in inches, its words, and its colour."""

    x: float
    y: float
    width: float
    height: float
    words: str
    colour: str

    @property
    def left(self) -> tuple[float, float]:
        """Where arrows arrive."""
        return self.x - self.width / 2, self.y

    @property
    def right(self) -> tuple[float, float]:
        """Where arrows start."""
        return self.x + self.width / 2, self.y


def network_diagram() -> Any:
    """Draw EMAT from two photos to a presence and a mask."""
    form = FORMS["emat"]
    side, later = form.support_grid, form.support_grid // form.windows[0].side
    first, second = form.widths
    parameters = sum(parameter.numel() for parameter in build("emat", PAPER_CHANNELS).parameters())
    query = DiagramBox(0.85, 3.35, 1.3, 0.62, "query photo", INPUT)
    support = DiagramBox(0.85, 2.25, 1.3, 0.62, "support photo", INPUT)
    mask = DiagramBox(0.85, 0.85, 1.3, 0.62, "support mask", INPUT)
    backbone = DiagramBox(2.6, 2.8, 1.35, 1.75, "backbone\n(frozen)\n\nDINOv2 ViT-S\n12 blocks,\n6 heads", FROZEN)
    sizes = f"t_s = {side}² + 1 = {side**2 + 1}\nt_q = {PAPER_GRID}² = {PAPER_GRID**2}\n{PAPER_CHANNELS} channels"
    correlation = DiagramBox(4.45, 2.8, 1.5, 1.75, f"cosine similarity\n\n{sizes}", INPUT)
    layers = [
        DiagramBox(
            6.3, 2.8, 1.5, 1.75, f"attention layer 1\n\nt_s {side**2 + 1} → {later**2 + 1}\n{first} channels", LAYER
        ),
        DiagramBox(8.05, 2.8, 1.5, 1.75, f"attention layer 2\n\nt_s {later**2 + 1} → 2\n{second} channels", LAYER),
    ]
    grids = [
        DiagramBox(6.3, 0.85, 1.5, 0.62, f"mask at {side} × {side}\nkeeps some tokens", INPUT),
        DiagramBox(8.05, 0.85, 1.5, 0.62, f"mask at {later} × {later}\nkeeps some tokens", INPUT),
    ]
    presence = DiagramBox(9.75, 3.35, 1.25, 0.75, "presence\n(class token)", BRANCH)
    masks = DiagramBox(9.75, 2.25, 1.25, 0.75, "mask\n(image tokens)", BRANCH)
    figure = new_figure(DIAGRAM_WIDTH, DIAGRAM_HEIGHT)
    axes = figure.add_subplot()
    axes.set_xlim(0, DIAGRAM_WIDTH)
    axes.set_ylim(0, DIAGRAM_HEIGHT)
    axes.axis("off")
    for box in (query, support, mask, backbone, correlation, *layers, *grids, presence, masks):
        _draw_box(axes, box)
    for start, end in (
        (query.right, (backbone.left[0], query.y)),
        (support.right, (backbone.left[0], support.y)),
        (backbone.right, correlation.left),
        (correlation.right, layers[0].left),
        (layers[0].right, layers[1].left),
        ((layers[1].right[0], presence.y), presence.left),
        ((layers[1].right[0], masks.y), masks.left),
        (mask.right, grids[0].left),
        (grids[0].right, grids[1].left),
        *(((grid.x, grid.y + grid.height / 2), (grid.x, 2.8 - 1.75 / 2)) for grid in grids),
    ):
        _draw_arrow(axes, start, end)
    axes.text(0.2, 4.1, "EMAT: from a query, a support and its mask to presence and mask", fontsize=11)
    words = (
        f"{parameters:,} trained parameters in the attention layers and the two branches. Each layer downscales its "
        "queries with 2 × 2 convolutions over\nthe support grid, the second also by pooling; keys and values are only "
        "those of the support tokens that the mask keeps, and of the class token."
    )
    axes.text(0.2, 0.28, words, fontsize=8, color=QUIET, va="center")
    return figure


def _draw_box(axes: Any, box: DiagramBox) -> None:
    from matplotlib.patches import FancyBboxPatch

    corner = (box.x - box.width / 2, box.y - box.height / 2)
    rounded = "round,pad=0,rounding_size=0.08"
    shape = FancyBboxPatch(corner, box.width, box.height, rounded, facecolor=box.colour, edgecolor=GREY)
    axes.add_patch(shape)
    axes.text(box.x, box.y, box.words, ha="center", va="center", fontsize=8, linespacing=1.25)


def _draw_arrow(axes: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate(
        "", xy=end, xytext=start, arrowprops={"arrowstyle": "-|>", "color": QUIET, "shrinkA": 1, "shrinkB": 1}
    )


@dataclass(frozen=True)
class Panel:
    """A picture, and the words above and below it; those below may be in the colour of a way."""

    picture: Pixels | None  # None for an empty panel
    above: str = ""
    below: str = ""
    way: int | None = None
    absent: str = ""  # what stands in a frame instead of the picture, such as "not run"


@dataclass(frozen=True)
class PanelRow:
    """Panels side by side, with words at their left, and a heading above the row if a new part begins with it."""

    panels: tuple[Panel, ...]
    words: str = ""
    heading: str = ""


def _draw_panels(
    title: str, rows: Sequence[PanelRow], groups: Sequence[tuple[str, int]] = (), room: tuple[float, float] = PANEL
) -> Any:
    """Draw rows of panels, with all positions in inches.

    What stands above panels is taken from the first row. `groups` are names of neighbouring columns, and over how many
    each stands; `room` is the width and height that a picture may have.
    """
    sizes = [[_fitted(panel, room) for panel in row.panels] for row in rows]
    lefts, widths = _columns(sizes, [count for _, count in groups], any(row.words for row in rows))
    rows = [replace(row, panels=tuple(map(_wrapped, row.panels, widths))) for row in rows]
    tops, y = [], TITLE_ROOM + (GROUP_ROOM if groups else 0)
    y += LINE * max(panel.above.count("\n") + bool(panel.above) for panel in rows[0].panels)
    for row, fitted in zip(rows, sizes, strict=True):
        y += HEADING_ROOM if row.heading else 0
        tops.append(y)
        lines = max(panel.below.count("\n") + bool(panel.below) for panel in row.panels)
        y += max(high for _, high in fitted) + LINE * lines + GAP
    width = lefts[-1] + widths[-1] + MARGIN
    figure = new_figure(width, y)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(y, 0)  # inches from the top
    axes.axis("off")
    axes.text(MARGIN, MARGIN, title, fontsize=11, va="top", color=hex_colour(INK))
    first = 0
    for name, count in groups:
        start, end = lefts[first], lefts[first + count - 1] + widths[first + count - 1]
        axes.text((start + end) / 2, TITLE_ROOM + GROUP_ROOM - 0.1, name, ha="center", va="bottom", fontsize=8)
        axes.plot([start, end], [TITLE_ROOM + GROUP_ROOM - 0.06] * 2, color=RULE_COLOUR, linewidth=1)
        first += count
    for row, fitted, top in zip(rows, sizes, tops, strict=True):
        height = max(high for _, high in fitted)
        if row.heading:
            axes.plot([MARGIN, width - MARGIN], [top - HEADING_ROOM + 0.02] * 2, color=RULE_COLOUR, linewidth=1)
            axes.text(MARGIN, top - 0.08, row.heading, fontsize=8, va="bottom", color=QUIET)
        axes.text(MARGIN, top + height / 2, row.words, va="center", fontsize=8, linespacing=1.3)
        for panel, (wide, high), left, broad in zip(row.panels, fitted, lefts, widths, strict=False):
            frame = PictureFrame(left + (broad - wide) / 2, top + (height - high) / 2, wide, high)
            _draw_panel(axes, panel, frame, top, top + height)
    # Pictures set the limits to their own; these are the figure's.
    axes.set_xlim(0, width)
    axes.set_ylim(y, 0)
    axes.set_aspect("auto")
    return figure


@dataclass(frozen=True)
class PictureFrame:
    """Where a picture is, in inches from the upper left corner of the figure."""

    left: float
    top: float
    width: float
    height: float


def _fitted(panel: Panel, room: tuple[float, float]) -> tuple[float, float]:
    """The width and height of a panel's picture in inches."""
    if panel.picture is None:
        return room if panel.absent else (0.0, 0.0)
    height, width = panel.picture.shape[:2]
    scale = min(room[0] / width, room[1] / height)
    return width * scale, height * scale


def _wrapped(panel: Panel, width: float) -> Panel:
    """The panel with the words below it in lines that are not wider than its column."""
    return replace(panel, below=textwrap.fill(panel.below, max(1, int(LETTERS_PER_INCH * width))))


def _columns(
    sizes: Sequence[Sequence[tuple[float, float]]], groups: Sequence[int], words: bool
) -> tuple[list[float], list[float]]:
    """Where each column begins, and how wide it is; there is more room between groups."""
    count = max(map(len, sizes))
    widths = [max(NARROWEST, *(row[column][0] for row in sizes if column < len(row))) for column in range(count)]
    starts = {sum(groups[:index]) for index in range(1, len(groups))}
    lefts, x = [], MARGIN + (WORDS_ROOM if words else 0)
    for column, width in enumerate(widths):
        x += GAP if column in starts else 0
        lefts.append(x)
        x += width + GAP
    return lefts, widths


def _draw_panel(axes: Any, panel: Panel, frame: PictureFrame, row_top: float, row_bottom: float) -> None:
    middle, bottom = frame.left + frame.width / 2, frame.top + frame.height
    if panel.picture is not None:
        extent = (frame.left, frame.left + frame.width, bottom, frame.top)
        axes.imshow(panel.picture, interpolation="nearest", extent=extent)
    elif panel.absent:
        xs = [frame.left, frame.left + frame.width, frame.left + frame.width, frame.left, frame.left]
        ys = [frame.top, frame.top, bottom, bottom, frame.top]
        axes.plot(xs, ys, linestyle=(0, (3, 3)), color=GREY, linewidth=0.8)
        axes.text(middle, frame.top + frame.height / 2, panel.absent, ha="center", va="center", fontsize=8, color=QUIET)
    axes.text(middle, row_top - 0.06, panel.above, ha="center", va="bottom", fontsize=8)
    colour = QUIET if panel.way is None else _dark(PRINT_COLOURS[panel.way % len(PRINT_COLOURS)])
    axes.text(middle, row_bottom + 0.05, panel.below, ha="center", va="top", fontsize=7, color=colour)


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
        size = fitted_size(label_map.shape, LONGEST)
        if self.photos:
            ground = resize_photo(self.dataset.image(name), size)
        else:
            ground = np.broadcast_to(np.array(BLANK, np.uint8), (*size, 3))
        return _tinted(ground, resize_mask(np.asarray(label_map, np.uint8), size))


def side_by_side(pictures: Sequence[Pixels]) -> Pixels:
    """Return several pictures as one, at the height of the lowest, with a white line between them."""
    if len(pictures) == 1:
        return pictures[0]
    height = min(len(picture) for picture in pictures)
    line = np.full((height, 4, 3), 255, np.uint8)
    parts: list[Pixels] = []
    for picture in pictures:
        width = max(1, round(picture.shape[1] * height / picture.shape[0]))
        parts += [line, resize_photo(picture, (height, width))]
    return np.concatenate(parts[1:], axis=1)


def _tinted(photo: Pixels, label_map: NDArray[np.uint8]) -> Pixels:
    picture = photo.astype(np.float32)
    for label in np.unique(label_map):
        if label:
            colour = PRINT_COLOURS[(int(label) - 1) % len(PRINT_COLOURS)]
            tint(picture, label_map == label, colour, TINT, outline=1)
    return picture.round().astype(np.uint8)


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


class AnsweredTasks:
    """Rows of panels that show tasks and what the models of a store predict for them."""

    def __init__(self, store: ResultStore, painter: TaskPainter) -> None:
        self._store, self._painter = store, painter
        self._evaluators: dict[int, Evaluator] = {}

    def row(self, measured: MeasuredTask, row: PanelRow, head: bool) -> PanelRow:
        """Fill a row: two ways with all their shots, the query, the true masks, and what the models predict."""
        task, panels = measured.task, []
        for way, names in enumerate(task.shots[:2]):
            name = self._store.tasks.dataset.classes[task.ways[way] - 1]
            different = list(dict.fromkeys(names))
            pictures = [self._painter.with_classes(photo, task.ways, [task.ways[way]]) for photo in different]
            repeated = f", {len(names)} shots" if len(names) > len(different) else ""
            panels.append(Panel(side_by_side(pictures), f"support {way + 1}" if head else "", f"{name}{repeated}", way))
        return replace(row, panels=(*panels, *self.answers(measured, head)))

    def answers(self, measured: MeasuredTask, head: bool) -> list[Panel]:
        """Return the query, its true masks, the other model's and EMAT's predictions."""
        task, query, painter = measured.task, measured.task.query, self._painter
        extra = ", ".join(self._store.tasks.dataset.classes[way - 1] for way in task.ways[2:])
        below = f"also a way: {extra}" if extra else ""
        panels = [Panel(painter.photo(query), "query" if head else "")] if painter.photos else []
        panels.append(Panel(painter.with_classes(query, task.ways), "truth" if head else "", below))
        for label in (other_model(list(self._store.methods)) or "CST*", "EMAT"):
            if measured.fold in self._store.methods.get(label, {}):
                predicted = np.asarray(self._label_map(label, measured.fold, task), np.uint8)
                overlap = _overlap(predicted, self._store.tasks.dataset.mask(query), task.ways)
                panels.append(Panel(painter.with_map(query, predicted), label if head else "", overlap))
            else:
                panels.append(Panel(None, label if head else "", absent="not run"))
        return panels

    def _label_map(self, label: str, fold: int, task: Task) -> LabelMap:
        """The label map that a model predicts for a task, at the query's own size."""
        dataset, evaluated = self._store.tasks.dataset, self._store.methods[label][fold]
        if id(evaluated) not in self._evaluators:
            cache = FeatureCache(evaluated.method, memory_bytes=CACHE_BYTES)
            evaluator = Evaluator(evaluated.method, dataset, cache, support_bytes=CACHE_BYTES)
            self._evaluators[id(evaluated)] = evaluator
        height, width = dataset.mask(task.query).shape
        work = QueryWork(task.query, (SharedTask(task.ways, task.shots, ()),))
        evaluator = self._evaluators[id(evaluated)]
        (label_map,) = evaluator.decisions(work, (height, width), lambda _, decision: decision.label_map)
        return label_map


def small_objects_figure(store: ResultStore, painter: TaskPainter) -> Any:
    """Figure 1: EMAT and another model on small objects."""
    measured = sorted(_measured(store, SMALL_OBJECTS), key=lambda task: task.iou)
    if not measured:
        raise EmatError("not-measured", "EMAT was not measured on small objects")
    chosen = {"best": measured[-1], "median": measured[len(measured) // 2], "worst": measured[0]}
    answered = AnsweredTasks(store, painter)
    rows = []
    for index, (words, example) in enumerate(chosen.items()):
        support = painter.with_classes(example.task.shots[0][0], example.task.ways)
        class_name = store.tasks.dataset.classes[example.task.ways[0] - 1]
        first = Panel(support, "support" if index == 0 else "", class_name, way=0)
        rows.append(PanelRow((first, *answered.answers(example, index == 0)), words))
    return _draw_panels("Small objects: less than 15 % of the photo, 1-way 1-shot", rows)


def queries_figure(store: ResultStore, painter: TaskPainter) -> Any:
    """Figure 4: queries with none, some and all classes, and one task in three settings."""
    measured = _measured(store, THREE_SETTINGS[0])
    if not measured:
        raise EmatError("not-measured", "EMAT was not measured on 2-way 1-shot tasks")
    kinds: dict[str, Callable[[Sequence[bool]], bool]] = {
        "none of the\nclasses": lambda truth: not any(truth),
        "some of the\nclasses": lambda truth: any(truth) and not all(truth),
        "all classes": all,
    }
    rows: list[PanelRow] = []
    answered = AnsweredTasks(store, painter)
    for words, fits in kinds.items():
        tasks = [task for task in measured if fits(task.outcome.truth)]
        if tasks:
            tasks.sort(key=lambda task: task.iou if any(task.outcome.truth) else -task.marked)
            rows.append(answered.row(tasks[len(tasks) // 2], PanelRow((), words), not rows))
    heading = "One task in the three settings"
    for setting, task in zip(("original", "partially\naugmented", "fully\naugmented"), _changed(store), strict=False):
        rows.append(answered.row(task, PanelRow((), setting, heading), False))
        heading = ""
    return _draw_panels("Queries that show none, some and all of the classes; 2-way 1-shot", rows)


def _overlap(predicted: LabelMap, mask: LabelMap, ways: Sequence[int]) -> str:
    """Say how well a label map fits: the IoU of all ways together, or how much is marked where nothing should be."""
    counted = mask != VOID
    masks = [(predicted == index) & counted for index in range(1, len(ways) + 1)]
    true = [mask == way for way in ways]
    if not any(true_mask.any() for true_mask in true):
        marked = float(np.logical_or.reduce(masks).sum() / max(counted.sum(), 1))
        return "nothing marked" if marked == 0 else f"{100 * marked:.0f} % wrongly marked"
    inside = sum(int((a & b).sum()) for a, b in zip(masks, true, strict=True))
    either = sum(int((a | b).sum()) for a, b in zip(masks, true, strict=True))
    return f"IoU {100 * inside / either:.0f} %"


def _measured(store: ResultStore, spec: TaskSpec) -> list[MeasuredTask]:
    return [
        MeasuredTask(fold.configuration.fold, task, outcome)
        for fold in store.folds("EMAT", spec)
        for task, outcome in zip(fold.configuration.tasks, fold.outcomes, strict=True)
    ]


def _changed(store: ResultStore) -> list[MeasuredTask]:
    """One task in the three settings, chosen by the second part of `QUERY_RULE`; nothing if no task is changed."""
    first, *others = [{(one.fold, one.task.index): one for one in _measured(store, spec)} for spec in THREE_SETTINGS]
    everywhere = [where for where in first if all(where in by_task for by_task in others)]
    together = [[by_task[where] for by_task in (first, *others)] for where in everywhere]
    different = [len({(one.task.ways, one.task.shots) for one in same}) for same in together]
    for wanted in (3, 2):
        if wanted in different:
            return together[different.index(wanted)]
    return []


def settings_figure(tasks: PaperTasks, painter: TaskPainter) -> Any:
    """Figure 2: which annotations of a 2-way 1-shot support set each setting keeps."""
    by_setting = _example_task(tasks, way=2, shot=1)
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
    return _draw_panels("What each setting keeps of a 2-way 1-shot support set", rows)


def augmentation_figure(tasks: PaperTasks, painter: TaskPainter) -> Any:
    """Figure 7: how a 2-way 2-shot support set grows in the augmented settings; every row is a way."""
    by_setting = _example_task(tasks, way=2, shot=2)
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
    return _draw_panels("How each setting augments a 2-way 2-shot task", rows, groups, SMALL_PANEL)


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
        ("full", PAPER_SIZE),
        ("tokens", PAPER_GRID),
        ("CST, layer 1", cst.support_grid),
        ("CST, layer 2", cst.support_grid // cst.windows[0].side),
        ("EMAT, layer 1", emat.support_grid),
        ("EMAT, layer 2", emat.support_grid // emat.windows[0].side),
    )
    rows = []
    for index, (name, class_id) in enumerate(_objects_at(tasks, MASK_PERCENTILES)):
        mask = resize_mask((tasks.dataset.mask(name) == class_id).astype(np.uint8), (PAPER_SIZE, PAPER_SIZE))
        panels = []
        for words, side in grids:
            title = f"{words}\n{side} × {side}" if index == 0 else ""
            panels.append(Panel(_mask_picture(mask, side), title))
        size = tasks.areas[name][class_id]
        rows.append(PanelRow(tuple(panels), f"{tasks.dataset.classes[class_id - 1]}\n{100 * size:.1f} % of\nthe photo"))
    return _draw_panels("Support masks at the resolutions of the attention layers", rows)


def _example_task(tasks: PaperTasks, way: int, shot: int) -> dict[Setting, Task]:
    """Return the same task in the three settings, chosen by `FIRST_RULE`; EmatError if none changes any task."""
    specs = {setting: TaskSpec(way, shot, setting) for setting in Setting}
    chosen: dict[Setting, Task] | None = None
    for of_fold in zip(*map(tasks.samplers, specs.values()), strict=True):
        for same in zip(*of_fold, strict=True):
            task = dict(zip(specs, same, strict=True))
            full = task[Setting.FULLY_AUGMENTED]
            if full.augmented and chosen is None:
                chosen = task
            if task[Setting.PARTIALLY_AUGMENTED].augmented and len(full.ways) > way:
                return task
    if chosen is None:
        raise EmatError(
            "not-measured", "no task of these lists is changed by an augmented setting, so there is none to show"
        )
    return chosen


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
    return np.where(large[..., None], np.array(MASK_COLOUR, np.uint8), np.array(BLANK, np.uint8))
