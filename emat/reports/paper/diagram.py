"""Figure 3: the network as a diagram, with the sizes that its form has."""

from dataclasses import dataclass
from typing import Any

from emat.model import FORMS, build
from emat.reports.paper.attention_cost import CHANNELS, GRID
from emat.reports.style import QUIET, new_figure

FROZEN, INPUT, LAYER, BRANCH = "#dbe9f6", "#f1f3f5", "#e5dbff", "#d8f3dc"
WIDTH, HEIGHT = 10.5, 4.4  # inches


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
        "queries with 2 × 2 convolutions over\nthe support grid; keys and values are only those of the support tokens "
        "that the mask keeps, and of the class token."
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
