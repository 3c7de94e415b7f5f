"""Reading photos, and preparing them for a backbone.

A photo becomes (H, W, 3) uint8 as a viewer shows it: rotated by its EXIF orientation, transparent parts on white, more
than 8 bits stretched to 8.

Microscopes and telescopes give 10, 12, 14 or 16 bits and rarely use all of them. Divided by 257, such a photo would be
black. So the values of each photo are stretched between two of its percentiles, unless the user chooses otherwise
(`Stretch`). Photos of 8 bits stay as they are.
"""

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from emat.errors import EmatError
from emat.images.sources import (
    MAX_PIXELS,
    PHOTO_FORMATS,
    TIFF_STARTS,
    TIFF_SUFFIXES,
    Pixels,
    Source,
    describe,
    identify,
    load_image,
    open_image,
    orientation,
    too_large,
)
from emat.images.videos import VIDEO_SUFFIXES
from emat.progress import tell_once

TURNS: dict[int, Callable[[NDArray[Any]], NDArray[Any]]] = {  # by EXIF orientation, of arrays (H, W, C)
    2: lambda values: values[:, ::-1],
    3: lambda values: values[::-1, ::-1],
    4: lambda values: values[::-1],
    5: lambda values: values.swapaxes(0, 1),
    6: lambda values: np.rot90(values, -1),
    7: lambda values: values[::-1, ::-1].swapaxes(0, 1),
    8: lambda values: np.rot90(values),
}
PREMULTIPLIED = {"La": "LA", "RGBa": "RGBA"}
# Of 16 bits a channel, Pillow keeps only the high byte. If it is told the other byte order, it keeps the low byte.
NATIVE, FOREIGN = ("L", "B") if sys.byteorder == "little" else ("B", "L")
OTHER_BYTE = {
    f"{mode};16{order}": f"{mode};16{other}"
    for mode in ("RGB", "RGBA", "RGBX")
    for order, other in (("B", "L"), ("L", "B"), ("N", FOREIGN))
}
DESCRIPTION_TAG = 270  # of TIFF: what OME and ImageJ write their metadata to
BITS_TAG = 258  # of TIFF: bits per sample
SAMPLE_FORMAT_TAG, UNSIGNED, SIGNED = 339, 1, 2  # of TIFF: what the bits of a sample are

BILINEAR = Image.Resampling.BILINEAR
FEWEST_FURTHER = 4  # channels that follow the colours; of up to three, the colours show everything
PROJECTIONS = ("none", "max", "mean")
KINDS = ("none", "percentile", "min-max")
PERCENTILES = (0.1, 99.9)
SAMPLE = 4_000_000  # values from which percentiles are estimated
DEEPEST = 65535


