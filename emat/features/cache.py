"""A cache of features, so that each photo goes through the backbone only once.

Features are looked up in memory first and then on disk. The key is made of the photo's pixels, so it does not matter
which file or data set the photo came from, and of everything else that features depend on: the backbone's weights and
the way photos are prepared. Several processes may share a folder.
"""

import hashlib
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from emat.errors import EmatError
from emat.features.stores import FeatureFolder, FeatureMemory
from emat.images import Pixels
from emat.methods.base import Features, Method
from emat.tensor_files import digest

FORMAT = "emat features 1"


@dataclass(frozen=True)
class CacheCounts:
    """How often features were found in memory, on disk or not at all, and the space that they take."""

    memory_hits: int
    disk_hits: int
    misses: int
    memory_bytes: int
    disk_bytes: int

    @property
    def hit_rate(self) -> float:
        """The fraction of requests that did not need the backbone; 1 if there was no request."""
        hits = self.memory_hits + self.disk_hits
        return hits / (hits + self.misses) if hits + self.misses else 1.0


class FeatureCache:
    """Gives the features of photos, and computes those that are not kept yet.

    When a limit is reached, the features that were used longest ago are removed.

    Args:
        method: Computes the features.
        memory_bytes: The most memory to use.
        folder: Where to keep features on disk as well; only in memory if not given.
        dtype: The type in which floating-point features are kept. float16 halves the space and rounds the values; new
            features are rounded in the same way, so results do not depend on what was kept.
        disk_bytes: The most space to use in `folder`; no limit if not given.

    Raises:
        EmatError: `dtype` is neither float32 nor float16, or `folder` is a file.
    """

    def __init__(
        self,
        method: Method,
        *,
        memory_bytes: int,
        folder: Path | None = None,
        dtype: torch.dtype = torch.float32,
        disk_bytes: int | None = None,
    ) -> None:
        if dtype not in (torch.float32, torch.float16):
            raise EmatError(f"features are kept as float32 or float16, not {dtype}")
        self.method, self.dtype = method, dtype
        self._memory_bytes = memory_bytes
        self._kept = FeatureMemory(memory_bytes)
        self._folder = None if folder is None else FeatureFolder(folder, disk_bytes)
        self._key_of_name: dict[str, str] = {}
        self._memory_hits = self._disk_hits = self._misses = 0
        self._lock = threading.Lock()
        self._encoding: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._state = _state(method, dtype)

    def serves(self, method: Method) -> bool:
        """Whether `method` has the same features: the same backbone weights and the same preparation of photos."""
        return self._state == _state(method, self.dtype)

    def features(self, photo: Pixels) -> Features:
        """Return the features of a photo (H, W, 3) uint8, on the method's device."""
        key = self._key(photo)
        return self._on_device(self._find_or_encode(key, photo))

    def features_of(self, name: str, read: Callable[[str], Pixels]) -> Features:
        """Return the features of a photo that has a name; the photo is read only if it is needed.

        Args:
            name: The name of the photo. It must always stand for the same photo while this cache is in use.
            read: Gives the photo (H, W, 3) uint8 by its name.
        """
        key = self._key_of_name.get(name)
        kept = None if key is None else self._find(key)
        if kept is None:
            photo = read(name)
            key = self._key_of_name[name] = key or self._key(photo)
            kept = self._find_or_encode(key, photo)
        return self._on_device(kept)

    def clear(self) -> None:
        """Free the memory; what is on disk stays. Features are computed again when they are needed."""
        with self._lock:
            self._kept = FeatureMemory(self._memory_bytes)
            self._key_of_name.clear()
            self._encoding.clear()

    @property
    def counts(self) -> CacheCounts:
        """The hits, misses and bytes so far."""
        disk = 0 if self._folder is None else self._folder.bytes
        return CacheCounts(self._memory_hits, self._disk_hits, self._misses, self._kept.bytes, disk)

    def _key(self, photo: Pixels) -> str:
        if photo.ndim != 3 or photo.shape[2] != 3 or photo.dtype.name != "uint8":
            raise EmatError(f"a photo is (H, W, 3) uint8, not {photo.shape} {photo.dtype}")
        content = hashlib.sha256(str(photo.shape).encode())
        content.update(np.ascontiguousarray(photo).data)
        return f"{content.hexdigest()[:40]}-{self._state}"

    def _find_or_encode(self, key: str, photo: Pixels) -> Features:
        with self._encoding[key]:  # another thread that wants the same photo waits and then finds it
            return self._find(key) or self._encode(key, photo)

    def _find(self, key: str) -> Features | None:
        with self._lock:
            kept = self._kept.read(key)
            if kept is not None:
                self._memory_hits += 1
                return kept
        kept = None if self._folder is None else self._folder.read(key)
        if kept is not None:
            self._disk_hits += 1
            self._keep(key, kept)
        return kept

    @torch.no_grad()
    def _encode(self, key: str, photo: Pixels) -> Features:
        # One photo at a time, so that features do not depend on the other photos of a batch.
        self._misses += 1
        found = self.method.photo_features(photo)
        features = Features(tuple(self._as_kept(tensor) for tensor in found.tensors), found.size)
        if self._folder is not None:
            self._folder.write(key, features)
        self._keep(key, features)
        return features

    def _keep(self, key: str, features: Features) -> None:
        with self._lock:
            self._kept.write(key, features)

    def _as_kept(self, tensor: Tensor) -> Tensor:
        kept = tensor.detach().to("cpu", self.dtype if tensor.is_floating_point() else tensor.dtype)
        return kept.clone(memory_format=torch.contiguous_format)  # a view would keep a whole batch alive

    def _on_device(self, features: Features) -> Features:
        device = self._device
        if device.type == "cpu":
            return features
        return Features(tuple(tensor.to(device, non_blocking=True) for tensor in features.tensors), features.size)

    @property
    def _device(self) -> torch.device:
        return next(self.method.parameters()).device


def _state(method: Method, dtype: torch.dtype) -> str:
    state = f"{FORMAT} {digest(method.feature_weights())} {method.preparation} {dtype}"
    return hashlib.sha256(state.encode()).hexdigest()[:16]
