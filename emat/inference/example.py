"""Examples: a photo and a mask of each class in it, in any of the usual forms, given by a user or made of a data set.

A photo of a data set shows nothing if its annotation is there and empty: a mask of background, a COCO image without
annotations, an empty YOLO file, a LabelMe file without shapes. Photos without any annotation can be put into a folder
`nothing/`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from emat.datasets.dataset import Dataset
from emat.datasets.folders import NOTHING
from emat.errors import EmatError
from emat.formats.class_names import check_class_name, tidy_name
from emat.formats.drawing import FEWEST_NUMBERS, Drawing, DrawnObject, Polygon, RunLengths, checked
from emat.images import MAX_PIXELS, VOID, ObjectMask, Pixels, Reading, Source, describe, read_channels, read_object
from emat.inference.photos import PhotoFile, find_photos

Mask: TypeAlias = NDArray[np.bool_]  # (H, W)
Box: TypeAlias = "tuple[float, float, float, float]"  # left, top, right, bottom in pixels
Corners: TypeAlias = "Sequence[tuple[float, float]]"
MaskSource: TypeAlias = "Source | RunLengths | Box | Polygon | Corners | Sequence[Polygon | Corners] | Scribble"

BOX_NUMBERS = 4
BACKGROUND = "background"  # in a sparse example: strokes on what is none of the classes
MOST_MASK_PIXELS = 16 * MAX_PIXELS  # of all classes of an example together
MOST_EMPTY = 20  # photos that show no class; a few are enough to tell from when on a class is present


@dataclass(frozen=True)
class Scribble:
    """A few strokes and points on a photo, in pixels, in place of a whole mask.

    >>> Scribble(points=[(2, 2)], width=3).mask((5, 5)).sum()
    np.int64(5)
    """

    strokes: "Sequence[Corners]" = ()  # lines through two or more points
    points: "Corners" = ()  # each a small disc
    width: float = 5.0  # of a stroke, and across a point

    def mask(self, size: tuple[int, int]) -> Mask:
        """Draw it on a photo of `size` (H, W); EmatError if a coordinate is not a number, or far from the photo."""
        height, width = size
        try:
            strokes, points = [_corners(stroke) for stroke in self.strokes], _corners(self.points)
            for stroke in (*strokes, points):
                checked([number for corner in stroke for number in corner], size)
            if not _is_number(self.width) or not 0 < self.width <= max(size):
                raise ValueError(f"its width is {self.width!r}")
        except (ValueError, TypeError, ArithmeticError) as error:
            raise EmatError(
                "bad-outline", f"a scribble cannot be drawn: {error}; give points (x, y) in pixels"
            ) from None
        image = Image.new("1", (width, height))
        draw = ImageDraw.Draw(image)
        for stroke in strokes:
            draw.line(stroke, fill=1, width=max(1, round(self.width)))
        half = (self.width - 1) / 2
        for x, y in [*points, *(corner for stroke in strokes for corner in stroke)]:
            draw.ellipse((x - half, y - half, x + half, y + half), fill=1)
            draw.point((round(x), round(y)), fill=1)  # of a disc of one pixel Pillow draws nothing
        return np.array(image, bool)


def _corners(points: "Corners") -> list[tuple[float, float]]:
    """The points as pairs of numbers; ValueError if they are something else."""
    pairs = [tuple(point) if isinstance(point, (Sequence, np.ndarray)) else (point,) for point in points]
    if wrong := [pair for pair in pairs if len(pair) != 2 or not all(_is_number(number) for number in pair)]:
        shown = wrong[0] if len(wrong[0]) > 1 else wrong[0][0] if wrong[0] else ()
        raise ValueError(f"it has {shown!r} where a point should be")
    return [(float(x), float(y)) for x, y in pairs]


@dataclass(frozen=True, eq=False)
class Example:
    """A photo and the mask of every class that it shows; without any mask, a photo that shows none of the classes.

    A photo is a path, a file's bytes, a PIL image or an array (H, W, 3). A mask is

    - an image that shows the object bright on dark (a path, bytes or a PIL image), or an array (H, W) that is not 0
      there; ``"mask.png:1"`` chooses a value where there are several (`emat.images.object_masks`);
    - a box ``(left, top, right, bottom)`` in pixels;
    - a polygon ``[(x, y), ...]`` or ``[x, y, x, y, ...]`` in pixels, or a list of several;
    - COCO run lengths ``{"size": [H, W], "counts": ...}``, compressed or not;
    - a `Scribble` of strokes and points.

    Masks have the size of the photo as people see it, turned as its EXIF data says. In a mask of 0, 1 and 255, the
    pixels of 255 are undecided: they count neither for the class nor against it.

    Args:
        photo: The photo.
        masks: A mask for each class in it. ``{}`` says that none of the classes is here.
        name: What errors and lists call it; by default the file's name.
        absent: Classes that are not in the photo. It is only needed without masks, for a photo of which nothing else
            is known.
        void: A mask of undecided pixels.
        sparse: Whether only the painted pixels are known. A class called "background" then holds strokes on what is
            none of the classes.
        undecided: Classes that may be in the photo although there is no mask of them; without this, a photo with masks
            of other classes is one that lacks them.

    >>> example = Example(np.zeros((4, 6, 3), np.uint8), {"cat": (1, 1, 3, 4)})
    >>> example.read().masks["cat"].sum()
    np.int64(6)
    """

    photo: Source
    masks: Mapping[str, MaskSource]
    name: str | None = None
    absent: Sequence[str] = ()
    void: "MaskSource | None" = None
    sparse: bool = False
    undecided: Sequence[str] = ()

    def __post_init__(self) -> None:
        # The types of what was given.
        if not isinstance(self.masks, Mapping):
            raise EmatError(
                "bad-example",
                f"the masks of the example {self.title} are a {type(self.masks).__name__}; give masks such as "
                "{'cat': 'cat_mask.png'}, or {} for a photo without any of the classes",
            )
        for what, classes in (("absent", self.absent), ("undecided", self.undecided)):
            if isinstance(classes, str):
                raise EmatError("bad-example", f"{what} is a list of classes, as in {what}=[{classes!r}]")
        for name in (*self.masks, *self.absent, *self.undecided):
            if not isinstance(name, str):
                raise EmatError("bad-class-name", f"the example {self.title} has the class name {name!r}, not a text")
            if not (self.sparse and tidy_name(name) == BACKGROUND):
                check_class_name(tidy_name(name))
        # Names are compared without spaces at their ends.
        masks = {tidy_name(name): mask for name, mask in self.masks.items()}
        if len(masks) < len(self.masks):
            raise EmatError(
                "given-twice", f"the example {self.title} has two masks of one class, whose names differ in spaces"
            )
        object.__setattr__(self, "masks", masks)
        object.__setattr__(self, "absent", tuple(map(tidy_name, self.absent)))
        object.__setattr__(self, "undecided", tuple(map(tidy_name, self.undecided)))
        # Contradictions.
        if both := [name for name in self.absent if name in self.masks]:
            raise EmatError(
                "bad-example", f"the example {self.title} has a mask of {both[0]!r} and says that it is absent"
            )
        if both := [name for name in self.undecided if name in self.masks or name in self.absent]:
            raise EmatError(
                "bad-example",
                f"the example {self.title} calls {both[0]!r} undecided, and says where it is or that it is absent",
            )
        if self.sparse and not self.masks:
            raise EmatError("empty-mask", f"the sparse example {self.title} has nothing painted; give it strokes")

    @property
    def title(self) -> str:
        """Its name, or the name of its photo."""
        if self.name is not None:
            return self.name
        return Path(self.photo).name if isinstance(self.photo, (str, Path)) else describe(self.photo)

    def read(self, reading: Reading | None = None) -> "MaskedPhoto":
        """Read the photo and its masks; EmatError says what is wrong with them.

        Args:
            reading: How the photo is read.
        """
        photo = read_channels(self.photo, name=self.name, reading=reading or Reading())
        height, width = photo.shape[:2]
        if len(self.masks) * height * width > MOST_MASK_PIXELS:
            raise EmatError(
                "photo-too-large",
                f"the example {self.title} has {len(self.masks)} masks of {width} x {height} pixels, too many for the "
                "memory; make the photo smaller",
            )
        # Pixels that are undecided for all classes: those of `void`, and those that a mask file marks.
        void = np.zeros((height, width), bool)
        masks = {}
        for name, source in self.masks.items():
            shown_mask = read_mask_source(source, (height, width), self._what(name))
            masks[name] = self._sized(shown_mask.inside, name, photo)
            void |= self._sized(shown_mask.void, name, photo)
            if not masks[name].any():
                raise EmatError(
                    "empty-mask", f"{self._what(name)} is all background; mark the {name} or leave the mask out"
                )
        # After the classes, whose names say more where a mask has another size than its photo.
        if self.void is not None:
            undecided = read_mask_source(self.void, (height, width), self._what("void"))
            void |= self._sized(undecided.inside | undecided.void, "void", photo)
        if void.all():
            raise EmatError(
                "empty-mask", f"every pixel of the example {self.title} is undecided; it shows nothing, so leave it out"
            )
        # Undecided pixels show nothing, so something of each class must be left without them.
        masks = {name: mask & ~void for name, mask in masks.items()}
        if hidden := [name for name, mask in masks.items() if not mask.any()]:
            raise EmatError(
                "empty-mask", f"{self._what(hidden[0])} lies in undecided pixels alone; mark some of it or leave it out"
            )
        background = masks.pop(BACKGROUND, None) if self.sparse else None
        return MaskedPhoto(photo, masks, void, background, tuple(self.absent), self.sparse, tuple(self.undecided))

    def _what(self, name: str) -> str:
        return f"the mask of {name!r} for {self.title}"

    def _sized(self, mask: Mask, name: str, photo: Pixels) -> Mask:
        height, width = photo.shape[:2]
        if mask.shape != (height, width):
            raise EmatError(
                "mask-size",
                f"{self._what(name)} is {mask.shape[1]} x {mask.shape[0]} pixels but its photo is {width} x {height}; "
                "save the mask at the photo's size",
            )
        return mask


@dataclass(frozen=True)
class MaskedPhoto:
    """An example's pixels."""

    photo: Pixels  # (H, W, 3), or with further channels
    masks: Mapping[str, Mask]
    void: Mask  # undecided pixels
    background: Mask | None = None  # of a sparse example: pixels that are none of the classes
    absent: tuple[str, ...] = ()
    sparse: bool = False
    undecided: tuple[str, ...] = ()  # classes of which nothing is known

    def with_overlap(self, order: "Sequence[str]") -> "MaskedPhoto":
        """Return the same photo, on which the mask of each class of `order` has those of the classes before it too."""
        masks = dict(self.masks)
        for number, name in enumerate(order):
            above = [masks[other] for other in order[:number] if other in masks]
            if name in masks and above:
                masks[name] = np.logical_or.reduce([masks[name], *above])
        return replace(self, masks=masks) if order else self

    def pixel_labels(self) -> "tuple[dict[str, NDArray[np.uint8]], NDArray[np.uint8]]":
        """What is known of every pixel: 1 = the class, 0 = not the class, 255 = unknown.

        Returns:
            A mask (H, W) for each class that the example names, and the mask for all other classes.
        """
        painted = np.zeros(self.void.shape, bool)
        for mask in (*self.masks.values(), *([] if self.background is None else [self.background])):
            painted |= mask
        other = np.where(self.void, VOID, 0).astype(np.uint8)
        if self.sparse:
            other[~painted] = VOID
        values = {name: np.where(mask, 1, other).astype(np.uint8) for name, mask in self.masks.items()}
        for name in self.absent:
            values[name] = np.where(self.void, VOID, 0).astype(np.uint8)
        for name in self.undecided:
            values[name] = np.full_like(other, VOID)
        if self.absent and not self.masks:
            other = np.full_like(other, VOID)  # nothing was said of other classes
        return values, other


