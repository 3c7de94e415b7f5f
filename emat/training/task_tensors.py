"""Training tasks as tensors: features come from the cache, and masks are resized once and kept."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from emat.features import FeatureCache
from emat.formats.drawing import LabelMap
from emat.images import VOID, Pixels, resize_mask, resize_photo
from emat.methods.base import Features, Method, TrainingBatch
from emat.tasks.training_tasks import SourcePhoto, TrainingList, TrainingTask

MASK_MEMORY = 2 * 2**30  # bytes of resized masks that are kept
PHOTO_MEMORY = 2 * 2**30  # bytes of resized photos that are kept if the method trains its backbone


class TaskTensors:
    """Turns training tasks into batches of tensors.

    Args:
        method: The method that is trained.
        drawn_from: The photos and classes that the tasks are drawn from.
        cache: The features of photos. None if the method trains its backbone: features are then computed for every
            batch, with gradients.
        mask_size: Side of the masks of queries, in pixels. Masks of supports have the size of the prepared photos.
    """

    def __init__(self, method: Method, drawn_from: TrainingList, cache: FeatureCache | None, mask_size: int) -> None:
        self._method, self._cache = method, cache
        self._can_mirror = True  # until the method says that it cannot mirror features
        self._size, self._mask_size = method.preparation.image_size, mask_size
        self._sources = [source.dataset for source in drawn_from.sources]
        self._values = drawn_from.mask_values
        self._mask = lru_cache(maxsize=MASK_MEMORY // max(self._size, mask_size) ** 2)(self._resized_mask)
        self._photo = lru_cache(maxsize=PHOTO_MEMORY // (3 * self._size**2))(self._resized_photo)

    def batch(self, tasks: Sequence[TrainingTask]) -> TrainingBatch:
        """Return the tensors of `tasks`, on the method's device."""
        device = next(self._method.parameters()).device
        supports = [self._object(task.support, task.way, self._size, task.flip_support) for task in tasks]
        queries = [self._object(task.query, task.way, self._mask_size, task.flip_query) for task in tasks]
        return TrainingBatch(
            [self._features(task.query, task.flip_query) for task in tasks],
            [self._features(task.support, task.flip_support) for task in tasks],
            [torch.from_numpy(mask).to(device, torch.float32) for mask in supports],
            torch.from_numpy(np.stack(queries)).to(device),
        )

    def _object(self, photo: SourcePhoto, way: int, size: int, flip: bool) -> LabelMap:
        """Return (size, size) with 1 where the photo shows the class; void and other classes count as background."""
        value = self._values[way].get(photo.source)
        mask = self._mask(photo, size)
        found = np.zeros(mask.shape, np.uint8) if value is None else (mask == value).astype(np.uint8)
        return np.ascontiguousarray(found[:, ::-1]) if flip else found

    def _resized_mask(self, photo: SourcePhoto, size: int) -> LabelMap:
        return shrink(self._sources[photo.source].mask(photo.name), size)

    def _features(self, photo: SourcePhoto, flip: bool) -> Features:
        if self._cache is not None:
            return self._cached_features(photo, flip)
        small = self._photo(photo)
        return self._method.features(self._method.prepare(_mirrored(small) if flip else small))[0]

    def _cached_features(self, photo: SourcePhoto, flip: bool) -> Features:
        """Return features from the cache. If the method can mirror features, mirrored photos are not cached."""
        assert self._cache is not None
        if flip:
            plain = self._cached_features(photo, flip=False) if self._can_mirror else None
            mirrored = None if plain is None else self._method.mirror(plain)
            if mirrored is not None:
                return mirrored
            self._can_mirror = False
        # Validation uses the same cache with plain photo names, which never begin with a slash.
        return self._cache.features_of(f"/{photo.source}/{flip:d}/{photo.name}", lambda _: self._read(photo, flip))

    def _read(self, photo: SourcePhoto, flip: bool) -> Pixels:
        pixels = self._sources[photo.source].image(photo.name)
        return _mirrored(pixels) if flip else pixels

    def _resized_photo(self, photo: SourcePhoto) -> Pixels:
        # Kept at the method's size to save memory and time; `prepare` does not resize such a photo again.
        return resize_photo(self._read(photo, flip=False), (self._size, self._size))


def _mirrored(photo: Pixels) -> Pixels:
    return np.ascontiguousarray(photo[:, ::-1])


def shrink(mask: LabelMap, size: int) -> LabelMap:
    """Resize a label map to (size, size) by nearest neighbour, but keep one pixel of a class that would vanish.

    Otherwise a small object would count as absent in the loss. A class does vanish if every pixel that it could take is
    the last pixel of another class.

    >>> mask = np.zeros((90, 90), np.uint8)
    >>> mask[31, 61] = 7
    >>> np.argwhere(shrink(mask, 3) == 7).tolist()
    [[1, 2]]
    """
    small = resize_mask(mask, (size, size))
    counts = {value: int(count) for value, count in zip(*np.unique(small, return_counts=True), strict=True)}
    for lost in np.setdiff1d(np.unique(mask), [*counts, 0, VOID]):
        rows, columns = np.nonzero(mask == lost)
        indices = np.unique(rows * size // mask.shape[0] * size + columns * size // mask.shape[1])
        taken_from = small.flat[indices]
        indices = indices[[value in (0, VOID) or counts[value] > 1 for value in taken_from]]
        if len(indices):
            index = indices[len(indices) // 2]
            counts[small.flat[index]] -= 1
            counts[lost] = 1
            small.flat[index] = lost
    return small
