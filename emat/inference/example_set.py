"""The examples of a segmenter: what is kept of each, and their support encodings by class."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from emat.errors import EmatError
from emat.images import VOID, Pixels, fitted_size, resize_mask, resize_photo
from emat.inference.example import Example, MaskedPhoto
from emat.inference.tiles import cut
from emat.methods.base import Method
from emat.pictures.overlay import draw_overlay
from emat.pixel_learner.features import side_for, working_size

Value = TypeVar("Value")

MOST_CLASSES = 254  # what a label map of bytes holds beside background and void
THUMBNAIL_SIDE = 160  # pixels
KEPT_TIMES = 2  # an example is kept at so many times the size that is learnt from, so that tiles of it are sharp


def with_name(values: Mapping[str, Value], name: str, to: str) -> dict[str, Value]:
    """Return the same mapping from classes, in which one has another name."""
    return {to if key == name else key: value for key, value in values.items()}


@dataclass(frozen=True)
class Thumbnail:
    """A small picture of an example."""

    photo: Pixels  # (h, w, 3)
    masks: Mapping[str, NDArray[np.bool_]]  # (h, w) for each class

    def drawn(self, numbers: Mapping[str, int]) -> Image.Image:
        """Draw its masks over it; the colour of a class follows from its number."""
        labels = np.zeros(self.photo.shape[:2], np.uint8)
        for name, mask in self.masks.items():
            labels[mask] = numbers.get(name, 0)
        return draw_overlay(self.photo, labels, {}, legend=False)


@dataclass(frozen=True)
class WorkingPhoto:
    """What is kept of an example to learn from it again: a small copy, with what is known of its pixels."""

    photo: Pixels  # (h, w, 3), or with further channels
    masks: Mapping[str, NDArray[np.uint8]]  # (h, w) for each class it names: 1 = the class, 0 = not, 255 = unknown
    other: NDArray[np.uint8]  # (h, w): the same for all other classes
    sparse: bool = False

    def pixel_labels(self, classes: Sequence[str]) -> Tensor:
        """What is known of each class, (N, h, w). Where one class is, no other is, even if nothing else is known."""
        values = np.stack([self.masks.get(name, self.other) for name in classes])
        taken = (values == 1).any(axis=0)
        return torch.from_numpy(np.where(taken & (values == VOID), 0, values).astype(np.uint8))


@dataclass(frozen=True, eq=False)
class FittedExample:
    """What a segmenter keeps of an example."""

    name: str
    encodings: Mapping[str, Any]  # the method's support encoding for each class
    thumbnail: Thumbnail | None = None
    working: WorkingPhoto | None = None  # where the method learns
    size: tuple[int, int] | None = None  # height and width of its photo; None if it was read from a fitted file
    # Its encodings for photos that are cut, by class and by the rows and columns of tiles; see `ExampleSet.with_tiles`.
    tiles: Mapping[tuple[str, tuple[int, int]], Any] = field(default_factory=dict, repr=False)
    # A weak reference, because the photo may be a large array that nobody else needs any more.
    source: Callable[[], Example | None] = field(default=lambda: None, repr=False)

    @classmethod
    def of(
        cls, example: Example, shown: MaskedPhoto, encodings: Mapping[str, Any], working: WorkingPhoto | None = None
    ) -> FittedExample:
        """Make what is kept of `example`, which was read as `shown`."""
        size = (shown.photo.shape[0], shown.photo.shape[1])
        return cls(example.title, encodings, thumbnail(shown), working, size, source=weakref.ref(example))

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that it shows."""
        return tuple(self.encodings)

    def renamed(self, name: str, to: str) -> FittedExample:
        """Return the same example, in which a class has another name."""
        small, working = self.thumbnail, self.working
        small = small and replace(small, masks=with_name(small.masks, name, to))
        working = working and replace(working, masks=with_name(working.masks, name, to))
        tiles = {(to if key == name else key, grid): encoding for (key, grid), encoding in self.tiles.items()}
        encodings = with_name(self.encodings, name, to)
        return replace(self, encodings=encodings, thumbnail=small, working=working, tiles=tiles)

    def is_from(self, example: Example) -> bool:
        """Whether it was made from `example`, the same object."""
        return self.source() is example


