"""PANet: every class is its mean feature, and every pixel goes to the nearest one. It trains the backbone itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from emat.backbone.base import Backbone
from emat.methods.base import (
    PAPER_THRESHOLDS,
    Decision,
    Features,
    Losses,
    LossWeights,
    Recipe,
    TaskEvidence,
    Thresholds,
    TrainingBatch,
)
from emat.methods.resnet_base import LAYER_FEATURES, ResNetMethod, decision, mask_at, segmentation_loss

SCALE = 20.0  # factor of the cosines before the softmax
EPSILON = 1e-6  # added to the number of positions


@dataclass(frozen=True)
class FeatureSums:
    """Sums of a support's features inside and outside its mask, and how many positions were summed."""

    foreground: Tensor  # (features,)
    foreground_count: Tensor  # ()
    background: Tensor
    background_count: Tensor


@dataclass(frozen=True)
class PANetPair:
    """A query and one of its supports; prototypes need all shots, and the softmax needs all ways."""

    query: Tensor  # (features, h, w)
    support: FeatureSums


class PANet(ResNetMethod[Tensor, FeatureSums, PANetPair]):
    """PANet (Wang et al., ICCV 2019). Prototypes come from the last bottleneck; one softmax covers all ways.

    It trains the backbone itself, so features change with every step: it keeps the pixels of a photo instead. The
    backbone's batch statistics do not change.
    """

    name = "panet"
    support_type = FeatureSums
    recipe = Recipe("sgd", learning_rate=1e-3, momentum=0.9, weight_decay=5e-4, trains_backbone=True)

    def __init__(self, backbone: Backbone, image_size: int | None = None) -> None:
        super().__init__(backbone, image_size)
        self.backbone.requires_grad_(True)

    def features(self, pixels: Tensor) -> list[Features]:
        """Keep the pixels themselves."""
        return [Features((photo,), (pixels.shape[2], pixels.shape[3])) for photo in pixels]

    def feature_weights(self) -> Mapping[str, Tensor]:
        """Return nothing: pixels do not depend on weights."""
        return {}

    @torch.no_grad()
    def encode_query(self, features: Features) -> Tensor:
        """Compute the last bottleneck's map."""
        return self._last_maps([features])[0]

    def support_lengths(self) -> dict[str, int]:
        """Return the features of the last layer."""
        return {"f": LAYER_FEATURES[-1]}

    @torch.no_grad()
    def encode_support(self, features: Features, mask: Tensor) -> FeatureSums:
        """Sum the features over the positions that the resized mask touches, and over the others."""
        return sums_of(self._last_maps([features])[0], mask)

    def compare(self, query: Tensor, supports: Sequence[FeatureSums]) -> list[PANetPair]:
        """Return the pairs; `decide` compares them, because it knows all shots and ways."""
        return [PANetPair(query, support) for support in supports]

    @torch.no_grad()
    def decide(self, evidence: TaskEvidence[PANetPair], thresholds: Thresholds = PAPER_THRESHOLDS) -> Decision:
        """Assign each pixel to the nearest prototype; a way is present if any pixel reaches the threshold."""
        ways = [[pair.support for pair in shots] for shots in evidence.by_way]
        scores = prototype_scores(evidence.by_way[0][0].query, ways)
        return decision(scores, scores[1:].flatten(1).amax(dim=1), evidence.size, thresholds.presence)

    def loss(self, batch: TrainingBatch, weights: LossWeights) -> Losses:
        """Compute the segmentation loss, with gradients for the backbone."""
        maps = self._last_maps([*batch.queries, *batch.supports])
        query_maps, support_maps = maps.split([len(batch.queries), len(batch.supports)])
        scores = [
            prototype_scores(query, [[sums_of(support, mask)]])
            for query, support, mask in zip(query_maps, support_maps, batch.support_masks, strict=True)
        ]
        return segmentation_loss(torch.stack(scores), batch.query_masks, weights)

    def _last_maps(self, photos: Sequence[Features]) -> Tensor:
        """The last bottleneck's maps (photos, features, h, w), before the ReLU."""
        return self.backbone.bottlenecks(torch.stack([self._maps(photo)[0] for photo in photos]))[-1][-1]


def sums_of(support: Tensor, mask: Tensor) -> FeatureSums:
    """Sum a support's map (features, h, w) inside its mask (H, W) and outside."""
    inside = (mask_at(mask, support) > 0).to(support)
    outside = 1 - inside
    return FeatureSums(
        (support * inside).sum(dim=(1, 2)), inside.sum(), (support * outside).sum(dim=(1, 2)), outside.sum()
    )


def prototype_scores(query: Tensor, ways: Sequence[Sequence[FeatureSums]]) -> Tensor:
    """Compute log-probabilities (1 + N, h, w) of background and N ways at each position of the query's map."""
    everything = [shot for shots in ways for shot in shots]
    prototypes = [_mean([shot.background for shot in everything], [shot.background_count for shot in everything])]
    for shots in ways:
        prototypes.append(_mean([shot.foreground for shot in shots], [shot.foreground_count for shot in shots]))
    cosines = [F.cosine_similarity(query, prototype[:, None, None], dim=0) for prototype in prototypes]
    return (SCALE * torch.stack(cosines)).log_softmax(dim=0)


def _mean(sums: Sequence[Tensor], counts: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(sums)).sum(dim=0) / (torch.stack(list(counts)).sum() + EPSILON)
