"""Fitted examples, and a fitted segmenter as one file.

The file is a safetensors file that holds the head and the encodings of every example; its metadata say the rest. A
method's support encoding is a dataclass whose fields are tensors, tuples of tensors or None, so it is stored as named
tensors and can be moved between devices.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emat.errors import EmatError
from emat.files import refuse_pipe
from emat.images import Pixels, Stretch, resize_mask, resize_photo
from emat.inference.example import Example, MaskedPhoto
from emat.inference.fitted_checks import MOST_EXAMPLES, check_entry, check_picture, check_tensors
from emat.methods.leave_out import Learnt
from emat.methods.panet import FeatureSums
from emat.methods.pfenet import PFENetSupport
from emat.methods.pixel_features import LARGEST_SIDE, SMALLEST_SIDE, working_size
from emat.methods.prior import SupportWithPrior
from emat.methods.prototype import Prototypes
from emat.methods.resnet_base import HyperFeatures
from emat.methods.trained_head import TrainedHead, head_from
from emat.model import SupportEncoding
from emat.tensor_files import load_safetensors, read_metadata, write_tensors

FORMAT = "emat-segmenter"
VERSION = 1
HEAD = "head."
LEARNT = "learnt."
THUMBNAIL_SIDE = 160  # pixels

# Encodings by their names in files. A name in a file cannot lead to any other class.
KINDS: dict[str, type[Any]] = {
    "correlation": SupportEncoding,
    "correlation-prior": SupportWithPrior,
    "prototypes": Prototypes,
    "sums": FeatureSums,
    "support": PFENetSupport,
    "hyper-features": HyperFeatures,
    "learnt": Learnt,
}


@dataclass(frozen=True)
class Thumbnail:
    """A small picture of an example."""

    photo: Pixels  # (h, w, 3)
    masks: Mapping[str, NDArray[np.bool_]]  # (h, w) for each class


@dataclass(frozen=True)
class WorkingPhoto:
    """An example at the size that a method learns from, with what is known of its pixels."""

    photo: Pixels  # (h, w, 3)
    masks: Mapping[str, NDArray[np.uint8]]  # (h, w) for each class it names: 1 = the class, 0 = not, 255 = unknown
    other: NDArray[np.uint8]  # (h, w): the same for all other classes
    sparse: bool = False

    def known(self, classes: Sequence[str]) -> Tensor:
        """What is known of each class, (N, h, w)."""
        return torch.from_numpy(np.stack([self.masks.get(name, self.other) for name in classes]))


@dataclass(frozen=True, eq=False)
class FittedExample:
    """What a segmenter keeps of an example."""

    name: str
    encodings: Mapping[str, Any]  # the method's support encoding for each class
    thumbnail: Thumbnail | None = None
    working: WorkingPhoto | None = None  # where the method learns
    # A weak reference, because the photo may be a large array that nobody else needs any more.
    source: Callable[[], Example | None] = field(default=lambda: None, repr=False)

    @classmethod
    def of(
        cls, example: Example, encodings: Mapping[str, Any], small: Thumbnail, working: WorkingPhoto | None = None
    ) -> FittedExample:
        """Make what is kept of `example`."""
        return cls(example.title, encodings, small, working, weakref.ref(example))

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that it shows."""
        return tuple(self.encodings)

    def is_from(self, example: Example) -> bool:
        """Whether it was made from `example`, the same object."""
        return self.source() is example

    def to(self, device: torch.device) -> FittedExample:
        """Return the same example with its encodings on `device`."""
        moved = {name: moved_to(device, encoding) for name, encoding in self.encodings.items()}
        return replace(self, encodings=moved)


def thumbnail(shown: MaskedPhoto) -> Thumbnail:
    """Shrink a photo and its masks to fit into a square of 160 pixels."""
    height, width = shown.photo.shape[:2]
    scale = min(1.0, THUMBNAIL_SIDE / max(height, width))
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    masks = {name: resize_mask(mask.astype(np.uint8), size) > 0 for name, mask in shown.masks.items()}
    return Thumbnail(resize_photo(shown.photo, size), masks)


