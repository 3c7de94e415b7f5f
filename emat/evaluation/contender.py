"""What is evaluated: a method with its weights, and the words that let someone else find the very same."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from emat.backbone import Backbone
from emat.errors import EmatError
from emat.inference.heads import Head, find_head, is_training_free, load_head
from emat.inference.methods import METHODS
from emat.method import PAPER_THRESHOLDS, Method, Thresholds
from emat.tensor_files import digest, file_sha256


@dataclass(frozen=True)
class Contender:
    """A method ready to be evaluated."""

    method: Method
    backbone: str
    head: Path | None  # None: the method needs no training
    head_sha256: str | None  # of the file
    weights_sha256: str  # of all its tensors, whatever file they came in
    trained_parameters: int
    thresholds: Thresholds = PAPER_THRESHOLDS  # what the head's file says

    def description(self) -> dict[str, Any]:
        """What a results file says of it."""
        return {
            "name": self.method.name,
            "backbone": self.backbone,
            "image_size": self.method.preparation.image_size,
            "trained_parameters": self.trained_parameters,
            "head": None if self.head is None else str(self.head),
            "head_sha256": self.head_sha256,
            "weights_sha256": self.weights_sha256,
        }


def load_contender(
    model: str | Path | None = None,
    method: str | None = None,
    *,
    backbone: str | None = None,
    image_size: int | None = None,
    device: str | torch.device | None = None,
    beside: Contender | None = None,
) -> Contender:
    """The trained head `model`, a file or a name, or the training-free `method`.

    `backbone` and `image_size` default to what the head's file says, or to what the method was made for. A frozen
    backbone that `beside` has already is used by both.
    """
    named = _training_free(method) if model is None else model
    head = load_head(named, backbone, method)
    sized = head if image_size is None else replace(head, image_size=image_size)
    built = sized.build(device, None if beside is None else _frozen_backbone(beside, head))
    path = None if is_training_free(named) else find_head(named)
    return Contender(
        built,
        head.backbone,
        path,
        None if path is None else file_sha256(path),
        digest(built.state_dict()),
        sum(value.numel() for value in built.trained_weights().values()),
        head.thresholds,
    )


def _frozen_backbone(contender: Contender, head: Head) -> Backbone | None:
    """The backbone of `contender`, if it is the one that `head` is for, as it was before any training."""
    method = contender.method
    found = getattr(method, "backbone", None)
    alike = (method.name, contender.backbone) == (head.method, head.backbone) and not method.recipe.trains_backbone
    return found if alike and isinstance(found, Backbone) else None


def _training_free(method: str | None) -> str:
    if method is None:
        free = [name for name in METHODS if is_training_free(name)]
        raise EmatError(f"say what to evaluate: --model with a head's file or name, or --method {' or '.join(free)}")
    if method not in METHODS:
        raise EmatError(f"there is no method {method!r}; choose one of {', '.join(METHODS)}")
    if not is_training_free(method):
        raise EmatError(f"{method} must be trained before it can be evaluated; give its head by --model")
    return method
