"""Figures show every method at every place, inside their frame, as SVG and as PNG."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
from PIL import Image

from emat.reports.figures import Mark, _range, figures
from emat.reports.runs import read_lines
from emat.reports.shapes import Dot, Drawing, PolyLine, Text, paint, svg
from tests.reports.conftest import Writer


def test_ways_make_a_figure_with_a_dot_for_each_score(write_run: Writer) -> None:
    files = [write_run("a.json", ways=(1, 2, 3)), write_run("b.json", method="cst", quality=0.5, ways=(1, 2, 3))]
    found = figures(read_lines(list(map(str, files))))
    assert [figure.name for figure in found] == [
        "ways-pascal-1-shot-original",
        "ways-pascal-1-shot-fully-augmented",
    ]
    drawing = found[0].drawing
    dots = [shape for shape in drawing.shapes if isinstance(shape, Dot)]
    assert len(dots) == 2 * 2 * 3 + 2  # methods, scores, ways; and the legend
    assert all(0 < dot.centre[0] < drawing.width and 0 < dot.centre[1] < drawing.height for dot in dots)


def test_sizes_make_a_figure(write_run: Writer) -> None:
    run = write_run("a.json", splits=("0-5", "5-10"), ways=(1,), settings=("original",))
    (figure,) = figures(read_lines([str(run)]))
    assert figure.name == "sizes-pascal-1-way-1-shot-original-has-class"
    assert {"0-5", "5-10"} <= {shape.words for shape in figure.drawing.shapes if isinstance(shape, Text)}


def test_one_way_makes_no_figure(write_run: Writer) -> None:
    assert figures(read_lines([str(write_run("a.json"))])) == []


def test_the_grid_holds_every_interval() -> None:
    low, high, step = _range([Mark(0, 40, 33.2, 47), Mark(1, 61, 60, 62.5)])
    assert low <= 33.2 < 62.5 <= high
    assert (high - low) % step == 0
    assert _range([Mark(0, 50, 50, 50)])[1] > 50


DRAWING = Drawing(
    40,
    30,
    (
        PolyLine(((5, 15), (35, 15)), (255, 0, 0), 4),
        Dot((20, 15), 5, (0, 0, 255)),
        Text((20, 25), "a < b", 8, (0, 0, 0), "middle"),
        Text((3, 15), "up", 8, (0, 0, 0), "middle", turned=True),
    ),
)


def test_svg_is_well_formed_and_escaped() -> None:
    root = ElementTree.fromstring(svg(DRAWING))
    assert [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")] == ["a < b", "up"]
    assert root.get("viewBox") == "0 0 40 30"


def test_png_shows_the_same_shapes(tmp_path: Path) -> None:
    DRAWING.save(tmp_path / "figure.png")
    pixels = np.asarray(Image.open(tmp_path / "figure.png"))
    assert pixels.shape == (60, 80, 3)
    assert np.array_equal(pixels, np.asarray(paint(DRAWING)))
    assert pixels[30, 40].tolist() == [0, 0, 255]
    assert pixels[30, 20].tolist() == [255, 0, 0]
    assert pixels[5, 75].tolist() == [255, 255, 255]
    assert (pixels[46:56, 25:55] < 128).any()
    assert (pixels[20:40, 2:10] < 128).any()
