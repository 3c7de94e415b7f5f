"""Features as files of one folder that many processes share: whole or absent, and together within the limit."""

import os
import time
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open

from emat.backbone.lock import locked
from emat.errors import EmatError
from emat.method import Features
from emat.tensor_files import write_tensors

SUFFIX = ".safetensors"
# Shares of the limit.
LOOK_AFTER = 0.01  # what a process writes before it looks at what all of them have written
FULL = 0.95  # from here on room is made: what others write before their next look has place in the rest
AFTER_EVICTION = 0.9  # what stays, so that not every new file looks for an old one
STALE = 3600  # seconds after which an unfinished file is one that a killed process left


class FeatureFolder:
    """Features by key below `path`. With `limit` bytes, what was used longest ago is removed to make room."""

    def __init__(self, path: Path, limit: int | None = None) -> None:
        if path.exists() and not path.is_dir():
            raise EmatError(f"features cannot be kept in {path}: it is no folder; choose another")
        self.path, self.limit = path, limit
        self._remove_stale()
        self.bytes = sum(size for _, size, _ in self._files())  # what others write is seen at looks
        self._unlooked = 0  # bytes written since the last one

    def read(self, key: str) -> Features | None:
        """What is kept; a damaged file counts as absent."""
        path = self._place(key)
        try:
            with safe_open(path, "pt") as file:
                tensors = tuple(file.get_tensor(name).clone() for name in sorted(file.keys(), key=int))
                height, width = map(int, file.metadata()["size"].split())
            os.utime(path)  # used just now
        except (OSError, SafetensorError, KeyError, ValueError, TypeError):
            return None
        return Features(tensors, (height, width))

    def write(self, key: str, features: Features) -> None:
        """Keep `features`, whole or not at all."""
        path = self._place(key)
        tensors = {str(place): tensor for place, tensor in enumerate(features.tensors)}
        try:
            write_tensors(path, tensors, {"size": f"{features.size[0]} {features.size[1]}"})
            size = sum(tensor.numel() * tensor.element_size() for tensor in features.tensors)
            self.bytes += size
            self._unlooked += size
            if self.limit is not None and self._unlooked >= LOOK_AFTER * self.limit:
                self._make_room(self.limit)
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or error
            raise EmatError(
                f"features cannot be kept in {self.path}: {reason}; free some space there or choose another folder"
            ) from None

    def _make_room(self, limit: int) -> None:
        """Look at the whole folder, and remove what is too much."""
        with locked(self.path / ".lock", waiting=lambda: None):
            files = sorted(self._files())
            total = sum(size for _, size, _ in files)
            if total > limit * FULL:
                for _, size, path in files:
                    if total <= limit * AFTER_EVICTION:
                        break
                    path.unlink(missing_ok=True)
                    total -= size
            self.bytes, self._unlooked = total, 0

    def _remove_stale(self) -> None:
        for path in self.path.glob(f"*/.*{SUFFIX}.*"):  # as `write_tensors` names what it has not finished
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > STALE:
                    path.unlink()

    def _files(self) -> list[tuple[int, int, Path]]:
        """Time of last use, size and path of every file."""
        files = []
        for path in self.path.glob(f"*/*{SUFFIX}"):
            with suppress(FileNotFoundError):  # another process made room
                stat = path.stat()
                files.append((stat.st_mtime_ns, stat.st_size, path))
        return files

    def _place(self, key: str) -> Path:
        return self.path / key[:2] / f"{key}{SUFFIX}"
