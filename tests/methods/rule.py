"""The published networks' inputs and weights by the rule of tests/parity/baselines.json, for any machine."""

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emat.backbone.registry import find_backbone
from emat.backbone.resnet import ResNet
from emat.methods.resnet_base import ResNetMethod

CASES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "parity" / "baselines.json").read_text())


@dataclass(frozen=True)
class Pair:
    """Query and support pixels (1, 3, 400, 400) and the support's mask (400, 400)."""

    query: Tensor
    support: Tensor
    mask: Tensor


def weight(name: str, shape: Sequence[int]) -> Tensor:
    """A tensor made from its public name."""
    x = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(tuple(shape))
    if name.endswith("running_var"):
        x = 0.5 + x * x
    elif len(shape) > 1:
        x = x * np.sqrt(2 / np.prod(shape[1:]))
    else:
        x = 0.5 + 0.3 * x if name.endswith("weight") else 0.1 * x
    return torch.from_numpy(np.asarray(x, dtype=np.float32))


def backbone_name(method: str, name: str) -> str:
    """The name in the method's checkpoint of a ResNet's tensor."""
    if method != "pfenet":
        return f"backbone.{name}"
    part, rest = name.split(".", 1)
    return (
        f"backbone0.{('conv1', 'bn1').index(part)}.{rest}" if part in ("conv1", "bn1") else f"backbone{part[5]}.{rest}"
    )


@cache
def _resnet_tensors(prefix: str) -> dict[str, Tensor]:
    """By the names of a ResNet; `prefix` is a method whose checkpoint names them its way."""
    with torch.device("meta"):
        shapes = find_backbone("resnet50").make().shapes()
    return {name: weight(backbone_name(prefix, name), shape) for name, shape in shapes.items()}


def resnet(method: str) -> ResNet:
    """ResNet-50 from the registry with the rule's weights."""
    with torch.device("meta"):
        network = find_backbone("resnet50").build()
    assert isinstance(network, ResNet)
    network.to_empty(device="cpu").load_public(_resnet_tensors("pfenet" if method == "pfenet" else "others"))
    return network


def trained(kind: type[ResNetMethod]) -> ResNetMethod:
    """The method with the rule's weights everywhere, in evaluation mode."""
    method = kind(resnet(kind.name))
    if names := CASES[kind.name]["names"]:
        method.load_trained_weights({name: weight(name, shape) for name, shape in names.items()})
    return method.eval()


def pair() -> Pair:
    """The rule's images: the support shows a part of the query, and the mask says where."""
    query, support = (
        torch.from_numpy(np.random.RandomState(seed).standard_normal((1, 3, 400, 400)).astype(np.float32))
        for seed in (1, 2)
    )
    support[0, :, 60:260, 100:300] = query[0, :, 120:320, 50:250]
    mask = torch.zeros(400, 400)
    mask[60:260, 100:300] = 1
    return Pair(query, support, mask)
