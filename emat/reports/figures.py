"""The paper's figures: accuracy and mIoU by number of ways, and by size of the object."""

from collections.abc import Sequence
from dataclasses import dataclass

from emat.evaluation.summary import Configuration
from emat.reports.runs import Line
from emat.reports.shapes import Colour, Dot, Drawing, Point, PolyLine, Shape, Text, joined
from emat.reports.tables import ORDINARY_SPLITS, describe, find
from emat.tasks.picture import COLOURS, INK

GREY: Colour = (222, 226, 230)
WIDTH, HEIGHT = 420, 300  # of one chart
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 44, 46  # around the plotted area
TITLE_ROOM, LEGEND_LINE = 40, 20
TICKS = (1, 2, 5, 10, 20)  # percent between grid lines
MOST_TICKS = 6


@dataclass(frozen=True)
class Figure:
    """A drawing and the file name it goes by."""

    name: str
    drawing: Drawing


@dataclass(frozen=True)
class Mark:
    """A score in percent with its interval, over one place of the horizontal axis."""

    place: int
    value: float
    low: float
    high: float


def figures(lines: Sequence[Line]) -> list[Figure]:
    """A figure for every configuration that has several ways or several sizes."""
    asked = dict.fromkeys(each.configuration for line in lines for each in line.summaries)
    found = []
    for base in dict.fromkeys(each._replace(way=0) for each in asked if each.split in ORDINARY_SPLITS):
        ways = sorted({each.way for each in asked if each._replace(way=0) == base})
        if len(ways) > 1:
            axis = [(str(way), base._replace(way=way)) for way in ways]
            found.append(_figure(lines, axis, "Ways", describe(base), f"ways-{_file_name(base)}"))
    for base in dict.fromkeys(each._replace(split="") for each in asked if each.split not in ORDINARY_SPLITS):
        splits = [each.split for each in asked if each._replace(split="") == base]
        if len(splits) > 1:
            axis = [(split, base._replace(split=split)) for split in splits]
            words = "Size of the object, percent of the image"
            found.append(_figure(lines, axis, words, describe(base), f"sizes-{_file_name(base)}"))
    return found


def _figure(
    lines: Sequence[Line], axis: Sequence[tuple[str, Configuration]], axis_words: str, title: str, name: str
) -> Figure:
    legend_height = LEGEND_LINE * len(lines)
    charts, drawn = [], 0
    for score, words in (("accuracy", "Accuracy (%)"), ("miou", "mIoU (%)")):
        curves = [_marks(line, axis, score) for line in lines]
        if any(curves):
            names = [label for label, _ in axis]
            charts.append(_chart((drawn * WIDTH, TITLE_ROOM), curves, names, axis_words, words))
            drawn += 1
    bottom = TITLE_ROOM + HEIGHT
    legend = [_legend(line.label, place, (LEFT, bottom + 8)) for place, line in enumerate(lines)]
    heading = Text((LEFT, TITLE_ROOM / 2 + 4), title, 15, INK)
    shapes = joined([heading], *charts, *legend)
    return Figure(name, Drawing(drawn * WIDTH, bottom + legend_height + 12, shapes))


def _marks(line: Line, axis: Sequence[tuple[str, Configuration]], score: str) -> list[Mark]:
    marks = []
    for place, (_, asked) in enumerate(axis):
        summary = find(line, asked)
        value = None if summary is None else summary.scores[score]
        if summary is not None and value is not None:
            low, high = summary.intervals[score] or (value, value)
            marks.append(Mark(place, 100 * value, 100 * low, 100 * high))
    return marks


def _chart(
    corner: tuple[int, int], curves: Sequence[Sequence[Mark]], names: Sequence[str], axis_words: str, words: str
) -> list[Shape]:
    left, top = corner[0] + LEFT, corner[1] + TOP - 30
    right, bottom = corner[0] + WIDTH - RIGHT, corner[1] + HEIGHT - BOTTOM
    low, high, step = _range([mark for marks in curves for mark in marks])
    across = (right - left) / len(names)

    def at(place: float, value: float) -> Point:
        return left + (place + 0.5) * across, bottom - (value - low) / (high - low) * (bottom - top)

    shapes: list[Shape] = []
    for tick in range(low, high + 1, step):
        y = at(0, tick)[1]
        shapes += [PolyLine(((left, y), (right, y)), GREY), Text((left - 8, y), str(tick), 12, INK, "end")]
    shapes += [Text((at(place, low)[0], bottom + 16), name, 12, INK, "middle") for place, name in enumerate(names)]
    shapes.append(Text(((left + right) / 2, bottom + 36), axis_words, 12, INK, "middle"))
    shapes.append(Text((corner[0] + 16, (top + bottom) / 2), words, 12, INK, "middle", turned=True))
    for number, marks in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        aside = (number - (len(curves) - 1) / 2) * min(0.06, 0.5 / max(len(curves), 1))  # intervals side by side
        spots = [at(mark.place + aside, mark.value) for mark in marks]
        shapes += [
            PolyLine((at(mark.place + aside, mark.low), at(mark.place + aside, mark.high)), colour, 1.5)
            for mark in marks
        ]
        if len(spots) > 1:
            shapes.append(PolyLine(tuple(spots), colour, 2))
        shapes += [Dot(spot, 3.5, colour) for spot in spots]
    return shapes


def _range(marks: Sequence[Mark]) -> tuple[int, int, int]:
    """Lowest and highest line of the grid, and the step between lines, in percent."""
    lowest, highest = min(mark.low for mark in marks), max(mark.high for mark in marks)
    step = next((tick for tick in TICKS if (highest - lowest) / tick <= MOST_TICKS - 1), TICKS[-1])
    low = int(lowest // step) * step
    high = max(low + step, -int(-highest // step) * step)
    return low, high, step


def _legend(label: str, place: int, corner: Point) -> list[Shape]:
    colour = COLOURS[place % len(COLOURS)]
    x, y = corner[0], corner[1] + (place + 0.5) * LEGEND_LINE
    return [
        PolyLine(((x, y), (x + 28, y)), colour, 2),
        Dot((x + 14, y), 3.5, colour),
        Text((x + 38, y), label, 13, INK),
    ]


def _file_name(asked: Configuration) -> str:
    parts = [asked.dataset, f"{asked.way}-way" if asked.way else "", f"{asked.shot}-shot", asked.setting]
    parts += ["has-class"] if asked.query_has_class else []
    return "-".join(part for part in parts if part)
