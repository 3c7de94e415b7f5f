"""A ResNet of four bottlenecks, and tasks on random photos: small enough for a training step in a test."""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from emat.backbone.registry import find_backbone
from emat.backbone.resnet import ResNet
from emat.methods.asnet import SMALLEST_IMAGE, ASNet
from emat.methods.base import Features, LossWeights, TrainingBatch
from emat.methods.hsnet import HSNet
from emat.methods.panet import PANet
from emat.methods.pfenet import PFENet
from emat.methods.resnet_base import ResNetMethod

KINDS: dict[str, type[ResNetMethod]] = {kind.name: kind for kind in (PANet, PFENet, HSNet, ASNet)}


def tiny_method(name: str) -> ResNetMethod:
    """The method with random weights, in evaluation mode, for photos of its smallest useful size."""
    torch.manual_seed(0)
    spec = replace(find_backbone("resnet50"), make=partial(ResNet, (1, 1, 1, 1)))
    return KINDS[name](spec.build(), SMALLEST_IMAGE if name == "asnet" else 64).eval()


@dataclass(frozen=True)
class Tasks:
    """Two 1-way 1-shot tasks."""

    queries: list[Features]
    supports: list[Features]
    support_masks: list[Tensor]
    query_masks: Tensor

    def loss(self, method: ResNetMethod, *which: int) -> Tensor:
        """The training loss of the tasks numbered `which`."""
        queries, supports = ([part[index] for index in which] for part in (self.queries, self.supports))
        masks = [self.support_masks[index] for index in which]
        return method.loss(TrainingBatch(queries, supports, masks, self.query_masks[list(which)]), LossWeights()).total


def tasks_for(method: ResNetMethod) -> Tasks:
    """A part of every query at its left is the class that the support shows in its upper half."""
    generator = torch.Generator().manual_seed(1)
    side = method.preparation.image_size
    features = method.features(torch.randn(4, 3, side, side, generator=generator))
    support_mask, query_masks = torch.zeros(side, side), torch.zeros(2, 32, 32)
    support_mask[: side // 2] = 1
    query_masks[0, :, :16] = 1
    query_masks[1, :, :8] = 1
    return Tasks(features[:2], features[2:], [support_mask] * 2, query_masks)
