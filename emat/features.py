"""A cache of features, so that each photo goes through the backbone only once.

`FeatureCache` looks for features in memory (`FeatureMemory`), then on disk (`FeatureFolder`), and computes them if they
are in neither. The key is made of the photo's pixels, so it does not matter which file or data set the photo came from,
and of everything else that features depend on: the backbone's weights and the way photos are prepared. Both stores have
a limit in bytes and make room by removing what was used longest ago. Several processes may share a folder.
"""

import hashlib
import os
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from emat.errors import EmatError
from emat.files import locked
from emat.images import Pixels
from emat.methods.base import Features, Method
from emat.tensor_files import digest, write_tensors

FORMAT = "emat features 2"
SUFFIX = ".safetensors"
# These three are fractions of the limit.
CHECK_AFTER = 0.01  # a process checks the size of the whole folder after it has written this much
FULL = 0.95  # above this, files are removed; the rest is for what other processes write before their next check
AFTER_EVICTION = 0.9  # files are removed down to this, so that not every new file has to remove an old one
BLOCK_BYTES = 256 * 2**20  # how much memory is reserved at a time


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
            raise EmatError("tensor-type", f"features are kept as float32 or float16, not {dtype}")
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

    def forget(self, names: Iterable[str]) -> None:
        """Give up the memory of photos that `features_of` will hardly be asked for again; what is on disk stays."""
        with self._lock:
            for name in names:
                key = self._key_of_name.pop(name, None)
                if key is not None:
                    self._kept.drop(key)
                    self._encoding.pop(key, None)

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
            raise EmatError("photo-array", f"a photo is (H, W, 3) uint8, not {photo.shape} {photo.dtype}")
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
        features = self.method.photo_features(photo)
        features = Features(tuple(self._as_kept(tensor) for tensor in features.tensors), features.size)
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
    if method.precision is not torch.float32:
        state += f" {method.precision}"
    return hashlib.sha256(state.encode()).hexdigest()[:16]


class FeatureFolder:
    """Features in a folder, one file for each key.

    Args:
        path: The folder. It is made when the first features are written.
        limit: The most bytes that all processes together keep there; no limit if not given.

    Raises:
        EmatError: `path` is a file.
    """

    def __init__(self, path: Path, limit: int | None = None) -> None:
        if path.exists() and not path.is_dir():
            raise EmatError("not-a-folder", f"features cannot be kept in {path}: it is not a folder; choose another")
        self.path, self.limit = path, limit
        self.bytes = sum(size for _, size, _ in self._files())  # other processes' files count after a check
        self._unchecked = 0  # bytes that this process has written since its last check

    def read(self, key: str) -> Features | None:
        """Return the features kept under `key`; None if there are none or the file is damaged."""
        path = self._path(key)
        try:
            with safe_open(path, "pt") as file:
                tensors = tuple(file.get_tensor(name).clone() for name in sorted(file.keys(), key=int))
                height, width = map(int, file.metadata()["size"].split())
            os.utime(path)  # the time of a file is that of its last use
        except (OSError, SafetensorError, KeyError, ValueError, TypeError):
            return None
        return Features(tensors, (height, width))

    def write(self, key: str, features: Features) -> None:
        """Keep `features` in a file that appears only when it is complete, and make room if the folder is full."""
        path = self._path(key)
        tensors = {str(index): tensor for index, tensor in enumerate(features.tensors)}
        try:
            write_tensors(path, tensors, {"size": f"{features.size[0]} {features.size[1]}"})
            size = sum(tensor.numel() * tensor.element_size() for tensor in features.tensors)
            self.bytes += size
            self._unchecked += size
            if self.limit is not None and self._unchecked >= CHECK_AFTER * self.limit:
                self._make_room(self.limit)
        except (OSError, EmatError) as error:
            raise EmatError("cannot-write", f"features cannot be kept in {self.path}: {error}") from None

    def _make_room(self, limit: int) -> None:
        """Check the size of the whole folder, and remove the oldest files if it is above the limit."""
        with locked(self.path / ".lock", waiting=lambda: None):
            files = sorted(self._files())
            total = sum(size for _, size, _ in files)
            if total > limit * FULL:
                for _, size, path in files:
                    if total <= limit * AFTER_EVICTION:
                        break
                    path.unlink(missing_ok=True)
                    total -= size
            self.bytes, self._unchecked = total, 0

    def _files(self) -> list[tuple[int, int, Path]]:
        """Return the time of last use, the size and the path of every file."""
        files = []
        for path in self.path.glob(f"*/*{SUFFIX}"):
            with suppress(FileNotFoundError):  # another process has just removed it
                stat = path.stat()
                files.append((stat.st_mtime_ns, stat.st_size, path))
        return files

    def _path(self, key: str) -> Path:
        return self.path / key[:2] / f"{key}{SUFFIX}"


