"""A fitted segmenter as one file.

The file is a safetensors file that holds the head, the encodings of every example, with tiles also those of its tiles,
and what the examples taught; its metadata say the rest, decisions included. A method's support encoding is a dataclass
whose fields are tensors, tuples of tensors or None, so it is stored as named tensors. The method itself says which
class that is, so files of methods from other packages are read as well, and nothing in a file can lead to any other
class.

Format 2 added the decisions. Files of format 1 are read too: whoever loads one decides anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor

from emat import __version__
from emat.errors import EmatError
from emat.files import open_input
from emat.images import Reading, Stretch
from emat.images.photos import has_channels
from emat.inference.decisions import Decisions
from emat.inference.example_set import FittedExample, Thumbnail, WorkingPhoto
from emat.inference.tiles import FINEST_TILES
from emat.methods.base import Method, Thresholds
from emat.methods.panet import FeatureSums
from emat.methods.persam import PerSAMSupport
from emat.methods.pfenet import PFENetSupport
from emat.methods.prior import SupportWithPrior
from emat.methods.prototype import Prototypes
from emat.methods.resnet_base import HyperFeatures
from emat.methods.trained_head import TrainedHead, head_from
from emat.methods.training_free import SupportPatches
from emat.model import SupportEncoding
from emat.pixel_learner.cross_validation import Learnt
from emat.pixel_learner.features import LARGEST_SIDE, SMALLEST_SIDE
from emat.pixel_learner.learner import ENCODER
from emat.tensor_files import load_safetensors, read_metadata, write_tensors

FORMAT = "emat-segmenter"
VERSION = 2
READABLE = ("1", "2")
HEAD = "head."
LEARNT = "learnt."
TILE = "tile."
VALUE = "value"  # the name of an encoding that is a plain tensor

# The shapes of their tensors: words of letters, or several such words with | between them. A letter that occurs again
# must stand for the same number, within an encoding and in all encodings of a file, and for the one that the method's
# `support_lengths` gives; `k` and `l` are free, because every mask keeps another number of tokens.
MOST_EXAMPLES = 10_000
FREE = "kl"
SHAPES: dict[type[Any], dict[str, str]] = {
    SupportEncoding: {"cells": "PCsd", "kept": "Ckd", "kept_later": "l"},
    SupportWithPrior: {
        "cells": "PCsd",
        "kept": "Ckd",
        "kept_later": "l",
        "foreground": "Bd",
        "background": "Bd",
        "close_up": "6d",
    },
    Prototypes: {"foreground": "Cd", "background": "Cd"},
    FeatureSums: {"foreground": "f", "foreground_count": "", "background": "f", "background_count": ""},
    PFENetSupport: {"vector": "v", "high": "uhw"},
    SupportPatches: {"vectors": "td", "inside": "t", "outside": "t"},
    PerSAMSupport: {"vectors": "td", "inside": "t", "outside": "t", "target": "g"},
    HyperFeatures: {"layers.0": "abxy", "layers.1": "cezw", "layers.2": "ghmn", "mask": "kl"},
    Learnt: {
        "mean": "F",
        "spread": "F",
        "weights": "NF",
        "bias": "N",
        "mixtures": "N3|N4",  # early files have a fourth column
        "presence": "N3",
        "left_out_iou": "QN",
        "presence_right": "N",
        "side": "1",
        "presence_auroc": "N",
        "confusion": "NN",
        "left_out_area": "QN",
        "photo_thresholds": "N2",
    },
}
OF_OTHER_TYPES = ("kept_later", "mask", "side")  # tensors that need not hold fractions
TYPES = (torch.float32, torch.int64, torch.uint8, torch.bool)
LARGEST_WEIGHT, LARGEST_VALUE = 1e4, 1e8  # of heads, and of encodings, which may be sums over all pixels of a photo
LARGEST_COUNT = 1 << 40
COUNTED = "num_batches_tracked"  # the one whole number that networks keep
# NaN where nothing was measured
MAY_BE_UNKNOWN = (
    "presence",
    "left_out_iou",
    "presence_right",
    "presence_auroc",
    "confusion",
    "left_out_area",
    "photo_thresholds",
)


# Encodings as named tensors


def pack(encoding: Any, form: type[Any]) -> dict[str, Tensor]:
    """Return the tensors of an encoding by the names of its fields, numbered where a field holds several.

    Args:
        encoding: What a method's `encode_support` returned, or what was learnt.
        form: The class that it must have.

    Raises:
        EmatError: If it has another class.
    """
    if not isinstance(encoding, form) or not (form is Tensor or is_dataclass(form)):
        raise EmatError(
            "broken-plugin",
            f"an example is kept as {type(encoding).__name__}, but its method says {form.__name__}; set the method's "
            "support_type to the dataclass of tensors that encode_support returns",
        )
    if isinstance(encoding, Tensor):
        return {VALUE: encoding.contiguous()}
    tensors: dict[str, Tensor] = {}
    for part in fields(encoding):
        value = getattr(encoding, part.name)
        if isinstance(value, Tensor):
            tensors[part.name] = value.contiguous()
        elif value is not None:
            tensors.update({f"{part.name}.{index}": one.contiguous() for index, one in enumerate(value)})
    return tensors


def unpack(form: type[Any], tensors: Mapping[str, Tensor]) -> Any:
    """Make the encoding that `pack` took apart; ValueError if a tensor is missing."""
    if form is Tensor:
        return tensors[VALUE]
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


# The file


@dataclass(frozen=True)
class FittedFile:
    """What a file holds."""

    method: Method
    thresholds: Thresholds
    examples: tuple[FittedExample, ...]
    learnt: Learnt | None = None  # None if the segmenter does not learn
    decisions: Decisions | None = None  # None in files of format 1
    learns: bool = False
    reading: Reading = field(default_factory=Reading)  # how photos are read, apart from their largest size
    fits_size: bool = False  # whether the examples choose the size that is learnt from
    encoder: bool = False  # whether the features of MobileSAM's encoder are needed


def is_fitted(path: Path) -> bool:
    """Whether the file says that it is a fitted segmenter; a damaged one may still say so."""
    with open_input(path) as file:
        start = file.read(9)
    return start[8:9] == b"{" and read_metadata(path).get("format") == FORMAT


def write_fitted(path: Path, head: TrainedHead, fitted: FittedFile, thumbnails: bool) -> None:
    """Write a fitted segmenter, whole or not at all.

    Args:
        path: The file.
        head: The head of the segmenter's method.
        fitted: What else it holds.
        thumbnails: Whether to keep small pictures of the examples, and what can be learnt from again.

    Raises:
        EmatError: If the file cannot be written, or the method's encodings cannot be stored.
    """
    tensors = {f"{HEAD}{name}": value for name, value in head.tensors.items()}
    listed: list[dict[str, Any]] = []
    for index, example in enumerate(fitted.examples):
        small = example.thumbnail if thumbnails else None
        listed.append({"name": example.name, "classes": list(example.classes)})
        for number, (class_name, encoding) in enumerate(example.encodings.items()):
            start = f"example.{index}.{number}."
            tensors.update(
                {f"{start}{part}": value for part, value in pack(encoding, fitted.method.support_type).items()}
            )
            if small is not None:
                tensors[f"{start}thumbnail"] = torch.from_numpy(small.masks[class_name])
        for (class_name, (rows, columns)), encoding in example.tiles.items():
            of_tile = [list(example.classes).index(class_name), rows, columns]
            listed[-1].setdefault("tiles", []).append(of_tile)
            parts = pack(encoding, fitted.method.support_type)
            tensors.update({_tile_start(index, of_tile) + part: value for part, value in parts.items()})
        if small is not None:
            tensors[f"example.{index}.thumbnail"] = torch.from_numpy(small.photo)
        if thumbnails and example.working is not None:
            tensors.update(_working_tensors(index, example.working))
            listed[-1]["working"] = {"classes": list(example.working.masks), "sparse": example.working.sparse}
    # Whatever is not a tensor.
    metadata = {"format": FORMAT, "version": str(VERSION), "examples": json.dumps(listed), **head.metadata()}
    metadata["emat"] = __version__
    metadata["stretch"] = str(fitted.reading.stretch)
    if fitted.reading.channels:
        metadata["channels"] = json.dumps(fitted.reading.channels)
    if fitted.reading.project != "none":
        metadata["project"] = fitted.reading.project
    if fitted.decisions is not None:
        metadata["decisions"] = json.dumps(fitted.decisions.to_json())
    # The pixel learner.
    if fitted.learnt is not None:
        metadata["learn"] = "yes"
        metadata["size"] = "fitted" if fitted.fits_size else "given"
        if fitted.encoder:
            metadata["features"] = ENCODER
        tensors.update({f"{LEARNT}{name}": value for name, value in pack(fitted.learnt, Learnt).items()})
    write_tensors(path, tensors, metadata)


def read_fitted(path: Path, device: str | torch.device | None = None) -> FittedFile:
    """Read what `write_fitted` wrote.

    Args:
        path: The file.
        device: Where the method and the encodings are put: "cpu", "cuda", "mps" or "auto".

    Raises:
        EmatError: If the file is damaged, of another version, or not a fitted segmenter.
    """
    metadata = read_metadata(path)
    if metadata.get("format") != FORMAT:
        raise EmatError(
            "wrong-file-kind", f"{path} is not a fitted segmenter; write one with `emat fit` or Segmenter.save"
        )
    if metadata.get("version") not in READABLE:
        raise EmatError(
            "wrong-file-version",
            f"{path} is a fitted segmenter of version {metadata.get('version')}, this emat reads version {VERSION}; "
            "fit it again or use the emat that wrote it",
        )
    # The head comes first, because the method says of which form the encodings of the examples are.
    tensors = {name: _in_single_precision(value) for name, value in load_safetensors(path).items()}
    weights = _below(HEAD, tensors)
    with _damage(path):
        check_head(weights)
        listed = json.loads(metadata["examples"])
        if not isinstance(listed, list) or not 0 < len(listed) <= MOST_EXAMPLES:
            raise ValueError("no examples")
    head = head_from(weights, metadata, path)
    method = head.build(device)
    with _damage(path):
        # The examples. A letter of `SHAPES` stands for the same length in all of them.
        letters = dict(method.support_lengths())
        form = method.support_type
        examples = tuple(_example(entry, index, tensors, letters, form) for index, entry in enumerate(listed))
        # What the pixel learner learnt, and what was decided, both for the classes of the examples.
        learnt_tensors = _below(LEARNT, tensors)
        classes = {name for example in examples for name in example.encodings}
        check_tensors(Learnt, learnt_tensors, {"N": len(classes), "Q": len(examples)} if learnt_tensors else {})
        check_learnt(learnt_tensors)
        learnt: Learnt | None = unpack(Learnt, learnt_tensors) if learnt_tensors else None
        if learnt is not None and not SMALLEST_SIDE <= learnt.working_side <= LARGEST_SIDE:
            raise ValueError(f"photos of {learnt.working_side} pixels")
        decisions = Decisions.from_json(json.loads(metadata["decisions"])) if "decisions" in metadata else None
        if decisions is not None and set(decisions.classes) != classes:
            raise ValueError("decisions for other classes")
        reading = Reading(
            Stretch.read(metadata.get("stretch", "percentile")),
            channels=tuple(str(channel) for channel in json.loads(metadata.get("channels", "[]"))),
            project=metadata.get("project", "none"),
        )
    # Everything was checked on the CPU; now it goes where the method is.
    where = next(method.parameters()).device
    return FittedFile(
        method,
        head.thresholds,
        tuple(_moved(kept, form, where) for kept in examples),
        None if learnt is None else unpack(Learnt, {name: value.to(where) for name, value in learnt_tensors.items()}),
        decisions,
        metadata.get("learn") == "yes",
        reading,
        metadata.get("size") == "fitted",
        metadata.get("features") == ENCODER,
    )


def _in_single_precision(value: Tensor) -> Tensor:
    """Convert fractions of half precision: what is compared with each other and with a photo must be of one type."""
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Say that a file is damaged, whatever is wrong with what it holds."""
    try:
        yield
    except EmatError as error:
        raise EmatError("damaged-file", f"{path} is damaged ({error}); fit it again") from None
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise EmatError("damaged-file", f"{path} is damaged ({type(error).__name__}: {error}); fit it again") from None


