"""What every data set offers: names of classes, entries, and by name a photo and its mask."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import overload

from emat.datasets.class_areas import class_fractions
from emat.errors import EmatError
from emat.formats.coco_json import COCO_CLASSES
from emat.formats.drawing import LabelMap
from emat.formats.voc_png import VOC_CLASSES
from emat.images import Pixels

PUBLISHED = {VOC_CLASSES: "pascal", COCO_CLASSES: "coco"}


@dataclass(frozen=True)
class Entry:
    """A photo's name and the class indices in its mask, ascending, without background (0) and void (255)."""

    name: str
    classes: tuple[int, ...]


@dataclass(frozen=True)
class Missing:
    """A file that ought to be there, as far as the names of the others tell."""

    what: str  # "photo" or "mask"
    name: str


@dataclass(frozen=True)
class PackedPhoto:
    """A photo inside a zip, as it is stored there."""

    suffix: str
    content: bytes


class Dataset(ABC):
    """Photos with masks, by the names that fold lists use, such as `2007_000033` or `val2014/x.jpg`.

    A data set keeps no open file that matters: it can be pickled and used from several threads or processes.
    """

    kind: str
    root: Path
    classes: tuple[str, ...]  # classes[i] names class index i + 1
    names: tuple[str, ...]  # of all photos that have a mask

    @property
    def name(self) -> str:
        """What fold lists and reports call it: `pascal` or `coco` by its classes, else the folder's name."""
        return PUBLISHED.get(self.classes, self.root.resolve().stem)

    @cached_property
    def entries(self) -> Sequence[Entry]:
        """An entry for every name; each reads its mask when it is first asked for."""
        return _EntriesFromMasks(self)

    @abstractmethod
    def image(self, name: str) -> Pixels:
        """The photo, (H, W, 3) uint8."""

    @abstractmethod
    def image_size(self, name: str) -> tuple[int, int]:
        """(H, W) of the photo, from its file's header alone."""

    @abstractmethod
    def mask(self, name: str) -> LabelMap:
        """Class indices, (H, W) uint8 (uint16 beyond 254 classes): 0 is background, 255 void."""

    def photo_file(self, name: str) -> Path | None:
        """The photo's file on disk; None where photos are not files of their own."""
        return None

    def mask_file(self, name: str) -> Path | None:
        """The file on disk that the mask is read or drawn from; None where there is none but the root itself."""
        return None

    def packed_photo(self, name: str) -> PackedPhoto | None:
        """The photo as its zip stores it; None where photos are not in a zip."""
        return None

    @property
    def has_photos(self) -> bool:
        """False for masks alone, which are enough to draw tasks."""
        return True

    def missing(self) -> Iterator[Missing]:
        """Photos without mask and masks without photo."""
        return iter(())

    def unknown(self, name: str) -> EmatError:
        """The error for a name that is not in the data set."""
        return EmatError(
            f"{self.root} has no mask named {name!r}; check that the list and the data set belong together"
        )


class _EntriesFromMasks(Sequence[Entry]):
    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._read: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._dataset.names)

    @overload
    def __getitem__(self, place: int) -> Entry: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Entry]: ...
    def __getitem__(self, place: int | slice) -> Entry | Sequence[Entry]:
        if isinstance(place, slice):
            return [self._entry(name) for name in self._dataset.names[place]]
        return self._entry(self._dataset.names[place])

    def _entry(self, name: str) -> Entry:
        if name not in self._read:
            known = len(self._dataset.classes)
            present = tuple(c for c in class_fractions(self._dataset.mask(name)) if c <= known)
            self._read[name] = Entry(name, present)
        return self._read[name]
