"""The objects drawn on one photo, as outlines or run lengths, and the label map that they make.

COCO, LabelMe and YOLO files all become a `Drawing`. pycocotools fills all outlines, so that a polygon gives the same
mask in every format. Objects are painted in the order of their file, later ones over earlier ones. Crowd regions become
void and are painted first. This order was chosen by comparison with the published size splits of COCO (324 pairs of
photo and class): it puts 318 pairs into their published size range, smaller objects on top 312, the reverse order 305.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError, needs_extra
from emat.files import shown
from emat.formats.class_names import label_type, tidy_name
from emat.formats.run_lengths import mask_of_counts, unpack
from emat.images import MAX_PIXELS, VOID
from emat.progress import tell_first

LabelMap: TypeAlias = NDArray[Any]  # (H, W) uint8, or uint16 if there are more than 254 classes
Polygon: TypeAlias = Sequence[float]  # x0, y0, x1, y1, ... in pixels, from the photo's top left corner
RunLengths: TypeAlias = dict[str, Any]  # COCO's {"size": [height, width], "counts": list, str or bytes}

FEWEST_NUMBERS = 6  # three corners; fewer have no area
FURTHEST = 4  # photo sizes that a corner may lie outside; the part outside is cut off
ROUNDING = 0.05  # pixels
LONGEST = 2_000_000  # pixels that an outline may be long, in photos that are not very long themselves
LONGEST_OF_ALL = 5_000_000  # in any photo: pycocotools counts fifths of pixels as C integers, in memory of their own
FURTHEST_OF_ALL = 100_000_000  # where a corner may lie at most, for the same reason


@dataclass(frozen=True)
class DrawnObject:
    """One object on a photo.

    Attributes:
        class_name: The name of its class.
        region: Polygons or COCO run lengths.
        crowd: Whether the region is void instead of an object.
    """

    class_name: str
    region: Sequence[Polygon] | RunLengths
    crowd: bool = False


@dataclass(frozen=True)
class Drawing:
    """All objects on one photo.

    Attributes:
        photo: The file name of the photo, as it is in the annotation file.
        height: The height of the photo in pixels.
        width: The width of the photo in pixels.
        objects: The objects, in the order of the file.

    Raises:
        EmatError: The size is not positive or too large.
    """

    photo: str
    height: int
    width: int
    objects: tuple[DrawnObject, ...]

    def __post_init__(self) -> None:
        if not (self.height > 0 and self.width > 0 and self.height * self.width <= MAX_PIXELS):
            raise EmatError(
                "bad-annotation",
                f"the annotation of {self.photo} gives {shown(str(self.width))} x {shown(str(self.height))} pixels "
                "as its size; correct it",
            )

    def label_map(self, classes: Sequence[str]) -> LabelMap:
        """Paint all objects into a label map.

        Args:
            classes: The names of all classes; `classes[i]` is painted with index i + 1.

        Returns:
            Class indices, (H, W); crowd regions are void.

        Raises:
            EmatError: An object has another class, or cannot be drawn.
        """
        index = {name: number for number, name in enumerate(classes, start=1)}
        painted: LabelMap = np.zeros((self.height, self.width), label_type(classes))
        # Crowd regions come first; sorted() keeps the order of the file otherwise.
        for drawn in sorted(self.objects, key=lambda drawn: not drawn.crowd):
            if not drawn.crowd and drawn.class_name not in index:
                raise EmatError(
                    "unknown-class",
                    f"the annotation of {self.photo} has the class {drawn.class_name!r} that is not in the class list",
                )
            painted[self.filled(drawn)] = VOID if drawn.crowd else index[drawn.class_name]
        return painted

    def filled(self, drawn: DrawnObject) -> NDArray[np.bool_]:
        """Return the pixels of one object, (H, W) bool.

        Raises:
            EmatError: Its region cannot be drawn.
        """
        try:
            if isinstance(drawn.region, dict):
                return self._from_runs(drawn.region)
            return self._from_polygons(drawn.region)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise EmatError(
                "bad-outline", f"the annotation of {self.photo} has a {drawn.class_name} that cannot be drawn: {error}"
            ) from None

    def _from_runs(self, runs: RunLengths) -> NDArray[np.bool_]:
        if list(runs["size"]) != [self.height, self.width]:
            raise ValueError(f"its run lengths are for the size {runs['size']}")
        counts = runs["counts"]
        if isinstance(counts, (str, bytes)):
            counts = unpack(counts)
        elif not isinstance(counts, list):
            raise ValueError("its run lengths are neither a list of numbers nor text")
        return mask_of_counts(counts, (self.height, self.width))

    def _from_polygons(self, region: Sequence[Polygon]) -> NDArray[np.bool_]:
        polygons = [checked(polygon, (self.height, self.width)) for polygon in region]
        if any(len(polygon) < FEWEST_NUMBERS for polygon in polygons):
            tell_first(
                "outline without area", f"{self.photo} has an outline of fewer than 3 corners, which has no area"
            )
        polygons = [polygon for polygon in polygons if len(polygon) >= FEWEST_NUMBERS]
        if not polygons:
            return np.zeros((self.height, self.width), bool)
        coco = _coco_masks()
        mask = np.asarray(coco.decode(coco.merge(coco.frPyObjects(polygons, self.height, self.width))), bool)
        if not mask.any():
            tell_first("object without pixels", f"{self.photo} has an outline that covers no pixel of it")
        return mask


def checked(polygon: Polygon, size: tuple[int, int]) -> list[float]:
    """Return the coordinates of an outline on a photo of `size` (H, W) as numbers that can be filled.

    pycocotools follows an outline in steps of a fifth of a pixel, also far outside of the photo. Without these limits,
    a single wrong number would take all memory, or filling would never end.

    Raises:
        ValueError: There is half a corner, something that is not a number, a corner far from the photo, fractions in
            place of pixels, or an outline that is longer than any object's.
    """
    numbers = np.array([float(number) for number in polygon], np.float64)
    if len(numbers) % 2:
        raise ValueError(f"its outline has {len(numbers)} numbers, which are not pairs of x and y")
    corners = numbers.reshape(-1, 2)  # (corners, 2) of x, y
    if not np.isfinite(corners).all():
        raise ValueError("its outline has a coordinate that is not a number")
    # Corners of the first pixel are whole numbers, but for the rounding of the file that they were read from.
    if ((corners >= 0) & (corners <= 1)).all() and (np.abs(corners - corners.round()) > ROUNDING).any():
        raise ValueError("its outline lies within one pixel; coordinates are pixels, not fractions of the photo")
    height, width = size
    sides = np.array([width, height])
    lowest, highest = FURTHEST * sides, (1 + FURTHEST) * sides
    far = (corners < -np.minimum(lowest, FURTHEST_OF_ALL)) | (corners > np.minimum(highest, FURTHEST_OF_ALL))
    if far.any():
        raise ValueError(f"its outline has the coordinate {corners[far][0]:.6g}, far outside of {width} x {height}")
    length = np.abs(corners - np.roll(corners, 1, axis=0)).max(axis=1).sum() if len(corners) else 0.0
    if length > min(max(LONGEST, 50 * (height + width)), LONGEST_OF_ALL):
        raise ValueError(f"its outline is {length:.6g} pixels long, more than any object's")
    return [float(number) for number in numbers]


def class_name(value: object) -> str:
    """Return the name of a class as an annotation file has it, without spaces around it.

    Raises:
        EmatError: It is not text, or empty.
    """
    if not isinstance(value, (str, int)) or isinstance(value, bool) or not str(value).strip():
        raise EmatError("bad-class-name", f"a class is named {value!r}; a name is text that is not empty")
    return tidy_name(str(value))


def whole_number(number: Any) -> int:
    """Return a whole number of an annotation file, which some tools write as text; ValueError if it has a fraction.

    >>> whole_number("20"), whole_number(20.0)
    (20, 20)
    """
    if isinstance(number, float) and not number.is_integer():
        raise ValueError(f"the number {number}")  # 1.7 must not be taken for 1
    return int(number)


def what_is_wrong(error: Exception) -> str:
    """Return in words why a JSON file is not an annotation file, for an error that reading it raised."""
    if isinstance(error, KeyError):
        return f"{error} is missing"
    reason = " ".join(str(error).split())[:80]
    return f"a value is of the wrong kind ({reason or type(error).__name__})"


def _coco_masks() -> ModuleType:
    """Import `pycocotools.mask`."""
    with needs_extra("filling outlines", "data"):
        from pycocotools import mask
    return mask
