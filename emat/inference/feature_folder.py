"""Features as files of one folder that many processes share: whole or absent, never more than the limit."""

import os
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open

from emat.backbone.lock import locked
from emat.errors import EmatError
from emat.method import Features
from emat.tensor_files import write_tensors

SUFFIX = ".safetensors"
AFTER_EVICTION = 0.9  # share of the limit that stays, so that not every new file looks for an old one


class FeatureFolder:
    """Features by key below `path`. With `limit` bytes, what was used longest ago is removed to make room."""

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self.path, self.limit = path, limit
        self.bytes = sum(size for _, size, _ in self._files())  # other processes' new files are seen at evictions

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
            self.bytes += path.stat().st_size
            if self.limit is not None and self.bytes > self.limit:
                self._evict(self.limit)
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or error
            raise EmatError(
                f"features cannot be kept in {self.path}: {reason}; free some space there or choose another folder"
            ) from None

    def _evict(self, limit: int) -> None:
        with locked(self.path / ".lock", waiting=lambda: None):
            files = sorted(self._files())
            total = sum(size for _, size, _ in files)
            if total > limit:
                for _, size, path in files:
                    if total <= limit * AFTER_EVICTION:
                        break
                    path.unlink(missing_ok=True)
                    total -= size
            self.bytes = total

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
