"""Reading and writing label maps as image files: (H, W) class indices exactly as stored.

0 is background and 255 is void. For the mask of a single object, see `emat.images.object_masks`.
"""

import struct
import zlib
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from emat.errors import EmatError
from emat.images.photos import PREMULTIPLIED
from emat.images.sources import MASK_FORMATS, MAX_PIXELS, Pixels, Source, describe, load_image
from emat.outputs import whole_file

VOID = 255
ROWS_AT_A_TIME = 64  # of a PNG that is written band by band


def _voc_palette() -> Pixels:
    """Return the colours of PASCAL VOC: bit b of an index sets bit 7 - b // 3 of channel b % 3."""
    index = np.arange(256)
    colours = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        colours[:, bit % 3] |= ((index >> bit & 1) << (7 - bit // 3)).astype(np.uint8)
    return colours


VOC_PALETTE = _voc_palette()  # (256, 3) uint8
VOC_INDICES = (*range(21), VOID)  # the colours that an RGB mask may use


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
        return mask_from_array(source)
    name = name or describe(source)
    image = load_image(source, MASK_FORMATS, max_pixels, name)
    image = image.convert(PREMULTIPLIED[image.mode]) if image.mode in PREMULTIPLIED else image
    if image.mode in ("RGBA", "LA"):
        if np.asarray(image.getchannel("A")).min() < 255:
            raise EmatError(
                "mask-colours",
                f"{name} is partly transparent, which a mask must not be; save it without an alpha channel",
            )
        image = image.convert(image.mode[:-1])
    if image.mode == "RGB":
        return _indices_of_colours(np.asarray(image), name)
    if image.mode == "1":
        return np.array(image, np.uint8)
    if image.mode in ("P", "L"):
        return np.array(image)
    if image.mode.startswith("I"):
        return mask_from_array(np.array(image), name)
    raise EmatError(
        "mask-colours", f"{name} has colour mode {image.mode}; save the mask as an indexed or greyscale PNG"
    )


def resize_mask(mask: Pixels, size: tuple[int, int]) -> Pixels:
    """Resize a mask (H, W) to `size` (h, w) by nearest neighbour, so that no new index appears."""
    height, width = size
    return np.array(Image.fromarray(mask).resize((width, height), Image.Resampling.NEAREST))


def resize_map(values: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.float32]:
    """Resize a map of probabilities or logits (H, W) bilinearly to `size` (h, w)."""
    if values.shape == size:
        return values
    height, width = size
    return np.array(Image.fromarray(values).resize((width, height), Image.Resampling.BILINEAR))


def same_scale(size: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two sizes (h, w) have the same shape at different scales, allowing for rounding by a pixel.

    >>> same_scale((366, 500), (220, 300)), same_scale((366, 500), (200, 300))
    (True, False)
    """
    (height, width), (large_height, large_width) = sorted((size, other), key=lambda sides: sides[0] * sides[1])
    # A scale s must exist with |s * large_height - height| < 1 and |s * large_width - width| < 1.
    return (height - 1) * large_width < (width + 1) * large_height and (width - 1) * large_height < (
        height + 1
    ) * large_width


def size_in_words(shape: tuple[int, ...]) -> str:
    """Return the size of an array (H, W) or (H, W, C) as people read it.

    >>> size_in_words((366, 500))
    '500 x 366'
    """
    return f"{shape[1]} x {shape[0]}"


def indexed_image(label_map: Pixels) -> Image.Image:
    """Return `label_map` (H, W) as an image with VOC's palette, whose values are the class indices."""
    image = Image.fromarray(mask_from_array(label_map, "the label map"))
    image.putpalette(VOC_PALETTE.tobytes())
    return image


def write_indexed_png(path: Path, label_map: Pixels) -> None:
    """Write `label_map` (H, W) as an indexed PNG, whole or not at all."""
    with whole_file(path) as unfinished:
        indexed_image(label_map).save(unfinished, "PNG")


class IndexedPngStream:
    """A palette PNG that is written band by band, so that its label map never has to be in memory.

    Args:
        file: A file that is open for writing bytes.
        size: Height and width of the whole label map.
    """

    def __init__(self, file: IO[bytes], size: tuple[int, int]) -> None:
        self._file = file
        self._packer = zlib.compressobj(6)
        height, width = size
        file.write(b"\x89PNG\r\n\x1a\n")
        self._chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))
        self._chunk(b"PLTE", VOC_PALETTE.tobytes())

    def add(self, band: Pixels) -> None:
        """Write the next rows, (h, width) class indices."""
        for start in range(0, len(band), ROWS_AT_A_TIME):
            part = band[start : start + ROWS_AT_A_TIME]
            rows = np.zeros((part.shape[0], part.shape[1] + 1), np.uint8)  # a row begins with its filter, 0 for none
            rows[:, 1:] = part
            if packed := self._packer.compress(rows.data):
                self._chunk(b"IDAT", packed)

    def close(self) -> None:
        """Write the end, after all rows."""
        self._chunk(b"IDAT", self._packer.flush())
        self._chunk(b"IEND", b"")

    def _chunk(self, name: bytes, content: bytes) -> None:
        check = zlib.crc32(name + content)
        self._file.write(struct.pack(">I", len(content)) + name + content + struct.pack(">I", check))


def mask_from_array(array: NDArray[np.generic], name: str = "the mask array") -> Pixels:
    """Return an array (H, W) of class indices as uint8; EmatError if it holds anything else."""
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "bui":
        raise EmatError("mask-shape", f"{name} must be (H, W) whole numbers, not {array.shape} {array.dtype}")
    lowest, highest = int(array.min()), int(array.max())
    if lowest < 0 or highest > 255:
        raise EmatError(
            "mask-values",
            f"{name} holds values from {lowest} to {highest}; class indices are 0 to 254, and void is 255",
        )
    return array.astype(np.uint8)


def _indices_of_colours(colours: Pixels, name: str) -> Pixels:
    key = colours.astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)  # (H, W), a number for each colour
    index_of = {int(VOC_PALETTE[i].astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)): i for i in VOC_INDICES}
    colours_here, where = np.unique(key, return_inverse=True)
    if all(int(colour) in index_of for colour in colours_here):
        return np.array([index_of[int(colour)] for colour in colours_here], np.uint8)[where.reshape(key.shape)]
    if is_grey(colours):
        return colours[..., 0].copy()
    stranger = next(int(colour) for colour in colours_here if int(colour) not in index_of)
    raise EmatError(
        "mask-colours",
        f"{name} is an RGB image with the colour #{stranger:06x}, which PASCAL VOC's palette does not have; "
        "save the mask as an indexed or greyscale PNG whose values are class indices",
    )


def is_grey(colours: Pixels) -> bool:
    """Whether the three channels of an image (H, W, 3) are equal everywhere."""
    return bool((colours[..., 0] == colours[..., 1]).all() and (colours[..., 1] == colours[..., 2]).all())