def working_photo(shown: MaskedPhoto, side: int) -> WorkingPhoto:
    """Bring an example to the size that is learnt from. What is kept is then the same however large the photo was."""
    height, width = shown.photo.shape[:2]
    size = working_size((height, width), side) if max(height, width) > side else (height, width)
    masks, other = shown.known()
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


# Encodings as named tensors


def kind_of(encoding: Any) -> str:
    """Return the name of an encoding's class in files; EmatError if it has none."""
    for kind, form in KINDS.items():
        if type(encoding) is form:
            return kind
    raise EmatError(f"examples that are kept as {type(encoding).__name__} cannot be saved")


def pack(encoding: Any) -> dict[str, Tensor]:
    """Return the tensors of an encoding by the names of its fields, numbered where a field holds several."""
    tensors: dict[str, Tensor] = {}
    for part in fields(encoding):
        value = getattr(encoding, part.name)
        if isinstance(value, Tensor):
            tensors[part.name] = value
        elif value is not None:
            tensors.update({f"{part.name}.{index}": one for index, one in enumerate(value)})
    return tensors


def unpack(kind: str, tensors: Mapping[str, Tensor]) -> Any:
    """Make the encoding that `pack` took apart; ValueError if a tensor is missing."""
    form = KINDS[kind]
    hints = get_type_hints(form)
    values: dict[str, Tensor | tuple[Tensor, ...] | None] = {}
    for part in fields(form):
        several = [name for name in tensors if name.startswith(f"{part.name}.")]
        if part.name in tensors:
            values[part.name] = tensors[part.name]
        elif several:
            values[part.name] = tuple(tensors[f"{part.name}.{index}"] for index in range(len(several)))
        elif NoneType in get_args(hints[part.name]):
            values[part.name] = None
        else:
            raise ValueError(f"no {part.name}")
    return form(**values)


def moved_to(device: torch.device, encoding: Any) -> Any:
    """Return the same encoding on `device`."""
    return unpack(kind_of(encoding), {name: value.to(device) for name, value in pack(encoding).items()})


# The file


@dataclass(frozen=True)
class Fitted:
    """What a file holds."""

    head: TrainedHead
    examples: tuple[FittedExample, ...]
    learnt: Learnt | None = None  # None in files of segmenters that do not learn
    learns: bool = False
    stretch: Stretch = field(default_factory=Stretch)


def is_fitted(path: Path) -> bool:
    """Whether the file says that it is a fitted segmenter; a damaged one may still say so."""
    refuse_pipe(path)
    with path.open("rb") as file:
        start = file.read(9)
    return start[8:9] == b"{" and read_metadata(path).get("format") == FORMAT


def write_fitted(
    path: Path,
    head: TrainedHead,
    examples: Sequence[FittedExample],
    thumbnails: bool,
    learnt: Learnt | None = None,
    stretch: Stretch | None = None,
) -> None:
    """Write a fitted segmenter, whole or not at all.

    Args:
        path: The file.
        head: The head of the segmenter's method.
        examples: The examples it was fitted with.
        thumbnails: Whether to keep small pictures of the examples, and what can be learnt from again.
        learnt: What the examples taught; None if the segmenter does not learn.
        stretch: How photos of more than 8 bits were read.

    Raises:
        EmatError: If the file cannot be written, or the method's encodings cannot be stored.
    """
    tensors = {f"{HEAD}{name}": value for name, value in head.tensors.items()}
    listed: list[dict[str, Any]] = []
    for index, example in enumerate(examples):
        small = example.thumbnail if thumbnails else None
        kinds = [kind_of(encoding) for encoding in example.encodings.values()]
        listed.append({"name": example.name, "classes": list(example.classes), "encodings": kinds})
        for number, (class_name, encoding) in enumerate(example.encodings.items()):
            tensors.update({f"example.{index}.{number}.{part}": value for part, value in pack(encoding).items()})
            if small is not None:
                tensors[f"example.{index}.{number}.thumbnail"] = torch.from_numpy(small.masks[class_name])
        if small is not None:
            tensors[f"example.{index}.thumbnail"] = torch.from_numpy(small.photo)
        if thumbnails and example.working is not None:
            tensors.update(_working_tensors(index, example.working))
            listed[-1]["working"] = {"classes": list(example.working.masks), "sparse": example.working.sparse}
    metadata = {"format": FORMAT, "version": str(VERSION), "examples": json.dumps(listed), **head.metadata()}
    metadata["stretch"] = str(stretch or Stretch())
    if learnt is not None:
        metadata["learn"] = "yes"
        tensors.update({f"{LEARNT}{name}": value.contiguous() for name, value in pack(learnt).items()})
    write_tensors(path, tensors, metadata)


