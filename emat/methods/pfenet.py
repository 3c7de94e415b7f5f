"""PFENet: an untrained prior of where the class may be, and a pyramid that enriches the query's features with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emat.backbone.base import Backbone
from emat.backbone.resnet import run_layer
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
from emat.methods.resnet_base import LAYER_FEATURES, ResNetMethod, decision, mask_at, merge_ways, segmentation_loss

DILATION_3, DILATION_4 = 2, 4  # of layer3 and layer4, which have no stride here
STRIDE = 8  # of all maps
MIDDLE_FEATURES = 1024 + 512  # of layer3 and layer2
AREA_EPSILON = 0.0005
COSINE_EPSILON = 1e-7
WIDTH = 256
BINS = (1.0, 0.5, 0.26, 0.14)  # sides of the four resolutions: 50, 25, 13, 7 of 50 x 50


@dataclass(frozen=True)
class PFENetQuery:
    """A query photo: the map that the pyramid enriches, and the high-level map that the prior compares."""

    reduced: Tensor  # (256, h, w)
    high: Tensor  # (2048, h, w)


@dataclass(frozen=True)
class PFENetSupport:
    """A support photo of one class: its mean feature, and its high-level map, which is zero outside the mask."""

    vector: Tensor  # (256,)
    high: Tensor  # (2048, h, w)


@dataclass(frozen=True)
class PFENetShot:
    """The evidence of one support on a query; the pyramid then needs all shots of a way together."""

    query: Tensor  # (256, h, w)
    vector: Tensor  # (256,)
    prior: Tensor  # (h, w), from 0 to 1


class PFENet(ResNetMethod[PFENetQuery, PFENetSupport, PFENetShot]):
    """PFENet (Tian et al., TPAMI 2020). The frozen ResNet is dilated: all maps have 1/8 of the resolution."""

    name = "pfenet"
    support_type = PFENetSupport
    recipe = Recipe("sgd", learning_rate=0.0025, momentum=0.9, weight_decay=1e-4)

    def __init__(self, backbone: Backbone, image_size: int | None = None) -> None:
        super().__init__(backbone, image_size)
        self.down_qry = _reduction()
        self.down_spt = _reduction()
        self.learner = Pyramid()

    @torch.no_grad()
    def features(self, pixels: Tensor) -> list[Features]:
        """Keep the maps of layer2 and layer3. Layer4 depends on the mask of a support, so it is computed later."""
        network = self.backbone
        second = run_layer(network.layer2, run_layer(network.layer1, network.stem(pixels)))
        third = run_layer(network.layer3, second, DILATION_3)
        size = (pixels.shape[2], pixels.shape[3])
        return [Features(maps, size) for maps in zip(second, third, strict=True)]

    @torch.no_grad()
    def encode_query(self, features: Features) -> PFENetQuery:
        """Compute reduced middle-level features and layer4's map."""
        return self._query(features)

    def support_lengths(self) -> dict[str, int]:
        """Return the width of the mean feature, and features and sides of layer4's map."""
        side = -(-self.preparation.image_size // STRIDE)
        return {"v": WIDTH, "u": LAYER_FEATURES[-1], "h": side, "w": side}

    @torch.no_grad()
    def encode_support(self, features: Features, mask: Tensor) -> PFENetSupport:
        """Compute the mean feature of the class, and layer4's map of what the mask covers."""
        return self._support(features, mask)

    @torch.no_grad()
    def compare(self, query: PFENetQuery, supports: Sequence[PFENetSupport]) -> list[PFENetShot]:
        """Compute the prior of each support."""
        return [PFENetShot(query.reduced, support.vector, prior(query.high, support.high)) for support in supports]

    @torch.no_grad()
    def decide(self, evidence: TaskEvidence[PFENetShot], thresholds: Thresholds = PAPER_THRESHOLDS) -> Decision:
        """Average the vectors and priors of each way's shots, run the pyramid for each way, then merge the ways."""
        ways = torch.stack([self.way_scores(shots) for shots in evidence.by_way])  # (N, 2, h, w)
        return decision(merge_ways(ways), ways[:, 1].flatten(1).amax(dim=1), evidence.size, thresholds.presence)

    def loss(self, batch: TrainingBatch, weights: LossWeights) -> Losses:
        """Compute the segmentation loss of the pyramid's output."""
        scores = []
        for query_features, support_features, mask in batch.tasks():
            query, support = self._query(query_features), self._support(support_features, mask)
            shot = PFENetShot(query.reduced, support.vector, prior(query.high, support.high))
            scores.append(self.way_scores([shot]))
        return segmentation_loss(torch.stack(scores), batch.query_masks, weights)

    def way_scores(self, shots: Sequence[PFENetShot]) -> Tensor:
        """Compute the log-probabilities (2, h, w) of background and one way from its shots."""
        vector = torch.stack([shot.vector for shot in shots]).mean(dim=0)
        likely = torch.stack([shot.prior for shot in shots]).mean(dim=0)
        logits: Tensor = self.learner(shots[0].query[None], vector[None], likely[None, None])
        return logits[0].log_softmax(dim=0)

    def _query(self, features: Features) -> PFENetQuery:
        second, third = self._maps(features)
        return PFENetQuery(self.down_qry(torch.cat([third, second])[None])[0], self._high(third))

    def _support(self, features: Features, mask: Tensor) -> PFENetSupport:
        second, third = self._maps(features)
        weight = mask_at(mask, third)  # (h, w)
        reduced = self.down_spt(torch.cat([third, second])[None])[0]
        vector = (reduced * weight).sum(dim=(1, 2)) / (weight.sum() + AREA_EPSILON)
        return PFENetSupport(vector, self._high(third * weight) * weight)

    def _high(self, third: Tensor) -> Tensor:
        """Layer4's map (2048, h, w) of layer3's (1024, h, w)."""
        return run_layer(self.backbone.layer4, third[None], DILATION_4)[0]


def prior(query: Tensor, support: Tensor) -> Tensor:
    """Scale each query position's best cosine with the support to 0...1: (features, h, w) -> (h, w)."""
    q, s = query.flatten(1), support.flatten(1)  # (features, T)
    lengths = s.norm(dim=0)[:, None] * q.norm(dim=0)
    best = (s.T @ q / (lengths + COSINE_EPSILON)).amax(dim=0)
    low, high = best.aminmax()
    return ((best - low) / (high - low + COSINE_EPSILON)).view(query.shape[1:])


def _reduction() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(MIDDLE_FEATURES, WIDTH, 1, bias=False), nn.ReLU(), nn.Dropout2d(0.5))


