"""A backbone by name, with its weights, on a device."""

from pathlib import Path

import torch

from emat.backbone.frozen import Backbone
from emat.backbone.registry import find_backbone
from emat.backbone.stack import Stack
from emat.backbone.weights import load_weights
from emat.device import choose_device
from emat.errors import EmatError


def build_backbone(name: str, weights: str | Path | None = None, device: str | torch.device | None = None) -> Backbone:
    """The backbone `name`, frozen, ready to encode.

    Its weights come from the file `weights` if given, else from the first source that has them: an installed
    package, the cache, the network. `name` may be a stack such as ``efficientnet-lite2+dinov2-s``.
    """
    spec = find_backbone(name)
    if weights is not None and spec.parts:
        raise EmatError(f"{name} is a stack and one file cannot fill it; run `emat weights import FILE` for each part")
    target = choose_device(device)
    with torch.device("meta"):  # no time spent on random weights that are replaced at once
        backbone = spec.build()
    backbone.to_empty(device="cpu")
    parts = backbone.parts if isinstance(backbone, Stack) else [backbone]
    for part, part_spec in zip(parts, spec.parts or (spec,), strict=True):
        part.load_public(load_weights(part_spec, weights))
    return backbone.to(target)
