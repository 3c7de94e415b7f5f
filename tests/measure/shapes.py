"""Shapes whose measures are known."""

import numpy as np
from numpy.typing import NDArray

from emat.measure import Scene
from emat.measure.properties import Row, object_rows

Mask = NDArray[np.bool_]
MIDDLE = 250.13  # not the middle of a pixel, so that shapes are not symmetric by chance


def disc(radius: float, size: int = 500) -> Mask:
    y, x = np.mgrid[:size, :size]
    return np.asarray(np.hypot(y - MIDDLE, x - MIDDLE) < radius)


def ring(inner: float, outer: float) -> Mask:
    return disc(outer) & ~disc(inner)


def bar(length: float, width: float, degrees: float = 0.0, size: int = 500) -> Mask:
    """A bar whose direction is counter-clockwise from the x axis on the screen."""
    y, x = np.mgrid[:size, :size]
    angle = np.deg2rad(-degrees)
    along = (x - MIDDLE) * np.cos(angle) + (y - MIDDLE) * np.sin(angle)
    across = -(x - MIDDLE) * np.sin(angle) + (y - MIDDLE) * np.cos(angle)
    return np.asarray((np.abs(along) <= length / 2) & (np.abs(across) <= width / 2))


def scene_of(*masks: Mask, photo: NDArray[np.uint8] | None = None, names: tuple[str, ...] = ("a", "b", "c")) -> Scene:
    label_map = np.zeros(masks[0].shape, np.uint8)
    for number, mask in enumerate(masks, start=1):
        label_map[mask] = number
    photo = np.zeros((*label_map.shape, 3), np.uint8) if photo is None else photo
    return Scene.of_label_map(photo, label_map, names[: len(masks)], "photo.png", touching="together")


def row_of(mask: Mask, *groups: str) -> Row:
    (row,) = object_rows(scene_of(mask), groups)
    return row
