"""Photos and masks: read safely from whatever a user gives, and prepared for a backbone.

A photo becomes (H, W, 3) uint8 as a viewer shows it. A mask becomes class indices, or the pixels of one object. All
image files that users give are opened here.

`sources` opens files within limits, `photos` makes photos of them, `masks` label maps, and `object_masks`
the mask of one object. `slides` reads windows of photos that are too large for the memory.
"""

from emat.images.masks import (
    VOC_PALETTE,
    VOID,
    read_mask,
    resize_map,
    resize_mask,
    same_scale,
    size_in_words,
    write_indexed_png,
)
from emat.images.object_masks import ObjectMask, read_object, read_object_mask, read_one_class_mask
from emat.images.photos import (
    Reading,
    Stretch,
    fitted_size,
    photo_size,
    read_channels,
    read_photo,
    read_values,
    resize_photo,
    to_pixels,
)
from emat.images.sources import MASK_SUFFIXES, MAX_PIXELS, ORIENTATION_TAG, PHOTO_SUFFIXES, Pixels, Source, describe

__all__ = [
    "MASK_SUFFIXES",
    "MAX_PIXELS",
    "ORIENTATION_TAG",
    "PHOTO_SUFFIXES",
    "VOC_PALETTE",
    "VOID",
    "ObjectMask",
    "Pixels",
    "Reading",
    "Source",
    "Stretch",
    "describe",
    "fitted_size",
    "photo_size",
    "read_channels",
    "read_mask",
    "read_object",
    "read_object_mask",
    "read_one_class_mask",
    "read_photo",
    "read_values",
    "resize_map",
    "resize_mask",
    "resize_photo",
    "same_scale",
    "size_in_words",
    "to_pixels",
    "write_indexed_png",
]
