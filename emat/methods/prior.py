"""EMAT with the prototype as a prior: two answers to each shot, a trained and an untrained one, are averaged.

Both compare the same tokens, but they err differently: the prototype knows what a class looks like on average and calls
nearly everything that resembles it foreground; EMAT has learnt which resemblances mean an object. The network is EMAT's
own and is trained by EMAT's loss alone, so every EMAT head can be used with or without the prior.

In logits, with the prototype's counted `PRIOR_WEIGHT` times, one shot says:

    presence = mean(EMAT's presence, prototype's presence)
    mask     = mean(EMAT's mask, prototype's mask)

Then the ways of a task are judged together:

    presence' = presence - RIVALRY * max(0, presence of the likeliest other way - presence)
    mask'     = mask + PRESENCE_SHARE * presence' + ABSENCE_SHARE * min(presence', 0) - MASK_MARGIN

A photo that resembles everything resembles its own class most, so a way that is far behind another one is probably
absent. The terms of the mask take away the masks of classes that are probably absent. Last, a way is scored by what the
others leave of its mask, because there is no evidence of it where another way explains the same pixels better:

    score = sigmoid(presence') * (1 - the largest share of its mask that another likely way takes)

The constants were chosen on 500 2-way tasks of train-list photos, with the classes of PASCAL's folds 1 and 3 and heads
that never saw them (`benchmarks/prior_rule.py` shows what other values give).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from emat.backbone import Backbone
from emat.methods.base import (
    PAPER_THRESHOLDS,
    Decision,
    Features,
    Losses,
    LossWeights,
    TaskEvidence,
    Thresholds,
    TrainingBatch,
)
from emat.methods.correlation import CorrelationMethod, ShotEvidence
from emat.methods.prototype import PrototypePresence, Prototypes, make_prototypes, patch_evidence, prototype_channels
from emat.model import QueryEncoding, SupportEncoding
from emat.model.network import Network

PRIOR_WEIGHT = 1.0
RIVALRY = 0.8
PRESENCE_SHARE, ABSENCE_SHARE, MASK_MARGIN = 0.1, 1.0, 0.2
# EfficientNet-Lite2's last block tells classes apart best (AUC of presence 0.93, all of the prototype's blocks 0.92).
PRESENCE_RULES = {"efficientnet-lite2": PrototypePresence(level=0.21, first_channel=8)}
Logit = TypeVar("Logit", float, Tensor)
LIKELY = 0.5  # scores and probabilities from which a way, and a pixel of its mask, count when masks are compared
LARGEST_LOGIT = 8.0  # of presence: more certainty than this should not decide a mask on its own


@dataclass(frozen=True)
class SupportWithPrior:
    """A support's encoding for the network, and its prototypes."""

    cells: Tensor  # these three as in SupportEncoding
    kept: Tensor
    kept_later: Tensor
    foreground: Tensor | None  # (C, d), these two as in Prototypes
    background: Tensor | None  # (C, d)

    @property
    def encoding(self) -> SupportEncoding:
        """What the network compares."""
        return SupportEncoding(self.cells, self.kept, self.kept_later)

    @property
    def prototypes(self) -> Prototypes:
        """What the prior compares."""
        return Prototypes(self.foreground, self.background)


@dataclass(frozen=True)
class QueryWithPrior:
    """A query's encoding for the network, and its patches as unit vectors in the prior's channels."""

    encoding: QueryEncoding
    patches: Tensor  # (C, h, w, d)


