"""Where features are kept: as files in a folder that many processes share, and in the memory of one process.

Both stores have a limit in bytes and make room by removing what was used longest ago.
"""

import os
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from emat.errors import EmatError
from emat.files import locked
from emat.methods.base import Features
from emat.tensor_files import write_tensors

SUFFIX = ".safetensors"
# These three are fractions of the limit.
CHECK_AFTER = 0.01  # a process checks the size of the whole folder after it has written this much
FULL = 0.95  # above this, files are removed; the rest is for what other processes write before their next check
AFTER_EVICTION = 0.9  # files are removed down to this, so that not every new file has to remove an old one
STALE = 3600  # seconds after which an unfinished file is taken for one that a killed process left behind
BLOCK_BYTES = 256 * 2**20  # how much memory is reserved at a time


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
            raise EmatError(f"features cannot be kept in {path}: it is not a folder; choose another")
        self.path, self.limit = path, limit
        self._remove_stale()
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
            raise EmatError(f"features cannot be kept in {self.path}: {error}") from None

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

    def _remove_stale(self) -> None:
        for path in self.path.glob(f"*/.*{SUFFIX}.*"):  # how `write_tensors` names unfinished files
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > STALE:
                    path.unlink()

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
        self._blocks: list[Tensor] = []  # each (slots, bytes of a slot) uint8
        self._like: Features | None = None  # the shapes and types of all features, taken from the first

    @property
    def bytes(self) -> int:
        """The size of the features that are kept."""
        return 0 if self._like is None else len(self._slots) * _bytes(self._like)

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
        capacity = self._limit // _bytes(features)
        if capacity == 0:
            return
        slot = self._slots.popitem(last=False)[1] if len(self._slots) >= capacity else len(self._slots)
        for part, tensor in zip(self._parts(slot), features.tensors, strict=True):
            part.copy_(tensor)
        self._slots[key] = slot

    def _parts(self, slot: int) -> list[Tensor]:
        """Return views of the slot's memory that have the shapes and types of the features."""
        assert self._like is not None
        size = _bytes(self._like)
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


def _bytes(features: Features) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in features.tensors)


def _layout(features: Features) -> tuple[object, ...]:
    return (features.size, *((tensor.shape, tensor.dtype) for tensor in features.tensors))