def _moved(example: FittedExample, form: type[Any], device: torch.device) -> FittedExample:
    """The same example with its encodings on `device`."""
    if device.type == "cpu":
        return example

    def moved(encoding: Any) -> Any:
        return unpack(form, {part: value.to(device) for part, value in pack(encoding, form).items()})

    encodings = {name: moved(encoding) for name, encoding in example.encodings.items()}
    return replace(example, encodings=encodings, tiles={tile: moved(one) for tile, one in example.tiles.items()})


def _example(
    entry: Mapping[str, Any], index: int, tensors: Mapping[str, Tensor], letters: dict[str, int], form: type[Any]
) -> FittedExample:
    check_entry(entry)
    classes = [str(name) for name in entry["classes"]]
    encodings = {}
    for number, name in enumerate(classes):
        start = f"example.{index}.{number}."
        example_tensors = _below(start, tensors)
        check_tensors(form, example_tensors, letters)
        encodings[name] = unpack(form, example_tensors)
    small = None
    if f"example.{index}.thumbnail" in tensors:
        masks = {name: tensors[f"example.{index}.{number}.thumbnail"].numpy() for number, name in enumerate(classes)}
        small = Thumbnail(tensors[f"example.{index}.thumbnail"].numpy(), masks)
        check_picture(small.photo, small.masks, "thumbnail")
    working = None
    if "working" in entry:
        working = _working(entry["working"], f"example.{index}.working", tensors)
        check_picture(working.photo, {**working.masks, "others": working.other}, "working photo")
    tiles = {}
    for of_tile in entry.get("tiles", ()):
        check_tile(of_tile, len(classes))
        number, rows, columns = of_tile
        if (classes[number], (rows, columns)) in tiles:  # each costs time, and a text can list millions
            raise ValueError(f"the tile {of_tile} twice")
        own = _below(_tile_start(index, of_tile), tensors)
        check_tensors(form, own, letters)
        tiles[classes[number], (rows, columns)] = unpack(form, own)
    return FittedExample(str(entry["name"]), encodings, small, working, tiles=tiles)


