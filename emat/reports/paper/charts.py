"""The paper's charts, and the diagram of the network (3).

Charts show scores by object size (6), by theta (8) and by number of ways (9), object sizes (10), and memory by the
share of the photo that the mask covers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emat.evaluation.results import Summary
from emat.model import FORMS, build
from emat.reports.figures import (
    QUIET,
    SCORES,
    Chart,
    Curve,
    Mark,
    ScoreFigure,
    colour_number,
    mark_of,
    new_figure,
    plain_axes,
    title_figure,
)
from emat.reports.paper.attention_cost import (
    CHANNELS,
    COVERS,
    DENSE_CASES,
    FILLED,
    GB,
    GRID,
    IN_CHUNKS,
    AttentionCase,
    Costs,
)
from emat.reports.paper.measuring import Ledger
from emat.reports.paper.parts import CURVES, FILTERED, SIZES, SMALL_SPLITS, UNFILTERED, WAYS, compared, other_model
from emat.reports.tables import DATASETS
from emat.tasks.benchmark import HISTOGRAM_END, size_histogram
from emat.tasks.task import Setting

BAR_WIDTH = 0.36
BAR_HEIGHT = 3.4  # inches
MODEL_COLOURS = {"EMAT": 5, "CST*": 0, "CST": 1, "Prototype": 3}  # of the palette; others follow in order
FREE_COLOURS = (4, 2, 6, 1)
SPLIT_COLOURS, SMALL_END = (4, 0, 1), 15  # of the three splits of small objects, which end at this percentage
GREY = "#adb5bd"
FROZEN, INPUT, LAYER, BRANCH = "#dbe9f6", "#f1f3f5", "#e5dbff", "#d8f3dc"
WIDTH, HEIGHT = 10.5, 4.4  # inches


def size_bars(ledger: Ledger) -> Any:
    """Figure 6: EMAT beside another model, for objects of 0-5, 5-10 and 10-15 percent of the photo."""
    labels = list(ledger.methods)
    other = other_model(labels)
    shown = [label for label in (other, "EMAT") if label is not None and ledger.mean(label, SIZES[0])]
    first = {need: ledger.common_tasks(shown, [need]) for need in SIZES}
    series = {label: [ledger.mean(label, need, first[need]) for need in SIZES] for label in shown}
    title = f"Small objects on {DATASETS[ledger.tasks.name]}: 1-way 1-shot, the query has the class"
    return _bars(title, [f"{split} %" for split in SMALL_SPLITS], series, "Object size, share of the photo")


def theta_bars(ledger: Ledger) -> Any:
    """Figure 8: EMAT in the augmented settings, with every object added and with those above theta only."""
    names = {Setting.PARTIALLY_AUGMENTED: "partially", Setting.FULLY_AUGMENTED: "fully"}
    ticks = [f"{names[need.setting]} aug.\n{need.way}-way" for need in FILTERED]
    first = ledger.common_tasks(["EMAT"], (*FILTERED, *UNFILTERED))
    series = {
        "EMAT, every object": [ledger.mean("EMAT", need, first) for need in UNFILTERED],
        "EMAT, objects above theta": [ledger.mean("EMAT", need, first) for need in FILTERED],
    }
    return _bars(f"Object size filtering on {DATASETS[ledger.tasks.name]}, 1-shot", ticks, series, "")


def way_curves(ledger: Ledger) -> Any:
    """Figure 9: accuracy and mIoU of every measured model with one to five ways."""
    labels = [label for label in compared(list(ledger.methods)) if ledger.mean(label, CURVES[0])]
    first = ledger.common_tasks(labels, CURVES)
    charts = []
    for score, title in SCORES:
        curves = []
        for label in labels:
            marks = [mark_of(ledger.mean(label, need, first), score, index) for index, need in enumerate(CURVES)]
            curves.append(Curve(label, model_colour(label, labels), tuple(mark for mark in marks if mark)))
        charts.append(Chart(title, tuple(curves)))
    title = f"1- to 5-way 5-shot on {DATASETS[ledger.tasks.name]}, fully augmented setting"
    return ScoreFigure("figure-9", title, "Ways", tuple(map(str, WAYS)), tuple(charts)).draw()


def size_histograms(ledger: Ledger) -> Any:
    """Figure 10: how many objects of each fold's test list have which size, up to half of the photo."""
    tasks = ledger.tasks
    figure = new_figure(10.5, 3.0)
    title_figure(figure, f"Object sizes of the test lists of {DATASETS[tasks.name]} by fold")
    first = None
    for index, fold_list in enumerate(tasks.benchmark.fold_lists):
        axes = figure.add_subplot(1, len(tasks.folds), index + 1, sharey=first)
        first = first or axes
        counts = size_histogram(fold_list, tasks.areas, step=1)[:HISTOGRAM_END]
        percents = range(HISTOGRAM_END)
        colours = [colour_number(SPLIT_COLOURS[each // 5]) if each < SMALL_END else GREY for each in percents]
        axes.bar([each + 0.5 for each in percents], counts, width=0.9, color=colours)
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
    others = [each for each in labels if each not in MODEL_COLOURS]
    return FREE_COLOURS[others.index(label) % len(FREE_COLOURS)]


def _bars(title: str, ticks: Sequence[str], series: Mapping[str, Sequence[Summary | None]], x_title: str) -> Any:
    """Draw accuracy and mIoU as bars with intervals; of two series, the second says its gain over the first."""
    figure = new_figure(8.4, BAR_HEIGHT)
    title_figure(figure, title)
    labels = list(series)
    for panel, (score, score_title) in enumerate(SCORES):
        axes = figure.add_subplot(1, len(SCORES), panel + 1)
        plain_axes(axes, x_title, score_title)
        axes.set_xticks(range(len(ticks)), ticks)
        before: list[Mark | None] = []
        for order, label in enumerate(labels):
            marks = [mark_of(summary, score, index) for index, summary in enumerate(series[label])]
            colour = (
                colour_number(model_colour(label, labels)) if label in MODEL_COLOURS else ("#adb5bd", "#0072b2")[order]
            )
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
    parameters = sum(each.numel() for each in build("emat", CHANNELS).parameters())
    query = DiagramBox(0.85, 3.35, 1.3, 0.62, "query photo", INPUT)
    support = DiagramBox(0.85, 2.25, 1.3, 0.62, "support photo", INPUT)
    mask = DiagramBox(0.85, 0.85, 1.3, 0.62, "support mask", INPUT)
    backbone = DiagramBox(2.6, 2.8, 1.35, 1.75, "backbone\n(frozen)\n\nDINOv2 ViT-S\n12 blocks,\n6 heads", FROZEN)
    sizes = f"t_s = {side}² + 1 = {side**2 + 1}\nt_q = {GRID}² = {GRID**2}\n{CHANNELS} channels"
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
    figure = new_figure(WIDTH, HEIGHT)
    axes = figure.add_subplot()
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(0, HEIGHT)
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
    shape = FancyBboxPatch(corner, box.width, box.height, rounded, facecolor=box.colour, edgecolor="#adb5bd")
    axes.add_patch(shape)
    axes.text(box.x, box.y, box.words, ha="center", va="center", fontsize=8, linespacing=1.25)


def _draw_arrow(axes: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate(
        "", xy=end, xytext=start, arrowprops={"arrowstyle": "-|>", "color": QUIET, "shrinkA": 1, "shrinkB": 1}
    )
