"""Paint in the editor and masks, one made of the other: each class is painted in its own colour."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from emat.images import Pixels
from emat.inference.example import Mask

OPACITY = 0.55  # of paint, so that the photo is seen under it
FAINTEST = round(255 * OPACITY / 2)  # alpha from which a pixel is painted: half of a brush's edge

Colour = tuple[int, int, int]


def paint_of(masks: Mapping[str, Mask], colours: Mapping[str, Colour], size: tuple[int, int]) -> Image.Image:
    """A transparent layer of `size` (h, w) on which each mask is painted in its class's colour."""
    layer = np.zeros((*size, 4), np.uint8)
    for name, mask in masks.items():
        layer[mask] = (*colours[name], round(255 * OPACITY))
    return Image.fromarray(layer)


def masks_of(layers: Sequence[Pixels], colours: Mapping[str, Colour], size: tuple[int, int]) -> dict[str, Mask]:
    """The masks (h, w) of the classes that are painted on `layers` (H, W, 4), the last of which lies on top."""
    label_map = np.zeros(size, np.uint8)
    for layer in layers:
        painted, classes = _read_paint(layer, list(colours.values()), size)
        label_map[painted] = classes[painted]
    masks = {name: label_map == index for index, name in enumerate(colours, start=1)}
    return {name: mask for name, mask in masks.items() if mask.any()}


def _read_paint(
    layer: Pixels, colours: Sequence[Colour], size: tuple[int, int]
) -> tuple[NDArray[np.bool_], NDArray[np.uint8]]:
    """Where a layer is painted, and with which colour, counted from 1; the nearest where a brush's edge mixed two."""
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
