"""Photos that are dropped on the page get small and harmless; paint comes as a PNG of numbers and becomes masks."""

import io
import zlib
from pathlib import Path

import numpy as np
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from PIL import Image

from emat.files import inner_name, without_suffix
from emat.images import Reading, Stretch, read_channels
from emat.studio import photos
from emat.studio.photos import (
    LONGEST_NAME,
    SMALL_SIDE,
    WORKING_SIDE,
    Painted,
    StudioPhoto,
    packed,
    paint_of,
    png_of,
    read_dropped,
    read_paint,
    safe_name,
)
from tests.raises import raises_code
from tests.studio.conftest import RED, left_half, png


@given(st.lists(st.text(max_size=120), max_size=6))
def test_names_stay_in_their_folder_and_never_share_a_stem(names: list[str]) -> None:
    taken: list[str] = []
    for name in names:
        taken.append(safe_name(name, taken))
    for name in taken:
        assert inner_name(name) == name
        assert "/" not in name
        assert name.isprintable()
        assert len(name) <= LONGEST_NAME + len("-100")
    assert len({without_suffix(name).casefold() for name in taken}) == len(taken)


def test_a_large_photo_is_worked_on_small_and_its_size_is_remembered(tmp_path: Path) -> None:
    photo = read_dropped(png(RED, size=(2000, 4000)), "large.png", tmp_path / "1.png")
    assert photo.size == (2000, 4000)
    assert photo.pixels.shape == (*photo.working, 3) == (WORKING_SIDE // 2, WORKING_SIDE, 3)
    assert photo.small.shape == (SMALL_SIDE // 2, SMALL_SIDE, 3)
    photo.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_small_photo_is_kept_pixel_by_pixel(tmp_path: Path) -> None:
    photo = read_dropped(png(RED, size=(20, 30)), "small.png", tmp_path / "1.png")
    assert photo.pixels.shape == (20, 30, 3)
    assert (photo.pixels == RED).all()


def test_a_photo_of_too_many_pixels_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(photos, "LARGEST", 100_000)
    Image.new("1", (400, 300)).save(tmp_path / "bomb.png")
    with raises_code("photo-too-large"):
        read_dropped((tmp_path / "bomb.png").read_bytes(), "bomb.png", tmp_path / "1.png")


def test_what_is_not_a_photo_is_named_without_its_path(tmp_path: Path) -> None:
    with raises_code("not-an-image", "notes.jpg", "JPEG"):
        read_dropped(b"not a photo", "notes.jpg", tmp_path / "1.png")


NUMBERS = {f"class {number}": number for number in range(1, 13)}
PHOTO = StudioPhoto("a.png", (9, 11), (9, 11), Path("a.png"))


@given(arrays.arrays(np.uint8, (9, 11), elements=st.sampled_from([*range(13), 254, 255])))
def test_paint_comes_back_as_it_went(paint: NDArray[np.uint8]) -> None:
    np.testing.assert_array_equal(read_paint(png_of(paint), PHOTO), paint)
    assert zlib.decompress(packed(paint)) == paint.tobytes()
    painted = Painted.of(paint, NUMBERS)
    again = paint_of(painted.masks, NUMBERS, (9, 11))
    again[painted.background], again[painted.undecided] = 254, 255
    np.testing.assert_array_equal(again, paint)


@pytest.mark.parametrize("data", [b"", b"no", png_of(left_half())[:60], png_of(left_half()), png(RED, size=(9, 11))])
def test_what_is_not_the_paint_of_this_photo_is_refused(data: bytes) -> None:
    with raises_code("damaged-file|mask-size", "a.png"):
        read_paint(data, PHOTO)


@pytest.mark.parametrize(
    "name", ["x" * 300 + ".png", "\U00020000" * 80 + ".png", "a." + "y" * 300, "." * 300, "é" * 200]
)
def test_a_name_of_any_length_becomes_one_that_a_file_can_have(tmp_path: Path, name: str) -> None:
    plain = safe_name(name)
    assert 0 < len(plain.encode()) < 120
    assert plain.endswith(".png") == name.endswith(".png")
    (tmp_path / plain).touch()
    other = safe_name(name, [plain])
    assert other != plain


def test_a_large_photo_is_made_smaller_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photos, "MAX_PIXELS", 20_000)
    data = io.BytesIO()
    tifffile.imwrite(data, np.zeros((200, 400), np.uint8), imagej=True, resolution=(2, 2), metadata={"unit": "um"})
    large = read_dropped(data.getvalue(), "large.tif", tmp_path / "1.png")
    assert large.size == (100, 200)
    assert large.notice == "Made smaller, from 400 x 200 to 200 x 100 pixels."
    scale = photos.scale_of_file(large)
    assert scale is not None
    assert (scale.side, scale.unit) == (1.0, "um"), "pixels are twice as large now"


def test_photos_are_read_as_the_fitted_file_reads_them(tmp_path: Path) -> None:
    values = np.linspace(0, 60_000, 2 * 30 * 40).reshape(2, 30, 40).astype(np.uint16)
    tifffile.imwrite(tmp_path / "a.tif", values, ome=True, metadata={"axes": "ZYX"}, photometric="minisblack")
    reading = Reading(Stretch.read("100,30000"), project="max")
    photo = read_dropped((tmp_path / "a.tif").read_bytes(), "a.tif", tmp_path / "1.png", reading)
    assert np.array_equal(photo.pixels, read_channels(tmp_path / "a.tif", reading=reading))
    assert photo.notice == ""
