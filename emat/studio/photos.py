"""Photos that were dropped on the page, and the paint on them.

A photo is read within limits, made small enough to paint on, and kept as a file. The pixels of 500 photos would fill
the memory, so a `StudioPhoto` reads them when they are needed. Paint is a PNG whose grey values say what each pixel was
painted with: 0 is not painted, 1 to 12 are the numbers of the session's classes, 254 is background, 255 is undecided.
"""

import io
import re
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from emat.errors import EmatError
from emat.files import whole_file, without_suffix
from emat.images import Pixels, Reading, read_photo, resize_mask, resize_photo
from emat.inference.example import BACKGROUND, Example, Mask

WORKING_SIDE = 2048  # pixels of the longer side in the page; smaller photos are painted pixel by pixel
SMALL_SIDE = 480  # of a picture in a list
MAX_PIXELS = 50_000_000  # a photo that is dropped; several are decoded at once
LONGEST_NAME = 80
QUICK = 1  # PNG compression: a photo is written once and read often, from this machine
STRANGE = re.compile(r"[^\w\-. ()+]")
BACKGROUND_PAINT = 254
UNDECIDED = 255

Paint = NDArray[np.uint8]  # (h, w)


@dataclass(frozen=True)
class StudioPhoto:
    """A photo as a session keeps it."""

    name: str  # a file name alone, never a path
    size: tuple[int, int]  # (H, W) of the photo itself, which exported masks have
    working: tuple[int, int]  # (h, w) of what is painted on
    file: Path  # of the pixels at the working size

    @property
    def pixels(self) -> Pixels:
        """The photo (h, w, 3) at the working size."""
        return read_photo(self.file, name=self.name)

    @property
    def small(self) -> Pixels:
        """A small picture of it, (h, w, 3)."""
        return read_photo(small_file(self.file), name=self.name)

    def remove(self) -> None:
        """Delete its files."""
        self.file.unlink(missing_ok=True)
        small_file(self.file).unlink(missing_ok=True)


def read_dropped(data: bytes, name: str, file: Path) -> StudioPhoto:
    """Read a photo that was dropped on the page, and keep it in `file`; EmatError says what is wrong with it."""
    return keep_photo(read_photo(data, name=name, reading=Reading(max_pixels=MAX_PIXELS)), name, file)


def keep_photo(photo: Pixels, name: str, file: Path) -> StudioPhoto:
    """Write `photo` (H, W, 3) to `file`, small enough for the page, and beside it a small picture."""
    size = (photo.shape[0], photo.shape[1])
    working = _fitted(photo, WORKING_SIDE)
    with whole_file(file) as unfinished:
        Image.fromarray(working).save(unfinished, "PNG", compress_level=QUICK)
    with whole_file(small_file(file)) as unfinished:
        Image.fromarray(_fitted(working, SMALL_SIDE)).save(unfinished, "JPEG", quality=90)
    return StudioPhoto(name, size, (working.shape[0], working.shape[1]), file)


def small_file(file: Path) -> Path:
    """The file of the small picture of a photo."""
    return file.with_name(f"{file.stem}-small.jpg")


def safe_name(name: str, taken: Collection[str] = ()) -> str:
    """Make a file name of `name` that is valid on every platform and whose stem none of the names in `taken` has.

    >>> safe_name("../a<b>.jpg"), safe_name("cat.png", ["Cat.jpg"])
    ('a_b_.jpg', 'cat-2.png')
    """
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    plain = STRANGE.sub("_", last).strip(". ") or "photo"
    suffix = plain[len(without_suffix(plain)) :]
    stem = plain[: len(plain) - len(suffix)][: LONGEST_NAME - len(suffix)] or "photo"
    stems = {without_suffix(other).casefold() for other in taken}
    free, number = stem, 2
    while free.casefold() in stems:
        free, number = f"{stem}-{number}", number + 1
    return free + suffix


def _fitted(photo: Pixels, side: int) -> Pixels:
    height, width = photo.shape[:2]
    scale = min(1.0, side / max(height, width))
    return photo if scale == 1 else resize_photo(photo, (max(1, round(height * scale)), max(1, round(width * scale))))


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
