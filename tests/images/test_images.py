"""Photos are read as people see them, masks exactly as stored, and bad files give one sentence."""

import io
import re
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from emat.errors import EmatError
from emat.images import (
    ORIENTATION_TAG,
    VOC_PALETTE,
    Reading,
    Stretch,
    photo_size,
    read_mask,
    read_object_mask,
    read_one_class_mask,
    read_photo,
    resize_mask,
    resize_photo,
    same_scale,
    to_pixels,
    write_indexed_png,
)
from tests.raises import raises_code

SMALL = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12)
MASKS = hnp.arrays(np.uint8, SMALL)
PHOTOS = SMALL.flatmap(lambda shape: hnp.arrays(np.uint8, (*shape, 3)))


def encoded(image: Image.Image, file_format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def gradient(height: int = 20, width: int = 30) -> np.ndarray:
    rows, columns = np.mgrid[:height, :width]
    return np.stack([rows * 8, columns * 8, 255 - rows * 4], axis=2).astype(np.uint8)


def png_claiming(width: int, height: int) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + chunk + b"\0\0\0\0IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))


@pytest.mark.parametrize("file_format", ["PNG", "BMP", "TIFF", "WEBP"])
def test_a_lossless_photo_comes_back_exactly(file_format: str) -> None:
    options = {"lossless": True} if file_format == "WEBP" else {}
    data = encoded(Image.fromarray(gradient()), file_format, **options)
    assert np.array_equal(read_photo(data), gradient())


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_turned_as_its_exif_data_says(file_format: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = orientation
    stored = np.zeros((16, 32, 3), np.uint8)
    stored[:8, :16] = 255  # white in the stored top left
    stored[:8, 16:, 0] = 255  # red in the stored top right
    data = encoded(Image.fromarray(stored), file_format, exif=exif)
    turn = {
        1: stored,
        2: stored[:, ::-1],
        3: stored[::-1, ::-1],
        4: stored[::-1],
        5: stored.transpose(1, 0, 2),
        6: stored[::-1].transpose(1, 0, 2),
        7: stored[::-1, ::-1].transpose(1, 0, 2),
        8: stored[:, ::-1].transpose(1, 0, 2),
    }[orientation]
    photo = read_photo(data)
    assert photo.shape == turn.shape
    assert np.abs(photo[3::8, 3::8].astype(int) - turn[3::8, 3::8]).max() < 60  # JPEG is not exact
    assert photo_size(data) == photo.shape[:2]


def test_damaged_exif_data_does_not_lose_the_photo() -> None:
    data = encoded(Image.fromarray(gradient()), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f\x01\x02")
    assert read_photo(data).shape == (20, 30, 3)


def test_sixteen_bits_are_scaled_and_not_clipped() -> None:
    values = np.array([[0, 257, 32896, 65535]], np.uint16)
    whole = Reading(Stretch("none"))
    for file_format in ("PNG", "TIFF"):
        data = encoded(Image.fromarray(values), file_format)
        assert read_photo(data, reading=whole)[0, :, 0].tolist() == [0, 1, 128, 255]


def test_transparent_parts_lie_on_white() -> None:
    image = Image.new("RGBA", (2, 1), (10, 20, 30, 255))
    image.putpixel((1, 0), (0, 0, 0, 0))
    assert read_photo(encoded(image, "PNG")).tolist() == [[[10, 20, 30], [255, 255, 255]]]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV"])
def test_every_colour_mode_becomes_rgb(mode: str) -> None:
    light = Image.new("RGB", (5, 4), (255, 255, 255) if mode == "1" else (200, 200, 200))
    photo = read_photo(light.convert(mode))
    assert photo.shape == (4, 5, 3)
    assert photo.dtype == np.uint8
    assert np.abs(photo.astype(int) - (255 if mode == "1" else 200)).max() <= 60


def test_a_cmyk_jpeg_keeps_its_colours() -> None:
    data = encoded(Image.new("RGB", (16, 16), (250, 10, 10)).convert("CMYK"), "JPEG", quality=95)
    assert np.abs(read_photo(data).astype(int) - (250, 10, 10)).max() < 12


def test_a_gif_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert read_photo(data)[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("text.jpg", b"I am a letter, not a photo", "not-an-image"),
        ("empty.jpg", b"", "empty-file"),
        ("huge.png", png_claiming(40_000, 40_000), "photo-too-large"),
        ("large.png", png_claiming(10_000, 10_000), "photo-too-large"),
        ("cut.png", encoded(Image.effect_noise((99, 99), 50), "PNG")[:500], "damaged-file"),
        ("cut.jpg", encoded(Image.fromarray(gradient(99, 99)), "JPEG")[:900], "damaged-file"),
        ("script.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not-an-image"),
    ],
)
def test_a_bad_photo_gives_one_sentence_that_names_it(tmp_path: Path, name: str, content: bytes, code: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with raises_code(code) as caught:
        read_photo(path)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_photo_and_a_folder_are_named(tmp_path: Path) -> None:
    with raises_code("no-such-file", "nothing.jpg"):
        read_photo(tmp_path / "nothing.jpg")
    with raises_code("not-a-file"):
        read_photo(tmp_path)


@given(
    st.binary(max_size=200),
    st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\0", b"\xff\xd8\xff"]),
)
def test_no_bytes_raise_anything_but_our_error(noise: bytes, start: bytes) -> None:
    for read in (read_photo, read_mask, read_object_mask):
        try:
            read(start + noise)
        except EmatError:
            continue


@given(st.data())
def test_a_corrupted_file_is_read_or_refused(data: st.DataObject) -> None:
    file_format = data.draw(st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"]))
    content = bytearray(encoded(Image.fromarray(gradient()), file_format))
    for position in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[position] = data.draw(st.integers(0, 255))
    try:
        assert read_photo(bytes(content)).shape[2] == 3
    except EmatError:
        return


def test_arrays_of_other_shapes_and_types_are_refused() -> None:
    for array in (np.zeros((3, 3, 2), np.uint8), np.zeros((3, 3, 3), np.int64), np.zeros((0, 3, 3), np.uint8)):
        with raises_code("photo-array"):
            read_photo(array)
    assert read_photo(np.full((2, 3), 7, np.uint8)).tolist() == [[[7] * 3] * 3] * 2


@given(MASKS)
def test_an_indexed_mask_comes_back_exactly(tmp_path_factory: pytest.TempPathFactory, mask: np.ndarray) -> None:
    path = tmp_path_factory.mktemp("masks") / "mask.png"
    write_indexed_png(path, mask)
    assert np.array_equal(read_mask(path), mask)
    assert [other.name for other in path.parent.iterdir()] == ["mask.png"]


@given(MASKS)
def test_a_greyscale_mask_comes_back_exactly(mask: np.ndarray) -> None:
    assert np.array_equal(read_mask(encoded(Image.fromarray(mask), "PNG")), mask)
    assert np.array_equal(read_mask(mask), mask)


@given(hnp.arrays(np.uint8, SMALL, elements=st.sampled_from([*range(21), 255])))
def test_a_mask_in_vocs_colours_gives_their_indices(mask: np.ndarray) -> None:
    assert np.array_equal(read_mask(encoded(Image.fromarray(VOC_PALETTE[mask]), "PNG")), mask)


def test_vocs_palette_has_its_well_known_colours() -> None:
    assert VOC_PALETTE[[0, 1, 15, 20, 255]].tolist() == [
        [0, 0, 0],
        [128, 0, 0],
        [192, 128, 128],
        [0, 64, 128],
        [224, 224, 192],
    ]


def test_a_one_bit_mask_gives_zero_and_one() -> None:
    assert read_mask(encoded(Image.fromarray(np.eye(3, dtype=bool)), "PNG")).tolist() == np.eye(3).tolist()


def test_a_grey_mask_stored_as_rgb_gives_its_grey_values() -> None:
    white = np.array([[[255] * 3, [0] * 3]], np.uint8)
    assert read_mask(encoded(Image.fromarray(white), "PNG")).tolist() == [[255, 0]]


def test_a_sixteen_bit_mask_is_read_while_its_values_fit() -> None:
    assert read_mask(encoded(Image.fromarray(np.array([[3, 255]], np.uint16)), "PNG")).tolist() == [[3, 255]]
    with raises_code("mask-values", "256"):
        read_mask(encoded(Image.fromarray(np.array([[3, 256]], np.uint16)), "PNG"))


def test_masks_whose_classes_are_not_clear_are_refused() -> None:
    with raises_code("mask-colours", "0a141e"):
        read_mask(encoded(Image.new("RGB", (3, 3), (10, 20, 30)), "PNG"))
    with raises_code("mask-colours"):
        read_mask(encoded(Image.new("RGBA", (3, 3), (0, 0, 0, 10)), "PNG"))
    with raises_code("not-an-image"):
        read_mask(encoded(Image.new("L", (3, 3)), "JPEG"))
    with raises_code("mask-shape"):
        read_mask(np.zeros((3, 3)))


def in_vocs_palette(mask: np.ndarray) -> Image.Image:
    image = Image.fromarray(mask)
    image.putpalette(VOC_PALETTE.tobytes())
    return image


BLACK_AND_255 = np.array([[0, 255]], np.uint8)
ONE_CLASS_MASKS = {  # black beside 255, in every way that it is stored; and the index that 255 stands for
    "greyscale": (Image.fromarray(BLACK_AND_255), 1),
    "grey in RGB": (Image.fromarray(BLACK_AND_255).convert("RGB"), 1),
    "white in RGBA": (Image.fromarray(BLACK_AND_255).convert("RGBA"), 1),
    "sixteen bits": (Image.fromarray(BLACK_AND_255.astype(np.uint16)), 1),
    "palette of greys": (Image.fromarray(BLACK_AND_255).convert("P"), 1),
    "one bit": (Image.fromarray(BLACK_AND_255).convert("1"), 1),
    "VOC's palette": (in_vocs_palette(BLACK_AND_255), 255),
    "VOC's colours in RGB": (in_vocs_palette(BLACK_AND_255).convert("RGB"), 255),
}


@pytest.mark.parametrize("stored", ONE_CLASS_MASKS)
def test_of_one_class_only_plain_white_is_the_class(stored: str) -> None:
    image, expected = ONE_CLASS_MASKS[stored]
    assert read_one_class_mask(encoded(image, "PNG")).tolist() == [[0, expected]]


def test_of_one_class_255_beside_the_index_1_is_void() -> None:
    both = Image.fromarray(np.array([[0, 1, 255]], np.uint8))
    assert read_one_class_mask(encoded(both, "PNG")).tolist() == [[0, 1, 255]]


def test_a_mask_is_never_turned() -> None:
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = 6
    assert read_mask(encoded(Image.new("L", (5, 3)), "PNG", exif=exif)).shape == (3, 5)


@pytest.mark.parametrize("value", [1, 7, 128, 255])
def test_one_object_is_found_however_it_was_drawn(value: int) -> None:
    drawn = np.array([[0, 1], [1, 0]], np.uint8)
    expected = drawn.astype(bool)
    assert np.array_equal(read_object_mask(drawn * np.uint8(value)), expected)
    for image in (
        Image.fromarray(drawn * np.uint8(value)),
        Image.fromarray(drawn * np.uint8(value)).convert("RGB"),
    ):
        assert np.array_equal(read_object_mask(encoded(image, "PNG")), expected)


def test_an_object_drawn_in_palette_colours_leaves_out_void(tmp_path: Path) -> None:
    write_indexed_png(tmp_path / "cat.png", np.array([[0, 8, 255]], np.uint8))
    assert read_object_mask(tmp_path / "cat.png").tolist() == [[False, True, False]]
    assert not read_object_mask(np.zeros((2, 2), np.uint8)).any()


@given(PHOTOS)
def test_pixels_follow_the_formula(photo: np.ndarray) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    pixels = to_pixels(photo, photo.shape[:2], mean, std)
    assert pixels.dtype == np.float32
    assert pixels.flags.c_contiguous
    expected = (photo.astype(np.float64) / 255 - mean) / std
    assert np.allclose(pixels, expected.transpose(2, 0, 1), atol=1e-5)


def test_resizing_is_bilinear_and_antialiased() -> None:
    stripes = np.zeros((8, 8, 3), np.uint8)
    stripes[:, ::2] = 255
    small = resize_photo(stripes, (8, 2))
    assert small.shape == (8, 2, 3)
    assert np.abs(small.astype(int) - 127).max() < 20  # a plain bilinear sample would be 0 or 255
    assert to_pixels(stripes, (4, 6), (0, 0, 0), (1, 1, 1)).shape == (3, 4, 6)


@given(MASKS, st.integers(1, 20), st.integers(1, 20))
def test_resizing_a_mask_invents_no_class(mask: np.ndarray, height: int, width: int) -> None:
    resized = resize_mask(mask, (height, width))
    assert resized.shape == (height, width)
    assert set(resized.ravel().tolist()) <= set(mask.ravel().tolist())


def test_a_label_map_that_does_not_fit_a_png_is_not_written(tmp_path: Path) -> None:
    with raises_code("mask-values", "300"):
        write_indexed_png(tmp_path / "x.png", np.full((2, 2), 300, np.uint16))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("size", "other", "same"),
    [
        ((366, 500), (220, 300), True),
        ((220, 300), (366, 500), True),
        ((333, 500), (199, 300), True),
        ((333, 500), (200, 300), True),
        ((333, 500), (202, 300), False),
        ((500, 366), (220, 300), False),
        ((500, 500), (300, 300), True),
    ],
)
def test_a_common_scale_leaves_a_pixel_for_rounding(size: tuple[int, int], other: tuple[int, int], same: bool) -> None:
    assert same_scale(size, other) == same


def test_one_function_opens_pictures_and_it_has_a_list_of_formats() -> None:
    opening = re.compile(r"Image\.open\(|imread\(|ImageFile\.Parser")
    package = Path(__file__).parents[2] / "emat"
    found = [
        f"{path.relative_to(package).as_posix()}: {line.strip()}"
        for path in package.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if opening.search(line)
    ]
    assert len(found) == 1, found
    assert found[0].startswith("images/sources.py")
    assert "formats=formats" in found[0]


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_turns_nothing(tmp_path: Path, value: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = value
    Image.new("RGB", (30, 20)).save(tmp_path / "a.jpg", exif=exif)
    assert photo_size(tmp_path / "a.jpg") == read_photo(tmp_path / "a.jpg").shape[:2] == (20, 30)


def test_photos_of_phones_are_read_upright(tmp_path: Path) -> None:
    heif = pytest.importorskip("pillow_heif")
    heif.register_heif_opener()
    image = Image.new("RGB", (64, 48), "red")
    image.paste((0, 0, 255), (0, 0, 64, 24))
    image.save(tmp_path / "a.heic", quality=95)
    photo = read_photo(tmp_path / "a.heic")
    assert photo.shape == (48, 64, 3)
    assert photo[5, 30, 2] > 200 > 60 > photo[5, 30, 0]
    assert photo[40, 30, 0] > 200
    (tmp_path / "cut.heic").write_bytes((tmp_path / "a.heic").read_bytes()[:200])
    with pytest.raises(EmatError):
        read_photo(tmp_path / "cut.heic")


def test_warnings_of_pillow_reach_nobody_and_the_photo_is_read(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ORIENTATION_TAG], exif[0x010E] = 6, "a long description"
    Image.new("RGB", (30, 20)).save(tmp_path / "a.jpg", exif=exif)
    content = (tmp_path / "a.jpg").read_bytes()
    where = content.index(b"II*\0") if b"II*\0" in content else content.index(b"MM\0*")
    cut = content[: where + 8] + b"\xff\xff" + content[where + 10 :]  # says that it has 65535 tags
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        Image.open(io.BytesIO(cut)).getexif().get(ORIENTATION_TAG)
    assert heard, "Pillow does not warn of this any more"
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert sorted(read_photo(cut).shape[:2]) == [20, 30]
        assert photo_size(cut) == read_photo(cut).shape[:2]
    assert not heard


def test_a_phone_photo_that_states_another_size_than_it_has_is_refused(tmp_path: Path) -> None:
    heif = pytest.importorskip("pillow_heif")
    heif.register_heif_opener()
    Image.new("RGB", (64, 48), "red").save(tmp_path / "a.heic")
    content = (tmp_path / "a.heic").read_bytes()
    assert read_photo(content).shape == (48, 64, 3)
    where = content.index(b"ispe") + 8  # width and height follow its version
    changed = content[:where] + struct.pack(">II", 32, 48) + content[where + 8 :]
    with raises_code("damaged-file"):
        read_photo(changed)
