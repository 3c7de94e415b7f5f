"""A slide is predicted window by window."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emat import Example, Segmenter
from emat.formats.results import ResultTable
from emat.formats.writing import open_writer
from emat.images import Reading
from emat.images.slides import Slide
from emat.inference.slides import SlidePrediction, is_slide, part_side, predict_slide
from tests.inference.colour_method import ColourMethod

tifffile = pytest.importorskip("tifffile", reason="slides need tifffile (pip install emat[science])")

RED, GREEN, GREY = (200, 20, 20), (20, 180, 20), (128, 128, 128)


def slide_of(path: Path, side: int = 600) -> np.ndarray:
    photo = np.full((side, side + 40, 3), GREY, np.uint8)
    photo[100:300, 50:250] = RED
    photo[350:420, 400:600] = GREEN
    tifffile.imwrite(path, photo, photometric="rgb", tile=(64, 64), compression="zlib")
    return photo


@pytest.fixture
def segmenter() -> Segmenter:
    examples = []
    for name, colour in (("red", RED), ("green", GREEN)):
        photo = np.full((40, 40, 3), GREY, np.uint8)
        photo[10:30, 10:30] = colour
        examples.append(Example(photo, {name: (10, 10, 30, 30)}))
    return Segmenter(ColourMethod(64)).fit(examples)


def test_the_bands_of_a_slide_are_its_label_map(segmenter: Segmenter, tmp_path: Path) -> None:
    photo = slide_of(tmp_path / "slide.tif")
    expected = np.zeros(photo.shape[:2], np.uint8)
    expected[(photo == RED).all(axis=2)] = 1
    expected[(photo == GREEN).all(axis=2)] = 2
    segmenter.reading = Reading(max_pixels=10_000)  # fewer than a window has
    table = ResultTable(tmp_path / "out" / "scores.csv", ["photo", "red"], "scores")
    with (
        Slide(tmp_path / "slide.tif") as slide,
        open_writer("png", tmp_path / "out", segmenter.classes_, tables=[table]) as writer,
    ):
        answer = SlidePrediction(segmenter.classes_, slide.size)
        bands = predict_slide(segmenter, slide, 5, answer)
        writer.write_bands(
            "slide.tif", slide.size, bands, lambda: {"scores": [["slide.tif", f"{answer.share('red'):.3f}"]]}
        )
    with Image.open(tmp_path / "out" / "masks" / "slide.png") as image:
        found = np.asarray(image)
    assert found.shape == expected.shape
    assert (found != expected).mean() < 0.02
    assert answer.share("red") == pytest.approx((found == 1).mean())
    assert answer.scores["red"] > 0.9
    assert f"{answer.share('red'):.3f}" in table.path.read_text()


def test_only_a_tiff_beyond_the_limit_is_a_slide(tmp_path: Path) -> None:
    slide_of(tmp_path / "slide.tif")
    Image.new("RGB", (50, 50)).save(tmp_path / "a.png")
    assert is_slide(tmp_path / "slide.tif", Reading(max_pixels=1000))
    assert not is_slide(tmp_path / "slide.tif", Reading())
    assert not is_slide(tmp_path / "a.png", Reading(max_pixels=1000))
    assert not is_slide(tmp_path / "gone.tif", Reading(max_pixels=1000))
    assert part_side((600, 640), "auto") == 1024
