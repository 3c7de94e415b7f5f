"""Windows of large TIFF files are what cutting the whole photo would give, in little memory."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emat.images import Reading, Stretch, read_channels, read_photo
from emat.images.slides import Slide, is_slide, open_slide
from emat.images.stacks import write_zarr
from tests.raises import raises_code

tifffile = pytest.importorskip("tifffile", reason="slides need tifffile (the extra science)")

RANDOM = np.random.default_rng(0)
GREY = RANDOM.integers(0, 256, (70, 90), np.uint8)
COLOUR = RANDOM.integers(0, 256, (70, 90, 3), np.uint8)
WINDOWS = [(0, 0, 70, 90), (0, 0, 16, 16), (5, 7, 40, 33), (60, 80, 10, 10)]


@pytest.mark.parametrize("values", [GREY, COLOUR], ids=["grey", "colour"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tile": (32, 16)},
        {"tile": (16, 32), "compression": "zlib"},
        {"rowsperstrip": 7, "compression": "zlib"},
        {"tile": (16, 16), "planarconfig": "separate"},
    ],
    ids=str,
)
def test_a_window_is_the_part_of_the_photo(tmp_path: Path, values: np.ndarray, options: dict[str, Any]) -> None:
    path = tmp_path / "slide.tif"
    if values.ndim == 2:
        options = {key: value for key, value in options.items() if key != "planarconfig"}
    elif "planarconfig" in options:
        values = values.transpose(2, 0, 1)
    tifffile.imwrite(path, values, photometric="rgb" if values.ndim == 3 else "minisblack", **options)
    whole = COLOUR if values.ndim == 3 else np.repeat(GREY[..., None], 3, axis=2)
    with Slide(path) as slide:
        assert slide.size == (70, 90)
        for top, left, height, width in WINDOWS:
            expected = whole[top : top + height, left : left + width]
            assert np.array_equal(slide.read(top, left, height, width), expected)


def test_all_windows_of_a_deep_slide_are_stretched_alike(tmp_path: Path) -> None:
    values = (np.arange(64 * 64).reshape(64, 64) // 2 + 100).astype(np.uint16)
    tifffile.imwrite(tmp_path / "deep.tif", values, tile=(16, 16))
    with Slide(tmp_path / "deep.tif", Reading(Stretch("min-max"))) as slide:
        whole = slide.whole()
        assert (whole.min(), whole.max()) == (0, 255)
        assert np.array_equal(slide.read(16, 16, 16, 16), whole[16:32, 16:32])


def test_a_photo_whose_channels_are_planes_is_read_in_full_depth(tmp_path: Path) -> None:
    planes = np.stack([np.full((20, 30), value, np.uint16) for value in (0, 500, 1000)])
    tifffile.imwrite(tmp_path / "planes.tif", planes, photometric="rgb")
    assert read_photo(tmp_path / "planes.tif")[0, 0].tolist() == [0, 128, 255]


def test_the_memory_does_not_grow_with_the_slide(tmp_path: Path) -> None:
    side, tile = 4096, 256
    path = tmp_path / "large.tif"

    def tiles() -> Iterator[np.ndarray]:
        for number in range((side // tile) ** 2):
            yield np.full((tile, tile, 3), number % 250, np.uint8)

    tifffile.imwrite(path, tiles(), shape=(side, side, 3), dtype=np.uint8, tile=(tile, tile), compression="zlib",
                     photometric="rgb")  # fmt: skip
    tracemalloc.start()
    with Slide(path) as slide:
        for top in range(0, side, 512):
            for left in range(0, side, 512):
                assert slide.read(top, left, 512, 512).shape == (512, 512, 3)
        peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12_000_000, "the slide has 50 million bytes, a window 0.8 million"


def test_a_damaged_slide_and_other_files_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "slide.tif"
    tifffile.imwrite(path, COLOUR, photometric="rgb", tile=(16, 16), compression="zlib")
    content = bytearray(path.read_bytes())
    content[200:400] = bytes(200)
    path.write_bytes(content)
    with raises_code("damaged-file", "slide.tif"), Slide(path) as slide:
        slide.whole()
    (tmp_path / "text.tif").write_text("no photo")
    with raises_code("not-an-image", "text.tif"):
        Slide(tmp_path / "text.tif")


CHANNELS = RANDOM.integers(0, 60_000, (5, 70, 90), np.uint16)
NAMES = ["DAPI", "GFP", "RFP", "Cy5", "Cy7"]


def write_channels(kind: str, path: Path) -> Path:
    """Write `CHANNELS` in one of the ways in which programs store slides with channels."""
    named = {"axes": "CYX", "Channel": {"Name": NAMES}}
    path = path / {"zarr": "slide.ome.zarr", "imagej": "slide.tif"}.get(kind, "slide.ome.tif")
    if kind == "zarr":
        write_zarr(path, CHANNELS, NAMES, None)
    elif kind == "imagej":
        tifffile.imwrite(path, CHANNELS, imagej=True, metadata={"axes": "CYX", "Labels": NAMES})
    elif kind == "uncompressed":
        tifffile.imwrite(path, CHANNELS, metadata=named, photometric="minisblack")
    elif kind == "tiled":
        tifffile.imwrite(path, CHANNELS, metadata=named, photometric="minisblack", tile=(32, 16), compression="zlib")
    else:  # with a smaller copy of every channel
        options = {"photometric": "minisblack", "tile": (32, 16), "compression": "zlib"}
        with tifffile.TiffWriter(path) as file:
            file.write(CHANNELS, subifds=1, metadata=named, **options)
            file.write(CHANNELS[:, ::2, ::2], subfiletype=1, **options)
    return path


@pytest.mark.parametrize("kind", ["tiled", "uncompressed", "pyramid", "imagej", "zarr"])
def test_a_window_of_channels_is_the_part_of_the_whole(tmp_path: Path, kind: str) -> None:
    path = write_channels(kind, tmp_path)
    reading = Reading(Stretch("range", 0, 60_000), max_pixels=1000, channels=("GFP", "0", "RFP", "Cy5"))
    assert is_slide(path, reading)
    assert not is_slide(path, Reading())
    whole = read_channels(path, reading=replace(reading, max_pixels=10_000))
    with open_slide(path, reading) as slide:
        assert (slide.size, slide.channels) == ((70, 90), tuple(NAMES))
        for top, left, height, width in WINDOWS:
            rows, columns = slice(top, top + height), slice(left, left + width)
            assert np.array_equal(slide.values(top, left, height, width), CHANNELS[:, rows, columns].transpose(1, 2, 0))
            assert np.array_equal(slide.read(top, left, height, width), whole[rows, columns])


def test_a_slide_with_depths_is_one_that_is_projected(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "z.ome.tif", CHANNELS, metadata={"axes": "ZYX"}, photometric="minisblack")
    assert not is_slide(tmp_path / "z.ome.tif", Reading(max_pixels=1000))
    reading = Reading(max_pixels=1000, project="max")
    assert is_slide(tmp_path / "z.ome.tif", reading)
    with open_slide(tmp_path / "z.ome.tif", reading) as slide:
        assert np.array_equal(slide.values(5, 7, 40, 33)[..., 0], CHANNELS.max(axis=0)[5:45, 7:40])
