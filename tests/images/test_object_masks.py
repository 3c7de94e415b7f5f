"""One rule says which values of a mask are the object; what the rule cannot say is refused."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter

from emat.images import VOC_PALETTE, read_object
from emat.images.object_masks import Choice, read_one_class_mask
from tests.raises import raises_code

SIDE = 40


def regions(*values: int, dtype: Any = np.uint8) -> np.ndarray:
    """An image of background 0 with a square of 6 x 6 pixels for each value."""
    image = np.zeros((SIDE, SIDE), dtype)
    for number, value in enumerate(values):
        top, left = divmod(number, 5)
        image[top * 8 : top * 8 + 6, left * 8 : left * 8 + 6] = value
    return image


def files_of(values: np.ndarray) -> dict[str, Any]:
    """The same values as an array, and in every file that keeps them."""
    grey = Image.fromarray(values)
    return {"array": values, "PIL": grey, "grey": png(grey), "grey in RGB": png(grey.convert("RGB")),
            "TIFF": png(grey, "TIFF"), "numbers": values.astype(np.int64)}  # fmt: skip


def png(image: Image.Image, file_format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("values", [(1, 255), (1, 3, 255), (1, 2, 3, 20, 255), (*range(1, 21), 255)])
def test_255_beside_small_numbers_is_void_and_the_others_are_the_object(values: tuple[int, ...]) -> None:
    drawn = regions(*values)
    for form, source in files_of(drawn).items():
        found = read_object(source)
        assert np.array_equal(found.inside, (drawn > 0) & (drawn < 255)), form
        assert np.array_equal(found.void, drawn == 255), form


@pytest.mark.parametrize("values", [(1, 3), (1, 2, 3), (3, 100, 180), tuple(range(1, 26))])
def test_every_number_of_a_label_map_or_an_instance_map_is_the_object(values: tuple[int, ...]) -> None:
    drawn = regions(*values)
    for form, source in files_of(drawn).items():
        found = read_object(source)
        assert np.array_equal(found.inside, drawn > 0), form
        assert not found.void.any(), form


def test_an_instance_map_may_have_more_numbers_than_a_byte_holds() -> None:
    drawn = np.kron(np.arange(400, dtype=np.uint16).reshape(20, 20), np.ones((4, 4), np.uint16))
    found = read_object(png(Image.fromarray(drawn)))
    assert np.array_equal(found.inside, drawn > 0)
    assert not found.void.any(), "255 is an instance like the others"


@pytest.mark.parametrize("value", [1, 7, 128, 254, 255])
def test_of_two_values_the_brighter_one_is_the_object(value: int) -> None:
    drawn = regions(value)
    for form, source in files_of(drawn).items():
        assert np.array_equal(read_object(source).inside, drawn > 0), form
    dim = np.where(drawn > 0, 235, 60).astype(np.uint8)
    assert np.array_equal(read_object(dim).inside, drawn > 0)


@pytest.mark.parametrize("side", [30, 200])
def test_smooth_edges_of_a_black_and_white_mask_are_cut_at_half(side: int) -> None:
    large = Image.new("L", (side * 8, side * 8))
    ImageDraw.Draw(large).ellipse((side, side * 2, side * 6, side * 7), fill=255)
    smooth = np.asarray(large.resize((side, side), Image.Resampling.LANCZOS))
    assert len(np.unique(smooth)) > 20
    for form, source in files_of(smooth).items():
        found = read_object(source)
        assert np.array_equal(found.inside, smooth >= 128), form
        assert not found.void.any(), form
    blurred = np.asarray(Image.fromarray(smooth).filter(ImageFilter.GaussianBlur(0.6)))
    assert np.array_equal(read_object(blurred).inside, blurred >= 128)


@pytest.mark.parametrize("file_format", ["JPEG", "WEBP"])
def test_compression_does_not_change_the_object(file_format: str) -> None:
    drawn = regions(255)
    for mode in ("L", "RGB"):
        found = read_object(png(Image.fromarray(drawn).convert(mode), file_format, quality=80))
        assert (found.inside != (drawn > 0)).mean() < 0.01, mode
    red = Image.merge("RGB", [Image.fromarray(drawn), *[Image.new("L", (SIDE, SIDE))] * 2])
    assert (read_object(png(red, file_format, quality=90)).inside != (drawn > 0)).mean() < 0.03
    with raises_code("ambiguous-mask"):
        read_object(png(Image.fromarray(regions(1, 2)), file_format))


@pytest.mark.parametrize(
    "values", [(128, 255), (90, 255), (254, 255), (64, 128, 192, 255)], ids=lambda values: "-".join(map(str, values))
)
def test_what_cannot_be_told_apart_is_refused_with_the_values_and_the_ways_out(values: tuple[int, ...]) -> None:
    for form, source in files_of(regions(*values)).items():
        with raises_code("ambiguous-mask") as caught:
            read_object(source)
        assert ", ".join(map(str, (0, *values))) in str(caught.value), form


def test_a_mask_without_background_and_a_photo_are_refused() -> None:
    with raises_code("ambiguous-mask"):
        read_object(np.where(regions(9) > 0, 255, 1).astype(np.uint8))
    noise = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE), np.uint8)
    with raises_code("ambiguous-mask"):
        read_object(noise)
    slope = np.add.outer(np.arange(SIDE), np.arange(SIDE)).astype(np.uint8) * 3
    with raises_code("ambiguous-mask"):
        read_object(slope)


def test_several_colours_are_refused_unless_one_is_chosen(tmp_path: Path) -> None:
    colours = np.zeros((SIDE, SIDE, 3), np.uint8)
    colours[5:15, 5:15] = (255, 0, 0)
    colours[20:30, 5:15] = (0, 0, 255)
    path = tmp_path / "two.png"
    Image.fromarray(colours).save(path)
    with raises_code("ambiguous-mask", "#0000ff, #ff0000"):
        read_object(path)
    assert np.array_equal(read_object(f"{path}:#ff0000").inside, colours[..., 0] > 0)
    with raises_code("no-such-value"):
        read_object(f"{path}:#00ff00")
    colours[20:30, 5:15] = 0
    Image.fromarray(colours).save(path)
    assert np.array_equal(read_object(path).inside, colours[..., 0] > 0)
    with raises_code("ambiguous-mask"):
        read_object(np_image(np.where(colours[..., :1] > 0, colours, 255)))  # red on white


def np_image(array: np.ndarray) -> Image.Image:
    return Image.fromarray(array.astype(np.uint8))


@pytest.mark.parametrize(("text", "expected"), [("1", [1]), ("3", [3]), ("1,3", [1, 3]), ("2-3", [2, 3])])
def test_values_can_be_chosen_by_the_name_of_the_file(tmp_path: Path, text: str, expected: list[int]) -> None:
    drawn = regions(1, 2, 3, 255)
    path = tmp_path / "mask.png"
    Image.fromarray(drawn).save(path)
    found = read_object(f"{path}:{text}")
    assert np.array_equal(found.inside, np.isin(drawn, expected))
    assert np.array_equal(found.void, drawn == 255)
    with raises_code("no-such-value"):
        read_object(f"{path}:77")


def test_a_choice_that_cannot_be_read_is_refused() -> None:
    for text in ("x", "#ff", "3-1", "99999"):
        with raises_code("unclear-option|bad-number"):
            Choice.read(text)


def test_in_a_palette_the_background_is_where_black_is() -> None:
    drawn = regions(1)
    image = Image.fromarray(drawn)
    image.putpalette([0, 200, 0, 0, 0, 0])  # index 0 is green, 1 is black
    assert np.array_equal(read_object(png(image)).inside, drawn == 0)
    image.putpalette(VOC_PALETTE.tobytes())
    assert np.array_equal(read_object(png(image)).inside, drawn > 0)


@pytest.mark.parametrize("mode", ["LA", "La", "RGBA", "RGBa"])
def test_transparent_parts_are_background(mode: str) -> None:
    drawn = regions(255)
    image = Image.merge("LA", [Image.new("L", (SIDE, SIDE), 255), Image.fromarray(drawn)])
    shown = image.convert("RGBA") if mode.startswith("RGB") else image
    assert np.array_equal(read_object(shown.convert(mode)).inside, drawn > 0)


def test_in_a_data_set_of_one_class_the_class_is_1_and_void_255() -> None:
    assert read_one_class_mask(png(Image.fromarray(np.array([[0, 1, 255]], np.uint8)))).tolist() == [[0, 1, 255]]
    assert read_one_class_mask(png(Image.fromarray(np.array([[0, 7]], np.uint8)))).tolist() == [[0, 1]]
    with raises_code("not-an-image"):
        read_one_class_mask(png(Image.new("L", (3, 3)), "JPEG"))


def disc(side: int, blur: float = 0.0) -> np.ndarray:
    """A white disc with smooth edges on black, (side, side) uint8."""
    large = Image.new("L", (side * 8, side * 8))
    ImageDraw.Draw(large).ellipse((side, side * 2, side * 6, side * 7), fill=255)
    small = large.resize((side, side), Image.Resampling.LANCZOS)
    return np.asarray(small.filter(ImageFilter.GaussianBlur(blur)) if blur else small)


@pytest.mark.parametrize("blur", [0, 0.6, 2])
def test_smooth_edges_of_sixteen_bits_are_cut_at_half_too(blur: float) -> None:
    smooth = disc(60, blur).astype(np.uint16) * 257
    sources: dict[str, Any] = {"array": smooth, "PNG": png(Image.fromarray(smooth))}
    for form, source in sources.items():
        assert np.array_equal(read_object(source).inside, smooth >= 32768), form
    with raises_code("ambiguous-mask"):
        read_object(smooth // 16)  # of 12 bits: white is not known


def test_65535_beside_small_numbers_is_refused() -> None:
    assert read_object(regions(65535, dtype=np.uint16)).inside.sum() == 36
    with raises_code("ambiguous-mask"):
        read_object(regions(1, 65535, dtype=np.uint16))


def a_photo() -> Image.Image:
    """Waves with a little noise on a black ground: many greys, as in a photo of cells."""
    rows, columns = np.mgrid[0:90, 0:120]
    waves = 90 + 60 * np.sin(columns / 9) + 40 * np.cos(rows / 7) + np.random.default_rng(0).normal(0, 2, rows.shape)
    return Image.fromarray(np.where(waves < 80, 0, waves).clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "WEBP", "GIF"])
@pytest.mark.parametrize("form", ["L", "dark", "RGB", "palette"])
def test_a_photo_in_place_of_a_mask_is_refused(form: str, file_format: str) -> None:
    photo = a_photo()
    if form == "dark":
        photo = photo.point(lambda value: value // 4)
    elif form == "RGB":
        photo = Image.merge("RGB", [photo, photo.point(lambda value: value * 3 // 4), photo])
    elif form == "palette":
        photo = photo.convert("RGB").quantize(64)
        photo = photo.convert("RGB") if file_format == "JPEG" else photo
    with raises_code("ambiguous-mask"):
        read_object(png(photo, file_format))


@pytest.mark.parametrize("level", [100, 128, 200, 255])
@pytest.mark.parametrize("quality", [60, 90])
def test_a_grey_object_survives_compression(level: int, quality: int) -> None:
    drawn = np.where(np.kron(np.eye(3), np.ones((20, 20))) > 0, level, 0).astype(np.uint8)
    found = read_object(png(Image.fromarray(drawn), "JPEG", quality=quality)).inside
    assert (found != (drawn > 0)).mean() < 0.01
    drawn[:20, 40:] = level // 2
    with raises_code("ambiguous-mask"):
        read_object(png(Image.fromarray(drawn), "JPEG", quality=quality))


def test_a_dark_object_beside_a_bright_one_with_smooth_edges_is_not_lost() -> None:
    smooth = disc(60)
    red = Image.merge("RGB", [Image.fromarray(smooth), *[Image.new("L", (60, 60))] * 2])
    assert np.array_equal(read_object(png(red)).inside, smooth >= 128)
    for green in (50, 100):
        ImageDraw.Draw(red).rectangle((2, 2, 22, 10), fill=(0, green, 0))
        with raises_code("ambiguous-mask"):
            read_object(png(red))


def test_few_greys_of_a_palette_are_classes_by_their_index() -> None:
    drawn = regions(1, 2)
    image = Image.fromarray(drawn)
    image.putpalette([0, 0, 0, 128, 128, 128, 255, 255, 255])
    assert np.array_equal(read_object(png(image)).inside, drawn > 0)


@pytest.mark.parametrize("name", ["x" * 5000 + ":1", "a\0b.png:1", "mask.png:" + "1" * 5000])
def test_a_name_that_no_file_can_have_is_refused_in_a_sentence(name: str) -> None:
    with raises_code("cannot-read|no-such-file"):
        read_object(name)
    with raises_code("unclear-option"):
        Choice.read("1" * 5000)
