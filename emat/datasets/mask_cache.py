"""Masks that were dear to make, kept on disk as PNG."""

import os
from pathlib import Path

import numpy as np
from PIL import Image

from emat.errors import EmatError
from emat.formats.drawing import LabelMap
from emat.home import emat_home


class MaskCache:
    """Masks by their place below a folder, `masks` in `emat_home()` unless another is given.

    A damaged file counts as absent: the mask is made once more, no worse.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder if folder is not None else emat_home() / "masks"

    def read(self, place: str) -> LabelMap | None:
        """The kept mask, uint8 or uint16 as it was written."""
        try:
            with Image.open(self._path(place), formats=["PNG"]) as image:
                mask = np.array(image)
        except Exception:  # absent, or damaged in one of the many ways Pillow reports
            return None
        return mask if mask.ndim == 2 and mask.dtype in (np.uint8, np.uint16) else None

    def write(self, place: str, mask: LabelMap) -> None:
        """Keep `mask`, whole or not at all."""
        path = self._path(place)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}.{id(mask)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(mask).save(unfinished, "PNG")
            os.replace(unfinished, path)
        except OSError as error:
            unfinished.unlink(missing_ok=True)
            raise EmatError(
                f"masks cannot be kept in {self.folder}: {error.strerror}; set EMAT_HOME elsewhere"
            ) from None

    def _path(self, place: str) -> Path:
        return self.folder / f"{place}.png"
