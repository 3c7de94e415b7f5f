"""What a user shows: a photo with the mask of each class in it, given in any of the usual ways."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from emat.errors import EmatError
from emat.formats.drawing import FEWEST_NUMBERS, Drawing, DrawnObject, Polygon, RunLengths
from emat.images import Pixels, Source, describe, read_object_mask, read_photo

Mask: TypeAlias = NDArray[np.bool_]  # (H, W)
Box: TypeAlias = "tuple[float, float, float, float]"  # left, top, right, bottom in pixels
Corners: TypeAlias = "Sequence[tuple[float, float]]"
MaskSource: TypeAlias = "Source | RunLengths | Box | Polygon | Corners | Sequence[Polygon | Corners]"

BOX_NUMBERS = 4


@dataclass(frozen=True, eq=False)
class Example:
    """A photo and, for every class that is shown in it, the class's mask.

    A photo is a path, a file's bytes, a PIL image or an array (H, W, 3). A mask is

    - an image that shows the object bright on dark (a path, bytes or a PIL image), or an array (H, W) that is not 0
      there;
    - a box ``(left, top, right, bottom)`` in pixels;
    - a polygon ``[(x, y), ...]`` or ``[x, y, x, y, ...]`` in pixels, or a list of several;
    - COCO run lengths ``{"size": [H, W], "counts": ...}``, compressed or not.

    Masks have the size of the photo as people see it, turned as its EXIF data says.

    >>> example = Example(np.zeros((4, 6, 3), np.uint8), {"cat": (1, 1, 3, 4)})
    >>> example.read().masks["cat"].sum()
    np.int64(6)
    """

    photo: Source
    masks: Mapping[str, MaskSource]
    name: str | None = None  # what errors and lists call it; the file's name unless given

    def __post_init__(self) -> None:
        if not isinstance(self.masks, Mapping) or not self.masks:
            raise EmatError(f"the example {self.title} shows no class; give it masks such as {{'cat': 'cat_mask.png'}}")
        for name in self.masks:
            if not isinstance(name, str) or not name.strip():
                raise EmatError(f"the example {self.title} has the class name {name!r}; a name is text, not empty")

    @property
    def title(self) -> str:
        """Its name, or what its photo is called."""
        if self.name is not None:
            return self.name
        return Path(self.photo).name if isinstance(self.photo, (str, Path)) else describe(self.photo)

    def read(self) -> "MaskedPhoto":
        """The photo and its masks as pixels; EmatError says what is wrong with them."""
        photo = read_photo(self.photo, name=self.name)
        return MaskedPhoto(photo, {name: self._read_mask(name, photo.shape[:2]) for name in self.masks})

    def _read_mask(self, class_name: str, size: tuple[int, ...]) -> Mask:
        height, width = size
        what = f"the mask of {class_name!r} for {self.title}"
        mask = read_mask_source(self.masks[class_name], (height, width), what)
        if mask.shape != (height, width):
            raise EmatError(
                f"{what} is {mask.shape[1]} x {mask.shape[0]} pixels but its photo is {width} x {height}; "
                "save the mask at the photo's size"
            )
        if not mask.any():
            raise EmatError(f"{what} is all background; mark the {class_name} or leave the mask out")
        return mask


@dataclass(frozen=True)
class MaskedPhoto:
    """An example's pixels."""

    photo: Pixels  # (H, W, 3)
    masks: Mapping[str, Mask]


def read_mask_source(source: MaskSource, size: tuple[int, int], what: str) -> Mask:
    """The mask in `source` for a photo of `size` (H, W); `what` is what errors call it."""
    if isinstance(source, (str, Path, bytes, Image.Image, np.ndarray)):
        if isinstance(source, np.ndarray) and source.dtype.kind == "f":
            raise EmatError(f"{what} is an array of {source.dtype}; make it bool, as in array > 0.5")
        path = describe(source) if isinstance(source, (str, Path)) else None
        return read_object_mask(source, name=path or what)
    if isinstance(source, Mapping):
        return _filled(cast(RunLengths, dict(source)), size, what)
    if not isinstance(source, Sequence):
        raise EmatError(
            f"{what} is a {type(source).__name__}; give an image, an array, a polygon, run lengths or a box"
        )
    if len(source) == BOX_NUMBERS and all(_is_number(value) for value in source):
        return _box(cast(Box, source), size, what)
    return _filled(_polygons(source, what), size, what)


def _box(box: Box, size: tuple[int, int], what: str) -> Mask:
    """Every pixel whose middle lies inside."""
    left, top, right, bottom = box
    if not (left < right and top < bottom):
        raise EmatError(f"{what} is the box {tuple(box)}; a box is (left, top, right, bottom) in pixels")
    height, width = size
    rows, columns = np.arange(height) + 0.5, np.arange(width) + 0.5
    return ((rows >= top) & (rows < bottom))[:, None] & ((columns >= left) & (columns < right))[None]


def _polygons(source: Sequence[Any], what: str) -> list[Polygon]:
    """One polygon or several, of numbers or of corners, as COCO's flat lists."""
    several = [source] if _is_polygon(source) else list(source)
    if not several or not all(isinstance(one, Sequence) and _is_polygon(one) for one in several):
        raise EmatError(f"{what} is no polygon; give [(x, y), (x, y), (x, y), ...] in pixels, with 3 corners or more")
    return [[float(number) for value in one for number in (value if isinstance(value, Sequence) else (value,))]
            for one in several]  # fmt: skip


def _is_polygon(source: Sequence[Any]) -> bool:
    if all(_is_number(value) for value in source):
        return len(source) >= FEWEST_NUMBERS and len(source) % 2 == 0
    return len(source) >= FEWEST_NUMBERS // 2 and all(
        isinstance(corner, Sequence) and len(corner) == 2 and all(_is_number(value) for value in corner)
        for corner in source
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _filled(region: list[Polygon] | RunLengths, size: tuple[int, int], what: str) -> Mask:
    """Run lengths may be those of a photo of another size, which is for the caller to judge."""
    height, width = size
    if isinstance(region, dict):
        try:
            height, width = (int(number) for number in region["size"])
        except (KeyError, TypeError, ValueError):
            raise EmatError(f"{what} has no size; run lengths are {{'size': [H, W], 'counts': ...}}") from None
    try:
        return Drawing(what, height, width, ()).filled(DrawnObject("region", region))
    except EmatError as error:
        if "emat[data]" in str(error):
            raise
        reason = str(error).rpartition(": ")[2]
        raise EmatError(f"{what} cannot be drawn ({reason}); check its polygon or run lengths") from None
