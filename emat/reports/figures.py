"""The house style of all figures, and the charts of `emat report`: accuracy and mIoU by number of ways and object size.

matplotlib comes with the extra `report` and is imported when a figure is drawn.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emat.errors import EmatError
from emat.evaluation.results import Conditions, Summary
from emat.files import whole_file
from emat.pictures.palette import INK, PRINT_COLOURS, Colour
from emat.reports.tables import Line, describe, find
from emat.tasks.sampling import ORDINARY_SPLITS

DOTS_PER_INCH = 200
GRID = "#dee2e6"
QUIET = "#6c757d"
# The grid's lines enclose every interval. SVGs keep their text as text, and the same results give the same file.
STYLE = {"font.size": 9, "axes.autolimit_mode": "round_numbers", "svg.fonttype": "none", "svg.hashsalt": "emat"}
SCORES = (("accuracy", "Accuracy (%)"), ("miou", "mIoU (%)"))
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
    with house_style():
        figure = draw()
        for path in paths:
            kind = path.suffix.lower().removeprefix(".")
            metadata = {"Date": None} if kind == "svg" else None
            with whole_file(path) as unfinished:
                figure.savefig(unfinished, format=kind, dpi=DOTS_PER_INCH, metadata=metadata)


@contextmanager
def house_style() -> Iterator[None]:
    """Draw in the house style."""
    matplotlib, _ = _matplotlib()
    with matplotlib.rc_context(STYLE):
        yield


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
    axes.grid(axis="y", color=GRID)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def title_figure(figure: Any, title: str) -> None:
    """Write the title of a figure at its upper left."""
    figure.suptitle(title, x=0.02, ha="left", fontsize=11, color=hex_colour(INK))


def _matplotlib() -> tuple[Any, Any]:
    """Return matplotlib and its class of figures, which needs no display."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise EmatError('figures need matplotlib; install it with: pip install "emat[report]"') from None
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
        return _draw(self)


def figures(lines: Sequence[Line]) -> list[ScoreFigure]:
    """Make a figure wherever there are results for several ways or for several object sizes."""
    every = dict.fromkeys(each.conditions for line in lines for each in line.summaries)
    found = []
    for base in dict.fromkeys(each._replace(way=0) for each in every if each.split in ORDINARY_SPLITS):
        ways = sorted({each.way for each in every if each._replace(way=0) == base})
        if len(ways) > 1:
            axis = {str(way): base._replace(way=way) for way in ways}
            found.append(_figure(lines, axis, "Ways", base, "ways"))
    for base in dict.fromkeys(each._replace(split="") for each in every if each.split not in ORDINARY_SPLITS):
        splits = [each.split for each in every if each._replace(split="") == base]
        if len(splits) > 1:
            axis = {split: base._replace(split=split) for split in splits}
            found.append(_figure(lines, axis, "Object size, percent of the photo", base, "sizes"))
    return found


def _figure(
    lines: Sequence[Line], axis: dict[str, Conditions], axis_title: str, base: Conditions, kind: str
) -> ScoreFigure:
    charts = []
    for score, title in SCORES:
        marked = [(line, number, _marks(line, list(axis.values()), score)) for number, line in enumerate(lines)]
        curves = tuple(Curve(line.label, number, marks) for line, number, marks in marked if marks)
        if curves:
            charts.append(Chart(title, curves))
    return ScoreFigure(f"{kind}-{_file_name(base)}", describe(base), axis_title, tuple(axis), tuple(charts))


def _marks(line: Line, axis: Sequence[Conditions], score: str) -> tuple[Mark, ...]:
    marks = []
    for index, conditions in enumerate(axis):
        marks.append(mark_of(find(line, conditions), score, index))
    return tuple(mark for mark in marks if mark is not None)


def mark_of(summary: Summary | None, score: str, index: int) -> Mark | None:
    """Return the mark of a score at an index of the horizontal axis; None if it was not measured."""
    value = None if summary is None else summary.scores[score]
    if summary is None or value is None:
        return None
    low, high = summary.intervals[score] or (value, value)
    return Mark(index, 100 * value, 100 * low, 100 * high)


def _file_name(conditions: Conditions) -> str:
    ways = f"{conditions.way}-way" if conditions.way else ""
    parts = [conditions.dataset, ways, f"{conditions.shot}-shot", conditions.setting]
    parts += ["has-class"] if conditions.query_has_class else []
    return "-".join(part for part in parts if part)


def _draw(content: ScoreFigure) -> Any:
    labels = dict.fromkeys((curve.label, curve.colour) for chart in content.charts for curve in chart.curves)
    size = (CHART_WIDTH * len(content.charts), CHART_HEIGHT + LEGEND_LINE * (len(labels) + 1))
    figure = new_figure(*size)
    figure.get_layout_engine().set(w_pad=0.12)
    title_figure(figure, content.title)
    handles: dict[tuple[str, int], Any] = {}
    for number, chart in enumerate(content.charts):
        axes = figure.add_subplot(1, len(content.charts), number + 1)
        _prepare(axes, content, chart.score)
        for order, curve in enumerate(chart.curves):
            offset = (order - (len(chart.curves) - 1) / 2) * min(LARGEST_OFFSET, 0.5 / len(chart.curves))
            handles[curve.label, curve.colour] = _draw_curve(axes, curve, offset)
    figure.legend(
        [handles[each] for each in labels], [label for label, _ in labels], loc="outside lower left", frameon=False
    )
    return figure


def _prepare(axes: Any, content: ScoreFigure, score: str) -> None:
    axes.set_xticks(range(len(content.ticks)), content.ticks)
    axes.set_xlim(-0.5, len(content.ticks) - 0.5)
    plain_axes(axes, content.axis, score)


def _draw_curve(axes: Any, curve: Curve, offset: float) -> Any:
    at = [mark.index + offset for mark in curve.marks]
    colour = colour_number(curve.colour)
    axes.vlines(at, [mark.low for mark in curve.marks], [mark.high for mark in curve.marks], colour, linewidth=1.2)
    (drawn,) = axes.plot(at, [mark.value for mark in curve.marks], color=colour, marker="o", markersize=4)
    return drawn
