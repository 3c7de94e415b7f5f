"""The files of a folder or a zip, listed and read in the same way, and the base of data sets made of such files.

Paths inside a tree have forward slashes. A zip is read without unpacking it; several processes may read it.
"""

import os
import threading
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from emat.datasets.dataset import Dataset, Missing, PackedPhoto
from emat.errors import EmatError
from emat.files import LARGEST_TEXT, as_text, limited, open_input, walk
from emat.images import Pixels, photo_size, read_photo
from emat.progress import tell_once

Value = TypeVar("Value")

LARGEST_MEMBER = 1 << 30  # bytes of one photo or mask, unpacked
DEEPEST = 4  # levels below the root; the deepest known layout is VOCdevkit/VOC2012/ImageSets/Segmentation


class FileTree:
    """The files of a folder or a zip.

    Args:
        root: The folder or zip.

    Raises:
        EmatError: `root` does not exist, or is a file other than a zip.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.zipped = root.is_file()
        if not root.exists():
            raise EmatError("no-such-file", f"{root} does not exist; check the path")
        if self.zipped and not zipfile.is_zipfile(root):
            raise EmatError("not-a-folder", f"{root} is neither a folder nor a zip")
        self._opened: dict[int, zipfile.ZipFile] = {}  # by process id
        self._lock = threading.Lock()

    @cached_property
    def folders(self) -> Mapping[str, tuple[str, ...]]:
        """The sorted file names of every folder that has files, by the folder's path; the root's path is empty."""
        listed = self._zip_members() if self.zipped else self._files_below()
        return {folder: tuple(sorted(names)) for folder, names in sorted(listed.items())}

    def files(
        self, folder: str, suffixes: tuple[str, ...], *, nested: bool = False, tell: bool = False
    ) -> dict[str, str]:
        """Find the files of a folder.

        Args:
            folder: The path of the folder in the tree.
            suffixes: The suffixes to find, in lower case. If two files differ only in their suffix, the one whose
                suffix comes first is taken.
            nested: Whether to include the folders below.
            tell: Whether to say which of two such files is taken.

        Returns:
            The paths of the files, by their paths relative to `folder` without suffix.
        """
        inside = [f for f in self.folders if f == folder or (nested and (folder == "" or f.startswith(f"{folder}/")))]
        paths: dict[str, str] = {}
        for suffix in reversed(suffixes):
            for path in (PurePosixPath(f, name) for f in inside for name in self.folders[f]):
                if path.suffix.lower() == suffix:
                    name = str(path.with_suffix("").relative_to(folder))
                    if tell and name in paths:
                        tell_once(
                            f"{self.describe(paths[name])} is left out, because {self.describe(str(path))} has its name"
                        )
                    paths[name] = str(path)
        return dict(sorted(paths.items()))

    def source(self, path: str) -> Path | bytes:
        """Return what `emat.images` can read: the path of a file in a folder, or the content of a file in a zip."""
        return self._member(path, LARGEST_MEMBER) if self.zipped else self.root / path

    def describe(self, path: str) -> str:
        """Return the name of the file for messages."""
        return f"{self.root}:{path}" if self.zipped else str(self.root / path)

    def text(self, path: str) -> str:
        """Return the content of a UTF-8 text file of at most 16 MB."""
        if self.zipped:
            return as_text(self._member(path, LARGEST_TEXT), self.describe(path))
        with open_input(self.root / path) as file:
            return as_text(limited(file, LARGEST_TEXT, self.describe(path)), self.describe(path))

    def _member(self, path: str, most: int) -> bytes:
        """Unpack a file of a zip; whatever its size is said to be, no more than `most` bytes of it."""
        try:
            with self._zip().open(path) as file:
                content = file.read(most + 1)
        except EmatError:
            raise
        except Exception as error:  # a damaged member raises nearly everything: zlib.error, EOFError, struct.error, ...
            raise EmatError(
                "damaged-file", f"{self.describe(path)} cannot be read: {error}; fetch the zip again"
            ) from None
        if len(content) > most:
            raise EmatError(
                "file-too-large",
                f"{self.describe(path)} is larger than {most >> 20} MB; check what it is, or unpack the zip",
            )
        return content

    def _files_below(self) -> dict[str, list[str]]:
        listed = {folder: names for folder, names in walk(self.root, DEEPEST) if names}
        return {folder.relative_to(self.root).as_posix().removeprefix("."): names for folder, names in listed.items()}

    def _zip_members(self) -> dict[str, list[str]]:
        names: dict[str, list[str]] = defaultdict(list)
        for member in self._zip().namelist():
            path = PurePosixPath(member)
            if not member.endswith("/") and not any(part.startswith((".", "__MACOSX")) for part in path.parts):
                names["" if str(path.parent) == "." else str(path.parent)].append(path.name)
        return names

    def _zip(self) -> zipfile.ZipFile:
        # Each process opens the zip itself, because a forked process shares the file position with its parent.
        with self._lock:
            process = os.getpid()
            if process not in self._opened:
                try:
                    self._opened = {process: zipfile.ZipFile(self.root)}
                except Exception as error:  # as above
                    raise EmatError(
                        "damaged-file", f"{self.root} cannot be opened: {error}; fetch the zip again"
                    ) from None
            return self._opened[process]

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_opened", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._opened = {}
        self._lock = threading.Lock()


class TreeDataset(Dataset):
    """A data set whose photos are in a `FileTree`. Subclasses say how masks are read."""

    _tree: FileTree
    _photos: Mapping[str, str]  # name -> path in the tree
    _masks: Mapping[str, str] = {}  # the same in the tree of the masks
    _separate_masks: FileTree | None = None  # the tree of the masks, if it is not that of the photos

    @property
    def _mask_tree(self) -> FileTree:
        return self._separate_masks or self._tree

    @property
    def has_photos(self) -> bool:
        """Whether there are photos."""
        return bool(self._photos)

    def image(self, name: str) -> Pixels:
        """Return the photo, (H, W, 3) uint8."""
        path = self._photo(name)
        return read_photo(self._tree.source(path), name=self._tree.describe(path), reading=self.reading)

    def image_size(self, name: str) -> tuple[int, int]:
        """Return the height and width of the photo, from its header."""
        path = self._photo(name)
        return photo_size(self._tree.source(path), name=self._tree.describe(path), reading=self.reading)

    def photo_file(self, name: str) -> Path | None:
        """Return the path of the photo; None in a zip."""
        path = self._photo(name)
        return None if self._tree.zipped else self._tree.root / path

    def mask_file(self, name: str) -> Path | None:
        """Return the path of the mask; None in a zip."""
        return None if self._mask_tree.zipped or name not in self._masks else self._mask_tree.root / self._masks[name]

    def packed_photo(self, name: str) -> PackedPhoto | None:
        """Return the photo's file inside the zip; None in a folder."""
        path = self._photo(name)
        content = self._tree.source(path) if self._tree.zipped else None
        return PackedPhoto(PurePosixPath(path).suffix, content) if isinstance(content, bytes) else None

    def missing(self) -> Iterator[Missing]:
        """Give the masks without a photo and the photos without a mask."""
        if self.has_photos:
            yield from (Missing("photo", name) for name in self.names if name not in self._photos)
            masked = set(self.names)
            yield from (Missing("mask", name) for name in self._photos if name not in masked)

    def _read_mask(self, name: str, read: Callable[..., Value]) -> Value:
        """Read the file of a mask by one of the functions of `emat.images`."""
        if name not in self._masks:
            raise self.unknown(name)
        path = self._masks[name]
        return read(self._mask_tree.source(path), name=self._mask_tree.describe(path))

    def _photo(self, name: str) -> str:
        if not self._photos:
            raise EmatError(
                "no-photos", f"{self.root} has masks but no photos; give a folder that has the photos as well"
            )
        if name not in self._photos:
            raise EmatError("no-such-photo", f"{self.root} has no photo named {name}; check the list, or add the photo")
        return self._photos[name]