def thumbnail(shown: MaskedPhoto) -> Thumbnail:
    """Shrink a photo and its masks to fit into a square of 160 pixels."""
    size = fitted_size(shown.photo.shape, THUMBNAIL_SIDE)
    masks = {name: resize_mask(mask.astype(np.uint8), size) > 0 for name, mask in shown.masks.items()}
    return Thumbnail(resize_photo(shown.photo[..., :3], size), masks)


def working_photo(shown: MaskedPhoto, side: int) -> WorkingPhoto:
    """Shrink an example to a longest side of `side` pixels, if it is larger."""
    height, width = shown.photo.shape[:2]
    size = working_size((height, width), side) if max(height, width) > side else (height, width)
    masks, other = shown.pixel_labels()
    return WorkingPhoto(
        resize_photo(shown.photo, size),
        {name: _shrunk(mask, size) for name, mask in masks.items()},
        _shrunk(other, size),
        shown.sparse,
    )


def _shrunk(mask: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Shrink a mask; a value that nearest neighbours would lose altogether, as of a small stroke, is kept."""
    small = resize_mask(mask, size).copy()
    for value in (0, 1):
        rows, columns = np.nonzero(mask == value)
        if len(rows) and not (small == value).any():
            small[rows * size[0] // mask.shape[0], columns * size[1] // mask.shape[1]] = value
    return small


def _tile_support(example: FittedExample, name: str, grid: tuple[int, int], method: Method) -> Any:
    """The support encoding of the tile that shows the most of a class; that of the whole example if it is not cut."""
    if (name, grid) in example.tiles:
        return example.tiles[name, grid]
    working = example.working
    if working is None or working.sparse:
        return example.encodings[name]
    mask = working.masks[name]
    tiles = cut((mask.shape[0], mask.shape[1]), grid)
    best = max(tiles, key=lambda tile: int((mask[tile.area] == 1).sum()))
    values = torch.from_numpy(mask[best.area])
    signed = (values == 1).float() - (values == VOID).float() * method.takes_undecided
    device = next(method.parameters()).device
    photo = working.photo[best.area][..., :3]
    return method.encode_example(signed.to(device), lambda: photo, lambda: method.photo_features(photo))


@dataclass(frozen=True, eq=False)
class ExampleSet:
    """The examples of a segmenter, which replaces them as a whole, so that a prediction keeps those it began with."""

    examples: tuple[FittedExample, ...] = ()
    order: tuple[str, ...] = ()  # of the classes, such as a data set lists them; it may name others too
    # By class and by rows and columns of tiles, the encodings by the indices of their examples.
    _tile_supports: dict[tuple[str, tuple[int, int]], dict[int, Any]] = field(default_factory=dict, repr=False)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes: as `order` lists them, the others behind in the order of their first example."""
        shown = dict.fromkeys(name for example in self.examples for name in example.encodings)
        return tuple(dict.fromkeys([*(name for name in self.order if name in shown), *shown]))

    def of(self, examples: Iterable[FittedExample]) -> ExampleSet:
        """Return other examples with the same order of classes."""
        return ExampleSet(tuple(examples), self.order)

    def renamed(self, name: str, to: str) -> ExampleSet:
        """Return the same examples with another name for a class."""
        order = tuple(to if other == name else other for other in self.order)
        return ExampleSet(tuple(example.renamed(name, to) for example in self.examples), order)

    def supports(self, name: str, without: Collection[int] = ()) -> list[Any]:
        """Return the support encodings of a class, without those of the examples with the indices `without`."""
        return [
            example.encodings[name]
            for index, example in enumerate(self.examples)
            if name in example.encodings and index not in without
        ]

    def tile_supports(
        self, name: str, grid: tuple[int, int], method: Method, without: Collection[int] = ()
    ) -> list[Any]:
        """Return for each example the support encoding of the tile that shows the most of a class.

        They are computed once for each number of tiles, when a photo is first cut into as many, unless the examples
        have them. Sparse examples, whose whole mask is not known, and those whose photos were not kept stay whole.

        Args:
            name: The class.
            grid: The rows and columns of tiles.
            method: The method that encodes them.
            without: The indices of examples that do not count.
        """
        if (name, grid) not in self._tile_supports:
            self._tile_supports[name, grid] = {
                index: _tile_support(example, name, grid, method)
                for index, example in enumerate(self.examples)
                if name in example.encodings
            }
        return [support for index, support in self._tile_supports[name, grid].items() if index not in without]

    def with_tiles(self, grid: tuple[int, int], method: Method) -> ExampleSet:
        """Return the same examples, which have the encodings of their tiles in these rows and columns as well."""
        tiles = [dict(example.tiles) for example in self.examples]
        for name in self.classes:
            self.tile_supports(name, grid, method)
            for index, support in self._tile_supports[name, grid].items():
                if support is not self.examples[index].encodings[name]:
                    tiles[index][name, grid] = support
        return self.of(replace(example, tiles=own) for example, own in zip(self.examples, tiles, strict=True))

    def working_side(self) -> int:
        """The longest side, in pixels, at which these examples should be learnt from (`side_for`)."""
        photos = [example.working for example in self.examples if example.working is not None]
        whole = [photo.masks for photo in photos if not photo.sparse]
        return side_for([[masks[name] == 1 for masks in whole if name in masks] for name in self.classes])

    def index(self, example: Example | int) -> int:
        """Return the index of an example, which is given by itself or by its index.

        Raises:
            EmatError: If there is no such example.
        """
        if isinstance(example, Example):
            for index, fitted in enumerate(self.examples):
                if fitted.is_from(example):
                    return index
            raise EmatError(
                "unknown-example",
                f"the example {example.title} was not shown to this segmenter; remove it by its index",
            )
        if not 0 <= example < len(self.examples):
            raise EmatError(
                "unknown-example",
                f"there is no example {example}; this segmenter has {len(self.examples)}, counted from 0",
            )
        return example

    def check_shown(self) -> None:
        """Refuse examples that say what is absent and never what is there.

        Raises:
            EmatError: If no example shows a class, or none shows a class that another example says is absent.
        """
        classes = self.classes
        if not classes:
            raise EmatError(
                "no-classes",
                "no example shows a class; give at least one photo with the mask of a class beside the others",
            )
        for example in self.examples:
            named = {} if example.working is None else example.working.masks
            if unknown := [name for name, mask in named.items() if name not in classes and (mask != VOID).any()]:
                raise EmatError(
                    "unknown-class",
                    f"no example shows {unknown[0]!r}, which {example.name} says is absent; give one with a mask",
                )

    def check_names(self, example: Example) -> None:
        """Refuse a further example whose classes are spelled differently, or that has one class too many."""
        spelled = {name.casefold(): name for name in self.classes}
        for name in (*example.masks, *example.absent, *example.undecided):
            other = spelled.setdefault(name.casefold(), name)
            if other != name:
                raise EmatError(
                    "given-twice", f"the class {name!r} of {example.title} is also written {other!r}; use one spelling"
                )
        if len(spelled) > MOST_CLASSES:
            raise EmatError(
                "too-many-classes", f"{len(spelled)} classes are more than the {MOST_CLASSES} that a label map holds"
            )

    def kept_photos(self) -> list[WorkingPhoto]:
        """Return what is kept of each example to learn from it again.

        Raises:
            EmatError: If an example's photo was not kept.
        """
        kept = []
        for example in self.examples:
            if example.working is None:
                raise EmatError(
                    "photo-not-kept",
                    f"this segmenter was saved without the photo of {example.name}, so it cannot learn again; fit it "
                    "again, or load it with learn=False",
                )
            kept.append(example.working)
        return kept
