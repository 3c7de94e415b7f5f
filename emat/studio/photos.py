"""Photos that were dropped on the page, and the paint on them.

Photos are read within limits, made small enough to paint on, and given harmless names. In the editors, each class is
painted in its own colour; `paint_of` makes paint of masks and `masks_of` masks of paint.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from emat.errors import EmatError
from emat.files import without_suffix
from emat.images import Pixels, Reading, read_photo, resize_photo
from emat.inference.example import Mask

WORKING_SIDE = 800  # pixels of the longer side in the page; methods look at fewer
MAX_PIXELS = 50_000_000  # a photo that is dropped; several are decoded at once
LONGEST_NAME = 80
STRANGE = re.compile(r"[^\w\-. ()+]")


@dataclass(frozen=True, eq=False)
class StudioPhoto:
    """A photo as the page keeps it."""

    name: str  # a file name alone, never a path
    pixels: Pixels  # (h, w, 3), small enough to paint on
    size: tuple[int, int]  # (H, W) of the photo itself, which exported masks have


def read_dropped(path: Path, taken: Collection[str] = ()) -> StudioPhoto:
    """Read an uploaded photo; its name gets a stem that none of the names in `taken` has."""
    name = safe_name(path.name, taken)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise EmatError(f"{name} did not arrive ({error.strerror}); drop it again") from None
    return studio_photo(read_photo(data, name=name, reading=Reading(max_pixels=MAX_PIXELS)), name)


def studio_photo(photo: Pixels, name: str) -> StudioPhoto:
    """Make `photo` (H, W, 3) small enough for the page."""
    height, width = photo.shape[:2]
    scale = min(1.0, WORKING_SIDE / max(height, width))
    small = (max(1, round(height * scale)), max(1, round(width * scale)))
    return StudioPhoto(name, photo if scale == 1 else resize_photo(photo, small), (height, width))


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


OPACITY = 0.55  # of paint, so that the photo is seen under it
FAINTEST = round(255 * OPACITY / 2)  # alpha from which a pixel is painted: half of a brush's edge

Colour = tuple[int, int, int]


def paint_of(masks: Mapping[str, Mask], colours: Mapping[str, Colour], size: tuple[int, int]) -> Image.Image:
    """Paint each mask in the colour of its class on a transparent layer of `size` (h, w)."""
    layer = np.zeros((*size, 4), np.uint8)
    for name, mask in masks.items():
        layer[mask] = (*colours[name], round(255 * OPACITY))
    return Image.fromarray(layer)


def masks_of(layers: Sequence[Pixels], colours: Mapping[str, Colour], size: tuple[int, int]) -> dict[str, Mask]:
    """Return the masks (h, w) of the classes that are painted on `layers` (H, W, 4); the last layer is on top."""
    label_map = np.zeros(size, np.uint8)
    for layer in layers:
        painted, classes = _read_paint(layer, list(colours.values()), size)
        label_map[painted] = classes[painted]
    masks = {name: label_map == index for index, name in enumerate(colours, start=1)}
    return {name: mask for name, mask in masks.items() if mask.any()}


def _read_paint(
    layer: Pixels, colours: Sequence[Colour], size: tuple[int, int]
) -> tuple[NDArray[np.bool_], NDArray[np.uint8]]:
    """Return where a layer is painted and the index of the colour, from 1; mixed colours count as the nearest one."""
    height, width = size
    image = Image.fromarray(layer).convert("RGBA").resize((width, height), Image.Resampling.NEAREST)
    pixels = np.asarray(image)
    painted = pixels[..., 3] >= FAINTEST
    classes = np.zeros(size, np.uint8)
    if painted.any() and colours:
        shown = pixels[painted][:, None, :3].astype(np.int32)  # (n, 1, 3)
        distance = ((shown - np.array(colours, np.int32)) ** 2).sum(axis=2)  # (n, classes)
        classes[painted] = 1 + distance.argmin(axis=1)
    return painted, classes