class PriorMethod(CorrelationMethod):
    """EMAT whose answer to each shot is averaged with the prototype's. Heads of `emat` are its heads too."""

    takes_undecided = True
    rules = 1

    def __init__(self, backbone: Backbone, network: Network, image_size: int | None = None) -> None:
        super().__init__(backbone, network, image_size)
        self.name = f"{network.method}-prior"
        assert backbone.spec is not None
        self.prior_channels = prototype_channels(backbone.spec.name)
        self.presence_rule = PRESENCE_RULES.get(backbone.spec.name, PrototypePresence())

    def encode_support(self, features: Features, mask: Tensor) -> SupportWithPrior:  # type: ignore[override]
        """Encode a support for the network, and average its tokens inside and outside of the mask."""
        encoding = super().encode_support(features, mask > 0)
        tokens = self.all_tokens(features)[self.prior_channels]
        found = make_prototypes(tokens, mask, self.backbone.grid(*features.size))
        return SupportWithPrior(encoding.cells, encoding.kept, encoding.kept_later, found.foreground, found.background)

    def encode_query(self, features: Features) -> QueryWithPrior:  # type: ignore[override]
        """Normalise the tokens of the query."""
        tokens = self.all_tokens(features)
        grid = self.backbone.grid(*features.size)
        patches = F.normalize(tokens[self.prior_channels, 1:], dim=-1).unflatten(1, grid)
        return QueryWithPrior(self.network.encode_query(tokens[self.channels], grid), patches)

    def compare(  # type: ignore[override]
        self, query: QueryWithPrior, supports: Sequence[SupportWithPrior]
    ) -> list[ShotEvidence]:
        """Compare with each support on its own."""
        trained = super().compare(query.encoding, [support.encoding for support in supports])
        return [
            self._with_prior(shot, query.patches, support.prototypes)
            for shot, support in zip(trained, supports, strict=True)
        ]

    def _with_prior(self, shot: ShotEvidence, patches: Tensor, prototypes: Prototypes) -> ShotEvidence:
        prior = patch_evidence(patches, prototypes, self.presence_rule)
        size = (shot.masks.shape[1], shot.masks.shape[2])
        upsampled = F.interpolate(prior.logits[None, None], size, mode="bilinear", align_corners=True)[0, 0]
        mask = _mean_logit(shot.masks[1] - shot.masks[0], upsampled)
        presence = None
        if shot.presence is not None:
            presence = _probability(_mean_logit(_logit(shot.presence), _logit(prior.presence)))
        return ShotEvidence(presence, torch.stack([torch.zeros_like(mask), mask]))

    def decide(self, evidence: TaskEvidence, thresholds: Thresholds = PAPER_THRESHOLDS) -> Decision:
        """Judge all ways together, by their presence and by their masks."""
        return self.heed_masks(self.decide_by_way(evidence, thresholds), thresholds)

    def decide_by_way(self, evidence: TaskEvidence, thresholds: Thresholds = PAPER_THRESHOLDS) -> Decision:
        """Judge the presence of all ways together, let it raise or lower their masks, and average over shots."""
        ways = [[shot.presence for shot in shots if shot.presence is not None] for shots in evidence.by_way]
        if all(ways):  # a network that only segments says nothing about presence
            logits = rival_presence([_logit(sum(shots) / len(shots)) for shots in ways])
            judged = zip(evidence.by_way, logits, strict=True)
            evidence = replace(evidence, by_way=[[_judged(shot, logit) for shot in shots] for shots, logit in judged])
        return super().decide(evidence, thresholds)

    def heed_masks(self, decision: Decision, thresholds: Thresholds) -> Decision:
        """Lower the score of a way whose mask is mostly another way's."""
        if decision.scores is None:
            return decision
        scores = scores_by_masks(decision.scores, decision.probabilities)
        return replace(decision, scores=scores, present=tuple(score >= thresholds.presence for score in scores))

    def loss(self, batch: TrainingBatch, weights: LossWeights) -> Losses:
        """Compute EMAT's own loss; the prior has nothing to train."""
        return CorrelationMethod(self.backbone, self.network, self.preparation.image_size).loss(batch, weights)


def rival_presence(logits: Sequence[float]) -> list[float]:
    """Lower the presence logit of each way by how far the likeliest other way is ahead.

    The likeliest way keeps its own, because a class is no likelier for others being absent.

    >>> [round(logit, 1) for logit in rival_presence([2.0, -1.0])]
    [2.0, -3.4]
    >>> rival_presence([0.5])
    [0.5]
    """
    highest = max(logits)
    return [own - RIVALRY * (highest - own) for own in logits]


def scores_by_masks(scores: Sequence[float], probabilities: NDArray[np.float32]) -> tuple[float, ...]:
    """Multiply each score by 1 less the largest share of the way's mask that one other likely way takes.

    Likely ways are those with a score of LIKELY or more, and a mask is where the probability reaches LIKELY, so scores
    do not depend on the thresholds of a user. A way without a mask keeps its score.

    >>> maps = np.array([[[0.9, 0.9, 0.1, 0.1]], [[0.7, 0.7, 0.1, 0.6]]], np.float32)
    >>> [round(score, 2) for score in scores_by_masks([0.9, 0.9], maps)]
    [0.9, 0.3]

    Args:
        scores: Of N ways.
        probabilities: Their maps (N, H, W).
    """
    likely = [way for way, score in enumerate(scores) if score >= LIKELY]
    if len(likely) < 2:
        return tuple(scores)
    winners = probabilities[likely].argmax(axis=0)  # (H, W), indices into `likely`
    found = list(scores)
    for index, way in enumerate(likely):
        inside = probabilities[way] >= LIKELY
        pixels = np.bincount(winners[inside], minlength=len(likely))  # of this way's mask, by the way that takes them
        found[way] *= 1 - float(np.delete(pixels, index).max()) / max(int(pixels.sum()), 1)
    return tuple(found)


def _judged(shot: ShotEvidence, presence: float) -> ShotEvidence:
    """The shot with the presence of its way, a logit, in place of its own, and a mask that heeds it."""
    change = PRESENCE_SHARE * presence + ABSENCE_SHARE * min(presence, 0.0) - MASK_MARGIN
    return ShotEvidence(_probability(presence), torch.stack([shot.masks[0], shot.masks[1] + change]))


def _mean_logit(trained: Logit, prior: Logit) -> Logit:
    return (trained + PRIOR_WEIGHT * prior) / (1 + PRIOR_WEIGHT)


def _probability(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


def _logit(probability: float) -> float:
    """The logit of a probability, within LARGEST_LOGIT of 0."""
    if probability <= 0 or probability >= 1:
        return math.copysign(LARGEST_LOGIT, probability - 0.5)
    return max(-LARGEST_LOGIT, min(LARGEST_LOGIT, math.log(probability / (1 - probability))))
