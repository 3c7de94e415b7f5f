"""Tasks as tensors: features from the cache, masks resized once and kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from emat.formats.drawing import LabelMap
from emat.images import VOID, Pixels, resize_mask, resize_photo, to_pixels
from emat.inference.feature_cache import FeatureCache
from emat.method import Features, Method
from emat.tasks.training_tasks import Photo, TrainingList, TrainingTask

MASK_MEMORY = 2 * 2**30  # bytes of resized masks that are kept
PHOTO_MEMORY = 2 * 2**30  # and of resized photos, where a method trains its backbone


@dataclass(frozen=True)
class Batch:
    """What a method's loss takes: B tasks."""

    queries: list[Features]
    supports: list[Features]
    support_masks: list[Tensor]  # (S, S) each
    query_masks: Tensor  # (B, M, M): 1 where the query shows the class


class Samples:
    """Makes batches of tasks for `method`.

    Support masks have the photos' size, query masks `mask_size`. Features come from `cache`; None, for a method that
    trains its backbone, makes them anew with gradients.
    """

    def __init__(self, method: Method, drawn_from: TrainingList, cache: FeatureCache | None, mask_size: int) -> None:
        self._method, self._cache = method, cache
        self._size, self._mask_size = method.preparation.image_size, mask_size
        self._sources = [source.dataset for source in drawn_from.sources]
        self._values = drawn_from.mask_values
        self._mask = lru_cache(maxsize=MASK_MEMORY // max(self._size, mask_size) ** 2)(self._resized_mask)
        self._photo = lru_cache(maxsize=PHOTO_MEMORY // (3 * self._size**2))(self._resized_photo)

    def batch(self, tasks: Sequence[TrainingTask]) -> Batch:
        """The tensors of `tasks`."""
        device = next(self._method.parameters()).device
        supports = [self._object(task.support, task.way, self._size, task.flip_support) for task in tasks]
        queries = [self._object(task.query, task.way, self._mask_size, task.flip_query) for task in tasks]
        return Batch(
            [self._features(task.query, task.flip_query) for task in tasks],
            [self._features(task.support, task.flip_support) for task in tasks],
            [torch.from_numpy(mask).to(device, torch.float32) for mask in supports],
            torch.from_numpy(np.stack(queries)).to(device),
        )

    def _object(self, photo: Photo, way: int, size: int, flip: bool) -> LabelMap:
        """(size, size): 1 where the photo shows the class; void and other classes are background."""
        value = self._values[way].get(photo.source)
        mask = self._mask(photo, size)
        found = np.zeros(mask.shape, np.uint8) if value is None else (mask == value).astype(np.uint8)
        return np.ascontiguousarray(found[:, ::-1]) if flip else found

    def _resized_mask(self, photo: Photo, size: int) -> LabelMap:
        return shrink(self._sources[photo.source].mask(photo.name), size)

    def _features(self, photo: Photo, flip: bool) -> Features:
        def read(_: str) -> Pixels:
            return self._read(photo, flip)

        if self._cache is not None:
            # Validation asks the same cache by plain names, which never begin with a slash.
            return self._cache.features_of(f"/{photo.source}/{flip:d}/{photo.name}", read)
        preparation = self._method.preparation
        small = self._photo(photo)
        pixels = to_pixels(small[:, ::-1] if flip else small, small.shape[:2], preparation.mean, preparation.std)
        device = next(self._method.parameters()).device
        return self._method.features(torch.from_numpy(pixels)[None].to(device))[0]

    def _read(self, photo: Photo, flip: bool) -> Pixels:
        pixels = self._sources[photo.source].image(photo.name)
        return np.ascontiguousarray(pixels[:, ::-1]) if flip else pixels

    def _resized_photo(self, photo: Photo) -> Pixels:
        return resize_photo(self._read(photo, flip=False), (self._size, self._size))


def shrink(mask: LabelMap, size: int) -> LabelMap:
    """`mask` at (size, size), by nearest neighbour; a class too small for that keeps one pixel, so presence stays true.

    >>> mask = np.zeros((90, 90), np.uint8)
    >>> mask[31, 61] = 7
    >>> np.argwhere(shrink(mask, 3) == 7).tolist()
    [[1, 2]]
    """
    small = resize_mask(mask, (size, size))
    pixels = {value: int(count) for value, count in zip(*np.unique(small, return_counts=True), strict=True)}
    for lost in np.setdiff1d(np.unique(mask), [*pixels, 0, VOID]):
        rows, columns = np.nonzero(mask == lost)
        places = np.unique(rows * size // mask.shape[0] * size + columns * size // mask.shape[1])
        there = small.flat[places]
        places = places[[value in (0, VOID) or pixels[value] > 1 for value in there]]  # no other class's last pixel
        if len(places):
            place = places[len(places) // 2]
            pixels[small.flat[place]] -= 1
            pixels[lost] = 1
            small.flat[place] = lost
    return small
