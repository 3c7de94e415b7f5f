"""A folder or a zip, listed and read in the same way; paths inside are written with forward slashes."""

import os
import threading
import zipfile
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from emat.errors import EmatError

DEEPEST = 4  # folders below the root; VOCdevkit/VOC2012/ImageSets/Segmentation is the deepest layout known


class FileTree:
    """The files of a folder, or of a zip when `root` is one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.zipped = root.is_file()
        if not root.exists():
            raise EmatError(f"{root} does not exist; check the path")
        if self.zipped and not zipfile.is_zipfile(root):
            raise EmatError(f"{root} is neither a folder nor a zip")
        self._opened: dict[int, zipfile.ZipFile] = {}  # by process
        self._lock = threading.Lock()

    @cached_property
    def folders(self) -> Mapping[str, tuple[str, ...]]:
        """Sorted file names of every folder that has some; the root's own path is the empty string."""
        found = self._zip_members() if self.zipped else self._files_below()
        return {folder: tuple(sorted(names)) for folder, names in sorted(found.items())}

    def files(self, folder: str, suffixes: tuple[str, ...], *, nested: bool = False) -> dict[str, str]:
        """Paths of the files in `folder` by name without suffix; `nested` takes the folders below as well.

        Of two files that differ in their suffix alone, the one whose suffix is named first counts.
        """
        inside = [f for f in self.folders if f == folder or (nested and (folder == "" or f.startswith(f"{folder}/")))]
        found: dict[str, str] = {}
        for suffix in reversed(suffixes):
            for path in (PurePosixPath(f, name) for f in inside for name in self.folders[f]):
                if path.suffix.lower() == suffix:
                    found[str(path.with_suffix("").relative_to(folder))] = str(path)
        return dict(sorted(found.items()))

    def source(self, path: str) -> Path | bytes:
        """What `emat.images` reads: the path in a folder, the content in a zip."""
        if not self.zipped:
            return self.root / path
        try:
            return self._zip().read(path)
        except (
            KeyError,
            zipfile.BadZipFile,
            OSError,
            RuntimeError,
            NotImplementedError,
            ValueError,
        ) as error:
            raise EmatError(f"{self.describe(path)} cannot be read: {error}; fetch the zip again") from None

    def describe(self, path: str) -> str:
        """What an error calls the file."""
        return f"{self.root}:{path}" if self.zipped else str(self.root / path)

    def text(self, path: str) -> str:
        """Content of a text file."""
        source = self.source(path)
        try:
            return (source if isinstance(source, bytes) else source.read_bytes()).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise EmatError(f"{self.describe(path)} cannot be read as text: {error}") from None

    def _files_below(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for folder, below, names in os.walk(self.root):
            relative = PurePosixPath(Path(folder).relative_to(self.root).as_posix())
            below[:] = [n for n in below if not n.startswith(".")] if len(relative.parts) < DEEPEST else []
            visible = [name for name in names if not name.startswith(".")]
            if visible:
                found["" if relative == PurePosixPath(".") else str(relative)] = visible
        return found

    def _zip_members(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for member in self._zip().namelist():
            path = PurePosixPath(member)
            if not member.endswith("/") and not any(part.startswith((".", "__MACOSX")) for part in path.parts):
                found["" if str(path.parent) == "." else str(path.parent)].append(path.name)
        return found

    def _zip(self) -> zipfile.ZipFile:
        # After a fork the file's position is shared with the parent: each process opens the zip for itself.
        with self._lock:
            process = os.getpid()
            if process not in self._opened:
                try:
                    self._opened = {process: zipfile.ZipFile(self.root)}
                except (zipfile.BadZipFile, OSError) as error:
                    raise EmatError(f"{self.root} cannot be opened: {error}; fetch the zip again") from None
            return self._opened[process]

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_opened", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._opened = {}
        self._lock = threading.Lock()