def read_fitted(path: Path) -> Fitted:
    """Read what `write_fitted` wrote.

    Raises:
        EmatError: If the file is damaged, of another version, or not a fitted segmenter.
    """
    metadata = read_metadata(path)
    if metadata.get("format") != FORMAT:
        raise EmatError(f"{path} is not a fitted segmenter; write one with `emat fit` or Segmenter.save")
    if metadata.get("version") != str(VERSION):
        raise EmatError(
            f"{path} is a fitted segmenter of version {metadata.get('version')}, this emat reads version {VERSION}; "
            "fit it again or use the emat that wrote it"
        )
    tensors = load_safetensors(path)
    weights = {name.removeprefix(HEAD): value for name, value in tensors.items() if name.startswith(HEAD)}
    try:
        if not all(bool(torch.isfinite(value).all()) for value in weights.values() if value.is_floating_point()):
            raise ValueError("its head holds values that are not numbers")
        listed = json.loads(metadata["examples"])
        if not isinstance(listed, list) or not 0 < len(listed) <= MOST_EXAMPLES:
            raise ValueError("no examples")
        letters: dict[str, int] = {}
        examples = tuple(_example(entry, index, tensors, letters) for index, entry in enumerate(listed))
        own = {name.removeprefix(LEARNT): value for name, value in tensors.items() if name.startswith(LEARNT)}
        classes = {name for example in examples for name in example.encodings}
        check_tensors("learnt", own, {"N": len(classes)})
        learnt = unpack("learnt", own) if own else None
        if learnt is not None and not SMALLEST_SIDE <= learnt.working_side <= LARGEST_SIDE:
            raise ValueError(f"photos of {learnt.working_side} pixels")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise EmatError(f"{path} is damaged ({type(error).__name__}: {error}); fit it again") from None
    try:
        stretch = Stretch.read(metadata.get("stretch", "percentile"))
    except EmatError:
        raise EmatError(f"{path} is damaged (a stretch of {metadata['stretch'][:40]!r}); fit it again") from None
    return Fitted(head_from(weights, metadata, path), examples, learnt, metadata.get("learn") == "yes", stretch)


def _example(
    entry: Mapping[str, Any], index: int, tensors: Mapping[str, Tensor], letters: dict[str, int]
) -> FittedExample:
    check_entry(entry)
    classes = [str(name) for name in entry["classes"]]
    encodings = {}
    for number, (name, kind) in enumerate(zip(classes, entry["encodings"], strict=True)):
        start = f"example.{index}.{number}."
        own = {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}
        check_tensors(kind, own, letters)
        encodings[name] = unpack(kind, own)
    small = None
    if f"example.{index}.thumbnail" in tensors:
        masks = {name: tensors[f"example.{index}.{number}.thumbnail"].numpy() for number, name in enumerate(classes)}
        small = Thumbnail(tensors[f"example.{index}.thumbnail"].numpy(), masks)
        check_picture(small.photo, small.masks, "thumbnail")
    working = None
    if "working" in entry:
        working = _working(entry["working"], f"example.{index}.working", tensors)
        check_picture(working.photo, {**working.masks, "others": working.other}, "working photo")
    return FittedExample(str(entry["name"]), encodings, small, working)


def _working_tensors(index: int, working: WorkingPhoto) -> dict[str, Tensor]:
    start = f"example.{index}.working"
    arrays = {start: working.photo, f"{start}.other": working.other}
    arrays.update({f"{start}.{number}": mask for number, mask in enumerate(working.masks.values())})
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _working(entry: Mapping[str, Any], start: str, tensors: Mapping[str, Tensor]) -> WorkingPhoto:
    masks = {str(name): tensors[f"{start}.{number}"].numpy() for number, name in enumerate(entry["classes"])}
    return WorkingPhoto(tensors[start].numpy(), masks, tensors[f"{start}.other"].numpy(), bool(entry["sparse"]))
