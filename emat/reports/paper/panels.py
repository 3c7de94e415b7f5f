"""Rows of panels: photos with masks in the colours of their ways, and words above, below and beside them."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emat.datasets.dataset import Dataset
from emat.formats.drawing import LabelMap
from emat.images import Pixels, resize_mask, resize_photo
from emat.pictures.palette import INK, PRINT_COLOURS, Colour
from emat.reports.figures import GRID as GRID_COLOUR
from emat.reports.figures import QUIET, hex_colour, new_figure

LONGEST = 320  # pixels of a panel's longer side
PANEL, SMALL_PANEL = (1.6, 1.2), (1.15, 0.95)  # the width and height that pictures may have; inches, as all of these
NARROWEST = 0.95
MARGIN, GAP, LINE, WORDS_ROOM = 0.15, 0.16, 0.15, 0.95
TITLE_ROOM, GROUP_ROOM, HEADING_ROOM = 0.45, 0.32, 0.36
LETTERS_PER_INCH = 16  # of the words below a panel
FRAME_COLOUR = "#adb5bd"
BLANK: Colour = (233, 236, 239)  # instead of photos that must not be shown
TINT = 0.55  # the share of a way's colour inside its mask


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


def draw_panels(
    title: str,
    rows: Sequence[PanelRow],
    groups: Sequence[tuple[str, int]] = (),
    room: tuple[float, float] = PANEL,
) -> Any:
    """Draw rows of panels, with all positions in inches.

    Args:
        title: The title of the figure.
        rows: The rows. What stands above panels is taken from the first.
        groups: Names of neighbouring columns, and how many columns each stands over.
        room: The width and height that a picture may have.
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
        axes.plot([start, end], [TITLE_ROOM + GROUP_ROOM - 0.06] * 2, color=GRID_COLOUR, linewidth=1)
        first += count
    for row, fitted, top in zip(rows, sizes, tops, strict=True):
        height = max(high for _, high in fitted)
        if row.heading:
            axes.plot([MARGIN, width - MARGIN], [top - HEADING_ROOM + 0.02] * 2, color=GRID_COLOUR, linewidth=1)
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
        axes.plot(xs, ys, linestyle=(0, (3, 3)), color=FRAME_COLOUR, linewidth=0.8)
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
        height, width = label_map.shape
        scale = min(1.0, LONGEST / max(height, width))
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
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
            inside = label_map == label
            colour = np.array(PRINT_COLOURS[(int(label) - 1) % len(PRINT_COLOURS)], np.float32)
            picture[inside] = (1 - TINT) * picture[inside] + TINT * colour
            padded = np.pad(inside, 1, mode="edge")
            core = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
            picture[inside & ~core] = colour
    return picture.round().astype(np.uint8)
