"""Rows of small pictures: photos with masks in the colours of their ways, and what stands above and beside them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emat.datasets.dataset import Dataset
from emat.formats.drawing import LabelMap
from emat.images import Pixels, resize_mask, resize_photo
from emat.pictures.palette import PRINT_COLOURS, Colour
from emat.reports.style import QUIET, hex_colour, new_figure, title_figure

LONGEST = 320  # pixels of a panel's longer side
PANEL_WIDTH, PANEL_HEIGHT, LABEL_ROOM, TITLE_ROOM = 1.55, 1.16, 0.3, 0.5  # inches
BLANK: Colour = (233, 236, 239)  # instead of photos that must not be shown
TINT = 0.55  # the share of a way's colour inside its mask


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
