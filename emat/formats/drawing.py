"""What was drawn on one photo: objects as outlines or run lengths, as COCO, LabelMe and YOLO files hold them.

All outlines are filled by pycocotools, wherever they come from: the same polygon is the same mask everywhere.
Objects are painted in the order of their file, a later one over an earlier one; crowd regions become void and
lie under all objects. Held against the size splits that circulate for COCO (324 pairs of image and class)
this order puts 318 pairs into their published size range, smaller objects on top 312, the reverse order 305.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.formats.class_names import label_type
from emat.formats.run_lengths import mask_of_counts, unpack
from emat.images import MAX_PIXELS, VOID

LabelMap: TypeAlias = NDArray[Any]  # (H, W) uint8, or uint16 beyond 254 classes
Polygon: TypeAlias = Sequence[float]  # x0, y0, x1, y1, ... in pixels, from the photo's top left corner
RunLengths: TypeAlias = dict[str, Any]  # COCO's {"size": [height, width], "counts": list, str or bytes}

FEWEST_NUMBERS = 6  # three corners; less encloses nothing


@dataclass(frozen=True)
class DrawnObject:
    """One object: the name of its class, and its region as polygons or as COCO run lengths."""

    class_name: str
    region: Sequence[Polygon] | RunLengths
    crowd: bool = False


@dataclass(frozen=True)
class Drawing:
    """All objects of one photo; `photo` is its file name as the annotation file gives it."""

    photo: str
    height: int
    width: int
    objects: tuple[DrawnObject, ...]

    def __post_init__(self) -> None:
        if not (self.height > 0 and self.width > 0 and self.height * self.width <= MAX_PIXELS):
            raise EmatError(f"the annotation of {self.photo} says {self.width} x {self.height} pixels; correct that")

    def label_map(self, classes: Sequence[str]) -> LabelMap:
        """(H, W) class indices: `classes[i]` is painted as i + 1, crowds as void."""
        index = {name: number for number, name in enumerate(classes, start=1)}
        painted: LabelMap = np.zeros((self.height, self.width), label_type(classes))
        for drawn in sorted(self.objects, key=lambda drawn: not drawn.crowd):  # stable: file order is kept
            if not drawn.crowd and drawn.class_name not in index:
                raise EmatError(
                    f"the annotation of {self.photo} has the class {drawn.class_name!r}, which is not listed"
                )
            painted[self.filled(drawn)] = VOID if drawn.crowd else index[drawn.class_name]
        return painted

    def filled(self, drawn: DrawnObject) -> NDArray[np.bool_]:
        """The pixels of one object, (H, W) bool."""
        try:
            if isinstance(drawn.region, dict):
                return self._from_runs(drawn.region)
            return self._from_polygons(drawn.region)
        except (KeyError, TypeError, ValueError) as error:
            raise EmatError(
                f"the annotation of {self.photo} has a {drawn.class_name} that cannot be drawn: {error}"
            ) from None

    def _from_runs(self, runs: RunLengths) -> NDArray[np.bool_]:
        if list(runs["size"]) != [self.height, self.width]:
            raise ValueError(f"run lengths for {runs['size']}")
        counts = runs["counts"]
        if not isinstance(counts, list):
            counts = unpack(counts)
        return mask_of_counts(counts, (self.height, self.width))

    def _from_polygons(self, region: Sequence[Polygon]) -> NDArray[np.bool_]:
        polygons = [list(polygon) for polygon in region if len(polygon) >= FEWEST_NUMBERS]
        if not polygons:
            return np.zeros((self.height, self.width), bool)
        coco = coco_masks()
        mask = coco.decode(coco.merge(coco.frPyObjects(polygons, self.height, self.width)))
        return np.asarray(mask, bool)


def coco_masks() -> ModuleType:
    """`pycocotools.mask`, or an error that says how to install it."""
    try:
        from pycocotools import mask
    except ImportError:
        raise EmatError('drawn outlines are filled by pycocotools: pip install "emat[data]"') from None
    return mask
