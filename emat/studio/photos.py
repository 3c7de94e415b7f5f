"""Photos that were dropped on the page, and the paint on them.

A photo is read within limits, made small enough to paint on, and kept as a file. The pixels of 500 photos would fill
the memory, so a `StudioPhoto` reads them when they are needed. Paint is a PNG whose grey values say what each pixel was
painted with: 0 is not painted, 1 to 12 are the numbers of the session's classes, 254 is background, 255 is undecided.
"""

import io
import json
import math
import re
import tempfile
import threading
import unicodedata
import zlib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from emat.errors import EmatError
from emat.files import without_suffix
from emat.images import VOID, Pixels, Reading, fitted_size, read_channels, read_photo, resize_mask, resize_photo
from emat.images.photos import DEFAULT_READING
from emat.images.sources import TIFF_STARTS, load_image
from emat.inference.example import BACKGROUND, Example, Mask
from emat.measure.units import Scale, scale_in_file
from emat.outputs import whole_file, write_text

WORKING_SIDE = 2048  # pixels of the longer side in the page; smaller photos are painted pixel by pixel
SMALL_SIDE = 480  # of a picture in a list
MAX_PIXELS = 50_000_000  # of a photo on the page; larger ones are made smaller
LARGEST = 210_000_000  # pixels of a photo that is decoded, one at a time
LONGEST_NAME = 80  # bytes of the stem of a file name
LONGEST_SUFFIX = 16  # bytes; what is longer is no suffix
QUICK = 1  # PNG compression: a photo is written once and read often, from this machine
STRANGE = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')  # what file systems refuse; all letters stay
BACKGROUND_PAINT = 254

# Endings of the files beside a photo's: a small picture, the photo at its own size if that is larger than the page's,
# what is known about the size of its pixels, and what is to be said about it.
SMALL, WHOLE, SCALE, NOTICE = "-small.jpg", "-whole.png", "-scale.json", "-notice.txt"

Paint = NDArray[np.uint8]  # (h, w)
_decoding = threading.Lock()  # large photos take a gigabyte each


@dataclass(frozen=True)
class Frame:
    """Where in a stack or a video a photo comes from."""

    stack: int  # a number that all photos of the same file have
    file: str  # the name of that file
    z: int | None  # as in `emat.images.stacks.Plane`
    t: int | None

    @property
    def position(self) -> dict[str, int]:
        """What there is of depth and time, by name."""
        return {name: value for name, value in (("z", self.z), ("t", self.t)) if value is not None}


@dataclass(frozen=True)
class StudioPhoto:
    """A photo as a session keeps it."""

    name: str  # a file name alone, never a path
    size: tuple[int, int]  # (H, W) of the photo itself, which exported masks have
    working: tuple[int, int]  # (h, w) of what is painted on
    file: Path  # of the pixels at the working size
    frame: Frame | None = None  # None unless it is one plane of a stack, or one frame of a video

    @property
    def whole(self) -> Pixels:
        """The photo (H, W, 3) at its own size, which is what predictions are made from."""
        return self.pixels if self.size == self.working else read_photo(beside(self.file, WHOLE), name=self.name)

    @property
    def pixels(self) -> Pixels:
        """The photo (h, w, 3) at the working size."""
        return read_photo(self.file, name=self.name)

    @property
    def small(self) -> Pixels:
        """A small picture of it, (h, w, 3)."""
        return read_photo(beside(self.file, SMALL), name=self.name)

    @property
    def notice(self) -> str:
        """What the user must know of how it was read; mostly nothing."""
        try:
            return beside(self.file, NOTICE).read_text()
        except OSError:
            return ""

    def remove(self) -> None:
        """Delete its files."""
        for file in (self.file, *(beside(self.file, ending) for ending in (SMALL, WHOLE, SCALE, NOTICE))):
            file.unlink(missing_ok=True)


def read_dropped(data: bytes, name: str, file: Path, reading: Reading = DEFAULT_READING) -> StudioPhoto:
    """Read a photo that was dropped on the page, and keep it in `file`; EmatError says what is wrong with it.

    It is read as the segmenter's `reading` says, so that a fitted file sees the pixels that it sees elsewhere. A photo
    of more than 50 million pixels is made smaller, and a notice says so.
    """
    with _decoding, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"photo{'.tif' if data.startswith(TIFF_STARTS) else ''}"
        path.write_bytes(data)
        try:
            photo = read_channels(path, name=name, reading=replace(reading, max_pixels=LARGEST))
        except EmatError as error:
            raise EmatError(error.code, str(error).replace(str(path), name)) from None
        return keep_dropped(photo, name, file, path)