@dataclass(frozen=True)
class Stretch:
    """How values of more than 8 bits become 0 to 255.

    Attributes:
        kind: "percentile": from the 0.1th percentile of the photo to the 99.9th. "min-max": from its lowest value to
            its highest. "none": the whole range of 16 bits, or 0 to 1 for fractions. "range": from `low` to `high`.
        low: The value that becomes 0.
        high: The value that becomes 255.

    >>> Stretch.read("100,4000")
    Stretch(kind='range', low=100.0, high=4000.0)
    >>> str(Stretch.read("100,4000")), str(Stretch())
    ('100,4000', 'percentile')
    """

    kind: str = "percentile"
    low: float = 0.0
    high: float = 0.0

    @classmethod
    def read(cls, text: str) -> "Stretch":
        """Read what --stretch says; EmatError if it is not a way to stretch."""
        if text in KINDS:
            return cls(text)
        low, comma, high = text.partition(",")
        try:
            limits = float(low), float(high)
        except ValueError:
            limits = np.nan, np.nan
        if not comma or not np.isfinite(limits).all() or limits[0] >= limits[1]:
            raise EmatError(
                "unknown-choice",
                f"--stretch is {text!r}; it must be {', '.join(KINDS)}, or two values LOW,HIGH as in 100,4000",
            )
        return cls("range", *limits)

    def __str__(self) -> str:
        return self.kind if self.kind != "range" else f"{self.low:.9g},{self.high:.9g}"

    def limits(self, values: NDArray[Any]) -> tuple[float, float]:
        """Return the values that become 0 and 255.

        Args:
            values: The photo or a sample of it, of whole numbers or fractions.

        Raises:
            EmatError: "none" is asked for, and the range of the values is not known.
        """
        if self.kind == "range":
            return self.low, self.high
        finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values.ravel()
        if not finite.size:
            return 0.0, 1.0
        lowest, highest = float(finite.min()), float(finite.max())
        if values.dtype.kind == "f" and lowest >= 0 and highest <= 1 and self.kind != "min-max":
            return 0.0, 1.0  # fractions of white
        if self.kind == "none":
            if values.dtype.kind == "f" or lowest < 0 or highest > DEEPEST:
                raise EmatError(
                    "unknown-range",
                    f"its values reach from {lowest:.4g} to {highest:.4g}, whose black and white are not known; "
                    "give them with --stretch LOW,HIGH",
                )
            return 0.0, float(DEEPEST)
        if self.kind == "min-max":
            return lowest, highest
        step = max(1, finite.size // SAMPLE)
        low, high = (float(value) for value in np.percentile(finite[::step], PERCENTILES))
        # With a few bright stars on a black sky, both percentiles are equal although the values are not.
        return (low, high) if high > low else (lowest, highest)

    def apply(self, values: NDArray[Any]) -> NDArray[np.uint8]:
        """Return the photo with 8 bits; values that are not numbers become black.

        Raises:
            EmatError: As `limits`.
        """
        low, high = self.limits(values)
        tell_once(_sentence(self))
        return scaled(values, low, high)


@dataclass(frozen=True)
class Reading:
    """How photos are read.

    Attributes:
        stretch: How more than 8 bits become 8.
        max_pixels: The largest size that is accepted.
        channels: Of photos with channels, those to take, by name or number; all of them if none is given.
        project: What becomes of depths: "none", or the "max" or "mean" of them.

    Raises:
        EmatError: The limit is not positive, or there is no such projection.
    """

    stretch: Stretch = field(default_factory=Stretch)
    max_pixels: int = MAX_PIXELS
    channels: tuple[str, ...] = ()
    project: str = "none"

    def __post_init__(self) -> None:
        if self.max_pixels < 1:
            raise EmatError("bad-number", f"--max-pixels is {self.max_pixels}; it must be at least 1")
        if self.project not in PROJECTIONS:
            raise EmatError("unknown-choice", f"--project is {self.project!r}; it must be {', '.join(PROJECTIONS)}")


DEFAULT_READING = Reading()


def read_photo(source: Source, *, name: str | None = None, reading: Reading = DEFAULT_READING) -> Pixels:
    """Read a photo.

    Args:
        source: A path, which may name a page as in `stack.tif[3]`, the bytes of a file, a PIL image, or an array
            (H, W), (H, W, 3) or (H, W, 4) of uint8, uint16 or fractions. Files may be JPEG, PNG, WebP, BMP, TIFF or
            GIF, of which the first frame is read.
        name: What to call the photo in errors.
        reading: How it is read.

    Returns:
        The pixels, (H, W, 3) uint8.

    Raises:
        EmatError: The photo does not exist, is too large, damaged, a stack of photos, or in another format.
    """
    name = name or describe(source)
    try:
        if isinstance(source, np.ndarray):
            return _photo_from_array(source, reading, name)
        return _photo_from_file(source, reading, name)
    except (ValueError, OSError, MemoryError) as error:
        raise EmatError("not-an-image", f"{name} cannot be converted to RGB ({error}); save it as PNG") from None


def read_channels(source: Source, *, name: str | None = None, reading: Reading = DEFAULT_READING) -> Pixels:
    """Read a photo with everything that a pixel learner can see.

    Args:
        source: As in `read_photo`.
        name: What to call the photo in errors.
        reading: How it is read; it may choose channels.

    Returns:
        The photo (H, W, 3) as `read_photo` gives it. If more than three channels are taken, they follow it, each
        stretched by its own values: (H, W, 3 + channels).

    Raises:
        EmatError: As `read_photo`.
    """
    if isinstance(source, np.ndarray) and has_channels(source):
        return source.astype(np.uint8, copy=False)
    if isinstance(source, (str, Path)) and (stack := _stack_photo(source, reading)) is not None:
        return stack
    if isinstance(source, bytes) and source.startswith(TIFF_STARTS):
        # Stacks are opened by their path, so what a client sent becomes a file: its answer is that of the file.
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "photo.tif"
            path.write_bytes(source)
            if _may_be_stack(path):
                try:
                    return read_channels(path, name=name, reading=reading)
                except EmatError as error:
                    raise EmatError(error.code, str(error).replace(str(path), name or describe(source))) from None
    return read_photo(source, name=name, reading=reading)


def has_channels(photo: NDArray[Any]) -> bool:
    """Whether an array is what `read_channels` gives for a photo of more than three channels."""
    return photo.ndim == 3 and photo.dtype == np.uint8 and photo.shape[2] >= 3 + FEWEST_FURTHER


def read_values(path: Path, *, reading: Reading = DEFAULT_READING) -> NDArray[Any] | None:
    """Read the values of a photo as they are stored, without a stretch.

    Args:
        path: The file.
        reading: How photos are read.

    Returns:
        The values (H, W, C), turned as the photo is; None for a photo of 8 bits, whose values `read_photo` gives.

    Raises:
        EmatError: As `read_photo`.
    """
    name = str(path)
    with open_image(path, PHOTO_FORMATS, reading.max_pixels, name) as closed:
        raw = _unpacking(closed)
        if raw not in OTHER_BYTE and closed.mode in ("RGB", "RGBA", "CMYK") and _is_deep(closed, raw):
            from emat.images.slides import Slide  # it builds on this module

            with Slide(path, reading) as slide:
                return slide.values()
    image = load_image(path, PHOTO_FORMATS, reading.max_pixels, name)
    if raw in OTHER_BYTE:
        values = np.asarray(image).astype(np.uint16) << 8 | np.asarray(_low_bytes(path, OTHER_BYTE[raw], reading, name))
    elif (misread := _misread_values(image)) is not None:
        values = misread
    elif image.mode == "F" or image.mode.startswith("I"):
        values = np.asarray(image)
    else:
        return None
    return _turned(values if values.ndim == 3 else values[..., None], image)


def photo_size(
    source: Path | str | bytes, *, name: str | None = None, reading: Reading = DEFAULT_READING
) -> tuple[int, int]:
    """Return the height and width of a photo as `read_photo` gives it, from the header of its file.

    Args:
        source: A path, or the bytes of a file.
        name: What to call the photo in errors.
        reading: How it is read.

    Raises:
        EmatError: The photo does not exist, is too large, damaged or in another format.
    """
    image = open_image(source, PHOTO_FORMATS, reading.max_pixels, name or describe(source))
    with image:
        width, height = image.size
        # Pillow has already applied the orientation to the size of a TIFF file
        turned = image.format != "TIFF" and orientation(image) >= 5
    return (width, height) if turned else (height, width)


def resize_photo(photo: Pixels, size: tuple[int, int]) -> Pixels:
    """Resize a photo (H, W, 3), or one with further channels, to `size` (h, w), bilinearly with antialiasing."""
    height, width = size
    if photo.shape[2] != 3:
        single = [photo[..., index] for index in range(photo.shape[2])]
        return np.stack([np.array(Image.fromarray(one).resize((width, height), BILINEAR)) for one in single], axis=2)
    return np.array(Image.fromarray(photo).resize((width, height), BILINEAR))


def fitted_size(size: tuple[int, ...], longest: int) -> tuple[int, int]:
    """Return the size (h, w) of a photo of `size` (H, W) whose longer side has at most `longest` pixels.

    >>> fitted_size((375, 500), 1024), fitted_size((3000, 4000), 1024)
    ((375, 500), (768, 1024))
    """
    scale = min(1.0, longest / max(size[:2]))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def to_pixels(photo: Pixels, size: tuple[int, int], mean: Sequence[float], std: Sequence[float]) -> NDArray[np.float32]:
    """Prepare a photo (H, W, 3) for a backbone: resize it, scale it to [0, 1] and normalise it to (3, h, w) float32."""
    unit = resize_photo(photo, size).astype(np.float32) / np.float32(255)  # (h, w, 3)
    normalised = (unit - np.asarray(mean, np.float32)) / np.asarray(std, np.float32)
    return np.ascontiguousarray(normalised.transpose(2, 0, 1))


def to_rgb(image: Image.Image, stretch: Stretch, on: str = "white") -> Image.Image:
    """Convert an image of any mode to RGB, its transparent parts on a ground of the colour `on`."""
    image = image.convert(PREMULTIPLIED[image.mode]) if image.mode in PREMULTIPLIED else image
    if image.mode == "F" or image.mode.startswith("I"):
        image = Image.fromarray(stretch.apply(np.asarray(image)))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, on)
        image = Image.alpha_composite(ground, image)
    return image.convert("RGB")