class Pyramid(nn.Module):
    """Feature enrichment: query, support vector and prior are joined at four resolutions, from fine to coarse.

    Attributes have the names of public checkpoints. `inner_cls` classified every resolution on its own in the
    original training; neither the output nor the loss used here depends on it, but checkpoints hold it.
    """

    def __init__(self) -> None:
        super().__init__()
        count = len(BINS)
        self.init_merge = nn.ModuleList(_pointwise(2 * WIDTH + 1) for _ in range(count))
        self.beta_conv = nn.ModuleList(_two_3x3() for _ in range(count))
        self.inner_cls = nn.ModuleList(_classifier() for _ in range(count))
        self.res1 = _pointwise(count * WIDTH)
        self.res2 = _two_3x3()
        self.alpha_conv = nn.ModuleList(_pointwise(2 * WIDTH) for _ in range(count - 1))
        self.cls = _classifier()

    def forward(self, query: Tensor, vector: Tensor, prior: Tensor) -> Tensor:
        """Query (B, 256, h, w), support vector (B, 256), prior (B, 1, h, w) -> logits (B, 2, h, w)."""
        size = query.shape[2:]
        levels: list[Tensor] = []
        for index, bin_size in enumerate(_bins(size)):
            inputs = (
                F.adaptive_avg_pool2d(query, bin_size),
                vector[:, :, None, None].expand(-1, -1, *bin_size),
                _resize(prior, bin_size),
            )
            x = self.init_merge[index](torch.cat(inputs, dim=1))
            if index:  # add the result of the finer level
                x = x + self.alpha_conv[index - 1](torch.cat([x, _resize(levels[-1], bin_size)], dim=1))
            x = x + self.beta_conv[index](x)
            levels.append(_resize(x, size))
        x = self.res1(torch.cat(levels, dim=1))
        return cast(Tensor, self.cls(x + self.res2(x)))


def _bins(size: Sequence[int]) -> list[tuple[int, int]]:
    rows, columns = size
    return [(max(1, round(rows * share)), max(1, round(columns * share))) for share in BINS]


def _resize(x: Tensor, size: Sequence[int]) -> Tensor:
    return F.interpolate(x, tuple(size), mode="bilinear", align_corners=True)


def _pointwise(features: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(features, WIDTH, 1, bias=False), nn.ReLU())


def _two_3x3() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False),
        nn.ReLU(),
    )


def _classifier() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False), nn.ReLU(), nn.Dropout2d(0.1), nn.Conv2d(WIDTH, 2, 1)
    )
