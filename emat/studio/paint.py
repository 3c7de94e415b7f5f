"""Paint as the editor sends it: a PNG whose grey values say what each pixel was painted with.

0 is not painted, 1 to 12 are the numbers of the session's classes, 254 is background and 255 is undecided.
"""

import io
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from emat.errors import EmatError
from emat.images import resize_mask
from emat.inference.example import BACKGROUND, Example, Mask
from emat.studio.photos import StudioPhoto

BACKGROUND_PAINT = 254
UNDECIDED = 255
LONGEST_PAINT = 32 * 1024 * 1024  # bytes of a PNG that is read

Paint = NDArray[np.uint8]  # (h, w)


def read_paint(data: bytes, photo: StudioPhoto) -> Paint:
    """Read the paint on a photo.

    Raises:
        EmatError: It is not a grey PNG of the photo's working size.
    """
    try:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            if image.mode != "L" or image.size != (photo.working[1], photo.working[0]):
                raise EmatError(f"the paint does not fit {photo.name}; reload the page")
            return np.array(image)
    except (OSError, SyntaxError, ValueError, zlib.error):
        raise EmatError(f"the paint on {photo.name} did not arrive whole; try again") from None


def png_of(paint: Paint) -> bytes:
    """Return the paint as the PNG that `read_paint` reads."""
    data = io.BytesIO()
    Image.fromarray(paint).save(data, "PNG", compress_level=1)
    return data.getvalue()


def packed(values: NDArray[np.uint8] | NDArray[np.bool_]) -> bytes:
    """Return an array row by row, compressed as browsers unpack it (`DecompressionStream("deflate")`).

    PNG would pass through a canvas in the browser, and some browsers change pixels there to protect privacy.
    """
    return zlib.compress(np.ascontiguousarray(values).astype(np.uint8).tobytes(), 1)


@dataclass(frozen=True)
class Painted:
    """What was painted on a photo, by kinds of paint."""

    masks: Mapping[str, Mask]  # (h, w) of each class that has a pixel
    background: Mask
    undecided: Mask

    @classmethod
    def of(cls, paint: Paint, numbers: Mapping[str, int]) -> "Painted":
        """Sort paint by what it stands for; `numbers` are those of the classes."""
        masks = {name: paint == number for name, number in numbers.items()}
        shown = {name: mask for name, mask in masks.items() if mask.any()}
        return cls(shown, paint == BACKGROUND_PAINT, paint == UNDECIDED)

    def example(self, photo: StudioPhoto, sparse: bool) -> Example:
        """Make an example of it. A sparse one says nothing about what was not painted."""
        masks = dict(self.masks)
        if sparse and self.background.any():
            masks[BACKGROUND] = self.background
        void = self.undecided if self.undecided.any() else None
        return Example(photo.pixels, masks, name=photo.name, void=void, sparse=sparse)


def paint_of(masks: Mapping[str, Mask], numbers: Mapping[str, int], size: tuple[int, int]) -> Paint:
    """Paint each mask with the number of its class, brought to `size` (h, w)."""
    paint = np.zeros(size, np.uint8)
    for name, mask in masks.items():
        paint[resize_mask(mask.astype(np.uint8), size) > 0] = numbers[name]
    return paint
