"""Reading photos and masks safely, and preparing photos for a backbone.

A photo becomes (H, W, 3) uint8 as a viewer shows it: rotated by its EXIF orientation, transparent parts on white, 16
bits scaled to 8. A mask becomes (H, W) uint8 class indices exactly as stored, where 0 is background and 255 is void.
The format of a file is recognised by its content, not by its name.

This wraps Pillow by hand because photos come from users: only a few formats are allowed, files that would fill the
memory are refused, and every error says what to do.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from emat.errors import EmatError
from emat.files import whole_file

Pixels: TypeAlias = NDArray[np.uint8]
Source: TypeAlias = "Path | str | bytes | Image.Image | NDArray[np.generic]"

VOID = 255
MAX_PIXELS = 89_000_000  # just below the number at which Pillow warns of a decompression bomb
PHOTO_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
MASK_FORMATS = ("PNG", "BMP", "TIFF", "GIF")  # only lossless formats, because the others change class indices
PHOTO_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
MASK_SUFFIXES = (".png", ".bmp", ".tif", ".tiff", ".gif")

ORIENTATION_TAG = 0x0112
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _voc_palette() -> Pixels:
    """Return the colours of PASCAL VOC: bit b of an index sets bit 7 - b // 3 of channel b % 3."""
    index = np.arange(256)
    colours = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        colours[:, bit % 3] |= ((index >> bit & 1) << (7 - bit // 3)).astype(np.uint8)
    return colours


VOC_PALETTE = _voc_palette()  # (256, 3) uint8
VOC_INDICES = (*range(21), VOID)  # the colours that an RGB mask may use


def read_photo(source: Source, *, name: str | None = None, max_pixels: int = MAX_PIXELS) -> Pixels:
    """Read a photo.

    Args:
        source: A path, the bytes of a file, a PIL image, or a uint8 array (H, W), (H, W, 3) or (H, W, 4). Files may be
            JPEG, PNG, WebP, BMP, TIFF or GIF, of which the first frame is read.
        name: What to call the photo in errors.
        max_pixels: The largest size that is accepted.

    Returns:
        The pixels, (H, W, 3) uint8.

    Raises:
        EmatError: The photo does not exist, is too large, damaged or in another format.
    """
    if isinstance(source, np.ndarray):
        return _photo_from_array(source)
    name = name or describe(source)
    image = _load(source, PHOTO_FORMATS, max_pixels, name)
    turn = TURNS.get(_orientation(image))
    try:
        upright = _to_rgb(image, name)
        return np.array(upright.transpose(turn) if turn is not None else upright)
    except (ValueError, OSError) as error:
        raise EmatError(f"{name} cannot be converted to RGB ({error}); save it as PNG") from None


def load_image(source: Path | str | bytes) -> Image.Image:
    """Open and decode an image of any format within the limits of `read_photo`, with its values as they are stored.

    Raises:
        EmatError: If it is missing, damaged, too large or of another format.
    """
    return _load(source, PHOTO_FORMATS, MAX_PIXELS, describe(source))


def photo_size(source: Path | str | bytes, *, name: str | None = None, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Return the height and width of a photo as `read_photo` gives it, from the header of its file.

    Args:
        source: A path, or the bytes of a file.
        name: What to call the photo in errors.
        max_pixels: The largest size that is accepted.

    Raises:
        EmatError: The photo does not exist, is too large, damaged or in another format.
    """
    image = _open(source, PHOTO_FORMATS, max_pixels, name or describe(source))
    with image:
        width, height = image.size
        # Pillow has already applied the orientation to the size of a TIFF file
        turned = image.format != "TIFF" and _orientation(image) >= 5
    return (width, height) if turned else (height, width)


def read_mask(source: Source, *, name: str | None = None, max_pixels: int = MAX_PIXELS) -> Pixels:
    """Read a mask of class indices.

    The values of a palette, greyscale or 1-bit image are taken as they are stored. An RGB image must have the colours
    of PASCAL VOC or be grey. EXIF orientation is ignored.

    Args:
        source: A path, the bytes of a file, a PIL image, or an array (H, W). Files may be PNG, BMP, TIFF or GIF.
        name: What to call the mask in errors.
        max_pixels: The largest size that is accepted.

    Returns:
        Class indices, (H, W) uint8.

    Raises:
        EmatError: The mask does not exist, is too large or damaged, or its values are not class indices.
    """
    if isinstance(source, np.ndarray):
        return _mask_from_array(source)
    name = name or describe(source)
    image = _load(source, MASK_FORMATS, max_pixels, name)
    if image.mode in ("RGBA", "LA"):
        if np.asarray(image.getchannel("A")).min() < 255:
            raise EmatError(f"{name} is partly transparent, which a mask must not be; save it without an alpha channel")
        image = image.convert(image.mode[:-1])
    if image.mode == "RGB":
        return _indices_of_colours(np.asarray(image), name)
    if image.mode == "1":
        return np.array(image, np.uint8)
    if image.mode in ("P", "L"):
        return np.array(image)
    if image.mode.startswith("I"):
        return _mask_from_array(np.array(image), name)
    raise EmatError(f"{name} has colour mode {image.mode}; save the mask as an indexed or greyscale PNG")


def read_one_class_mask(source: Path | bytes, *, name: str | None = None) -> Pixels:
    """Read a mask of a data set that has a single class.

    It works like `read_mask`, but white on black means the class, index 1, instead of void. If 255 has another colour
    in a palette or among VOC's colours, it still means void.
    """
    name = name or describe(source)
    image = _load(source, MASK_FORMATS, MAX_PIXELS, name)
    mask = read_mask(image, name=name)
    if not np.isin(mask, (0, VOID)).all():
        return mask
    if image.mode in ("P", "RGB", "RGBA") and (np.asarray(image.convert("RGB"))[mask == VOID] != 255).any():
        return mask
    return mask // np.uint8(VOID)


def read_object_mask(source: Source, *, name: str | None = None, max_pixels: int = MAX_PIXELS) -> NDArray[np.bool_]:
    """Read a mask that shows one class.

    Pixels at least half as bright as the brightest one belong to the object, so that values 0 and 1, values 0 and 255,
    and smooth edges all work. In a palette image with colours, every index but 0 and 255 belongs to the object. Lossy
    formats are allowed as well, because the threshold removes the effects of compression.

    Args:
        source: A path, the bytes of a file, a PIL image, or an array (H, W), in any format that `read_photo` reads.
        name: What to call the mask in errors.
        max_pixels: The largest size that is accepted.

    Returns:
        Where the object is, (H, W) bool.

    Raises:
        EmatError: The mask does not exist, is too large, damaged or in another format.

    >>> read_object_mask(np.array([[0, 90, 255]], np.uint8)).tolist()
    [[False, False, True]]
    """
    if isinstance(source, np.ndarray):
        grey = _mask_from_array(source)
    else:
        name = name or describe(source)
        image = _load(source, PHOTO_FORMATS, max_pixels, name)
        if image.mode == "P" and not _is_grey(np.asarray(image.convert("RGB"))):
            indices = np.asarray(image)
            return (indices > 0) & (indices < VOID)
        grey = np.asarray(_to_rgb(image, name, on="black").convert("L"))
    brightest = int(grey.max(initial=0))
    return (grey > 0) & (2 * grey.astype(np.uint16) >= brightest)


def resize_photo(photo: Pixels, size: tuple[int, int]) -> Pixels:
    """Resize a photo (H, W, 3) to `size` (h, w), bilinearly with Pillow's antialiasing."""
    height, width = size
    return np.array(Image.fromarray(photo).resize((width, height), Image.Resampling.BILINEAR))


def resize_mask(mask: Pixels, size: tuple[int, int]) -> Pixels:
    """Resize a mask (H, W) to `size` (h, w) by nearest neighbour, so that no new index appears."""
    height, width = size
    return np.array(Image.fromarray(mask).resize((width, height), Image.Resampling.NEAREST))


def same_scale(size: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two sizes (h, w) have the same shape at different scales, allowing for rounding by a pixel.

    >>> same_scale((366, 500), (220, 300)), same_scale((366, 500), (200, 300))
    (True, False)
    """
    (height, width), (large_height, large_width) = sorted((size, other), key=lambda each: each[0] * each[1])
    # A scale s must exist with |s * large_height - height| < 1 and |s * large_width - width| < 1.
    return (height - 1) * large_width < (width + 1) * large_height and (width - 1) * large_height < (
        height + 1
    ) * large_width


def to_pixels(photo: Pixels, size: tuple[int, int], mean: Sequence[float], std: Sequence[float]) -> NDArray[np.float32]:
    """Prepare a photo (H, W, 3) for a backbone: resize it, scale it to [0, 1] and normalise it to (3, h, w) float32."""
    unit = resize_photo(photo, size).astype(np.float32) / np.float32(255)  # (h, w, 3)
    normalised = (unit - np.asarray(mean, np.float32)) / np.asarray(std, np.float32)
    return np.ascontiguousarray(normalised.transpose(2, 0, 1))


def write_indexed_png(path: Path, label_map: Pixels, palette: Pixels = VOC_PALETTE) -> None:
    """Write `label_map` (H, W) as a palette PNG whose values are the class indices, whole or not at all."""
    image = Image.fromarray(_mask_from_array(label_map, "the label map"))
    image.putpalette(palette.astype(np.uint8).tobytes())
    with whole_file(path) as unfinished:
        image.save(unfinished, "PNG")


def describe(source: Source) -> str:
    """Return the name of `source` for messages."""
    if isinstance(source, (str, Path)):
        return str(source)
    if isinstance(source, bytes):
        return f"the image of {len(source)} bytes"
    return "the image" if isinstance(source, Image.Image) else "the array"


def _open(source: Path | str | bytes, formats: tuple[str, ...], max_pixels: int, name: str) -> Image.Image:
    if not isinstance(source, bytes):
        _refuse_missing(Path(source))
    try:
        image = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=formats)
    except UnidentifiedImageError:
        raise EmatError(f"{name} is not {_listing(formats)}, or is damaged; {_way_out(formats)}") from None
    except Image.DecompressionBombError:
        raise EmatError(_too_large(name, max_pixels)) from None
    except Exception as error:  # Pillow's readers raise many kinds of errors for damaged files
        raise EmatError(f"{name} cannot be read ({_reason(error)}); save it again or leave it out") from None
    if image.width * image.height > max_pixels:
        raise EmatError(_too_large(name, max_pixels, image.size))
    return image


def _load(
    source: Path | str | bytes | Image.Image | object, formats: tuple[str, ...], max_pixels: int, name: str
) -> Image.Image:
    if isinstance(source, Image.Image):
        if source.width * source.height > max_pixels:
            raise EmatError(_too_large(name, max_pixels, source.size))
        return source
    if not isinstance(source, (str, Path, bytes)):
        raise EmatError(f"an image must be a path, bytes, a PIL image or an array, not a {type(source).__name__}")
    image = _open(source, formats, max_pixels, name)
    try:
        with image:
            image.load()
    except Exception as error:  # as above, for truncated and malicious files
        raise EmatError(f"{name} is damaged ({_reason(error)}); fetch or save it again, or leave it out") from None
    return image


def _refuse_missing(path: Path) -> None:
    if not path.exists():
        raise EmatError(f"{path} does not exist; check the name and the folder")
    if path.is_dir():
        raise EmatError(f"{path} is a folder, not an image")
    if path.is_file() and path.stat().st_size == 0:
        raise EmatError(f"{path} is empty (0 bytes); fetch or save it again, or leave it out")


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ORIENTATION_TAG, 1))
    except Exception:  # the pixels may be good even if the EXIF data are damaged
        return 1


def _to_rgb(image: Image.Image, name: str, on: str = "white") -> Image.Image:
    if image.mode == "F":
        raise EmatError(f"{name} holds floating-point values, whose range is not known; save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise EmatError(f"{name} holds 32-bit values, whose range is not known; save it with 8 or 16 bits")
        image = Image.fromarray(((values + 128) // 257).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, on)
        image = Image.alpha_composite(ground, image)
    return image.convert("RGB")


def _photo_from_array(array: NDArray[np.generic]) -> Pixels:
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or 0 in array.shape:
        raise EmatError(f"a photo array must be (H, W, 3) uint8, not {array.shape} {array.dtype}")
    if array.ndim == 3 and array.shape[2] not in (3, 4):
        raise EmatError(f"a photo array must have 3 or 4 channels in its last axis, not the shape {array.shape}")
    return np.array(_to_rgb(Image.fromarray(array), "the array"))


def _mask_from_array(array: NDArray[np.generic], name: str = "the mask array") -> Pixels:
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "bui":
        raise EmatError(f"{name} must be (H, W) whole numbers, not {array.shape} {array.dtype}")
    lowest, highest = int(array.min()), int(array.max())
    if lowest < 0 or highest > 255:
        raise EmatError(f"{name} holds values from {lowest} to {highest}; class indices are 0 to 254, and void is 255")
    return array.astype(np.uint8)


def _indices_of_colours(colours: Pixels, name: str) -> Pixels:
    key = colours.astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)  # (H, W), a number for each colour
    known = {int(VOC_PALETTE[i].astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)): i for i in VOC_INDICES}
    found, where = np.unique(key, return_inverse=True)
    if all(int(colour) in known for colour in found):
        return np.array([known[int(colour)] for colour in found], np.uint8)[where.reshape(key.shape)]
    if _is_grey(colours):
        return colours[..., 0].copy()
    stranger = next(int(colour) for colour in found if int(colour) not in known)
    raise EmatError(
        f"{name} is an RGB image with the colour #{stranger:06x}, which PASCAL VOC's palette does not have; "
        "save the mask as an indexed or greyscale PNG whose values are class indices"
    )


def _is_grey(colours: Pixels) -> bool:
    return bool((colours[..., 0] == colours[..., 1]).all() and (colours[..., 1] == colours[..., 2]).all())


def _listing(formats: tuple[str, ...]) -> str:
    return ", ".join(formats[:-1]) + f" or {formats[-1]}"


def _way_out(formats: tuple[str, ...]) -> str:
    return "save it as PNG" + ("" if "JPEG" in formats else ", since JPEG and WebP change class indices")


def _too_large(name: str, max_pixels: int, size: tuple[int, int] | None = None) -> str:
    has = f"has {size[0]} x {size[1]} pixels, " if size else "has "
    return f"{name} {has}more than {max_pixels / 1e6:.0f} million pixels; make it smaller first"


def _reason(error: Exception) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__
