"""What a fitted file says is checked when it is loaded: it may be damaged, or made by somebody who means harm.

Shapes are words of letters, or several such words with | between them. A letter that occurs again must stand for the
same number, within an encoding and in all encodings of a file; `k` and `l` are free, because every mask keeps another
number of tokens.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emat.errors import EmatError

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
