"""EMAT with the prototype as a prior: two answers to each shot, a trained and an untrained one, are averaged.

Both compare the same tokens, but they err differently: the prototype knows what a class looks like on average and calls
nearly everything that resembles it foreground; EMAT has learnt which resemblances mean an object. The network is EMAT's
own and is trained by EMAT's loss alone, so every EMAT head can be used with or without the prior.

In logits, one shot says:

    presence = mean(EMAT's presence, prototype's presence)
    mask     = (1 - share) * EMAT's mask + share * prototype's mask

The share is a half, or a quarter on the stack with MobileSAM, where EMAT draws better than the prototype does.

On EfficientNet-Lite2, alone or stacked with MobileSAM, a support is a *close-up*: the object is cut out of its photo
before it is encoded, so that a small one is described by as many tokens as a large one. The prototype's presence comes
from a second, smaller copy of the close-up, in which objects are about as large as in the photos of ImageNet.

Then the ways of a task are judged together:

    presence' = presence - RIVALRY * max(0, presence of the likeliest other way - presence)
    mask'     = mask + PRESENCE_SHARE * presence' + ABSENCE_SHARE * min(presence', 0) - MASK_MARGIN

Some photos resemble every class, and their own class most. So a way whose presence is far below that of another way is
probably absent. The added terms of the mask remove the masks of ways that are probably absent. Finally, the score of a
way is lowered by the share of its mask that another way explains better, because those pixels are no evidence of it:

    score = sigmoid(presence' + score_bias) * (1 - the largest share of its mask that another likely way takes)

The bias is for the stack with MobileSAM alone, and only where no pixel learner judges presence as well.

The constants were chosen on 500 2-way tasks of train-list photos, with the classes of PASCAL's folds 1 and 3 and heads
that never saw them (`benchmarks/prior_rule.py` shows what other values give).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from emat.backbone import Backbone
from emat.backbone.base import Stack
from emat.images import Pixels, to_pixels
from emat.methods.base import PAPER_THRESHOLDS, Decision, Features, TaskEvidence, Thresholds
from emat.methods.correlation import CorrelationMethod, ShotEvidence
from emat.methods.prototype import (
    PrototypePresence,
    Prototypes,
    make_prototypes,
    patch_evidence,
    similarity,
    unit_patches,
)
from emat.methods.training_free import best_patches, channel_count, class_channels
from emat.model import QueryEncoding, SupportEncoding
from emat.model.network import Network

RIVALRY = 0.8
PRESENCE_SHARE, ABSENCE_SHARE, MASK_MARGIN = 0.1, 1.0, 0.2
LIKELY = 0.5  # scores and probabilities from which a way, and a pixel of its mask, count when masks are compared
SCORE_RANGE = 1e-6  # how far scores are kept from 0 and 1
LARGEST_LOGIT = 8.0  # of presence: more certainty than this should not decide a mask on its own
SMALLEST_CUT = 32  # pixels of a photo that a close-up shows at least
# EfficientNet-Lite2's last block tells classes apart best (AUC of presence 0.93, all of the prototype's blocks 0.92).
LAST_BLOCK = PrototypePresence(level=0.21, first_channel=8, end_channel=14)


@dataclass(frozen=True)
class CloseUp:
    """How the object of a support is looked at by itself."""

    margin: float = 0.25  # of the object's longer side, around it
    side: int = 256  # pixels of the square that judges presence, by the first backbone of a stack or the only one
    level: float = 0.2  # the cosine at which presence is undecided
    sharpness: float = 28.0  # the logit of a cosine that is 1 above the level


@dataclass(frozen=True)
class PriorRule:
    """What the prototype says beside the network."""

    presence: PrototypePresence
    mask_share: float = 0.5  # of the mask's logits; the rest is the network's
    close_up: CloseUp | None = None  # None: supports are encoded whole, and the prototype judges presence
    score_bias: float = 0.0  # added to the logits of scores, which leaves the masks


# The bias was chosen on 600 tasks of train-list photos of all folds (docs/trials.md): 75.5 instead of 74.5 accuracy.
PRIOR_RULES = {
    "efficientnet-lite2": PriorRule(LAST_BLOCK, close_up=CloseUp()),
    "efficientnet-lite2+mobilesam": PriorRule(LAST_BLOCK, mask_share=0.25, close_up=CloseUp(), score_bias=0.5),
}


@dataclass(frozen=True)
class SupportWithPrior:
    """A support's encoding for the network, and its prototypes."""

    cells: Tensor  # these three as in SupportEncoding
    kept: Tensor
    kept_later: Tensor
    foreground: Tensor | None  # (C, d), these two as in Prototypes
    background: Tensor | None  # (C, d)
    close_up: Tensor | None = None  # (c, d): the class's mean vectors in a small close-up; None in early files

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
    decision_version = 4

    def __init__(self, backbone: Backbone, network: Network, image_size: int | None = None) -> None:
        super().__init__(backbone, network, image_size)
        self.name = f"{network.method}-prior"
        assert backbone.spec is not None
        self.prior_channels = class_channels(backbone.spec.name)
        self.rule = PRIOR_RULES.get(backbone.spec.name, PriorRule(PrototypePresence()))

    def encode_support(self, features: Features, mask: Tensor) -> SupportWithPrior:
        """Encode a support for the network, and average its tokens inside and outside of the mask."""
        encoding = self.network_support(features, mask > 0)
        tokens = self.all_tokens(features)[self.prior_channels]
        prototypes = make_prototypes(tokens, mask, self.backbone.grid(*features.size))
        tensors = encoding.cells, encoding.kept, encoding.kept_later
        return SupportWithPrior(*tensors, prototypes.foreground, prototypes.background)

    def support_lengths(self) -> dict[str, int]:
        """Return the lengths that the network expects, and how many channels are compared beside it."""
        return {**super().support_lengths(), "B": channel_count(self.prior_channels, self.backbone)}

    def encode_example(
        self,
        mask: Tensor,
        photo: Callable[[], Pixels],
        features: Callable[[], Features],
        encode: Callable[[Pixels], Features] | None = None,
    ) -> SupportWithPrior:
        """Encode the object of a support, cut out of its photo."""
        rule = self.rule.close_up
        if rule is None or not bool((mask > 0).any()):
            return self.encode_support(features(), mask)
        cut, shown = cut_out(photo(), mask, rule.margin)
        support = self.encode_support((encode or self.photo_features)(cut), shown)
        return replace(support, close_up=self._presence_vectors(cut, shown, rule.side))

    @torch.no_grad()
    def _presence_vectors(self, photo: Pixels, mask: Tensor, side: int) -> Tensor | None:
        """The class's mean vectors (c, d) at a size of its own, in the channels that judge presence."""
        part = self.backbone.parts[0] if isinstance(self.backbone, Stack) else self.backbone
        preparation, size = self.preparation, (side, side)
        pixels = torch.from_numpy(to_pixels(photo, size, preparation.mean, preparation.std))[None].to(mask.device)
        assert isinstance(self.prior_channels, list)
        # These channels are of the first part, which come first in a stack.
        tokens = part.tokens_from(part.encode_maps(pixels), size)[0, self.prior_channels[self.rule.presence.channels]]
        vectors = make_prototypes(tokens, mask, part.grid(*size)).foreground
        # As wide as the tokens of queries, which a stack pads with zeros.
        return None if vectors is None else F.pad(vectors, (0, self.backbone.width - vectors.shape[1]))

    def encode_query(self, features: Features) -> QueryWithPrior:
        """Normalise the tokens of the query."""
        tokens, grid = self.all_tokens(features), self.backbone.grid(*features.size)
        encoding = self.network.encode_query(tokens[self.channels], grid)
        return QueryWithPrior(encoding, unit_patches(tokens[None, self.prior_channels], grid))

    def compare(self, query: QueryWithPrior, supports: Sequence[SupportWithPrior]) -> list[ShotEvidence]:
        """Compare with each support on its own."""
        return [
            with_prior(self.network_evidence(query.encoding, support.encoding), query.patches, support, self.rule)
            for support in supports
        ]

    def decide(self, evidence: TaskEvidence[ShotEvidence], thresholds: Thresholds = PAPER_THRESHOLDS) -> Decision:
        """Judge all ways together, by their presence and by their masks."""
        decision = self.decide_independently(evidence, thresholds)
        if decision.scores is not None:
            scores = shifted(torch.tensor(decision.scores, dtype=torch.float64), self.rule.score_bias).tolist()
            decision = replace(decision, scores=tuple(scores))
        return self.suppress_overlaps(decision, thresholds)

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


