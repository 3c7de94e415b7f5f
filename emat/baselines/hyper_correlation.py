"""Hyper-correlations, which HSNet and ASNet read: every bottleneck's map of the query compared with the support's.

A correlation is 4D, (query rows, query columns, support rows, support columns), and 100 MB for layer2 at 400 x 400:
it is made a chunk of query positions at a time, and what follows it is applied to the chunk.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from emat.baselines.merging import decide_by_votes, segmentation_loss
from emat.baselines.resnet_method import ResNetMethod
from emat.device import workspace_bytes
from emat.method import PAPER_THRESHOLDS, Decision, Features, Losses, LossWeights, Thresholds

EPSILON = 1e-5  # added to the length of a feature


@dataclass(frozen=True)
class HyperFeatures:
    """A photo ready to be compared: of layer2, layer3, layer4 every bottleneck's map, each position of length 1."""

    layers: tuple[Tensor, Tensor, Tensor]  # (bottlenecks, features, h, w)
    mask: Tensor | None = None  # (H, W), of a support


class HyperCorrelationMethod(ResNetMethod):
    """A learner that turns one pair's correlations into log-probabilities; the ResNet is frozen."""

    learner: nn.Module  # (query, support) -> logits (1, 2, 2h, 2w) at twice layer2's resolution

    @torch.no_grad()
    def features(self, pixels: Tensor) -> list[Features]:
        """Every bottleneck's map of layer2, layer3 and layer4, before its ReLU: a tensor for each layer."""
        _, *layers = self.backbone.bottlenecks(pixels)
        stacked = [torch.stack(layer, dim=1) for layer in layers]  # (B, bottlenecks, features, h, w)
        size = (pixels.shape[2], pixels.shape[3])
        return [Features(maps, size) for maps in zip(*stacked, strict=True)]

    def encode_query(self, features: Features) -> HyperFeatures:
        """Unit features."""
        second, third, fourth = self._maps(features)
        return HyperFeatures((_unit(second), _unit(third), _unit(fourth)))

    def encode_support(self, features: Features, mask: Tensor) -> HyperFeatures:
        """Unit features of what the method sees of a support."""
        second, third, fourth = (self.seen_of_support(maps, mask) for maps in self._maps(features))
        return HyperFeatures((_unit(second), _unit(third), _unit(fourth)), mask)

    @abstractmethod
    def seen_of_support(self, maps: Tensor, mask: Tensor) -> Tensor:
        """A layer's maps (bottlenecks, features, h, w) of a support photo as this method compares them."""

    @torch.no_grad()
    def compare(self, query: HyperFeatures, supports: Sequence[HyperFeatures]) -> list[Tensor]:
        """Each support's log-probabilities (2, 2h, 2w): no shot or way sees another."""
        return [self.pair_scores(query, support) for support in supports]

    def pair_scores(self, query: HyperFeatures, support: HyperFeatures) -> Tensor:
        """Log-probabilities (2, 2h, 2w) of background and foreground."""
        logits: Tensor = self.learner(query, support)
        return logits[0].float().log_softmax(dim=0)

    def decide(
        self, evidence: Sequence[Sequence[Tensor]], size: tuple[int, int], thresholds: Thresholds = PAPER_THRESHOLDS
    ) -> Decision:
        """Shots vote on presence, their log-probabilities are averaged; then the ways are merged."""
        return decide_by_votes([torch.stack(list(shots)) for shots in evidence], size, thresholds.presence)

    def loss(
        self,
        queries: Sequence[Features],
        supports: Sequence[Features],
        support_masks: Sequence[Tensor],
        query_masks: Tensor,
        weights: LossWeights,
    ) -> Losses:
        """The segmentation loss."""
        encoded = [self.encode_support(*pair) for pair in zip(supports, support_masks, strict=True)]
        pairs = zip(queries, encoded, strict=True)
        scores = torch.stack([self.pair_scores(self.encode_query(query), support) for query, support in pairs])
        return segmentation_loss(scores, query_masks, weights)


def correlate(query: Tensor, support: Tensor) -> Tensor:
    """Cosines, at least 0, of unit features (C, features, n) and (C, features, m): (C, n, m)."""
    return torch.bmm(query.transpose(1, 2), support).clamp_(min=0)


def in_chunks(function: Callable[[Tensor], Tensor], query: Tensor, numbers: int) -> Tensor:
    """`function` of query features (C, features, n), applied to all positions (C, features, Q), a chunk at a time.

    `numbers` is how many a position needs on the way; results (out, n, ...) are put together to (out, Q, ...). With
    gradients, a chunk is made again in backward instead of being kept.
    """
    length = max(1, workspace_bytes(query.device) // (numbers * query.element_size()))
    chunks = query.split(length, dim=2)
    if torch.is_grad_enabled():
        return torch.cat([checkpoint(function, chunk, use_reentrant=False) for chunk in chunks], dim=1)
    return torch.cat([function(chunk) for chunk in chunks], dim=1)


def _unit(maps: Tensor) -> Tensor:
    return maps / (maps.norm(dim=1, keepdim=True) + EPSILON)