def read_mask_source(source: MaskSource, size: tuple[int, int], what: str) -> ObjectMask:
    """Read a mask for a photo of `size` (H, W), and the pixels that it leaves undecided; errors call it `what`."""
    if isinstance(source, (str, Path, bytes, Image.Image, np.ndarray)):
        if isinstance(source, np.ndarray) and source.dtype.kind == "f":
            raise EmatError("mask-values", f"{what} is an array of {source.dtype}; make it bool, as in array > 0.5")
        path = describe(source) if isinstance(source, (str, Path)) else None
        return read_object(source, name=path or what)
    drawn = _drawn(source, size, what)
    return ObjectMask(drawn, np.zeros(drawn.shape, bool))


def _drawn(source: MaskSource, size: tuple[int, int], what: str) -> Mask:
    """Draw a mask that is given by coordinates or run lengths."""
    if isinstance(source, Scribble):
        try:
            drawn = source.mask(size)
        except EmatError as error:
            raise EmatError(error.code, f"{what}: {error}") from None
        if not drawn.any() and len(source.points) + len(source.strokes):
            raise EmatError(
                "bad-outline", f"{what} lies outside of its photo of {size[1]} x {size[0]} pixels; check its points"
            )
        return drawn
    if isinstance(source, Mapping):
        return _filled(cast(RunLengths, dict(source)), size, what)
    if not isinstance(source, Sequence):
        raise EmatError(
            "bad-outline",
            f"{what} is a {type(source).__name__}; give an image, an array, a polygon, run lengths or a box",
        )
    if len(source) == BOX_NUMBERS and all(_is_number(value) for value in source):
        return _box(cast(Box, source), size, what)
    return _filled(_polygons(source, what), size, what)


