"""Photos of more than 8 bits are seen, not black."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from emat.images import Pixels, Reading, Stretch, read_photo
from emat.images.sources import pages
from emat.inference.photos import find_photos
from emat.progress import _said
from tests.raises import raises_code

RAMP = np.linspace(0, 1, 400).reshape(20, 20)


def png_of_sixteen_bits(values: np.ndarray) -> bytes:
    """A PNG of 16 bits a channel, which Pillow reads but cannot write for colours."""
    height, width, channels = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    colour = {2: 4, 3: 2, 4: 6}[channels]
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)), (b"IDAT", zlib.compress(rows))]
    chunks = [
        struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in [*parts, (b"IEND", b"")]
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def saved(values: np.ndarray, file_format: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, file_format)
    return buffer.getvalue()


def spread(photo: Pixels) -> int:
    return int(photo.max()) - int(photo.min())


@pytest.mark.parametrize("bits", [10, 12, 14, 16])
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "array", "PIL", "colour PNG"])
def test_a_photo_of_any_depth_fills_the_range_of_eight_bits(bits: int, kind: str) -> None:
    values = (RAMP * (2**bits - 1)).astype(np.uint16)
    if kind == "colour PNG":
        photo = read_photo(png_of_sixteen_bits(np.stack([values, values // 2, values // 4], axis=2)))
        assert abs(int(photo[-1, -1, 1]) - 128) <= 2, "channels keep their proportions"
    elif kind in ("PNG", "TIFF"):
        photo = read_photo(saved(values, kind))
    else:
        photo = read_photo(values if kind == "array" else Image.fromarray(values))
    assert photo.shape == (20, 20, 3)
    assert spread(photo) >= 250
    assert (np.diff(photo[..., 0].ravel().astype(int)) >= 0).all(), "brighter stays brighter"


def test_the_low_byte_of_colours_counts() -> None:
    values = np.zeros((4, 4, 4), np.uint16)
    values[..., :3] = np.arange(16).reshape(4, 4, 1) * 16  # 0 to 240: nothing in the high byte
    values[..., 3] = 65535
    assert spread(read_photo(png_of_sixteen_bits(values))) == 255


def test_a_grey_png_of_sixteen_bits_with_opacity_is_refused_and_not_black() -> None:
    with raises_code("not-an-image"):
        read_photo(png_of_sixteen_bits(np.full((3, 3, 2), 900, np.uint16)))


def test_fractions_of_white_are_taken_as_they_are() -> None:
    photo = read_photo((RAMP * 0.5).astype(np.float32))
    assert (photo.min(), photo.max()) == (0, 128)
    assert spread(read_photo(np.stack([RAMP] * 3, axis=2))) == 255


def test_other_fractions_are_stretched_and_gaps_become_black() -> None:
    values = (RAMP * 4000 - 1000).astype(np.float32)
    values[0, 0] = np.nan
    values[0, 1] = np.inf
    photo = read_photo(saved(values, "TIFF"))
    assert photo[0, 0, 0] == 0
    assert spread(photo) == 255


def test_percentiles_are_not_misled_by_a_hot_pixel() -> None:
    values = (RAMP * 1000).astype(np.uint16).repeat(10, axis=0).repeat(10, axis=1)
    values[5, 5] = 65535
    assert spread(read_photo(values)[20:, :]) > 220
    assert spread(read_photo(values, reading=Reading(Stretch("min-max")))[20:, :]) < 10


@pytest.mark.parametrize(
    ("text", "expected"), [("none", [0, 4, 16]), ("0,4095", [0, 62, 255]), ("min-max", [0, 62, 255])]
)
def test_the_stretch_can_be_chosen(text: str, expected: list[int]) -> None:
    values = np.array([[1, 1000, 4111]], np.uint16)
    assert read_photo(values, reading=Reading(Stretch.read(text)))[0, :, 0].tolist() == expected


@pytest.mark.parametrize("text", ["percentil", "5", "9,3", "nan,2", "", ","])
def test_what_is_no_stretch_is_refused(text: str) -> None:
    with raises_code("unknown-choice"):
        Stretch.read(text)


def test_fractions_of_unknown_range_are_refused_without_a_stretch() -> None:
    with raises_code("unknown-range"):
        read_photo(np.full((3, 3), 7.5), reading=Reading(Stretch("none")))


def test_eight_bits_are_never_changed() -> None:
    dark = np.full((3, 3, 3), 9, np.uint8)
    dark[0] = 11
    assert np.array_equal(read_photo(dark, reading=Reading(Stretch("min-max"))), dark)


def stack(path: Path, sizes: list[tuple[int, int]]) -> Path:
    frames = [Image.new("L", size, 10 * number) for number, size in enumerate(sizes, start=1)]
    frames[0].save(path, save_all=True, append_images=frames[1:])
    return path


def test_a_stack_is_refused_and_its_pages_can_be_named(tmp_path: Path) -> None:
    path = stack(tmp_path / "cells.tif", [(8, 6)] * 3)
    with raises_code("several-pages", "cells.tif"):
        read_photo(path)
    assert [int(read_photo(f"{path}[{page}]")[0, 0, 0]) for page in (1, 2, 3)] == [10, 20, 30]
    for page in (0, 4):
        with raises_code("no-such-page", str(page)):
            read_photo(f"{path}[{page}]")


def test_a_preview_behind_the_photo_makes_no_stack(tmp_path: Path) -> None:
    path = stack(tmp_path / "scan.tif", [(80, 60), (40, 30), (8, 6)])
    assert read_photo(path).shape == (60, 80, 3)


def test_the_limit_of_pixels_can_be_raised(tmp_path: Path) -> None:
    path = tmp_path / "wide.png"
    Image.new("L", (60, 50)).save(path)
    with raises_code("photo-too-large"):
        read_photo(path, reading=Reading(max_pixels=2999))
    assert read_photo(path, reading=Reading(max_pixels=3000)).shape == (50, 60, 3)
    with raises_code("bad-number"):
        Reading(max_pixels=0)


@pytest.mark.parametrize("dtype", [">u2", ">f4", "<f8", np.float16])
def test_arrays_of_every_byte_order_and_width_are_read(dtype: str) -> None:
    assert spread(read_photo((RAMP * 4095).astype(dtype))) >= 250


@pytest.mark.parametrize(("dtype", "low", "high"), [(np.int8, -100, 100), (np.int16, -2000, 2000), (np.uint32, 0, 3e9)])
def test_the_sign_of_a_tiffs_values_is_respected(tmp_path: Path, dtype: Any, low: float, high: float) -> None:
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(tmp_path / "a.tif", (low + RAMP * (high - low)).astype(dtype))
    photo = read_photo(tmp_path / "a.tif")
    assert spread(photo) >= 250
    assert (np.diff(photo[..., 0].ravel().astype(int)) >= 0).all(), "brighter stays brighter"


def test_a_tiff_of_a_kind_that_is_not_read_is_said_to_be_one(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(tmp_path / "a.tif", RAMP)
    with raises_code("damaged-file"):
        read_photo(tmp_path / "a.tif")


def test_a_smaller_page_of_another_shape_is_a_page(tmp_path: Path) -> None:
    path = stack(tmp_path / "scan.tif", [(80, 60), (40, 60)])
    with raises_code("several-pages"):
        read_photo(path)


def test_pages_keep_their_numbers_beside_previews(tmp_path: Path) -> None:
    path = stack(tmp_path / "scan.tif", [(80, 60), (40, 30), (80, 60)])
    assert pages(path, "scan.tif") == [1, 3]
    assert [photo.name for photo in find_photos([str(path)], all_pages=True)] == ["scan_p001.tif", "scan_p003.tif"]


@pytest.mark.parametrize("file_format", ["GIF", "PNG", "WEBP"])
def test_the_first_frame_of_an_animated_image_is_taken_and_said(
    file_format: str, caplog: pytest.LogCaptureFixture
) -> None:
    _said.cache_clear()
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "blue")]
    buffer = io.BytesIO()
    frames[0].save(buffer, file_format, save_all=True, append_images=frames[1:], lossless=True)
    assert read_photo(buffer.getvalue())[0, 0].tolist() == [255, 0, 0]
    assert "is animated; its first frame is taken" in caplog.text
