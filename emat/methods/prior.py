"""EMAT with the prototype as a prior: the two answers of a shot, one trained and one not, are averaged.

Both compare the same tokens, but they err differently: the prototype knows what a class looks like on average and calls
nearly everything that resembles it foreground; EMAT has learnt which resemblances mean an object. The network is EMAT's
own and is trained by EMAT's loss alone, so every EMAT head can be used with or without the prior.

In logits, with the prototype's counted `PRIOR_WEIGHT` times:

    presence = mean(EMAT's presence, prototype's presence)
    mask     = mean(EMAT's mask, prototype's mask) + PRESENCE_SHARE * presence

The last term lowers the masks of a class that is probably absent and raises those of one that is there. Both constants
were chosen on train-list photos of PASCAL's classes 6 to 10 with a head that never saw these classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from emat.backbone import Backbone
from emat.methods.base import Features
from emat.methods.correlation import CorrelationMethod, ShotEvidence
from emat.methods.prototype import PrototypePresence, Prototypes, make_prototypes, patch_evidence, prototype_channels
from emat.model import QueryEncoding, SupportEncoding
from emat.model.network import Network

PRIOR_WEIGHT = 1.0
PRESENCE_SHARE = 0.2
# EfficientNet-Lite2's last block tells classes apart best (AUC of presence 0.93, all of the prototype's blocks 0.92).
PRESENCE_RULES = {"efficientnet-lite2": PrototypePresence(level=0.21, first_channel=8)}
Logit = TypeVar("Logit", float, Tensor)
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

    def __init__(self, backbone: Backbone, network: Network, image_size: int | None = None) -> None:
        super().__init__(backbone, network, image_size)
        self.name = f"{network.method}-prior"
        assert backbone.spec is not None
        self._prior_channels = prototype_channels(backbone.spec.name)
        self._presence_rule = PRESENCE_RULES.get(backbone.spec.name, PrototypePresence())

    def encode_support(self, features: Features, mask: Tensor) -> SupportWithPrior:  # type: ignore[override]
        """Encode a support for the network, and average its tokens inside and outside of the mask."""
        encoding = super().encode_support(features, mask)
        tokens = self.all_tokens(features)[self._prior_channels]
        found = make_prototypes(tokens, mask, self.backbone.grid(*features.size))
        return SupportWithPrior(encoding.cells, encoding.kept, encoding.kept_later, found.foreground, found.background)

    def encode_query(self, features: Features) -> QueryWithPrior:  # type: ignore[override]
        """Normalise the tokens of the query."""
        tokens = self.all_tokens(features)
        grid = self.backbone.grid(*features.size)
        patches = F.normalize(tokens[self._prior_channels, 1:], dim=-1).unflatten(1, grid)
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
        prior = patch_evidence(patches, prototypes, self._presence_rule)
        size = (shot.masks.shape[1], shot.masks.shape[2])
        upsampled = F.interpolate(prior.logits[None, None], size, mode="bilinear", align_corners=True)[0, 0]
        mask = _mean_logit(shot.masks[1] - shot.masks[0], upsampled)
        presence = None
        if shot.presence is not None:
            logit = _mean_logit(_logit(shot.presence), _logit(prior.presence))
            mask = mask + PRESENCE_SHARE * logit
            presence = 1 / (1 + math.exp(-logit))
        return ShotEvidence(presence, torch.stack([torch.zeros_like(mask), mask]))


def _mean_logit(trained: Logit, prior: Logit) -> Logit:
    return (trained + PRIOR_WEIGHT * prior) / (1 + PRIOR_WEIGHT)


def _logit(probability: float) -> float:
    """The logit of a probability, within LARGEST_LOGIT of 0."""
    if probability <= 0 or probability >= 1:
        return math.copysign(LARGEST_LOGIT, probability - 0.5)
    return max(-LARGEST_LOGIT, min(LARGEST_LOGIT, math.log(probability / (1 - probability))))