def _photo_from_file(source: Any, reading: Reading, name: str) -> Pixels:
    stretch = reading.stretch
    raw, deep = "", False
    if isinstance(source, (str, Path)) and (stack := _stack_photo(source, reading)) is not None:
        return stack[..., :3]
    if isinstance(source, (str, Path, bytes)):
        with open_image(source, PHOTO_FORMATS, reading.max_pixels, name) as closed:
            raw = _unpacking(closed)
            deep = raw in OTHER_BYTE
            if not deep and closed.mode in ("RGB", "RGBA", "CMYK") and _is_deep(closed, raw):
                return _from_tifffile(source, closed.format, reading, name)
    image = load_image(source, PHOTO_FORMATS, reading.max_pixels, name)
    decoded = image
    if deep:
        low = _low_bytes(source, OTHER_BYTE[raw], reading, name)
        image = _from_deep(np.asarray(image).astype(np.uint16) << 8 | np.asarray(low), stretch)
    elif (values := _misread_values(image)) is not None:
        image = Image.fromarray(stretch.apply(values))
    try:
        return _turned(np.array(to_rgb(image, stretch)), decoded)
    except EmatError as error:  # values that cannot be stretched
        raise EmatError(error.code, f"{name}: {error}") from None


def _turned(values: NDArray[Any], decoded: Image.Image) -> NDArray[Any]:
    """Turn values (H, W, C) as the EXIF data of their image say, after Pillow has turned a TIFF file itself."""
    turn = TURNS.get(orientation(decoded))
    return values if turn is None else np.ascontiguousarray(turn(values))


