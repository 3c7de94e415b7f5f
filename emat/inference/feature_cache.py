"""Features kept, so that a photo is encoded once: in memory first, then on disk.

A photo is known by its pixels, whatever file or data set it came from; what is kept of it also depends on the weights
that encode it and on how it is prepared. Any number of processes may share a folder.
"""

import hashlib
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from emat.errors import EmatError
from emat.images import Pixels, to_pixels
from emat.inference.feature_folder import FeatureFolder
from emat.method import Features, Method
from emat.tensor_files import digest

FORMAT = "emat features 1"


@dataclass(frozen=True)
class CacheCounts:
    """How often features were at hand, and what keeping them takes."""

    memory_hits: int
    disk_hits: int
    misses: int
    memory_bytes: int
    disk_bytes: int

    @property
    def hit_rate(self) -> float:
        """Share of requests that did not need the backbone; 1 when nothing was asked for."""
        hits = self.memory_hits + self.disk_hits
        return hits / (hits + self.misses) if hits + self.misses else 1.0


class FeatureCache:
    """The features of photos under `method`, which computes those that are not kept.

    `memory_bytes` and `disk_bytes` are limits: what was used longest ago goes first. `dtype` is how floating-point
    features are kept and given: float16 halves the space and rounds, the same whether a photo was kept or not.
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
        self._limit = memory_bytes
        self._folder = None if folder is None else FeatureFolder(folder, disk_bytes)
        self._kept: OrderedDict[str, Features] = OrderedDict()  # used longest ago first
        self._bytes = 0
        self._key_of_name: dict[str, str] = {}
        self._memory_hits = self._disk_hits = self._misses = 0
        self._lock = threading.Lock()
        self._encoding: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._state = _state(method, dtype)

    def serves(self, method: Method) -> bool:
        """Whether the features of `method` are those kept here: of the same weights, and photos prepared alike."""
        return self._state == _state(method, self.dtype)

    def features(self, photo: Pixels) -> Features:
        """The features of a photo (H, W, 3) uint8, on the method's device."""
        key = self._key(photo)
        return self._on_device(self._find_or_encode(key, photo))

    def features_of(self, name: str, read: Callable[[str], Pixels]) -> Features:
        """The features of the photo that `read(name)` gives, read only when they are not in memory.

        A name must mean one photo as long as this cache lives.
        """
        key = self._key_of_name.get(name)
        kept = None if key is None else self._find(key)
        if kept is None:
            photo = read(name)
            key = self._key_of_name[name] = key or self._key(photo)
            kept = self._find_or_encode(key, photo)
        return self._on_device(kept)

    @property
    def counts(self) -> CacheCounts:
        """Hits, misses and bytes so far."""
        disk = 0 if self._folder is None else self._folder.bytes
        return CacheCounts(self._memory_hits, self._disk_hits, self._misses, self._bytes, disk)

    def _key(self, photo: Pixels) -> str:
        if photo.ndim != 3 or photo.shape[2] != 3 or photo.dtype.name != "uint8":
            raise EmatError(f"a photo is (H, W, 3) uint8, not {photo.shape} {photo.dtype}")
        content = hashlib.sha256(str(photo.shape).encode())
        content.update(np.ascontiguousarray(photo).data)
        return f"{content.hexdigest()[:40]}-{self._state}"

    def _find_or_encode(self, key: str, photo: Pixels) -> Features:
        with self._encoding[key]:  # a thread that wants the same photo waits, and finds it
            return self._find(key) or self._encode(key, photo)

    def _find(self, key: str) -> Features | None:
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                self._memory_hits += 1
                return kept
        kept = None if self._folder is None else self._folder.read(key)
        if kept is not None:
            self._disk_hits += 1
            self._keep(key, kept)
        return kept

    @torch.no_grad()
    def _encode(self, key: str, photo: Pixels) -> Features:
        # One photo at a time: features never depend on what they were computed beside.
        self._misses += 1
        preparation = self.method.preparation
        side = preparation.image_size
        pixels = torch.from_numpy(to_pixels(photo, (side, side), preparation.mean, preparation.std))
        found = self.method.features(pixels[None].to(self._device))[0]
        features = Features(tuple(self._as_kept(tensor) for tensor in found.tensors), found.size)
        if self._folder is not None:
            self._folder.write(key, features)
        self._keep(key, features)
        return features

    def _keep(self, key: str, features: Features) -> None:
        size = _bytes(features)
        if size > self._limit:
            return
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = features
            self._bytes += size
            while self._bytes > self._limit:
                self._bytes -= _bytes(self._kept.popitem(last=False)[1])

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


def _bytes(features: Features) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in features.tensors)
