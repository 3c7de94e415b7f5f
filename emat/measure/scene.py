"""A scene: one photo and the single objects of every class in it. It is what all measurements start from.

Each class has a label image of its own, so that classes may overlap: a lesion lies on its leaf. Objects are numbered
from 1 throughout the photo, and a number means the same object in every table and every file.

`filtered` is the one place that removes objects and fills holes. Everything is made from what it returns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from emat.errors import EmatError
from emat.formats.class_names import label_type
from emat.formats.drawing import LabelMap
from emat.images import VOID, Pixels, Reading, read_values
from emat.images.stacks import open_stack
from emat.refine.objects import separate

if TYPE_CHECKING:
    from emat.inference.prediction import Prediction
    from emat.measure.units import Scale

Labels: TypeAlias = NDArray[np.int32]  # (H, W): 0 is background
Mask: TypeAlias = NDArray[np.bool_]  # (H, W)

TOUCHING_RULES = ("split", "together")
BORDER_RULES = ("keep", "drop")
ALL_AROUND = np.ones((3, 3), bool)  # pixels that touch at a corner belong to one object
AREA = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(px|(nm|um|µm|μm|mm|cm|m|km)(?:2|²))")


@dataclass(frozen=True, eq=False)
class Scene:
    """One photo and the objects of each class.

    Attributes:
        name: The photo's name in tables.
        photo: Its pixels as a viewer shows them, (H, W, 3) uint8.
        objects: The label image (H, W) of each class; no number occurs in two of them.
        sources: Where the mask of each class comes from.
        overlapping: The classes whose masks are whole although other classes lie on them.
        probability: Returns the probability map (H, W) of a class; without it, objects have no score.
        scores: The score of each class on the whole photo.
        expected: The IoU that the forecast expects of each class, None where it knows nothing. A class that is not here
            was not predicted.
        values: The original values (H, W, C), such as 16 bits; the photo's own if not given.
        channels: The names of these channels.
        position: What else says where the photo is, such as its z and t in a stack.
    """

    name: str
    photo: Pixels
    objects: Mapping[str, Labels]
    sources: Mapping[str, str]
    overlapping: frozenset[str] = frozenset()
    probability: Callable[[str], NDArray[np.float32]] | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    expected: Mapping[str, float | None] = field(default_factory=dict)
    values: NDArray[Any] | None = None
    channels: tuple[str, ...] = ()
    position: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of_prediction(
        cls, prediction: Prediction, name: str = "photo", *, source: str = "prediction", touching: str = "split"
    ) -> Scene:
        """Make the scene of a prediction.

        Args:
            prediction: What a segmenter says about a photo.
            name: The photo's name in tables.
            source: What to call the segmenter in tables, such as its file.
            touching: "split" takes objects that touch apart, "together" keeps connected pixels one object.
        """
        labels = {
            class_name: prediction.instances(class_name).label_image
            if touching == "split"
            else connected(prediction.mask(class_name))
            for class_name in prediction.classes
        }
        return cls(
            name,
            prediction.photo,
            numbered(labels),
            dict.fromkeys(labels, source),
            prediction.overlapped,
            probability=prediction.probability,
            scores=prediction.scores,
            expected={class_name: rule.expected for class_name, rule in prediction.rules.items()},
        )

    @classmethod
    def of_label_map(
        cls,
        photo: Pixels,
        label_map: NDArray[np.integer[Any]],
        classes: Sequence[str],
        name: str = "photo",
        *,
        source: str = "mask",
        touching: str = "split",
    ) -> Scene:
        """Make the scene of a label map (H, W) from anywhere: i is `classes[i - 1]`, 255 is void.

        Raises:
            EmatError: Its size is not the photo's, or it has a class without a name.
        """
        _check_size(name, photo, label_map)
        highest = int(np.where(label_map == VOID, 0, label_map).max(initial=0))
        if highest > len(classes):
            raise EmatError(
                "unknown-class", f"the mask of {name} has class {highest}, but {len(classes)} classes have a name"
            )
        way = separate if touching == "split" else connected
        shown = set(np.unique(label_map).tolist())
        labels = {
            class_name: way(label_map == index) if index in shown else no_objects(label_map.shape)
            for index, class_name in enumerate(classes, start=1)
        }
        return cls(name, photo, numbered(labels), dict.fromkeys(labels, source))

    @classmethod
    def of_label_image(
        cls,
        photo: Pixels,
        label_image: NDArray[np.integer[Any]],
        of_class: str,
        name: str = "photo",
        source: str = "mask",
    ) -> Scene:
        """Make the scene of a label image (H, W), in which every number is an object of one class.

        Raises:
            EmatError: Its size is not the photo's.
        """
        _check_size(name, photo, label_image)
        labels = np.unique(label_image, return_inverse=True)[1].reshape(label_image.shape).astype(np.int32)
        return cls(name, photo, {of_class: labels + np.int32(label_image.min() > 0)}, {of_class: source})

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return tuple(self.objects)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.photo.shape[0], self.photo.shape[1]

    def mask(self, name: str) -> Mask:
        """Return where a class is (H, W)."""
        return self.objects[self.check_class(name)] > 0

    def check_class(self, name: str) -> str:
        """Return the name of a class; EmatError if there is no such class."""
        if name not in self.objects:
            raise EmatError(
                "unknown-class", f"there is no class {name!r} in {self.name}; the classes are {', '.join(self.classes)}"
            )
        return name

    @property
    def label_map(self) -> LabelMap:
        """The class of every pixel (H, W): i is `classes[i - 1]`. What overlaps lies below."""
        painted = self._painted(lambda index, labels: np.full_like(labels, index))
        return np.asarray(painted, label_type(self.classes))

    @property
    def object_image(self) -> Labels:
        """The number of the object at every pixel (H, W). What overlaps lies below."""
        return self._painted(lambda _, labels: labels)

    @property
    def has_layers(self) -> bool:
        """Whether a pixel may be of several objects, so that one image cannot show all of them whole."""
        several = np.zeros(self.size, np.int32)
        for labels in self.objects.values():
            if has_objects(labels):
                several += labels > 0
        return bool(self.overlapping) or bool((several > 1).any())

    def _painted(self, value: Callable[[int, Labels], Labels]) -> Labels:
        """Paint classes that overlap first; of others share pixels where a hole was filled, and there the smaller."""
        image = np.zeros(self.size, np.int32)
        covered = np.zeros(self.size, np.int64)  # areas of the objects that were painted, but for classes that overlap
        below_first = sorted(enumerate(self.objects, start=1), key=lambda item: item[1] not in self.overlapping)
        for index, name in below_first:
            labels = self.objects[name]
            if not has_objects(labels):
                continue
            areas = np.bincount(labels.ravel())[labels]
            on_top = (labels > 0) & ((covered == 0) | (areas < covered))
            image = np.where(on_top, value(index, labels), image)
            if name not in self.overlapping:
                covered = np.where(on_top, areas, covered)
        return image

    def with_values(self, path: Path, reading: Reading | None = None) -> Scene:
        """Return the scene with the original values of its photo's file, such as those of 16 bits.

        Args:
            path: The file, or the folder of an OME-Zarr.
            reading: How it was read; by default as photos usually are.

        Raises:
            EmatError: The file cannot be read, has several planes, or is not the photo.
        """
        reading = reading or Reading()
        stack = open_stack(path, reading)
        if stack is None:
            values = read_values(path, reading=reading)
            channels = () if values is None else channel_names(values.shape[2])
        else:
            values, channels = stack.values(stack.only_plane(reading.project), reading.project), stack.channels
        if values is not None and values.shape[:2] != self.size:
            raise EmatError(
                "mask-size",
                f"{path} is {values.shape[1]} x {values.shape[0]}, but the photo that was predicted is "
                f"{self.size[1]} x {self.size[0]}; give the same file",
            )
        return replace(self, values=values, channels=channels)

    def with_class(self, name: str, mask: Mask, source: str) -> Scene:
        """Return the scene with one more class, whose mask is whole although others lie on it."""
        if mask.shape != self.size:
            raise EmatError(
                "mask-size", f"the mask of {name} has another size than {self.name}; save it at the photo's size"
            )
        others = {class_name: labels for class_name, labels in self.objects.items() if class_name != name}
        return replace(
            self,
            objects=numbered({**others, name: connected(mask)}),
            sources={**self.sources, name: source},
            overlapping=self.overlapping | {name},
        )


@dataclass(frozen=True)
class Area:
    """An area in pixels, or in a real unit.

    >>> Area.read("20px"), Area.read("5um2")
    (Area(value=20.0, unit=None), Area(value=5.0, unit='um'))
    """

    value: float
    unit: str | None = None

    @classmethod
    def read(cls, text: str) -> Area:
        """Read what --min-area says; EmatError if it is not an area."""
        match = AREA.fullmatch(text.strip())
        if match is None:
            raise EmatError(
                "unclear-option", f"--min-area is {text!r}; give pixels or an area with its unit, as in 20px or 5um2"
            )
        unit = match[3]
        return cls(float(match[1]), unit if unit is None else unit.replace("µ", "u").replace("μ", "u"))

    def pixels(self, scale: Scale | None, name: str) -> float:
        """Return the number of pixels on a photo.

        Raises:
            EmatError: The area has a unit and the photo has none.
        """
        if self.unit is None:
            return self.value
        if scale is None:
            raise EmatError(
                "unknown-pixel-size",
                f"the size of a pixel of {name} is not known, so {self.value:g} {self.unit}2 says nothing there; "
                "give --pixel-size, or the area in px",
            )
        return self.value / scale.in_unit(self.unit).side ** 2


@dataclass(frozen=True)
class Filters:
    """What does not count as an object, the same for all tables, files and pictures.

    Attributes:
        smallest: Smaller objects are removed.
        border: "drop" removes the objects that touch the photo's border.
        fill_holes: Whether holes in objects become part of them.
    """

    smallest: Area | None = None
    border: str = "keep"
    fill_holes: bool = False

    def __post_init__(self) -> None:
        if self.border not in BORDER_RULES:
            raise EmatError("unknown-choice", f"--border is {self.border!r}; it must be {' or '.join(BORDER_RULES)}")


def filtered(scene: Scene, filters: Filters, scale: Scale | None = None) -> Scene:
    """Return the scene without the objects that do not count, numbered anew, and with filled holes if asked for."""
    least = 0.0 if filters.smallest is None else filters.smallest.pixels(scale, scene.name)
    kept = {}
    for name, labels in scene.objects.items():
        kept[name] = labels
        if not has_objects(labels):
            continue
        labels = _without_holes(labels) if filters.fill_holes else labels
        areas = np.bincount(labels.ravel())
        drop = areas < least
        if filters.border == "drop":
            drop[on_border(labels)] = True
        kept[name] = np.where(drop[labels], 0, labels).astype(np.int32) if drop[1:].any() else labels
    return replace(scene, objects=numbered(kept))


def on_border(labels: Labels) -> NDArray[np.int32]:
    """Return the numbers of the objects that touch the border of the photo."""
    edges = np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]])
    return np.unique(edges[edges > 0])


def channel_names(count: int) -> tuple[str, ...]:
    """Return what the channels of a plain photo are called.

    >>> channel_names(1), channel_names(3)
    (('grey',), ('red', 'green', 'blue'))
    """
    return ("grey",) if count == 1 else ("red", "green", "blue", "alpha")[:count]


def connected(mask: Mask) -> Labels:
    """Number the connected regions of a mask (H, W)."""
    labels: Labels = ndimage.label(mask, ALL_AROUND)[0].astype(np.int32)
    return labels


def no_objects(size: tuple[int, ...]) -> Labels:
    """Return the label image (H, W) of a class that a photo does not show, which takes no memory: there may be many."""
    return np.broadcast_to(np.int32(0), size)


def has_objects(labels: Labels) -> bool:
    """Whether a label image (H, W) has any object."""
    return bool(labels[:1, :1].any() if labels.strides == (0, 0) else labels.any())


def numbered(objects: Mapping[str, Labels]) -> dict[str, Labels]:
    """Return label images whose objects are numbered from 1 throughout, without gaps."""
    renumbered, first = {}, 0
    for name, labels in objects.items():
        if not has_objects(labels):
            renumbered[name] = no_objects(labels.shape)
            continue
        present = np.bincount(labels.ravel()) > 0
        present[0] = False
        new = np.zeros(len(present), np.int32)
        count = int(present.sum())
        new[present] = np.arange(first + 1, first + count + 1)
        renumbered[name] = new[labels]
        first += count
    return renumbered


def _without_holes(labels: Labels) -> Labels:
    filled = labels.copy()
    for number, window in enumerate(ndimage.find_objects(labels), start=1):
        if window is not None:
            part = filled[window]
            part[ndimage.binary_fill_holes(part == number) & (part == 0)] = number
    return filled


def _check_size(name: str, photo: Pixels, mask: NDArray[Any]) -> None:
    if mask.shape != photo.shape[:2]:
        raise EmatError(
            "mask-size",
            f"the mask of {name} is {mask.shape[1]} x {mask.shape[0]} but its photo is "
            f"{photo.shape[1]} x {photo.shape[0]}; save the mask at the photo's size",
        )


def check_touching(text: str) -> str:
    """Return what --touching says; EmatError if it is neither of its values."""
    if text not in TOUCHING_RULES:
        raise EmatError("unknown-choice", f"--touching is {text!r}; it must be {' or '.join(TOUCHING_RULES)}")
    return text