def _box(box: Box, size: tuple[int, int], what: str) -> Mask:
    """Every pixel whose centre lies inside the box."""
    left, top, right, bottom = box
    if not (left < right and top < bottom):
        raise EmatError("bad-outline", f"{what} is the box {tuple(box)}; a box is (left, top, right, bottom) in pixels")
    height, width = size
    rows, columns = np.arange(height) + 0.5, np.arange(width) + 0.5
    return ((rows >= top) & (rows < bottom))[:, None] & ((columns >= left) & (columns < right))[None]


def _polygons(source: Sequence[Any], what: str) -> list[Polygon]:
    """One polygon or several, of numbers or of corners, as COCO's flat lists."""
    several = [source] if _is_polygon(source) else list(source)
    if not several or not all(isinstance(one, Sequence) and _is_polygon(one) for one in several):
        raise EmatError(
            "bad-outline", f"{what} is not a polygon; give [(x, y), (x, y), ...] in pixels, with at least 3 corners"
        )
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
    """Fill polygons or run lengths. Run lengths may be of another size than the photo; the caller checks that."""
    height, width = size
    if isinstance(region, dict):
        try:
            height, width = (int(number) for number in region["size"])
        except (KeyError, TypeError, ValueError):
            raise EmatError(
                "bad-outline", f"{what} has no size; run lengths are {{'size': [H, W], 'counts': ...}}"
            ) from None
    try:
        return Drawing(what, height, width, ()).filled(DrawnObject("region", region))
    except EmatError as error:
        if error.code == "missing-package":
            raise
        reason = str(error).rpartition(": ")[2]
        raise EmatError("bad-outline", f"{what} cannot be drawn ({reason}); check its polygon or run lengths") from None


