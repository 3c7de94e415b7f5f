"""PFENet: a training-free prior of where the class may be, and a pyramid that enriches the query's features with it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from emat.backbone.frozen import Backbone
from emat.backbone.resnet import run_layer
from emat.baselines.merging import decision, merge_ways, segmentation_loss
from emat.baselines.pyramid import WIDTH, Pyramid
from emat.baselines.resnet_method import ResNetMethod, mask_at
from emat.method import PAPER_THRESHOLDS, Decision, Features, Losses, LossWeights, Recipe, Thresholds

DILATION_3, DILATION_4 = 2, 4  # of layer3 and layer4, in place of their strides
MIDDLE_FEATURES = 1024 + 512  # layer3's and layer2's
AREA_EPSILON = 0.0005
COSINE_EPSILON = 1e-7


@dataclass(frozen=True)
class Query:
    """A query photo: what the pyramid enriches, and the high-level map that the prior compares."""

    reduced: Tensor  # (256, h, w)
    high: Tensor  # (2048, h, w)


@dataclass(frozen=True)
class Support:
    """A support photo of one class: its mean feature, and its high-level map, zero off the mask."""

    vector: Tensor  # (256,)
    high: Tensor  # (2048, h, w)


@dataclass(frozen=True)
class Shot:
    """What a support says of a query; the pyramid needs all shots of a way."""

    query: Tensor  # (256, h, w)
    vector: Tensor  # (256,)
    prior: Tensor  # (h, w), from 0 to 1


class PFENet(ResNetMethod):
    """A dilated ResNet, so that all maps have one eighth of the photo's resolution; the ResNet is frozen."""

    name = "pfenet"
    recipe = Recipe("sgd", learning_rate=0.0025, momentum=0.9, weight_decay=1e-4)

    def __init__(self, backbone: Backbone, image_size: int | None = None) -> None:
        super().__init__(backbone, image_size)
        self.down_qry = _reduction()
        self.down_spt = _reduction()
        self.learner = Pyramid()

    @torch.no_grad()
    def features(self, pixels: Tensor) -> list[Features]:
        """Layer2's and layer3's maps. Layer4's depend on the mask where the photo is a support: not made here."""
        network = self.backbone
        second = run_layer(network.layer2, run_layer(network.layer1, network.stem(pixels)))
        third = run_layer(network.layer3, second, DILATION_3)
        size = (pixels.shape[2], pixels.shape[3])
        return [Features(maps, size) for maps in zip(second, third, strict=True)]

    @torch.no_grad()
    def encode_query(self, features: Features) -> Query:
        """Reduced middle-level features and layer4's map."""
        return self._query(features)

    @torch.no_grad()
    def encode_support(self, features: Features, mask: Tensor) -> Support:
        """The class's mean feature, and layer4's map of what the mask leaves."""
        return self._support(features, mask)

    @torch.no_grad()
    def compare(self, query: Query, supports: Sequence[Support]) -> list[Shot]:
        """The prior that each support gives."""
        return [Shot(query.reduced, support.vector, prior(query.high, support.high)) for support in supports]

    @torch.no_grad()
    def decide(
        self, evidence: Sequence[Sequence[Shot]], size: tuple[int, int], thresholds: Thresholds = PAPER_THRESHOLDS
    ) -> Decision:
        """Each way on its own, its shots' vectors and priors averaged; then the ways are merged."""
        ways = torch.stack([self.way_scores(shots) for shots in evidence])  # (N, 2, h, w)
        return decision(merge_ways(ways), ways[:, 1].flatten(1).amax(dim=1), size, thresholds.presence)

    def loss(
        self,
        queries: Sequence[Features],
        supports: Sequence[Features],
        support_masks: Sequence[Tensor],
        query_masks: Tensor,
        weights: LossWeights,
    ) -> Losses:
        """The segmentation loss of the pyramid's output."""
        scores = []
        for query_features, support_features, mask in zip(queries, supports, support_masks, strict=True):
            query, support = self._query(query_features), self._support(support_features, mask)
            shot = Shot(query.reduced, support.vector, prior(query.high, support.high))
            scores.append(self.way_scores([shot]))
        return segmentation_loss(torch.stack(scores), query_masks, weights)

    def way_scores(self, shots: Sequence[Shot]) -> Tensor:
        """Log-probabilities (2, h, w) of background and one way, from its shots."""
        vector = torch.stack([shot.vector for shot in shots]).mean(dim=0)
        likely = torch.stack([shot.prior for shot in shots]).mean(dim=0)
        logits: Tensor = self.learner(shots[0].query[None], vector[None], likely[None, None])
        return logits[0].log_softmax(dim=0)

    def _query(self, features: Features) -> Query:
        second, third = self._maps(features)
        return Query(self.down_qry(torch.cat([third, second])[None])[0], self._high(third))

    def _support(self, features: Features, mask: Tensor) -> Support:
        second, third = self._maps(features)
        weight = mask_at(mask, third)  # (h, w)
        reduced = self.down_spt(torch.cat([third, second])[None])[0]
        vector = (reduced * weight).sum(dim=(1, 2)) / (weight.sum() + AREA_EPSILON)
        return Support(vector, self._high(third * weight) * weight)

    def _high(self, third: Tensor) -> Tensor:
        """Layer4's map (2048, h, w) of layer3's (1024, h, w)."""
        return run_layer(self.backbone.layer4, third[None], DILATION_4)[0]


def prior(query: Tensor, support: Tensor) -> Tensor:
    """Each query position's best cosine with a support position, stretched to 0...1: (h, w) from (features, h, w)."""
    q, s = query.flatten(1), support.flatten(1)  # (features, T)
    lengths = s.norm(dim=0)[:, None] * q.norm(dim=0)
    best = (s.T @ q / (lengths + COSINE_EPSILON)).amax(dim=0)
    low, high = best.aminmax()
    return ((best - low) / (high - low + COSINE_EPSILON)).view(query.shape[1:])


def _reduction() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(MIDDLE_FEATURES, WIDTH, 1, bias=False), nn.ReLU(), nn.Dropout2d(0.5))
