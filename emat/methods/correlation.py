"""EMAT and CST as few-shot methods: the tokens of a frozen backbone, the network, and the paper's rule for K shots.

The probabilities of a way's shots are averaged; every pixel goes to the likeliest way (`emat.methods.label_map`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from emat.backbone import Backbone
from emat.errors import EmatError
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
from emat.model import load_public
from emat.model.encoding import QueryEncoding, SupportEncoding
from emat.model.network import Network, Shape


@dataclass(frozen=True)
class ShotEvidence:
    """What one shot says about a query: the probability that its class is present, and mask logits."""

    presence: float | None
    masks: Tensor  # (2, 2h, 2w) for a query grid of (h, w): background, foreground


class CorrelationMethod(Method):
    """A trained network on the cosines of a frozen backbone's tokens: EMAT, CST and their ablations.

    Args:
        backbone: A backbone from the registry.
        network: What `emat.model.build` returned, with as many channels as its shape takes of the backbone's.
        image_size: Side of the square that photos are resized to; by default the backbone's.

    Raises:
        EmatError: If backbone and network do not fit.
    """

    def __init__(self, backbone: Backbone, network: Network, image_size: int | None = None) -> None:
        super().__init__()
        self.channels = channel_slice(network.shape, backbone.channels)
        given = self.channels.stop - self.channels.start
        if given != network.channels:
            raise EmatError(
                f"this {network.method} head was trained for {network.channels} channels, the backbone gives "
                f"{given}; use the backbone it was trained with"
            )
        self.backbone, self.network, self.name = backbone, network, network.method
        self.shape = network.shape
        spec = backbone.spec
        if spec is None:
            raise EmatError("a method needs a backbone from the registry, which knows how photos are prepared for it")
        self.preparation = Preparation(image_size or spec.image_size, spec.mean, spec.std)

    def features(self, pixels: Tensor) -> list[Features]:
        """Compute what the backbone keeps of each photo; its tokens are made from that when they are needed."""
        size = (pixels.shape[2], pixels.shape[3])
        maps = self.backbone.maps(pixels)
        # As caches keep them: another layout in memory changes the last digits of what follows.
        return [Features(tuple(each[index].contiguous() for each in maps), size) for index in range(len(pixels))]

    def mirror(self, features: Features) -> Features:
        """Mirror the features of a photo from left to right."""
        maps = self.backbone.mirror([tensor[None] for tensor in features.tensors], features.size)
        return Features(tuple(each[0] for each in maps), features.size)

    def all_tokens(self, features: Features) -> Tensor:
        """Return the tokens (C, 1 + T, d) of all the backbone's channels."""
        dtype = next(self.network.parameters()).dtype  # a cache may keep features in half precision
        maps = [tensor[None].to(dtype) for tensor in features.tensors]
        return self.backbone.tokens_from(maps, features.size)[0]

    def tokens(self, features: Features) -> Tensor:
        """Return the tokens (C, 1 + T, d) that the network compares."""
        return self.all_tokens(features)[self.channels]

    def feature_weights(self) -> Mapping[str, Tensor]:
        """Return the weights of the backbone."""
        return self.backbone.state_dict()

    def trained_weights(self) -> dict[str, Tensor]:
        """Return the weights of the network, under the names of public checkpoints."""
        return self.network.state_dict()

    def load_trained_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the weights of the network; EmatError says what does not fit."""
        load_public(self.network, tensors)

    def encode_query(self, features: Features) -> QueryEncoding:
        """Normalise the tokens of the query."""
        return self.network.encode_query(self.tokens(features), self.backbone.grid(*features.size))

    def encode_support(self, features: Features, mask: Tensor) -> SupportEncoding:
        """Normalise the tokens of the support, and find which of them the mask keeps."""
        return self.network.encode_support(self.tokens(features), mask, self.backbone.grid(*features.size))

    @torch.no_grad()
    def compare(self, query: QueryEncoding, supports: Sequence[SupportEncoding]) -> list[ShotEvidence]:
        """Run the network for each support on its own."""
        evidence = []
        for support in supports:  # one at a time, so that a result never depends on the other supports
            out = self.network.compare(query, [support])
            presence = None if out.presence is None else float(out.presence.float().softmax(dim=1)[0, 1])
            evidence.append(ShotEvidence(presence, out.masks[0].float()))
        return evidence

    def decide(self, evidence: TaskEvidence, thresholds: Thresholds = PAPER_THRESHOLDS) -> Decision:
        """Average the probabilities over each way's shots."""
        probabilities = torch.stack([_way_probability(shots, evidence.size) for shots in evidence.by_way])  # (N, H, W)
        scores = None
        if all(shot.presence is not None for shots in evidence.by_way for shot in shots):
            scores = [float(np.mean([shot.presence for shot in shots])) for shots in evidence.by_way]
        return Decision.of(scores, probabilities, thresholds)

    def loss(self, batch: TrainingBatch, weights: LossWeights) -> Losses:
        """Compute the cross entropies of presence and masks; masks are compared at the size of the query masks."""
        supports = [self.encode_support(support, mask) for _, support, mask in batch.tasks()]
        out = self.network.pairs([self.encode_query(query) for query in batch.queries], supports)
        logits = F.interpolate(out.masks, batch.query_masks.shape[1:], mode="bilinear", align_corners=True)
        balance = logits.new_tensor([1.0, weights.foreground])
        masks = F.cross_entropy(logits, batch.query_masks.long(), balance)
        if out.presence is None:
            return Losses(masks, None, masks)
        presence = F.cross_entropy(out.presence, batch.query_masks.flatten(1).any(dim=1).long())
        return Losses(weights.presence * presence + masks, presence, masks)


def channel_slice(shape: Shape, channels: int) -> slice:
    """Return which of a backbone's correlation channels a network of `shape` compares.

    Raises:
        EmatError: If the backbone does not have these channels.
    """
    first, end = shape.channels or (0, channels)
    if not 0 <= first < end <= channels:
        raise EmatError(f"channels {first} to {end - 1} are not among the backbone's 0 to {channels - 1}")
    return slice(first, end)


def _way_probability(shots: Sequence[ShotEvidence], size: tuple[int, int]) -> Tensor:
    """The mean of the shots' foreground probabilities at full size, (H, W)."""
    logits = torch.stack([shot.masks for shot in shots])  # (K, 2, 2h, 2w)
    full = F.interpolate(logits, size, mode="bilinear", align_corners=True)
    # The softmax of two logits is the sigmoid of their difference, which takes half the memory.
    return torch.sigmoid(full[:, 1] - full[:, 0]).mean(dim=0)