class FeatureMemory:
    """Features of at most `limit` bytes in a few large blocks of memory, which are never released.

    All photos of a cache have features of the same shapes, so a block is divided into slots of one size, and the photo
    that was used longest ago gives up its slot to a new one. If every photo had tensors of its own, a few megabytes
    each, the heap would become fragmented, and the memory of the process would keep growing.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._slots: OrderedDict[str, int] = OrderedDict()  # the slot of each key, the one used longest ago first
        self._free: list[int] = []  # slots whose photos were dropped
        self._blocks: list[Tensor] = []  # each (slots, bytes of a slot) uint8
        self._like: Features | None = None  # the shapes and types of all features, taken from the first

    @property
    def bytes(self) -> int:
        """The size of the features that are kept."""
        return 0 if self._like is None else len(self._slots) * features_bytes(self._like)

    def read(self, key: str) -> Features | None:
        """Return a copy of the features kept under `key`; None if there are none."""
        slot = self._slots.get(key)
        if slot is None:
            return None
        self._slots.move_to_end(key)
        assert self._like is not None
        return Features(tuple(part.clone() for part in self._parts(slot)), self._like.size)

    def write(self, key: str, features: Features) -> None:
        """Keep a copy of `features`, unless even one photo needs more than the limit."""
        if self._like is None:
            self._like = Features(
                tuple(torch.empty_like(tensor, device="meta") for tensor in features.tensors), features.size
            )
        if key in self._slots or _layout(features) != _layout(self._like):
            return
        capacity = self._limit // features_bytes(features)
        if capacity == 0:
            return
        if self._free:
            slot = self._free.pop()
        else:
            slot = self._slots.popitem(last=False)[1] if len(self._slots) >= capacity else len(self._slots)
        for part, tensor in zip(self._parts(slot), features.tensors, strict=True):
            part.copy_(tensor)
        self._slots[key] = slot

    def drop(self, key: str) -> None:
        """Leave the slot of a key, if it has one, to the next photo."""
        slot = self._slots.pop(key, None)
        if slot is not None:
            self._free.append(slot)

    def _parts(self, slot: int) -> list[Tensor]:
        """Return views of the slot's memory that have the shapes and types of the features."""
        assert self._like is not None
        size = features_bytes(self._like)
        per_block = max(1, BLOCK_BYTES // size)
        block, row = divmod(slot, per_block)
        if block == len(self._blocks):
            with torch.inference_mode(False):  # a block is written to long after the mode it was first needed in
                self._blocks.append(torch.empty(min(per_block, self._limit // size - slot), size, dtype=torch.uint8))
        lengths = [tensor.numel() * tensor.element_size() for tensor in self._like.tensors]
        pieces = self._blocks[block][row].split(lengths)
        return [
            piece.view(tensor.dtype).view(tensor.shape)
            for piece, tensor in zip(pieces, self._like.tensors, strict=True)
        ]


def features_bytes(features: Features) -> int:
    """The memory that features take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in features.tensors)


def _layout(features: Features) -> tuple[object, ...]:
    return (features.size, *((tensor.shape, tensor.dtype) for tensor in features.tensors))
