"""Tiles cover a photo, and a slide is predicted window by window."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from emat import Example, Prediction, Segmenter
from emat.formats.results import ResultTable
from emat.formats.writing import open_writer
from emat.images import Reading
from emat.images.slides import Slide, is_slide
from emat.inference.decisions import LeftOutExample, decide_tiles
from emat.inference.example import Scribble
from emat.inference.example_set import ExampleSet
from emat.inference.slides import SlidePrediction, part_side, predict_slide
from emat.inference.tiles import OVERLAP, UNCUT, Tiles, View, cut, tile_grid
from emat.pixel_learner import learner
from tests.inference.colour_method import ColourMethod
from tests.raises import raises_code

RED, GREEN, GREY = (200, 20, 20), (20, 180, 20), (128, 128, 128)


@given(st.integers(1, 900), st.integers(1, 900), st.one_of(st.integers(1, 6), st.just("auto")))
def test_tiles_cover_every_pixel_and_stay_inside(height: int, width: int, tiles: int | str) -> None:
    parts = cut((height, width), tile_grid((height, width), 100, tiles))  # type: ignore[arg-type]
    seen = np.zeros((height, width), bool)
    for part in parts:
        assert part.top >= 0
        assert part.left >= 0
        assert part.top + part.height <= height
        assert part.left + part.width <= width
        seen[part.area] = True
    assert seen.all()


def test_neighbours_overlap() -> None:
    first, second = cut((100, 400), (2, 2))[:2]
    assert first.left + first.width - second.left >= OVERLAP * first.width - 1


def test_a_small_photo_is_not_cut_by_auto() -> None:
    assert tile_grid((120, 140), 100, "auto") == UNCUT
    assert tile_grid((200, 300), 100, "auto") == (2, 3)


def test_a_small_object_found_by_tiles_is_missed_without() -> None:
    grey, red = np.full((256, 256, 3), 90, np.uint8), (250, 20, 20)
    shown = grey.copy()
    shown[64:192, 64:192] = red
    asked = grey.copy()
    asked[201:209, 41:49] = red  # one pixel of the whole as the network sees it, between two of them
    example = Example(shown, {"red": (64, 64, 192, 192)})
    without = Segmenter(ColourMethod()).fit([example]).predict(asked)
    with_tiles = Segmenter(ColourMethod(), tiles="auto").fit([example]).predict(asked)
    truth = np.zeros((256, 256), bool)
    truth[201:209, 41:49] = True
    assert without.present == set()
    assert not without.mask("red").any()
    assert with_tiles.present == {"red"}
    found = with_tiles.mask("red")
    assert (found & truth).sum() / (found | truth).sum() > 0.5


def test_a_tile_without_the_class_adds_nothing() -> None:
    grey = np.full((64, 64, 3), 90, np.uint8)
    shown = grey.copy()
    shown[:, :32] = (250, 20, 20)
    plain = Segmenter(ColourMethod(), tiles=3).fit([Example(shown, {"red": (0, 0, 32, 64)})]).predict(grey)
    assert not plain.mask("red").any()


def _spotted(seed: int, side: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """A few red discs on a noisy ground."""
    draw = np.random.RandomState(seed)
    photo = draw.randint(90, 130, (side, side, 3)).astype(np.uint8)
    y, x = np.mgrid[:side, :side]
    mask = np.zeros((side, side), bool)
    for _ in range(3):
        row, column = draw.randint(side // 8, side - side // 8, 2)
        mask |= (y - row) ** 2 + (x - column) ** 2 <= (side // 16) ** 2
    photo[mask] = (200, 60, 50)
    return photo, mask


@pytest.fixture(scope="module")
def spotted() -> Segmenter:
    shown = [_spotted(seed, 200) for seed in (1, 2, 3)]
    examples = [Example(photo, {"spot": mask}, name=f"photo {n}") for n, (photo, mask) in enumerate(shown)]
    return Segmenter.load("default", device="cpu", size=100).fit(examples)


def test_examples_are_cut_into_as_many_tiles_as_the_photo(spotted: Segmenter) -> None:
    known, head = spotted._examples, spotted.method
    closer = known.tile_supports("spot", (2, 2), head)
    assert closer[0] is known.tile_supports("spot", (2, 2), head)[0], "computed once"
    assert closer[1:] == known.tile_supports("spot", (2, 2), head, without={0})
    for example, encoding in zip(spotted.examples_, closer, strict=True):
        assert example.working is not None
        assert example.working.photo.shape == (200, 200, 3), "kept at twice the size that is learnt from"
        shown = example.working.masks["spot"] == 1
        tiles = cut((200, 200), (2, 2))
        fullest = tiles[int(np.argmax([shown[tile.area].sum() for tile in tiles]))]
        mask, tile = torch.from_numpy(shown[fullest.area].astype(np.float32)), example.working.photo[fullest.area]
        expected = head.encode_example(mask, partial(np.copy, tile), partial(head.photo_features, tile))
        assert torch.equal(encoding.cells, expected.cells)
        assert not torch.equal(encoding.cells, example.encodings["spot"].cells)


def test_what_is_drawn_because_it_is_probably_there_is_not_drawn_again_in_every_tile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    photo, mask = _spotted(1, 200)
    segmenter = Segmenter.load("default-light", device="cpu", size=100, refine=None)
    segmenter.fit([Example(photo, {"spot": mask})])
    empty = np.random.RandomState(7).randint(90, 130, (200, 200, 3)).astype(np.uint8)
    monkeypatch.setattr(learner, "BENEFIT_OF_DOUBT", 50.0)  # everything is probably there
    whole = segmenter.predict(empty).mask("spot")
    assert 0 < whole.mean() < 2 * learner.LEAST_DRAWN
    cut_up = segmenter.copy()
    cut_up.tiles = 2
    assert np.array_equal(cut_up.predict(empty).mask("spot"), whole)


def test_a_sparse_example_is_not_cut() -> None:
    photo, _ = _spotted(1, 64)
    strokes = {"spot": Scribble(points=[(20, 20)]), "background": Scribble(points=[(50, 5)])}
    segmenter = Segmenter.load("default", device="cpu", size=64).fit([Example(photo, strokes, sparse=True)])
    (whole,) = segmenter._examples.tile_supports("spot", (2, 2), segmenter.method)
    assert whole is segmenter.examples_[0].encodings["spot"]


@pytest.mark.parametrize("helps", [True, False])
def test_auto_cuts_photos_where_left_out_examples_gain_by_it(spotted: Segmenter, helps: bool) -> None:
    asked: list[tuple[int, int]] = []

    def predict(example: LeftOutExample, grid: tuple[int, int]) -> Prediction:
        asked.append(grid)
        good = (grid == UNCUT) is not helps
        truth = example.masks["spot"]
        found = (truth == 1) if good else np.zeros_like(truth, bool)
        return Prediction(example.photo, {"spot": 0.9}, {"spot": found.astype(np.float32)})

    assert decide_tiles(spotted._examples, 100, predict) == ("auto" if helps else None)
    assert asked == [UNCUT, (2, 2)] * 3


def test_predict_cuts_as_was_decided_and_as_it_is_told(spotted: Segmenter, monkeypatch: pytest.MonkeyPatch) -> None:
    photo, _ = _spotted(9, 2 * spotted.method.preparation.image_size)
    grids: list[tuple[int, int]] = []

    def noted(size: tuple[int, int], grid: tuple[int, int]) -> list[View]:
        grids.append(grid)
        return []

    monkeypatch.setattr("emat.inference.segmenter.cut", noted)
    monkeypatch.setattr(type(spotted.learnt_), "needs_head", True)
    for decided, told in (("auto", "fitted"), (None, "fitted"), ("auto", None), (None, 3)):
        other = spotted.copy()
        assert other._fit is not None
        other._fit = replace(other._fit, decisions=replace(other._fit.decisions, tiles=decided))  # type: ignore[arg-type]
        other.tiles = told  # type: ignore[assignment]
        other.predict_unrefined(photo)
    assert grids == [(2, 2), (3, 3)]


@pytest.mark.parametrize(("tiles", "kept"), [(2, {(2, 2)}), ("auto", {(1, 2)}), (None, set())])
def test_a_file_keeps_the_tiles_of_its_examples(
    spotted: Segmenter, tmp_path: Path, tiles: Tiles, kept: set[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(spotted.learnt_), "needs_head", True)
    side = spotted.method.preparation.image_size
    photo, mask = _spotted(4, 2 * side)
    example = Example(photo[:side], {"spot": mask[:side]})
    segmenter = Segmenter(spotted.method, tiles=tiles, learner=spotted.learner, size=100).fit([example])
    segmenter.rename("spot", "dot").save(tmp_path / "it.emat")
    loaded = Segmenter.load(tmp_path / "it.emat", device="cpu")
    (before,), (after,) = segmenter.examples_, loaded.examples_
    assert set(after.tiles) == {("dot", grid) for grid in kept}
    for (name, grid), encoding in after.tiles.items():
        assert torch.equal(encoding.cells, before.tiles[name, grid].cells)
        assert not torch.equal(encoding.cells, after.encodings["dot"].cells)
        (of_earlier_file,) = ExampleSet((replace(after, tiles={}),)).tile_supports(name, grid, loaded.method)
        assert torch.equal(encoding.cells, of_earlier_file.cells)
    segmenter.save(tmp_path / "small.emat", thumbnails=False)
    assert set(Segmenter.load(tmp_path / "small.emat", device="cpu").examples_[0].tiles) == set(after.tiles)


@pytest.mark.parametrize("tiles", ["auto", None])
def test_the_segmenter_that_was_fitted_cuts_as_its_file_does(
    spotted: Segmenter, tiles: Tiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emat.inference.segmenter.decide_tiles", lambda *_: tiles)
    photo, mask = _spotted(1, 60)
    segmenter = Segmenter(spotted.method, tiles="auto").fit([Example(photo, {"spot": mask})])
    assert segmenter.tiles_ == segmenter.decisions_.tiles == tiles


@pytest.mark.parametrize("tiles", [0, -1, "many", 1.5, True])
def test_other_values_are_refused(tiles: object) -> None:
    with raises_code("unknown-choice"):
        Segmenter(ColourMethod(), tiles=tiles)  # type: ignore[arg-type]


# Slides


def slide_of(path: Path, side: int = 600) -> np.ndarray:
    tifffile = pytest.importorskip("tifffile", reason="slides need tifffile (the extra science)")
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
