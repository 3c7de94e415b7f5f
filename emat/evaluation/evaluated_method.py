"""A method with its weights as an evaluation takes it, described so that others find the same weights again."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from emat.backbone import Backbone
from emat.errors import EmatError
from emat.files import file_sha256
from emat.methods.base import PAPER_THRESHOLDS, Method, Thresholds
from emat.methods.registry import find_method, training_free_methods
from emat.methods.trained_head import TrainedHead, find_head, is_training_free, load_head
from emat.tensor_files import digest


@dataclass(frozen=True)
class EvaluatedMethod:
    """A method with its weights, described well enough for others to find the same weights again."""

    method: Method
    backbone: str
    head: Path | None  # None if the method is used without training
    head_sha256: str | None  # of the file
    weights_sha256: str  # of all tensors, whatever file they came from
    trained_parameters: int
    thresholds: Thresholds = PAPER_THRESHOLDS  # those of the head file

    def description(self) -> dict[str, Any]:
        """Return what a results file says about the method."""
        return {
            "name": self.method.name,
            "backbone": self.backbone,
            "image_size": self.method.preparation.image_size,
            "trained_parameters": self.trained_parameters,
            "head": None if self.head is None else str(self.head),
            "head_sha256": self.head_sha256,
            "weights_sha256": self.weights_sha256,
        }


def load_evaluated(
    model: str | Path | None = None,
    method: str | None = None,
    *,
    backbone: str | None = None,
    image_size: int | None = None,
    device: str | torch.device | None = None,
    beside: EvaluatedMethod | None = None,
) -> EvaluatedMethod:
    """Load a head, or a method that needs no training, for an evaluation.

    Args:
        model: A head's file or name; None for the method `method` without training.
        method: The method's name; beside `model` only where the file does not say it.
        backbone: By default what the head's file says, or the method's own.
        image_size: Side of the square that photos are resized to; by default what the head's file says.
        device: "cpu", "cuda", "mps" or "auto".
        beside: Another loaded method, whose frozen backbone is shared if it is the same.

    Raises:
        EmatError: If neither is given, the method must be trained first, or the head cannot be loaded.
    """
    named = _training_free(method) if model is None else model
    head = load_head(named, backbone, method)
    sized = head if image_size is None else replace(head, image_size=image_size)
    built = sized.build(device, None if beside is None else _frozen_backbone(beside, head))
    path = None if is_training_free(named) else find_head(named)
    return EvaluatedMethod(
        method=built,
        backbone=head.backbone,
        head=path,
        head_sha256=None if path is None else file_sha256(path),
        weights_sha256=digest(built.state_dict()),
        trained_parameters=sum(value.numel() for value in built.trained_weights().values()) if path else 0,
        thresholds=head.thresholds,
    )


def _frozen_backbone(other: EvaluatedMethod, head: TrainedHead) -> Backbone | None:
    """The backbone of `other` if `head` needs the same one and it was not trained."""
    method = other.method
    found = getattr(method, "backbone", None)
    alike = (method.name, other.backbone) == (head.method, head.backbone) and not method.recipe.trains_backbone
    return found if alike and isinstance(found, Backbone) else None


def _training_free(method: str | None) -> str:
    if method is None:
        free = " or ".join(training_free_methods())
        raise EmatError(f"say what to evaluate: give a head's file or name with --model, or --method {free}")
    if find_method(method).needs_training:
        raise EmatError(f"{method} must be trained before it can be evaluated; give its head with --model")
    return method
