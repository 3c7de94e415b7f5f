"""EMAT and CST as few-shot methods: a frozen backbone's tokens, the network, the paper's way to join shots and ways."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from emat.backbone import Backbone
from emat.errors import EmatError
from emat.method import PAPER_THRESHOLDS, Decision, Features, Losses, LossWeights, Method, Preparation, Thresholds
from emat.model.checkpoint import load_public
from emat.model.correlation import QueryEncoding, SupportEncoding
from emat.model.network import Network


@dataclass(frozen=True)
class ShotEvidence:
    """One shot's word on a query: the probability that its class is there, and mask logits at the query's grid."""

    presence: float | None
    masks: Tensor  # (2, 2h, 2w)


class CorrelationMethod(Method):
    """Tokens compared by cosine and a network of the family on top. The backbone is frozen, the network is trained."""

    def __init__(self, backbone: Backbone, network: Network, image_size: int | None = None) -> None:
        super().__init__()
        if backbone.channels != network.channels:
            raise EmatError(
                f"this {network.method} head was trained for {network.channels} channels, the backbone gives "
                f"{backbone.channels}; use the backbone it was trained with"
            )
        self.backbone, self.network, self.name = backbone, network, network.method
        spec = backbone.spec
        if spec is None:
            raise EmatError("a method needs a backbone from the registry, which knows how photos are prepared for it")
        self.preparation = Preparation(image_size or spec.image_size, spec.mean, spec.std)

    def features(self, pixels: Tensor) -> list[Features]:
        """The backbone's tokens (C, 1 + T, d) of each image."""
        size = (pixels.shape[2], pixels.shape[3])
        return [Features((tokens,), size) for tokens in self.backbone(pixels)]

    def feature_weights(self) -> Mapping[str, Tensor]:
        """The backbone's."""
        return self.backbone.state_dict()

    def trained_weights(self) -> dict[str, Tensor]:
        """The network's, under the names of published checkpoints."""
        return self.network.state_dict()

    def load_trained_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Give the network its weights."""
        load_public(self.network, tensors)

    def encode_query(self, features: Features) -> QueryEncoding:
        """Unit tokens of the query."""
        return self.network.encode_query(features.tensors[0], self.backbone.grid(*features.size))

    def encode_support(self, features: Features, mask: Tensor) -> SupportEncoding:
        """Unit tokens of the support, and which of them the mask keeps."""
        return self.network.encode_support(features.tensors[0], mask, self.backbone.grid(*features.size))

    @torch.no_grad()
    def compare(self, query: QueryEncoding, supports: Sequence[SupportEncoding]) -> list[ShotEvidence]:
        """Each support on its own: no shot or way sees another."""
        evidence = []
        for support in supports:  # one at a time: a result never depends on what it was computed beside
            out = self.network.compare(query, [support])
            presence = None if out.presence is None else float(out.presence.float().softmax(dim=1)[0, 1])
            evidence.append(ShotEvidence(presence, out.masks[0].float()))
        return evidence

    def decide(
        self,
        evidence: Sequence[Sequence[ShotEvidence]],
        size: tuple[int, int],
        thresholds: Thresholds = PAPER_THRESHOLDS,
    ) -> Decision:
        """Probabilities are averaged over a way's shots; a pixel goes to the likeliest way if that is likely enough."""
        probabilities = torch.stack([_way_probability(shots, size) for shots in evidence])  # (N, H, W)
        label_map = _likeliest(probabilities, thresholds.mask)
        scores = None
        if all(shot.presence is not None for shots in evidence for shot in shots):
            scores = tuple(float(np.mean([shot.presence for shot in shots])) for shots in evidence)
        return Decision(
            scores=scores,
            present=None if scores is None else tuple(score >= thresholds.presence for score in scores),
            probabilities=probabilities.cpu().numpy(),
            label_map=label_map.cpu().numpy(),
        )

    def loss(
        self,
        queries: Sequence[Features],
        supports: Sequence[Features],
        support_masks: Sequence[Tensor],
        query_masks: Tensor,
        weights: LossWeights,
    ) -> Losses:
        """Two negative log-likelihoods; masks are compared at the resolution of `query_masks`."""
        encoded = [self.encode_support(*pair) for pair in zip(supports, support_masks, strict=True)]
        out = self.network.pairs([self.encode_query(query) for query in queries], encoded)
        logits = F.interpolate(out.masks, query_masks.shape[1:], mode="bilinear", align_corners=True)
        balance = logits.new_tensor([1.0, weights.foreground])
        masks = F.cross_entropy(logits, query_masks.long(), balance)
        if out.presence is None:
            return Losses(masks, None, masks)
        presence = F.cross_entropy(out.presence, query_masks.flatten(1).any(dim=1).long())
        return Losses(weights.presence * presence + masks, presence, masks)


def _likeliest(probabilities: Tensor, threshold: float) -> Tensor:
    """Ways (N, H, W) -> (H, W) of uint8: the likeliest one counted from 1, 0 where even that is below the threshold.

    Of equals the first. On a CPU this takes a sixth of the time of a maximum with its indices.
    """
    best = probabilities[0]
    label_map = torch.ones_like(best, dtype=torch.uint8)
    for way, probability in enumerate(probabilities[1:], start=2):
        label_map = torch.maximum(label_map, (probability > best).to(torch.uint8) * way)
        best = torch.maximum(best, probability)
    return label_map * (best >= threshold).to(torch.uint8)


def _way_probability(shots: Sequence[ShotEvidence], size: tuple[int, int]) -> Tensor:
    """(H, W): the shots' foreground probabilities at full size, averaged."""
    logits = torch.stack([shot.masks for shot in shots])  # (K, 2, 2h, 2w)
    full = F.interpolate(logits, size, mode="bilinear", align_corners=True)
    # Of two logits the softmax is a sigmoid of their difference, for half the memory.
    return torch.sigmoid(full[:, 1] - full[:, 0]).mean(dim=0)