def _tile_start(index: int, of_tile: Sequence[int]) -> str:
    """How the names of the tensors of a tile begin, which the number of its class, its rows and columns tell apart."""
    return f"{TILE}{index}.{'.'.join(map(str, of_tile))}."


def _below(start: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `start`, by the rest of their names."""
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


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
    if not isinstance(entry.get("classes"), list) or not all(isinstance(text, str) for text in entry["classes"]):
        raise ValueError(f"the classes of {entry['name'][:40]!r} are not names")
    if len(set(entry["classes"])) != len(entry["classes"]) or not all(name.strip() for name in entry["classes"]):
        raise ValueError(f"the classes of {entry['name'][:40]!r} are empty or there twice")
    if not all(name.isprintable() for name in entry["classes"]):  # it would reach terminals and files of results
        raise ValueError(f"a class of {entry['name'][:40]!r} has a character that cannot be shown")


def check_tile(of_tile: Any, classes: int) -> None:
    """Check what the metadata say of a tile: the number of its class, and the rows and columns of tiles."""
    if not isinstance(of_tile, list) or len(of_tile) != 3 or not all(type(number) is int for number in of_tile):
        raise ValueError("tiles that are not a class, rows and columns")
    number, *grid = of_tile
    if not 0 <= number < classes or not all(1 <= count <= FINEST_TILES for count in grid):
        raise ValueError(f"a tile of {grid} of the class {number}")


def check_tensors(form: type[Any], tensors: Mapping[str, Tensor], letters: dict[str, int]) -> None:
    """Check the tensors of an encoding, or of what was learnt, by `SHAPES`; numbers of new letters are entered."""
    expected = SHAPES.get(form, {})
    own: dict[str, int] = {}
    for name, value in tensors.items():
        word = expected.get(name)
        if not name.endswith("thumbnail"):
            check_numbers(name, value, LARGEST_VALUE, unknown=name in MAY_BE_UNKNOWN)
        if word is None:
            continue
        if not value.is_floating_point() and name not in OF_OTHER_TYPES:
            raise ValueError(f"{name} is of {value.dtype}")
        shape = tuple(value.shape)
        fitting = next((one for one in word.split("|") if _fits(shape, one, {**letters, **own})), None)
        if fitting is None:
            raise ValueError(f"{name} has the shape {shape}")
        own.update({letter: side for letter, side in zip(fitting, shape, strict=True) if not letter.isdecimal()})
    letters.update({letter: side for letter, side in own.items() if letter not in FREE})
    _check_indices(tensors)


def check_numbers(name: str, value: Tensor, largest: float, *, unknown: bool = False) -> None:
    """Check type and values of a tensor: larger ones would overflow on the way to a score, and NaN may be `unknown`."""
    if value.dtype not in TYPES:
        raise ValueError(f"{name} is of {value.dtype}")
    if not value.is_floating_point():
        if (
            value.dtype == torch.int64
            and value.numel()
            and not 0 <= int(value.min()) <= int(value.max()) <= LARGEST_COUNT
        ):
            raise ValueError(f"{name} holds numbers from {int(value.min())} to {int(value.max())}")
        return
    numbers = value[~torch.isnan(value)] if unknown else value
    if not bool(torch.isfinite(numbers).all()):
        raise ValueError(f"{name} holds values that are not numbers")
    if numbers.numel() and float(numbers.abs().max()) > largest:
        raise ValueError(f"{name} holds the value {float(numbers.abs().max()):.3g}")


def check_head(weights: Mapping[str, Tensor]) -> None:
    """Check the types and values of a head's weights; their names and shapes are checked when it is built."""
    for name, value in weights.items():
        check_numbers(f"{HEAD}{name}", value, LARGEST_WEIGHT)
        if not value.is_floating_point() and not name.endswith(COUNTED):
            raise ValueError(f"{HEAD}{name} is of {value.dtype}")


def check_learnt(tensors: Mapping[str, Tensor]) -> None:
    """Check the ranges of what was learnt."""
    if "spread" in tensors and not bool((tensors["spread"] > 0).all()):
        raise ValueError("spread is not positive")
    if "presence" in tensors:
        unknown = torch.isnan(tensors["presence"])
        if bool((unknown.any(dim=1) != unknown.all(dim=1)).any()):
            raise ValueError("presence holds half a rule")
        share = tensors["presence"][:, 0]
        if not bool(((share >= 0) & (share <= 1) | unknown[:, 0]).all()):
            raise ValueError("presence counts more than the whole photo")
    if "photo_thresholds" in tensors and bool((tensors["photo_thresholds"][:, 0] <= 0).any()):
        raise ValueError("photo_thresholds has a slope that is not positive")


def _fits(shape: tuple[int, ...], word: str, numbers: Mapping[str, int]) -> bool:
    """Whether a shape is that of a word, given the numbers that letters are known to stand for.

    >>> _fits((2, 3), "N3", {"N": 2}), _fits((2, 3), "NN", {}), _fits((2, 3), "N", {})
    (True, True, False)
    """
    wanted = [int(letter) if letter.isdecimal() else numbers.get(letter) for letter in word]
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
    if (
        photo.dtype != np.uint8
        or photo.ndim != 3
        or 0 in photo.shape
        or (photo.shape[2] != 3 and not has_channels(photo))
    ):
        raise ValueError(f"the {what} has the shape {photo.shape} of {photo.dtype}")
    for name, mask in masks.items():
        if mask.shape != photo.shape[:2] or mask.dtype not in (np.uint8, np.bool_):
            raise ValueError(f"the {what}'s mask of {name[:40]!r} has the shape {mask.shape} of {mask.dtype}")
