"""What is evaluated: a method with its weights, and the words that let someone else find the very same."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from emat.errors import EmatError
from emat.inference.heads import PUBLISHED, PUBLISHED_BACKBONE, find_head
from emat.inference.methods import METHODS, build_method
from emat.method import Method
from emat.model.checkpoint import head_tensors, identify
from emat.tensor_files import digest, file_sha256, read_metadata, read_tensors

SAFETENSORS = ".safetensors"


@dataclass(frozen=True)
class Contender:
    """A method ready to be evaluated."""

    method: Method
    backbone: str
    head: Path | None  # None: the method needs no training
    head_sha256: str | None  # of the file
    weights_sha256: str  # of all its tensors, whatever file they came in
    trained_parameters: int
    fold: int | None = None  # whose classes it was trained without, where its file says so

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
) -> Contender:
    """The trained head `model`, a file or a name, or the training-free `method`.

    `backbone` and `image_size` default to what the head's file says, or to what the method was made for.
    """
    if model is None:
        return _untrained(method, backbone, image_size, device)
    path = find_head(model)
    tensors = read_tensors(path)
    metadata = read_metadata(path) if path.suffix == SAFETENSORS else {}
    name = _method_of(path, tensors, metadata, method)
    stated = metadata.get("backbone") or (PUBLISHED_BACKBONE if str(model) in PUBLISHED else None)
    extractor = backbone or stated
    if extractor is None:
        raise EmatError(f"{path} does not say which backbone its head was trained with; name it by --backbone")
    size = image_size or _number(metadata.get("image_size"))
    built = build_method(name, extractor, image_size=size, device=device)
    built.load_trained_weights(head_tensors(tensors))
    trained = sum(value.numel() for value in built.trained_weights().values())
    built.requires_grad_(False)
    weights = digest(built.state_dict())
    return Contender(built, extractor, path, file_sha256(path), weights, trained, _fold(metadata))


def trained_fold(model: str | Path) -> int | None:
    """The fold whose classes the head `model` was trained without, where its file says so."""
    path = find_head(model)
    return _fold(read_metadata(path)) if path.suffix == SAFETENSORS else None


def _untrained(
    method: str | None, backbone: str | None, image_size: int | None, device: str | torch.device | None
) -> Contender:
    if method is None:
        free = [name for name, entry in METHODS.items() if not entry.needs_training]
        raise EmatError(f"say what to evaluate: --model with a head's file or name, or --method {' or '.join(free)}")
    if method in METHODS and METHODS[method].needs_training:
        raise EmatError(f"{method} must be trained before it can be evaluated; give its head by --model")
    built = build_method(method, backbone, image_size=image_size, device=device).requires_grad_(False)
    named = backbone or METHODS[method].default_backbone
    return Contender(built, named, None, None, digest(built.state_dict()), trained_parameters=0)


def _method_of(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], asked: str | None) -> str:
    """The method that a head's file states; of a silent one `asked` decides, as CST and its relatives look alike."""
    stated = metadata.get("method")
    if asked is not None and stated not in (None, asked):
        raise EmatError(f"{path} holds a head of the method {stated}, not {asked}; leave --method away")
    return stated or asked or identify(tensors)


def _fold(metadata: Mapping[str, str]) -> int | None:
    try:
        return _number(json.loads(metadata.get("settings", "{}")).get("fold"))
    except (ValueError, AttributeError):
        return None  # another program's metadata


def _number(value: Any) -> int | None:
    return None if value is None else int(value)