def keep_dropped(photo: Pixels, name: str, file: Path, source: Path) -> StudioPhoto:
    """Keep a photo (H, W, 3) of any size that was read from the file `source`, made smaller if it is very large."""
    height, width = photo.shape[:2]
    shrunk = min(1.0, math.sqrt(MAX_PIXELS / (height * width)))
    if shrunk < 1:
        photo = resize_photo(photo[..., :3], (int(height * shrunk), int(width * shrunk)))
        notice = f"Made smaller, from {width} x {height} to {photo.shape[1]} x {photo.shape[0]} pixels."
        write_text(beside(file, NOTICE), notice)
    _keep_scale(source, file, shrunk)
    return keep_photo(photo, name, file)


def keep_photo(photo: Pixels, name: str, file: Path) -> StudioPhoto:
    """Write `photo` (H, W, 3) to `file`, small enough for the page, and beside it a small picture."""
    photo = photo[..., :3]
    size = (photo.shape[0], photo.shape[1])
    working = _fitted(photo, WORKING_SIDE)
    kept = {file: working} if working is photo else {file: working, beside(file, WHOLE): photo}
    for path, pixels in kept.items():
        with whole_file(path) as unfinished:
            Image.fromarray(pixels).save(unfinished, "PNG", compress_level=QUICK)
    with whole_file(beside(file, SMALL)) as unfinished:
        Image.fromarray(_fitted(working, SMALL_SIDE)).save(unfinished, "JPEG", quality=90)
    return StudioPhoto(name, size, (working.shape[0], working.shape[1]), file)


def _keep_scale(path: Path, file: Path, shrunk: float) -> None:
    """Keep what a TIFF says about the size of its pixels, which are larger after the photo was made smaller."""
    try:
        scale = scale_in_file(path)
    except EmatError:  # its pixels are not square; whoever asks for a unit has to type one
        return
    if scale is not None:
        write_text(beside(file, SCALE), json.dumps(asdict(replace(scale, side=scale.side / shrunk))))


def scale_of_file(photo: StudioPhoto) -> Scale | None:
    """What the file that was dropped said about the size of its pixels; None if it said nothing."""
    try:
        content = json.loads(beside(photo.file, SCALE).read_bytes())
        return Scale(float(content["side"]), str(content["unit"]), str(content["source"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def beside(file: Path, ending: str) -> Path:
    """The file that is kept beside a photo's: `SMALL`, `WHOLE`, `SCALE` or `NOTICE`."""
    return file.with_name(f"{file.stem}{ending}")


def safe_name(name: str, taken: Collection[str] = ()) -> str:
    """Make a file name of `name` that is valid on every platform and whose stem none of the names in `taken` has.

    >>> safe_name("../a<b>.jpg"), safe_name("cat.png", ["Cat.jpg"])
    ('a_b_.jpg', 'cat-2.png')
    """
    last = unicodedata.normalize("NFC", name.replace("\\", "/").rsplit("/", 1)[-1])
    plain = "".join(c if c.isprintable() or unicodedata.category(c) == "Mn" else "_" for c in STRANGE.sub("_", last))
    plain = plain.strip(". ") or "photo"
    suffix = plain[len(without_suffix(plain)) :]
    if len(suffix.encode()) > LONGEST_SUFFIX:
        plain, suffix = plain.replace(".", "_"), ""
    # File systems count bytes, of which a letter has up to four.
    stem = plain[: len(plain) - len(suffix)].encode()[:LONGEST_NAME].decode("utf-8", "ignore").strip(". ") or "photo"
    stems = {without_suffix(other).casefold() for other in taken}
    free, number = stem, 2
    while free.casefold() in stems:
        free, number = f"{stem}-{number}", number + 1
    return free + suffix


def _fitted(photo: Pixels, side: int) -> Pixels:
    return photo if max(photo.shape[:2]) <= side else resize_photo(photo, fitted_size(photo.shape, side))


def read_paint(data: bytes, photo: StudioPhoto) -> Paint:
    """Read the paint on a photo.

    Raises:
        EmatError: It is not a grey PNG of the photo's working size.
    """
    try:
        image = load_image(data, ("PNG",), MAX_PIXELS, photo.name)
    except EmatError:
        raise EmatError("damaged-file", f"the paint on {photo.name} did not arrive whole; try again") from None
    if image.mode != "L" or image.size != (photo.working[1], photo.working[0]):
        raise EmatError("mask-size", f"the paint does not fit {photo.name}; reload the page")
    return np.array(image)


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
        return cls(shown, paint == BACKGROUND_PAINT, paint == VOID)

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
