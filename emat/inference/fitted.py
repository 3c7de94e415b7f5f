"""What a segmenter keeps of an example: its encodings, and a small picture to show."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from emat.images import Pixels, resize_mask, resize_photo
from emat.inference.encodings import moved_to
from emat.inference.example import Example, MaskedPhoto

THUMBNAIL_SIDE = 160


@dataclass(frozen=True)
class Thumbnail:
    """An example small enough to keep."""

    photo: Pixels  # (h, w, 3)
    masks: Mapping[str, NDArray[np.bool_]]  # (h, w) of each class


@dataclass(frozen=True, eq=False)
class FittedExample:
    """An example as the method knows it."""

    name: str
    encodings: Mapping[str, Any]  # the method's own support encoding of each class: a dataclass of tensors
    thumbnail: Thumbnail | None = None
    # Weak: the photo may be a large array that nobody else needs any more.
    source: Callable[[], Example | None] = field(default=lambda: None, repr=False)

    @classmethod
    def of(cls, example: Example, encodings: Mapping[str, Any], small: Thumbnail) -> FittedExample:
        """What is kept of `example`."""
        return cls(example.title, encodings, small, weakref.ref(example))

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes it shows."""
        return tuple(self.encodings)

    def is_from(self, example: Example) -> bool:
        """Whether `example`, the very object, was shown."""
        return self.source() is example

    def to(self, device: torch.device) -> FittedExample:
        """The same with its encodings on `device`."""
        moved = {name: moved_to(device, encoding) for name, encoding in self.encodings.items()}
        return replace(self, encodings=moved)


def thumbnail(shown: MaskedPhoto) -> Thumbnail:
    """The photo and its masks in a square of 160 pixels."""
    height, width = shown.photo.shape[:2]
    scale = min(1.0, THUMBNAIL_SIDE / max(height, width))
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    masks = {name: resize_mask(mask.astype(np.uint8), size) > 0 for name, mask in shown.masks.items()}
    return Thumbnail(resize_photo(shown.photo, size), masks)