def with_prior(trained: ShotEvidence, patches: Tensor, support: SupportWithPrior, rule: PriorRule) -> ShotEvidence:
    """Join what the network says of B queries with what the prototype and the close-up of a support say.

    Args:
        trained: What the network says.
        patches: The unit vectors (B, C, h, w, d) of the queries.
        support: What they are compared with.
        rule: How much each of them counts.
    """
    prior = patch_evidence(patches, support.prototypes, rule.presence)
    size = (trained.masks.shape[2], trained.masks.shape[3])
    upsampled = F.interpolate(prior.logits[:, None], size, mode="bilinear", align_corners=True)[:, 0]
    mask = torch.lerp(trained.foreground, upsampled, rule.mask_share)
    presence = None
    if trained.presence is not None:
        untrained = prior.presence
        if support.close_up is not None and rule.close_up is not None:
            best = best_patches(similarity(patches[:, rule.presence.channels], support.close_up))
            untrained = torch.sigmoid(rule.close_up.sharpness * (best - rule.close_up.level))
        both = _bounded_logit(trained.presence), _bounded_logit(untrained.to(trained.presence))
        presence = torch.sigmoid((both[0] + both[1]) / 2)
    return ShotEvidence(presence, torch.stack([torch.zeros_like(mask), mask], dim=1))


