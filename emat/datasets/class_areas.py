"""How much of an image every class covers, counted once per mask and kept.

The augmented settings, the size splits and lists made from masks all ask for this again and again; a mask is
read the first time only, and the counts stay on disk between runs.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emat.formats.whole_files import write_text
from emat.home import emat_home
from emat.images import VOID

BACKGROUND = 0


class ClassAreas:
    """Class areas of masks as fractions of the whole image, void pixels included in the whole.

    `read_mask` gives a mask (H, W) uint8 by its image's name. With `kept_in`, counts are read from that file
    and `keep` writes new ones to it.

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
        """Areas kept under `emat_home()` while `source`, a folder, zip or annotation file, is unchanged."""
        return cls(read_mask, emat_home() / "class-areas" / f"{source_key(source)}.json")

    def __getitem__(self, name: str) -> Mapping[int, float]:
        """Fraction of the image that each class covers, by ascending class id, no background and no void."""
        if name not in self._areas:
            self._areas[name] = class_fractions(self._read_mask(name))
        return self._areas[name]

    def of(self, names: Iterable[str]) -> Iterator[tuple[str, Mapping[int, float]]]:
        """Every name with its class areas, in the order given."""
        return ((name, self[name]) for name in names)

    def keep(self) -> None:
        """Write what was counted since the last time; nothing happens without a file to keep it in."""
        if self._kept_in is None or len(self._areas) == self._kept:
            return
        write_text(self._kept_in, json.dumps(self._areas))
        self._kept = len(self._areas)


def class_fractions(mask: NDArray[np.integer]) -> dict[int, float]:
    """Fraction of `mask` (H, W) that each class covers, by ascending class id, no background and no void."""
    pixels = np.bincount(mask.ravel(), minlength=VOID + 1)
    present = np.flatnonzero(pixels)
    return {int(c): int(pixels[c]) / mask.size for c in present if c not in (BACKGROUND, VOID)}


def source_key(source: Path) -> str:
    """A name for the present state of a file or folder: it changes when a file in it does."""
    files = [source]
    if source.is_dir():
        files = sorted(Path(folder, name) for folder, _, names in os.walk(source) for name in names)
    state = hashlib.sha256(str(source.resolve()).encode())
    for path in files:
        stat = path.stat()
        state.update(f"{path.name}|{stat.st_size}|{stat.st_mtime_ns}\n".encode())
    return state.hexdigest()[:32]


def _read_kept(path: Path) -> dict[str, dict[int, float]]:
    # JSON turns class ids into strings. A damaged file costs a second count, no more.
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return {
            str(name): {int(class_id): float(fraction) for class_id, fraction in fractions.items()}
            for name, fractions in kept.items()
        }
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
