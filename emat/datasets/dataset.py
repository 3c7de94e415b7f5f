"""The interface of all data sets: names of classes and photos, and for each name a photo and its mask."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import overload

from emat.datasets.class_areas import ClassAreas, class_fractions
from emat.errors import EmatError
from emat.files import files_state
from emat.formats.coco import COCO_CLASSES
from emat.formats.drawing import LabelMap
from emat.formats.png import VOC_CLASSES
from emat.images import Pixels, Reading

PUBLISHED = {VOC_CLASSES: "pascal", COCO_CLASSES: "coco"}


@dataclass(frozen=True)
class PhotoEntry:
    """The name of a photo and the class indices in its mask, ascending, without background (0) and void (255)."""

    name: str
    classes: tuple[int, ...]


@dataclass(frozen=True)
class Missing:
    """A photo or mask whose counterpart exists but which was not found itself."""

    what: str  # "photo" or "mask"
    name: str


@dataclass(frozen=True)
class PackedPhoto:
    """The file of a photo inside a zip."""

    suffix: str
    content: bytes


class Dataset(ABC):
    """Photos and their masks, found by names such as `2007_000033` or `val2014/x.jpg`, as fold lists use them.

    A data set can be pickled and used by several threads and processes.

    Attributes:
        kind: The layout of the data set, a key of `LAYOUTS`.
        root: The folder, zip or file that was opened.
        classes: The names of the classes; `classes[i]` belongs to class index i + 1.
        names: The names of all photos that have a mask.
        reading: How photos are read.
    """

    kind: str
    root: Path
    classes: tuple[str, ...]
    names: tuple[str, ...]
    reading: Reading = Reading()

    @property
    def name(self) -> str:
        """The name in fold lists and reports: `pascal` or `coco` if it has their classes, else the folder's name."""
        return PUBLISHED.get(self.classes, self.root.resolve().stem)

    @cached_property
    def entries(self) -> Sequence[PhotoEntry]:
        """An entry for every name. A mask is read when its entry is first used."""
        return _EntriesFromMasks(self)

    @abstractmethod
    def image(self, name: str) -> Pixels:
        """Read a photo.

        Args:
            name: One of `names`.

        Returns:
            The pixels, (H, W, 3) uint8.

        Raises:
            EmatError: There is no such photo, or it cannot be read.
        """

    @abstractmethod
    def image_size(self, name: str) -> tuple[int, int]:
        """Return the height and width of a photo, from the header of its file."""

    @abstractmethod
    def mask(self, name: str) -> LabelMap:
        """Read a mask, at the size of its photo.

        Args:
            name: One of `names`.

        Returns:
            Class indices, (H, W) uint8, or uint16 if there are more than 254 classes; 0 is background, 255 is void.

        Raises:
            EmatError: There is no such mask, or it cannot be read.
        """

    @property
    def masks_root(self) -> Path:
        """The folder, zip or file that the masks are read from: the root, unless the masks were given separately."""
        return self.root

    def stored_mask(self, name: str) -> LabelMap:
        """Return the mask at the size of its own file, which may differ from the photo's if masks are separate."""
        return self.mask(name)

    def class_areas(self) -> ClassAreas:
        """Return the fraction of each photo that every class covers; results are kept on disk for later runs.

        Areas are measured on the stored masks, so that the choice of tasks does not depend on the size of the photos.
        """
        return ClassAreas.of_source(self.stored_mask, self.masks_root)

    def photo_file(self, name: str) -> Path | None:
        """Return the path of the photo; None if it is inside a zip."""
        return None

    def mask_file(self, name: str) -> Path | None:
        """Return the path of the file that the mask is read or drawn from; None if it is inside a zip."""
        return None

    def packed_photo(self, name: str) -> PackedPhoto | None:
        """Return the photo's file inside a zip; None if the photos are not in a zip."""
        return None

    def state(self, names: Iterable[str]) -> str:
        """Return a hash that changes when a file of these photos or of their masks changes.

        It is stored with the results of an evaluation, so that results of different photos are never mixed.
        """
        files = {root for root in (self.root, self.masks_root) if root.is_file()}
        for name in set(names):
            files |= {file for file in (self.photo_file(name), self.mask_file(name)) if file is not None}
        return files_state(sorted(files))

    @property
    def has_photos(self) -> bool:
        """Whether there are photos; masks without photos are enough to draw tasks."""
        return True

    def missing(self) -> Iterator[Missing]:
        """Give the photos without a mask and the masks without a photo."""
        return iter(())

    def unknown(self, name: str) -> EmatError:
        """Return the error for a name that is not in the data set."""
        return EmatError(
            f"{self.root} has no mask named {name!r}; check that the list and the data set belong together"
        )


class _EntriesFromMasks(Sequence[PhotoEntry]):
    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._read: dict[str, PhotoEntry] = {}

    def __len__(self) -> int:
        return len(self._dataset.names)

    @overload
    def __getitem__(self, index: int) -> PhotoEntry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PhotoEntry]: ...
    def __getitem__(self, index: int | slice) -> PhotoEntry | Sequence[PhotoEntry]:
        if isinstance(index, slice):
            return [self._entry(name) for name in self._dataset.names[index]]
        return self._entry(self._dataset.names[index])

    def _entry(self, name: str) -> PhotoEntry:
        if name not in self._read:
            known = len(self._dataset.classes)
            present = tuple(c for c in class_fractions(self._dataset.stored_mask(name)) if c <= known)
            self._read[name] = PhotoEntry(name, present)
        return self._read[name]
