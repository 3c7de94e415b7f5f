"""Photos that were dropped on the page: read within limits, made small enough to paint on, kept as files.

A session of 500 photos would fill the memory if their pixels stayed there, so a `StudioPhoto` reads them when they are
needed.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from emat.files import whole_file, without_suffix
from emat.images import Pixels, Reading, read_photo, resize_photo

WORKING_SIDE = 2048  # pixels of the longer side in the page; smaller photos are painted pixel by pixel
SMALL_SIDE = 480  # of a picture in a list
MAX_PIXELS = 50_000_000  # a photo that is dropped; several are decoded at once
LONGEST_NAME = 80
QUICK = 1  # PNG compression: a photo is written once and read often, from this machine
STRANGE = re.compile(r"[^\w\-. ()+]")


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