def wanted_classes(dataset: Dataset, only: str | None) -> tuple[str, ...]:
    """The classes that `only` lists, separated by commas; all of them if it is None.

    Raises:
        EmatError: If the data set has no such class.
    """
    if only is None:
        return dataset.classes
    names = tuple(dict.fromkeys(tidy_name(name) for name in only.split(",")))
    if unknown := sorted(set(names) - set(dataset.classes)):
        raise EmatError(
            "unknown-class", f"{dataset.root} has no class {unknown[0]!r}; its classes are {', '.join(dataset.classes)}"
        )
    return names


def examples_of(
    dataset: Dataset, names: Iterable[str], wanted: Sequence[str], shots: int | None, empty: int = MOST_EMPTY
) -> Iterator[Example]:
    """Make examples of the photos of a data set, reading each when it is asked for.

    Void pixels are undecided, and so are those of classes that are not wanted or of which there are enough examples. A
    photo that shows a class of which there are enough says nothing about it.

    Args:
        dataset: The data set.
        names: Names of its photos, in the order to look at them.
        wanted: The classes to show.
        shots: Stop when there are so many examples of every class; None for all.
        empty: At most so many photos that show nothing, those of the folder `nothing/` first.
    """
    nothing = photos_of_nothing(dataset)[:empty]
    yield from (Example(photo.path, {}, name=f"{NOTHING}/{photo.name}") for photo in nothing)
    empty -= len(nothing)
    taken: Counter[str] = Counter()
    for name in names:
        label_map = dataset.mask(name)
        values = np.unique(label_map).tolist()
        if unknown := [value for value in values if value > len(dataset.classes) and value != VOID]:
            raise EmatError(
                "unknown-class",
                f"the mask of {name} has the value {unknown[0]}, but there are {len(dataset.classes)} classes; "
                "name the others too, or correct the mask",
            )
        shown = {c: 1 + index for index, c in enumerate(dataset.classes) if 1 + index in values and 1 + index != VOID}
        chosen = [c for c in shown if c in wanted and (shots is None or taken[c] < shots)]
        undecided = np.isin(label_map, [VOID, *(value for c, value in shown.items() if c not in chosen)])
        if chosen:
            taken.update(chosen)
            masks = {c: label_map == shown[c] for c in chosen}
            # It shows these too, so it does not lack them.
            enough = [c for c in shown if c in wanted and c not in chosen]
            yield Example(dataset.image(name), masks, name=name, void=undecided, undecided=enough)
        elif not shown and empty and not undecided.all() and _is_annotated(dataset, name):
            empty -= 1
            yield Example(dataset.image(name), {}, name=name, void=undecided)
        if shots is not None and all(taken[c] >= shots for c in wanted):
            return


def photos_of_nothing(dataset: Dataset) -> list[PhotoFile]:
    """The photos in the folder `nothing/` of a data set, unless that is the name of a class."""
    folder = Path(dataset.root) / NOTHING
    if not folder.is_dir() or NOTHING in dataset.classes:
        return []
    return find_photos([str(folder)])


def _is_annotated(dataset: Dataset, name: str) -> bool:
    """Whether a file says what the photo shows. A YOLO photo without one may not have been looked at yet."""
    return dataset.kind != "yolo" or dataset.mask_file(name) is not None