def _stack_photo(path: Path | str, reading: Reading) -> Pixels | None:
    """The photo of a stack of one plane, with its channels; None if the file is no stack."""
    if _may_be_stack(path):
        from emat.images.stacks import open_stack, read_stack  # they build on this module

        if open_stack(Path(path), reading) is not None:
            return read_stack(Path(path), reading)
    return None


def _may_be_stack(path: Path | str) -> bool:
    """Whether a file may have channels; of a TIFF, a first look at its beginning says so."""
    file = Path(path)
    if file.suffix.lower() in (".zarr", *VIDEO_SUFFIXES):
        return True
    if file.suffix.lower() not in TIFF_SUFFIXES or not file.is_file():
        return False
    try:
        with identify(file, ("TIFF",), str(path))[0] as image:
            text = str(getattr(image, "tag_v2", {}).get(DESCRIPTION_TAG, ""))
    except EmatError:  # whoever reads it says what is wrong
        return False
    return "<OME" in text or text.startswith("ImageJ=")


def _from_tifffile(source: Path | str | bytes, file_format: str | None, reading: Reading, name: str) -> Pixels:
    """Read a TIFF of 16 bits a channel in a form that Pillow cuts to 8 bits, such as one plane for each channel."""
    if file_format != "TIFF" or isinstance(source, bytes):
        raise EmatError(
            "not-an-image", f"{name} has 16 bits a channel in a form that is not read; save it as a 16-bit RGB PNG"
        )
    from emat.images.slides import Slide  # it builds on this module

    with Slide(Path(source), reading) as slide:
        return slide.whole()


def _low_bytes(source: Path | str | bytes, raw: str, reading: Reading, name: str) -> Image.Image:
    """Decode a photo of 16 bits a channel again, and keep the low byte of each value, which Pillow drops."""
    image = open_image(source, PHOTO_FORMATS, reading.max_pixels, name)
    for index, tile in enumerate(image.tile):  # type: ignore[attr-defined]
        others = tile.args[1:] if isinstance(tile.args, tuple) else None
        image.tile[index] = tile._replace(args=raw if others is None else (raw, *others))  # type: ignore[attr-defined]
    try:
        image.load()
    except Exception as error:
        raise EmatError(
            "damaged-file", f"{name} is damaged ({error}); fetch or save it again, or leave it out"
        ) from None
    return image


