"""A data set whose photos and masks are files of one folder or zip."""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from emat.datasets.dataset import Dataset, Missing, PackedPhoto
from emat.datasets.file_tree import FileTree
from emat.errors import EmatError
from emat.images import Pixels, photo_size, read_photo


class TreeDataset(Dataset):
    """Finds photos by name in a `FileTree`; how masks are read is for the layouts to say."""

    _tree: FileTree
    _photos: Mapping[str, str]  # name -> path in the tree
    _masks: Mapping[str, str] = {}

    @property
    def has_photos(self) -> bool:
        """Whether there are photos at all."""
        return bool(self._photos)

    def image(self, name: str) -> Pixels:
        """The photo, (H, W, 3) uint8."""
        path = self._photo(name)
        return read_photo(self._tree.source(path), name=self._tree.describe(path))

    def image_size(self, name: str) -> tuple[int, int]:
        """(H, W) of the photo, from its header."""
        path = self._photo(name)
        return photo_size(self._tree.source(path), name=self._tree.describe(path))

    def photo_file(self, name: str) -> Path | None:
        """The photo's file; None in a zip."""
        path = self._photo(name)
        return None if self._tree.zipped else self._tree.root / path

    def mask_file(self, name: str) -> Path | None:
        """The mask's file; None in a zip."""
        return None if self._tree.zipped or name not in self._masks else self._tree.root / self._masks[name]

    def packed_photo(self, name: str) -> PackedPhoto | None:
        """The photo as the zip stores it; None in a folder."""
        path = self._photo(name)
        content = self._tree.source(path) if self._tree.zipped else None
        return PackedPhoto(PurePosixPath(path).suffix, content) if isinstance(content, bytes) else None

    def missing(self) -> Iterator[Missing]:
        """Masks without photo and photos without mask."""
        if self.has_photos:
            yield from (Missing("photo", name) for name in self.names if name not in self._photos)
            masked = set(self.names)
            yield from (Missing("mask", name) for name in self._photos if name not in masked)

    def _photo(self, name: str) -> str:
        if not self._photos:
            raise EmatError(f"{self.root} holds masks alone; give a folder that holds the photos as well")
        if name not in self._photos:
            raise EmatError(f"{self.root} has no photo named {name}; check the list, or add the photo")
        return self._photos[name]
