"""The house style of all figures, and the charts of `emat report`: accuracy and mIoU by number of ways and object size.

matplotlib comes with the extra `report` and is imported when a figure is drawn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emat.errors import needs_extra
from emat.evaluation.results import Conditions, Summary
from emat.outputs import whole_file
from emat.pictures.palette import INK, PRINT_COLOURS, Colour
from emat.reports.comparison import MethodScores, describe, splits_measured, ways_measured

DOTS_PER_INCH = 200
RULE_COLOUR = "#dee2e6"
QUIET = "#6c757d"
# The grid's lines enclose every interval. SVGs keep their text as text, and the same results give the same file.
STYLE = {"font.size": 9, "axes.autolimit_mode": "round_numbers", "svg.fonttype": "none", "svg.hashsalt": "emat"}
SCORE_TITLES = (("accuracy", "Accuracy (%)"), ("miou", "mIoU (%)"))
CHART_WIDTH, CHART_HEIGHT, LEGEND_LINE = 4.2, 3.1, 0.22  # inches
LARGEST_OFFSET = 0.06  # between neighbouring methods, so that their intervals do not cover each other


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of this size in inches, whose parts arrange themselves.

    Raises:
        EmatError: If matplotlib is not installed.
    """
    _, figure_class = _matplotlib()
    return figure_class(figsize=(width, height), layout="constrained")


def save_figure(paths: Sequence[Path], draw: Callable[[], Any]) -> None:
    """Draw a figure once and save it to files, each in the format that its name ends in, such as .svg or .png.

    Args:
        paths: The files, each written whole or not at all.
        draw: Makes the figure; it is called in the house style.

    Raises:
        EmatError: If matplotlib is not installed.
    """
    matplotlib, _ = _matplotlib()
    with matplotlib.rc_context(STYLE):
        figure = draw()
        for path in paths:
            kind = path.suffix.lower().removeprefix(".")
            metadata = {"Date": None} if kind == "svg" else None
            with whole_file(path) as unfinished:
                figure.savefig(unfinished, format=kind, dpi=DOTS_PER_INCH, metadata=metadata)


def hex_colour(colour: Colour) -> str:
    """Return a colour as matplotlib and web pages write it.

    >>> hex_colour((255, 0, 16))
    '#ff0010'
    """
    return "#{:02x}{:02x}{:02x}".format(*colour)


def colour_number(index: int) -> str:
    """Return the colour of a line, bar or way by its index."""
    return hex_colour(PRINT_COLOURS[index % len(PRINT_COLOURS)])


def plain_axes(axes: Any, x_title: str = "", y_title: str = "") -> None:
    """Give axes of a chart the house style: horizontal lines, and no frame."""
    axes.set_xlabel(x_title)
    axes.set_ylabel(y_title)
    axes.grid(axis="y", color=RULE_COLOUR)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def title_figure(figure: Any, title: str) -> None:
    """Write the title of a figure at its upper left."""
    figure.suptitle(title, x=0.02, ha="left", fontsize=11, color=hex_colour(INK))


def _matplotlib() -> tuple[Any, Any]:
    """Return matplotlib and its class of figures, which needs no display."""
    with needs_extra("drawing figures", "report"):
        import matplotlib
        from matplotlib.figure import Figure
    return matplotlib, Figure


@dataclass(frozen=True)
class Mark:
    """A score in percent with its interval, at an index of the horizontal axis."""

    index: int
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Curve:
    """The marks of one method; its colour follows from its index among the methods of the figure."""

    label: str
    colour: int
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Chart:
    """One score of every method."""

    score: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class ScoreFigure:
    """A figure with one or two charts side by side, and the name of its file without a suffix."""

    name: str
    title: str
    axis: str
    ticks: tuple[str, ...]
    charts: tuple[Chart, ...]

    def save(self, path: Path) -> None:
        """Draw the figure to a file, in the format that the name of the file ends in, such as .svg or .png.

        Raises:
            EmatError: If matplotlib is not installed.
        """
        save_figure([path], self.draw)

    def draw(self) -> Any:
        """Draw the figure with matplotlib and return it."""
        labels = dict.fromkeys((curve.label, curve.colour) for chart in self.charts for curve in chart.curves)
        size = (CHART_WIDTH * len(self.charts), CHART_HEIGHT + LEGEND_LINE * (len(labels) + 1))
        figure = new_figure(*size)
        figure.get_layout_engine().set(w_pad=0.12)
        title_figure(figure, self.title)
        handles: dict[tuple[str, int], Any] = {}
        for number, chart in enumerate(self.charts):
            axes = figure.add_subplot(1, len(self.charts), number + 1)
            axes.set_xticks(range(len(self.ticks)), self.ticks)
            axes.set_xlim(-0.5, len(self.ticks) - 0.5)
            plain_axes(axes, self.axis, chart.score)
            for order, curve in enumerate(chart.curves):
                offset = (order - (len(chart.curves) - 1) / 2) * min(LARGEST_OFFSET, 0.5 / len(chart.curves))
                handles[curve.label, curve.colour] = _draw_curve(axes, curve, offset)
        shown = [handles[key] for key in labels]
        figure.legend(shown, [label for label, _ in labels], loc="outside lower left", frameon=False)
        return figure


def figures(methods: Sequence[MethodScores]) -> list[ScoreFigure]:
    """Make a figure wherever there are results for several ways or for several object sizes."""
    ways = [
        _figure(methods, base, some, "Ways", [str(conditions.way) for conditions in some], "ways")
        for base, some in ways_measured(methods).items()
        if len(some) > 1
    ]
    sizes = [
        _figure(methods, base, some, "Object size, percent of the photo", [of_size.split for of_size in some], "sizes")
        for base, some in splits_measured(methods).items()
        if len(some) > 1
    ]
    return ways + sizes


def _figure(
    methods: Sequence[MethodScores],
    base: Conditions,
    some: Sequence[Conditions],
    axis: str,
    ticks: Sequence[str],
    kind: str,
) -> ScoreFigure:
    charts = []
    for score, title in SCORE_TITLES:
        curves = []
        for number, method in enumerate(methods):
            marks = [mark_of(method.overall(conditions), score, index) for index, conditions in enumerate(some)]
            if any(marks):
                curves.append(Curve(method.label, number, tuple(mark for mark in marks if mark is not None)))
        if curves:
            charts.append(Chart(title, tuple(curves)))
    parts = [kind, base.dataset, f"{base.way}-way" if base.way else "", f"{base.shot}-shot", base.setting]
    parts += ["has-class"] if base.query_has_class else []
    return ScoreFigure("-".join(filter(None, parts)), describe(base), axis, tuple(ticks), tuple(charts))


def mark_of(summary: Summary | None, score: str, index: int) -> Mark | None:
    """Return the mark of a score at an index of the horizontal axis; None if it was not measured."""
    value = None if summary is None else summary.scores[score]
    if summary is None or value is None:
        return None
    low, high = summary.intervals[score] or (value, value)
    return Mark(index, 100 * value, 100 * low, 100 * high)


def _draw_curve(axes: Any, curve: Curve, offset: float) -> Any:
    at = [mark.index + offset for mark in curve.marks]
    colour = colour_number(curve.colour)
    axes.vlines(at, [mark.low for mark in curve.marks], [mark.high for mark in curve.marks], colour, linewidth=1.2)
    (drawn,) = axes.plot(at, [mark.value for mark in curve.marks], color=colour, marker="o", markersize=4)
    return drawn