def _from_deep(values: NDArray[np.uint16], stretch: Stretch) -> Image.Image:
    """Bring colours of 16 bits to 8, all channels by the same limits; the opacity keeps its high byte."""
    colours = stretch.apply(values[..., :3])
    if values.shape[2] == 4:
        colours = np.concatenate([colours, (values[..., 3:] >> 8).astype(np.uint8)], axis=2)
    return Image.fromarray(colours)


def _misread_values(image: Image.Image) -> NDArray[Any] | None:
    """Return the values of a grey TIFF whose sign Pillow ignores: 8 bits with a sign, 32 bits without; else None."""
    tags = getattr(image, "tag_v2", {})
    kind, bits = (tags.get(tag, (default,))[0] for tag, default in ((SAMPLE_FORMAT_TAG, UNSIGNED), (BITS_TAG, 8)))
    if image.mode == "L" and (kind, bits) == (SIGNED, 8):
        return np.asarray(image).view(np.int8)
    if image.mode == "I" and (kind, bits) == (UNSIGNED, 32):
        return np.asarray(image).view(np.uint32)
    return None


def _unpacking(image: Image.Image) -> str:
    """Return how Pillow unpacks the values of an image that is not decoded yet, such as "RGB;16B"."""
    tiles = getattr(image, "tile", None) or []
    arguments = tiles[0].args if tiles else ""
    return str(arguments[0] if isinstance(arguments, tuple) and arguments else arguments)


def _is_deep(image: Image.Image, raw: str) -> bool:
    bits = getattr(image, "tag_v2", {}).get(BITS_TAG, (8,))
    return ";16" in raw or max(bits if isinstance(bits, tuple) else (bits,)) > 8


def _photo_from_array(array: NDArray[Any], reading: Reading, name: str) -> Pixels:
    if array.dtype.kind != "f" and (array.dtype.kind != "u" or array.dtype.itemsize > 2):
        raise EmatError(
            "photo-array", f"a photo array must be uint8, uint16 or fractions, not {array.dtype}; convert it first"
        )
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise EmatError("photo-array", f"a photo array must be (H, W, 3) or (H, W), not {array.shape}")
    if has_channels(array):
        array = array[..., :3]
    if array.ndim == 3 and array.shape[2] not in (3, 4):
        raise EmatError(
            "photo-array", f"a photo array must have 3 or 4 channels in its last axis, not the shape {array.shape}"
        )
    if array.shape[0] * array.shape[1] > reading.max_pixels:
        raise EmatError("photo-too-large", too_large(name, reading.max_pixels, (array.shape[1], array.shape[0])))
    if array.dtype != np.uint8:
        if array.ndim == 3 and array.shape[2] == 4:
            raise EmatError("photo-array", "a photo array with an opacity must be uint8; leave the fourth channel out")
        try:
            array = reading.stretch.apply(array)
        except EmatError as error:
            raise EmatError(error.code, f"{name}: {error}") from None
    return np.array(to_rgb(Image.fromarray(array), reading.stretch))


def scaled(values: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    """Return values as 8 bits, so that `low` becomes 0 and `high` 255."""
    work: Any = np.float32 if values.dtype.itemsize <= 2 else np.float64  # 32 bits do not fit into the former
    unit = (values.astype(work) - work(low)) / work(max(high - low, 1e-30))
    return (np.nan_to_num(unit, nan=0.0, posinf=1.0, neginf=0.0).clip(0, 1) * 255 + 0.5).astype(np.uint8)


def _sentence(stretch: Stretch) -> str:
    ways = {
        "percentile": "from the percentiles 0.1 and 99.9 of each photo",
        "min-max": "from the lowest and the highest value of each photo",
        "none": "from the whole range of 16 bits",
    }
    way = ways.get(stretch.kind, f"from {stretch.low:.6g} and {stretch.high:.6g}")
    return f"photos of more than 8 bits are brought to 8 bits {way}; --stretch changes that"
