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

Some photos resemble every class, and their own class most. So a way whose presence is far below that of another way is
probably absent. The added terms of the mask remove the masks of ways that are probably absent. Finally, the score of a
way is lowered by the share of its mask that another way explains better, because those pixels are no evidence of it:

    score = sigmoid(presence') * (1 - the largest share of its mask that another likely way takes)

The constants were chosen on 500 2-way tasks of train-list photos, with the classes of PASCAL's folds 1 and 3 and heads
that never saw them (`benchmarks/prior_rule.py` shows what other values give).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from emat.backbone import Backbone
from emat.methods.base import PAPER_THRESHOLDS, Decision, Features, TaskEvidence, Thresholds
from emat.methods.correlation import CorrelationMethod, ShotEvidence
from emat.methods.prototype import PrototypePresence, Prototypes, make_prototypes, patch_evidence, unit_patches
from emat.methods.training_free import PatchEvidence, class_channels
from emat.model import QueryEncoding, SupportEncoding
from emat.model.network import Network

PRIOR_WEIGHT = 1.0
RIVALRY = 0.8
PRESENCE_SHARE, ABSENCE_SHARE, MASK_MARGIN = 0.1, 1.0, 0.2
# EfficientNet-Lite2's last block tells classes apart best (AUC of presence 0.93, all of the prototype's blocks 0.92).
LAST_BLOCK = PrototypePresence(level=0.21, first_channel=8, end_channel=14)
PRIOR_PRESENCE = {"efficientnet-lite2": LAST_BLOCK, "efficientnet-lite2+mobilesam": LAST_BLOCK}
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
    patches: Tensor  # (1, C, h, w, d)


class PriorMethod(CorrelationMethod[QueryWithPrior, SupportWithPrior]):
    """EMAT whose answer to each shot is averaged with the prototype's. Heads of `emat` are its heads too."""

    support_type = SupportWithPrior
    takes_undecided = True
    decision_version = 2

    def __init__(self, backbone: Backbone, network: Network, image_size: int | None = None) -> None:
        super().__init__(backbone, network, image_size)
        self.name = f"{network.method}-prior"
        assert backbone.spec is not None
        self.prior_channels = class_channels(backbone.spec.name)
        self.presence_rule = PRIOR_PRESENCE.get(backbone.spec.name, PrototypePresence())

    def encode_support(self, features: Features, mask: Tensor) -> SupportWithPrior:
        """Encode a support for the network, and average its tokens inside and outside of the mask."""
        encoding = self.network_support(features, mask > 0)
        tokens = self.all_tokens(features)[self.prior_channels]
        prototypes = make_prototypes(tokens, mask, self.backbone.grid(*features.size))
        tensors = encoding.cells, encoding.kept, encoding.kept_later
        return SupportWithPrior(*tensors, prototypes.foreground, prototypes.background)

    def encode_query(self, features: Features) -> QueryWithPrior:
        """Normalise the tokens of the query."""
        tokens, grid = self.all_tokens(features), self.backbone.grid(*features.size)
        encoding = self.network.encode_query(tokens[self.channels], grid)
        return QueryWithPrior(encoding, unit_patches(tokens[None, self.prior_channels], grid))

    def compare(self, query: QueryWithPrior, supports: Sequence[SupportWithPrior]) -> list[ShotEvidence]:
        """Compare with each support on its own."""
        return [
            with_prior(
                self.network_evidence(query.encoding, support.encoding),
                patch_evidence(query.patches, support.prototypes, self.presence_rule),
            )
            for support in supports
        ]

    def decide(self, evidence: TaskEvidence[ShotEvidence], thresholds: Thresholds = PAPER_THRESHOLDS) -> Decision:
        """Judge all ways together, by their presence and by their masks."""
        return self.suppress_overlaps(self.decide_independently(evidence, thresholds), thresholds)

    def decide_independently(
        self, evidence: TaskEvidence[ShotEvidence], thresholds: Thresholds = PAPER_THRESHOLDS
    ) -> Decision:
        """Judge the presence of all ways together, let it raise or lower their masks, and average over shots."""
        return super().decide(replace(evidence, by_way=judge_together(evidence.by_way)), thresholds)

    def suppress_overlaps(
        self, decision: Decision, thresholds: Thresholds, ways: Sequence[bool] | None = None
    ) -> Decision:
        """Lower the score of a way whose mask is mostly another way's."""
        if decision.scores is None:
            return decision
        before = torch.tensor(decision.scores, dtype=torch.float64)[None]
        scores = scores_by_masks(before, torch.from_numpy(decision.probabilities)[None], ways)[0].tolist()
        return replace(decision, scores=tuple(scores), present=tuple(score >= thresholds.presence for score in scores))


def with_prior(trained: ShotEvidence, prior: PatchEvidence) -> ShotEvidence:
    """Average what the network and the prototype say of B queries, in logits."""
    size = (trained.masks.shape[2], trained.masks.shape[3])
    upsampled = F.interpolate(prior.logits[:, None], size, mode="bilinear", align_corners=True)[:, 0]
    mask = _mean_logit(trained.foreground, upsampled)
    presence = None
    if trained.presence is not None:
        both = _bounded_logit(trained.presence), _bounded_logit(prior.presence.to(trained.presence))
        presence = torch.sigmoid(_mean_logit(*both))
    return ShotEvidence(presence, torch.stack([torch.zeros_like(mask), mask], dim=1))


def judge_together(ways: Sequence[Sequence[ShotEvidence]]) -> list[list[ShotEvidence]]:
    """Replace the presence of every shot by that of its way beside its rivals, which raises or lowers its mask."""
    means: list[Tensor] = []
    for shots in ways:
        presences = [shot.presence for shot in shots if shot.presence is not None]
        if not presences:  # a network that only segments says nothing about presence
            return [list(one) for one in ways]
        means.append(_bounded_logit(torch.stack(presences).mean(dim=0)))
    judged = []
    for shots, presence in zip(ways, rival_presence(torch.stack(means)), strict=True):
        change = PRESENCE_SHARE * presence + ABSENCE_SHARE * presence.clamp(max=0) - MASK_MARGIN  # (B,)
        shift = change.to(shots[0].masks)[:, None, None]
        judged.append(
            [
                ShotEvidence(torch.sigmoid(presence), torch.stack([shot.masks[:, 0], shot.masks[:, 1] + shift], dim=1))
                for shot in shots
            ]
        )
    return judged


def rival_presence(logits: Tensor) -> Tensor:
    """Lower the presence logits (N, B) of each way by how far the likeliest other way is ahead.

    The likeliest way keeps its own, because a class is no likelier for others being absent.

    >>> rival_presence(torch.tensor([[2.0], [-1.0]])).flatten()
    tensor([ 2.0000, -3.4000])
    """
    return logits - RIVALRY * (logits.amax(dim=0) - logits)


def scores_by_masks(scores: Tensor, probabilities: Tensor, ways: Sequence[bool] | None = None) -> Tensor:
    """Multiply each score by 1 less the largest share of the way's mask that one other likely way takes.

    Likely ways are those with a score of LIKELY or more, and a mask is where the probability reaches LIKELY, so scores
    do not depend on the thresholds of a user. A way without a mask keeps its score.

    >>> maps = torch.tensor([[[[0.9, 0.9, 0.1, 0.1]], [[0.7, 0.7, 0.1, 0.6]]]])
    >>> scores_by_masks(torch.tensor([[0.9, 0.9]]), maps)
    tensor([[0.9000, 0.3000]])

    Args:
        scores: (B, N).
        probabilities: The maps (B, N, H, W) of the ways.
        ways: Of each way whether its score may change; by default all may.
    """
    if scores.shape[1] == 1:
        return scores
    likely = scores >= LIKELY
    winners = torch.where(likely[:, :, None, None], probabilities, -1.0).argmax(dim=1)  # (B, H, W)
    wins = [winners == way for way in range(scores.shape[1])]
    changed = []
    for way, score in enumerate(scores.unbind(dim=1)):
        mask = probabilities[:, way] >= LIKELY
        taken = [(mask & won).flatten(1).sum(dim=1) for other, won in enumerate(wins) if other != way]
        share = torch.stack(taken).amax(dim=0) / mask.flatten(1).sum(dim=1).clamp(min=1)
        may_change = ways is None or ways[way]
        changed.append(torch.where(likely[:, way], score * (1 - share), score) if may_change else score)
    return torch.stack(changed, dim=1)


def _mean_logit(trained: Tensor, prior: Tensor) -> Tensor:
    return (trained + PRIOR_WEIGHT * prior) / (1 + PRIOR_WEIGHT)


def _bounded_logit(probability: Tensor) -> Tensor:
    """The logit of a probability, within LARGEST_LOGIT of 0."""
    return torch.log(probability / (1 - probability)).clamp(-LARGEST_LOGIT, LARGEST_LOGIT)
