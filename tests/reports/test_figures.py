"""Figures show every score of every method, as SVG and as PNG."""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emat.pictures.palette import PRINT_COLOURS
from emat.reports.comparison import read_methods
from emat.reports.figures import Chart, Curve, Mark, ScoreFigure, figures
from tests.raises import raises_code
from tests.reports.conftest import Writer

FIGURE = ScoreFigure(
    "ways-pets-1-shot",
    "pets, 1-shot",
    "Ways",
    ("1", "2"),
    (
        Chart(
            "mIoU (%)",
            (
                Curve("a < b", 0, (Mark(0, 40, 33.2, 47), Mark(1, 61, 60, 62.5))),
                Curve("other", 1, (Mark(0, 20, 20, 20),)),
            ),
        ),
    ),
)


def test_ways_make_a_figure_with_a_mark_for_each_score(write_run: Writer) -> None:
    files = [write_run("a.json", ways=(1, 2, 3)), write_run("b.json", method="cst", quality=0.5, ways=(1, 2, 3))]
    found = figures(read_methods(list(map(str, files))))
    assert [figure.name for figure in found] == [
        "ways-pascal-1-shot-original",
        "ways-pascal-1-shot-fully-augmented",
    ]
    assert found[0].title == "PASCAL-5i, 1-shot, original setting"
    assert found[0].ticks == ("1", "2", "3")
    assert [chart.score for chart in found[0].charts] == ["Accuracy (%)", "mIoU (%)"]
    for chart in found[0].charts:
        assert [(curve.label, len(curve.marks)) for curve in chart.curves] == [("emat", 3), ("cst", 3)]
        assert all(mark.low <= mark.value <= mark.high for curve in chart.curves for mark in curve.marks)


def test_sizes_make_a_figure(write_run: Writer) -> None:
    run = write_run("a.json", splits=("0-5", "5-10"), ways=(1,), settings=("original",))
    (figure,) = figures(read_methods([str(run)]))
    assert figure.name == "sizes-pascal-1-way-1-shot-original-has-class"
    assert figure.ticks == ("0-5", "5-10")


def test_one_way_makes_no_figure(write_run: Writer) -> None:
    assert figures(read_methods([str(write_run("a.json"))])) == []


def test_an_svg_has_its_words_as_text_and_is_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    FIGURE.save(tmp_path / "one.svg")
    FIGURE.save(tmp_path / "two.svg")
    root = ElementTree.fromstring((tmp_path / "one.svg").read_text())
    words = {each.text for each in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"pets, 1-shot", "Ways", "mIoU (%)", "1", "2", "a < b", "other"} <= words
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_a_png_shows_each_method_in_its_colour(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    FIGURE.save(tmp_path / "figure.png")
    pixels = np.asarray(Image.open(tmp_path / "figure.png").convert("RGB"))
    assert pixels.shape[1] > pixels.shape[0] > 500
    for colour in PRINT_COLOURS[:2]:
        assert (pixels == colour).all(axis=-1).sum() > 50
    assert not (pixels == PRINT_COLOURS[2]).all(axis=-1).any()


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    with raises_code("missing-package", 'pip install "emat-segmentation[report]'):
        FIGURE.save(tmp_path / "figure.png")
    assert not list(tmp_path.iterdir())
