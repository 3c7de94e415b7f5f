"""A fitted segmenter as one file.

The file is a safetensors file that holds the head and the encodings of every example; its metadata say the rest. A
method's support encoding is a dataclass whose fields are tensors, tuples of tensors or None, so it is stored as named
tensors and can be moved between devices.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor

from emat.errors import EmatError
from emat.files import refuse_pipe
from emat.images import Stretch
from emat.inference.known_examples import FittedExample, Thumbnail, WorkingPhoto
from emat.methods.leave_out import Learnt
from emat.methods.panet import FeatureSums
from emat.methods.pfenet import PFENetSupport
from emat.methods.pixel_features import LARGEST_SIDE, SMALLEST_SIDE
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

# The shapes of their tensors: words of letters, or several such words with | between them. A letter that occurs again
# must stand for the same number, within an encoding and in all encodings of a file; `k` and `l` are free, because every
# mask keeps another number of tokens.
MOST_EXAMPLES = 10_000
FREE = "kl"
SHAPES: dict[str, dict[str, str]] = {
    "correlation": {"cells": "PCsd", "kept": "Ckd", "kept_later": "l"},
    "correlation-prior": {
        "cells": "PCsd",
        "kept": "Ckd",
        "kept_later": "l",
        "foreground": "Bd",
        "background": "Bd",
    },
    "prototypes": {"foreground": "Cd", "background": "Cd"},
    "sums": {"foreground": "f", "foreground_count": "", "background": "f", "background_count": ""},
    "support": {"vector": "v", "high": "uhw"},
    "hyper-features": {"layers.0": "abxy", "layers.1": "cezw", "layers.2": "ghmn", "mask": "kl"},
    "learnt": {
        "mean": "F",
        "spread": "F",
        "weights": "NF",
        "bias": "N",
        "mixtures": "N3|N4",  # early files have a fourth column
        "presence": "N3",
        "left_out_iou": "QN",
        "presence_right": "N",
        "side": "1",
    },
}
MAY_BE_UNKNOWN = ("presence", "left_out_iou", "presence_right")  # NaN where nothing was measured


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


def on_device(device: torch.device, example: FittedExample) -> FittedExample:
    """Return the same example with its encodings on `device`."""
    moved = {name: moved_to(device, encoding) for name, encoding in example.encodings.items()}
    return replace(example, encodings=moved)


# The file


@dataclass(frozen=True)
class FittedHow:
    """How a segmenter reads and learns from photos."""

    stretch: Stretch = field(default_factory=Stretch)  # of photos of more than 8 bits
    fits_size: bool = False  # whether the examples choose the size that is learnt from


@dataclass(frozen=True)
class Fitted:
    """What a file holds."""

    head: TrainedHead
    examples: tuple[FittedExample, ...]
    learnt: Learnt | None = None  # None in files of segmenters that do not learn
    learns: bool = False
    stretch: Stretch = field(default_factory=Stretch)
    fits_size: bool = False


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
    how: FittedHow | None = None,
) -> None:
    """Write a fitted segmenter, whole or not at all.

    Args:
        path: The file.
        head: The head of the segmenter's method.
        examples: The examples it was fitted with.
        thumbnails: Whether to keep small pictures of the examples, and what can be learnt from again.
        learnt: What the examples taught; None if the segmenter does not learn.
        how: How photos are read and learnt from.

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
    how = how or FittedHow()
    metadata["stretch"] = str(how.stretch)
    if learnt is not None:
        metadata["learn"] = "yes"
        metadata["size"] = "fitted" if how.fits_size else "given"
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
    learns, fits_size = metadata.get("learn") == "yes", metadata.get("size") == "fitted"
    return Fitted(head_from(weights, metadata, path), examples, learnt, learns, stretch, fits_size)


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


# What a file says is checked when it is loaded: it may be damaged, or made to do harm.


def check_entry(entry: Any) -> None:
    """Check what the metadata say of one example; ValueError if that is not what `write_fitted` writes."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise ValueError("an example without a name")
    for part in ("classes", "encodings"):
        if not isinstance(entry.get(part), list) or not all(isinstance(each, str) for each in entry[part]):
            raise ValueError(f"the {part} of {entry['name'][:40]!r} are not names")
    if len(set(entry["classes"])) != len(entry["classes"]) or not all(name.strip() for name in entry["classes"]):
        raise ValueError(f"the classes of {entry['name'][:40]!r} are empty or there twice")


def check_tensors(kind: str, tensors: Mapping[str, Tensor], letters: dict[str, int]) -> None:
    """Check the tensors of an encoding, or of what was learnt.

    Args:
        kind: A key of `SHAPES`; others are not checked.
        tensors: The tensors by their names.
        letters: The number that each letter stands for; what is new is entered.

    Raises:
        ValueError: A tensor has another shape or type, or holds something that is not a number.
    """
    expected = SHAPES.get(kind, {})
    own: dict[str, int] = {}
    for name, value in tensors.items():
        word = expected.get(name)
        if word is None:
            continue
        shape = tuple(value.shape)
        fitting = next((each for each in word.split("|") if _fits(shape, each, {**letters, **own})), None)
        if fitting is None:
            raise ValueError(f"{name} has the shape {shape}")
        own.update({each: side for each, side in zip(fitting, shape, strict=True) if not each.isdecimal()})
        if value.is_floating_point() and name not in MAY_BE_UNKNOWN and not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name} holds values that are not numbers")
    letters.update({each: side for each, side in own.items() if each not in FREE})
    _check_indices(tensors)


def _fits(shape: tuple[int, ...], word: str, known: Mapping[str, int]) -> bool:
    """Whether a shape is that of a word, given the numbers that letters are known to stand for.

    >>> _fits((2, 3), "N3", {"N": 2}), _fits((2, 3), "NN", {}), _fits((2, 3), "N", {})
    (True, True, False)
    """
    wanted = [int(each) if each.isdecimal() else known.get(each) for each in word]
    return len(shape) == len(word) and all(
        number is None or number == side for number, side in zip(wanted, shape, strict=True)
    )


def _check_indices(tensors: Mapping[str, Tensor]) -> None:
    """Check that the tokens which the second layer keeps are among the first layer's outputs."""
    kept, cells = tensors.get("kept_later"), tensors.get("cells")
    if kept is None or cells is None:
        return
    if kept.dtype != torch.int64 or (len(kept) and not 0 <= int(kept.min()) <= int(kept.max()) <= cells.shape[2]):
        raise ValueError("kept_later is not a list of tokens")


def check_picture(photo: Any, masks: Mapping[str, Any], what: str) -> None:
    """Check the arrays of a small picture; ValueError if they are not a photo with masks of its size."""
    if photo.dtype != np.uint8 or photo.ndim != 3 or photo.shape[2] != 3 or 0 in photo.shape:
        raise ValueError(f"the {what} has the shape {photo.shape} of {photo.dtype}")
    for name, mask in masks.items():
        if mask.shape != photo.shape[:2] or mask.dtype not in (np.uint8, np.bool_):
            raise ValueError(f"the {what}'s mask of {name[:40]!r} has the shape {mask.shape} of {mask.dtype}")


def check_backbone(encodings: Iterable[Any], backbone: Any, path: object) -> None:
    """Check that support encodings come from a backbone of this size; EmatError names the file `path`."""
    expected = getattr(backbone, "channels", None), getattr(backbone, "width", None)
    for encoding in encodings:
        cells = getattr(encoding, "cells", None)
        if None not in expected and cells is not None and (cells.shape[1], cells.shape[3]) != expected:
            raise EmatError(f"{path} is damaged: its examples do not fit its backbone; fit it again")
