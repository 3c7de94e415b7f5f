"""A method whose answers can be told beforehand: a class is a colour. Everything around it is the real thing."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emat.methods.base import (
    PAPER_THRESHOLDS,
    Decision,
    Features,
    Losses,
    LossWeights,
    Method,
    Preparation,
    TaskEvidence,
    Thresholds,
    TrainingBatch,
)


@dataclass(frozen=True)
class Colour:
    value: Tensor  # (3,)


class ColourMethod(Method):
    """A pixel belongs to a class as much as its colour is like the mean colour under the mask."""

    name = "colour"

    def __init__(self, image_size: int = 32) -> None:
        super().__init__()
        self.preparation = Preparation(image_size, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
        self.sharpness = nn.Parameter(torch.tensor(2.0), requires_grad=False)
        self.encoded = 0  # photos that went through `features`

    def features(self, pixels: Tensor) -> list[Features]:
        self.encoded += len(pixels)
        return [Features((image,), (image.shape[1], image.shape[2])) for image in pixels]

    def encode_query(self, features: Features) -> Tensor:
        return features.tensors[0]  # (3, S, S)

    def encode_support(self, features: Features, mask: Tensor) -> Colour:
        image = features.tensors[0]
        inside = F.interpolate(mask[None, None].float(), image.shape[1:], mode="area")[0, 0]
        return Colour((image * inside).sum(dim=(1, 2)) / inside.sum())

    def compare(self, query: Tensor, supports: Sequence[Colour]) -> list[Tensor]:
        distances = [(query - support.value[:, None, None]).abs().amax(dim=0) for support in supports]
        return [(1 - self.sharpness * distance).clamp(0, 1) for distance in distances]

    def decide(self, evidence: TaskEvidence, thresholds: Thresholds = PAPER_THRESHOLDS) -> Decision:
        ways = torch.stack([torch.stack(list(shots)).mean(dim=0) for shots in evidence.by_way])
        full = F.interpolate(ways[None], evidence.size, mode="nearest")[0]
        return Decision.of([float(way.max()) for way in ways], full, thresholds)

    def loss(self, batch: TrainingBatch, weights: LossWeights) -> Losses:
        raise NotImplementedError("colours are known, not learned")
