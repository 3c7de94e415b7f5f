"""The house style of all figures: sizes, colours, axes, and how a figure is saved.

matplotlib comes with the extra `report` and is imported when a figure is drawn.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from emat.errors import EmatError
from emat.files import whole_file
from emat.pictures.palette import INK, PRINT_COLOURS, Colour

DOTS_PER_INCH = 200
GRID = "#dee2e6"
QUIET = "#6c757d"
# The grid's lines enclose every interval. SVGs keep their text as text, and the same results give the same file.
STYLE = {"font.size": 9, "axes.autolimit_mode": "round_numbers", "svg.fonttype": "none", "svg.hashsalt": "emat"}


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of this size in inches, whose parts arrange themselves.

    Raises:
        EmatError: If matplotlib is not installed.
    """
    _, figure_class = _matplotlib()
    return figure_class(figsize=(width, height), layout="constrained")


def save_figure(path: Path, draw: Callable[[], Any]) -> None:
    """Draw a figure to a file, in the format that the name of the file ends in, such as .svg or .png.

    Args:
        path: The file, written whole or not at all.
        draw: Makes the figure; it is called in the house style.

    Raises:
        EmatError: If matplotlib is not installed.
    """
    with house_style(), whole_file(path) as unfinished:
        kind = path.suffix.lower().removeprefix(".")
        metadata = {"Date": None} if kind == "svg" else None
        draw().savefig(unfinished, format=kind, dpi=DOTS_PER_INCH, metadata=metadata)


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
