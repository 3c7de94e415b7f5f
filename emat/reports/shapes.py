"""A drawing as a list of shapes, written as SVG or painted as PNG: both show the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal, TypeAlias

from PIL import Image, ImageDraw, ImageFont

from emat.formats.whole_files import whole_file, write_text

Colour: TypeAlias = tuple[int, int, int]
Point: TypeAlias = tuple[float, float]
Anchor: TypeAlias = Literal["start", "middle", "end"]

SMOOTHING = 3  # PNGs are painted this many times larger and shrunk, for smooth edges
PNG_SCALE = 2  # pixels of a PNG for one unit, sharp on today's screens
FONT = "DejaVu Sans, Verdana, Arial, sans-serif"
PIL_ANCHORS = {"start": "lm", "middle": "mm", "end": "rm"}


@dataclass(frozen=True)
class PolyLine:
    """A line through points."""

    points: tuple[Point, ...]
    colour: Colour
    width: float = 1.0


@dataclass(frozen=True)
class Dot:
    """A filled circle."""

    centre: Point
    radius: float
    colour: Colour


@dataclass(frozen=True)
class Text:
    """Words, placed by their vertical middle; `turned` reads upwards."""

    place: Point
    words: str
    size: float
    colour: Colour
    anchor: Anchor = "start"
    turned: bool = False


Shape: TypeAlias = PolyLine | Dot | Text


@dataclass(frozen=True)
class Drawing:
    """Shapes on white, later ones over earlier ones."""

    width: int
    height: int
    shapes: tuple[Shape, ...]

    def save(self, path: Path) -> None:
        """Write an SVG, or a PNG where the name ends so."""
        if path.suffix.lower() == ".png":
            with whole_file(path) as unfinished:
                paint(self).save(unfinished, "PNG", optimize=True)
        else:
            write_text(path, svg(self))


def svg(drawing: Drawing) -> str:
    """The drawing as an SVG document."""
    size = f'width="{drawing.width}" height="{drawing.height}" viewBox="0 0 {drawing.width} {drawing.height}"'
    body = "\n".join(_svg_shape(shape) for shape in drawing.shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def paint(drawing: Drawing) -> Image.Image:
    """The drawing as pixels."""
    scale = PNG_SCALE * SMOOTHING
    canvas = Image.new("RGB", (drawing.width * scale, drawing.height * scale), "white")
    for shape in drawing.shapes:
        _paint_shape(canvas, shape, scale)
    size = (drawing.width * PNG_SCALE, drawing.height * PNG_SCALE)
    return canvas.resize(size, Image.Resampling.LANCZOS)


def _svg_shape(shape: Shape) -> str:
    colour = "#{:02x}{:02x}{:02x}".format(*shape.colour)
    if isinstance(shape, PolyLine):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{shape.width:g}"/>'
    if isinstance(shape, Dot):
        return f'<circle cx="{shape.centre[0]:.1f}" cy="{shape.centre[1]:.1f}" r="{shape.radius:g}" fill="{colour}"/>'
    x, y = shape.place
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if shape.turned else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{shape.size:g}" fill="{colour}" text-anchor="{shape.anchor}" '
        f'dominant-baseline="central"{turn}>{escape(shape.words)}</text>'
    )


def _paint_shape(canvas: Image.Image, shape: Shape, scale: int) -> None:
    draw = ImageDraw.Draw(canvas)
    if isinstance(shape, PolyLine):
        points = [(x * scale, y * scale) for x, y in shape.points]
        draw.line(points, shape.colour, max(1, round(shape.width * scale)), joint="curve")
    elif isinstance(shape, Dot):
        (x, y), r = shape.centre, shape.radius
        draw.ellipse([(x - r) * scale, (y - r) * scale, (x + r) * scale, (y + r) * scale], shape.colour)
    else:
        _paint_text(canvas, shape, scale)


def _paint_text(canvas: Image.Image, text: Text, scale: int) -> None:
    font = ImageFont.load_default(text.size * scale)
    x, y = round(text.place[0] * scale), round(text.place[1] * scale)
    if not text.turned:
        ImageDraw.Draw(canvas).text((x, y), text.words, text.colour, font, PIL_ANCHORS[text.anchor])
        return
    left, top, right, bottom = (round(edge) for edge in font.getbbox(text.words))
    stamp = Image.new("L", (right - left, bottom - top), 0)
    ImageDraw.Draw(stamp).text((-left, -top), text.words, 255, font)
    stamp = stamp.transpose(Image.Transpose.ROTATE_90)
    canvas.paste(text.colour, (x - stamp.width // 2, y - stamp.height // 2), stamp)


def joined(*groups: Sequence[Shape]) -> tuple[Shape, ...]:
    """All shapes of all groups, in order."""
    return tuple(shape for group in groups for shape in group)
