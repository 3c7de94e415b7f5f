"""The interface of all data sets: names of classes and photos, and for each name a photo and its mask.

`ClassAreas` says which fraction of a photo each class covers. The augmented settings, the size splits and the lists
made from masks all need this for every mask. Each mask is read once, and the result is kept on disk for later runs.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.files import emat_home, files_state, folder_state
from emat.formats.class_names import VOC_CLASSES
from emat.formats.coco import COCO_CLASSES
from emat.formats.drawing import LabelMap
from emat.images import VOID, Pixels, Reading
from emat.outputs import write_text
from emat.progress import tell_first

BACKGROUND = 0
NAME_OF_CLASSES = {VOC_CLASSES: "pascal", COCO_CLASSES: "coco"}


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


class ClassAreas:
    """The areas of classes as fractions of the whole photo, by the name of the photo. Void counts to the whole.

    Args:
        read_mask: Gives a mask (H, W) of class indices by the name of its photo.
        kept_in: A file from which earlier results are read, and to which `keep` writes new ones.

    >>> areas = ClassAreas(lambda name: np.array([[0, 3], [3, 255]], dtype=np.uint8))
    >>> areas["a"]
    {3: 0.5}
    """

    def __init__(self, read_mask: Callable[[str], NDArray[np.integer]], kept_in: Path | None = None) -> None:
        self._read_mask = read_mask
        self._kept_in = kept_in
        self._areas: dict[str, dict[int, float]] = {} if kept_in is None else _read_kept(kept_in)
        self._kept = len(self._areas)

    @classmethod
    def of_source(cls, read_mask: Callable[[str], NDArray[np.integer]], source: Path) -> "ClassAreas":
        """Class areas that are kept in `emat_home()` until `source`, a folder, zip or annotation file, changes."""
        return cls(read_mask, emat_home() / "class-areas" / f"{folder_state(source)[:32]}.json")

    def __getitem__(self, name: str) -> Mapping[int, float]:
        """Return the fraction of the photo that each class covers, in the order of class ids."""
        if name not in self._areas:
            self._areas[name] = class_fractions(self._read_mask(name))
        return self._areas[name]

    def of(self, names: Iterable[str]) -> Iterator[tuple[str, Mapping[int, float]]]:
        """Give every name with its class areas, in the order of `names`."""
        return ((name, self[name]) for name in names)

    def keep(self) -> None:
        """Write new results to the file `kept_in`, if there is one and it can be written."""
        if self._kept_in is None or len(self._areas) == self._kept:
            return
        try:
            write_text(self._kept_in, json.dumps(self._areas))
        except EmatError as error:
            tell_first("no area cache", f"measured areas are not kept: {error}, or set EMAT_HOME")
        self._kept = len(self._areas)


def class_fractions(mask: NDArray[np.integer]) -> dict[int, float]:
    """Return the fraction of `mask` (H, W) that each class covers, in the order of class ids.

    Background and void are left out.
    """
    pixels = np.bincount(mask.ravel(), minlength=VOID + 1)
    present = np.flatnonzero(pixels)
    return {int(c): int(pixels[c]) / mask.size for c in present if c not in (BACKGROUND, VOID)}


def _read_kept(path: Path) -> dict[str, dict[int, float]]:
    # JSON turns class ids into strings. If the file is damaged, the masks are read again.
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return {
            str(name): {int(class_id): float(fraction) for class_id, fraction in fractions.items()}
            for name, fractions in kept.items()
        }
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


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
        return NAME_OF_CLASSES.get(self.classes, self.root.resolve().stem)

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
            "no-such-mask",
            f"{self.root} has no mask named {name!r}; check that the list and the data set belong together",
        )
