"""Photos as they are dropped on the page: read within limits, at a size for painting, under a harmless name."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from emat.errors import EmatError
from emat.formats.photo_names import without_suffix
from emat.images import Pixels, read_photo, resize_photo

WORKING_SIDE = 800  # pixels of the longer side in the page; networks look at fewer
MAX_PIXELS = 50_000_000  # a photo that is dropped; several are decoded at once
LONGEST_NAME = 80
STRANGE = re.compile(r"[^\w\-. ()+]")


@dataclass(frozen=True, eq=False)
class StudioPhoto:
    """A photo in the page."""

    name: str  # a file name alone, never a path
    pixels: Pixels  # (h, w, 3), small enough to paint on
    size: tuple[int, int]  # (H, W) of the photo itself, which exported masks have


def read_dropped(path: Path, taken: Collection[str] = ()) -> StudioPhoto:
    """The photo in an uploaded file, under a name whose stem is not among those of `taken`."""
    name = safe_name(path.name, taken)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise EmatError(f"{name} did not arrive ({error.strerror}); drop it again") from None
    return studio_photo(read_photo(data, name=name, max_pixels=MAX_PIXELS), name)


def studio_photo(photo: Pixels, name: str) -> StudioPhoto:
    """`photo` (H, W, 3) as the page keeps it."""
    height, width = photo.shape[:2]
    scale = min(1.0, WORKING_SIDE / max(height, width))
    small = (max(1, round(height * scale)), max(1, round(width * scale)))
    return StudioPhoto(name, photo if scale == 1 else resize_photo(photo, small), (height, width))


def safe_name(name: str, taken: Collection[str] = ()) -> str:
    """A file name for any platform made of `name`; results of two photos never share a stem.

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