def cut_out(photo: Pixels, mask: Tensor, margin: float) -> tuple[Pixels, Tensor]:
    """Cut a class out of a photo (H, W, 3): the square around it, as far as the photo reaches, and its mask there.

    Args:
        photo: The photo.
        mask: (h, w) of any size; the class is where it is above 0, at least at one pixel.
        margin: How far the square reaches beyond the class, as a share of its longer side.
    """
    height, width = photo.shape[:2]
    rows, columns = mask.shape
    inside = mask > 0
    top, bottom = _ends(inside.any(dim=1), height)
    left, right = _ends(inside.any(dim=0), width)
    half = max(bottom - top, right - left, SMALLEST_CUT / (1 + 2 * margin)) * (1 + 2 * margin) / 2
    down, across = (top + bottom) / 2, (left + right) / 2
    first, last = max(0, int(down - half)), min(height, math.ceil(down + half))
    start, end = max(0, int(across - half)), min(width, math.ceil(across + half))
    of_mask = mask[
        first * rows // height : -(-last * rows // height), start * columns // width : -(-end * columns // width)
    ]
    return np.ascontiguousarray(photo[first:last, start:end, :3]), of_mask


def _ends(shown: Tensor, length: int) -> tuple[float, float]:
    """The first and the last place where something is shown along a side, at a side of another length."""
    indices = shown.nonzero()
    return float(indices[0]) * length / len(shown), float(indices[-1] + 1) * length / len(shown)


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


def shifted(scores: Tensor, bias: float) -> Tensor:
    """Add a bias to the logits of scores.

    >>> shifted(torch.tensor([0.5, 0.25]), 1.0)
    tensor([0.7311, 0.4754])
    """
    return torch.sigmoid(torch.logit(scores, SCORE_RANGE) + bias) if bias else scores


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


def _bounded_logit(probability: Tensor) -> Tensor:
    """The logit of a probability, within LARGEST_LOGIT of 0."""
    return torch.log(probability / (1 - probability)).clamp(-LARGEST_LOGIT, LARGEST_LOGIT)
