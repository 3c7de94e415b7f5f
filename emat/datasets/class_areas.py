"""Which fraction of a photo each class covers.

The augmented settings, the size splits and the lists made from masks all need this for every mask. Each mask is read
once, and the result is kept on disk for later runs.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emat.files import emat_home, folder_state, write_text
from emat.images import VOID

BACKGROUND = 0


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
        """Write new results to the file `kept_in`, if there is one."""
        if self._kept_in is None or len(self._areas) == self._kept:
            return
        write_text(self._kept_in, json.dumps(self._areas))
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
