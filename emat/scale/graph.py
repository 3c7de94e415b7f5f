"""A fitted segmenter, or its head alone, as a module whose every step an ONNX graph can hold.

`SegmenterGraph` goes the way of `Segmenter.predict` from the bytes of photos to scores and probability maps. The
examples and what was learnt from them are constants in it, and so is the size of photos; the number of photos is free.
`HeadGraph` goes from tokens to logits. What cannot be put into a graph is refused with the reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emat.backbone import Backbone
from emat.backbone.base import Stack
from emat.errors import EmatError
from emat.inference.segmenter import Segmenter
from emat.inference.tiles import detail_size
from emat.methods.base import Method
from emat.methods.correlation import CorrelationMethod
from emat.methods.learner import LARGEST_VALUE
from emat.methods.leave_out import Learnt
from emat.methods.mixture import MASK_DECIDES, Mixture, PresenceRule, logit
from emat.methods.pixel_features import pixel_maps, working_size
from emat.methods.prior import (
    ABSENCE_SHARE,
    LARGEST_LOGIT,
    LIKELY,
    MASK_MARGIN,
    PRESENCE_SHARE,
    PRIOR_WEIGHT,
    RIVALRY,
    PriorMethod,
    SupportWithPrior,
)
from emat.methods.prototype import (
    BEST_SHARE,
    MARGIN,
    PRESENCE_SHARPNESS,
    SHARPNESS,
    Prototype,
    PrototypePresence,
    Prototypes,
)
from emat.methods.with_learner import ALMOST, CERTAIN, unwrapped
from emat.model import SupportEncoding
from emat.model.plain import PlainForm, plain_compare, plain_forward
from emat.scale.pillow_resize import PillowResize

LEAST_CERTAIN = 1e-6  # as in `emat.methods.mixture.logit`
Shot = tuple[Tensor | None, Tensor]  # the probability of presence (B,), and the foreground's logits (B, h, w)


class SegmenterGraph(nn.Module):
    """Photos (B, H, W, 3) of bytes to scores (B, N) and probability maps (B, N, h, w).

    Args:
        segmenter: A fitted segmenter, on the CPU.
        size: Height and width of the photos.

    Raises:
        EmatError: If a part of the segmenter cannot be put into a graph.
    """

    def __init__(self, segmenter: Segmenter, size: tuple[int, int]) -> None:
        super().__init__()
        check_method(segmenter.method)
        if segmenter.tiles is not None:
            raise EmatError("tiles are cut by the size of each photo and cannot be in a graph; export without tiles")
        if segmenter.refine is not None:
            raise EmatError("refinement looks at each photo's regions and cannot be in a graph; export without it")
        self.method, self.thresholds = unwrapped(segmenter.method), segmenter.thresholds
        self.own_thresholds = getattr(segmenter.method, "thresholds", segmenter.thresholds)
        self.ways = [
            [example.encodings[name] for example in segmenter.examples_ if name in example.encodings]
            for name in segmenter.classes_
        ]
        self.learnt: Learnt | None = segmenter.learnt_
        # Read here, because a graph cannot choose by the values of tensors.
        self.choices = [] if self.learnt is None else [_choice(self.learnt, way) for way in range(len(self.ways))]
        self.size, self.detail = size, detail_size(size)
        self.working = working_size(size, segmenter.working_side)
        preparation = self.method.preparation
        self.square = (preparation.image_size, preparation.image_size)
        self.to_square, self.to_working = PillowResize(size, self.square), PillowResize(size, self.working)
        self.mean = nn.Buffer(torch.tensor(preparation.mean).view(3, 1, 1))
        self.std = nn.Buffer(torch.tensor(preparation.std).view(3, 1, 1))
        self.backbone = backbone_of(self.method)
        self.tells_presence = not isinstance(self.method, CorrelationMethod) or self.method.network.form.class_token

    def forward(self, photo: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores (B, N) and maps (B, N, h, w) of photos (B, H, W, 3)."""
        bytes_first = photo.permute(0, 3, 1, 2)
        shots_of_ways = self._compared((self.to_square(bytes_first) / 255 - self.mean) / self.std)
        scores, maps = zip(*(self._joined(shots) for shots in shots_of_ways), strict=True)
        if self.learnt is not None:
            learner = self._learner_logits(self.to_working(bytes_first) / 255, self.learnt)
            mixed = [
                self._mixed(score, probability, learner[:, way], choice)
                for way, (score, probability, choice) in enumerate(zip(scores, maps, self.choices, strict=True))
            ]
            scores, maps = zip(*mixed, strict=True)
        if isinstance(self.method, PriorMethod) and (self.tells_presence or self.learnt is not None):
            scores = _scores_by_masks(scores, maps)
        return torch.stack(scores, dim=1), torch.stack(maps, dim=1)

    def _compared(self, pixels: Tensor) -> list[list[Shot]]:
        """What every shot of every way says of prepared pixels (B, 3, S, S)."""
        tokens = self.backbone.tokens_from(self.backbone.encode_maps(pixels), self.square)  # (B, C, 1 + T, d)
        grid = self.backbone.grid(*self.square)
        method = self.method
        if isinstance(method, Prototype):
            patches = F.normalize(tokens[:, method.channels, 1:], dim=-1).unflatten(2, grid)
            return [[patch_shot(patches, shot, PrototypePresence()) for shot in shots] for shots in self.ways]
        assert isinstance(method, CorrelationMethod)
        query = F.normalize(tokens[:, method.channels, 1:], dim=-1)
        if not isinstance(method, PriorMethod):
            return [[_trained_shot(method, query, shot, grid) for shot in shots] for shots in self.ways]
        patches = F.normalize(tokens[:, method.prior_channels, 1:], dim=-1).unflatten(2, grid)
        return _judged(
            [[_shot_with_prior(method, query, patches, shot, grid) for shot in shots] for shots in self.ways]
        )

    def _joined(self, shots: Sequence[Shot]) -> tuple[Tensor, Tensor]:
        """Average the shots of a way: its score (B,) and probability map (B, h, w)."""
        full = [F.interpolate(logits[:, None], self.detail, mode="bilinear", align_corners=True) for _, logits in shots]
        probability = torch.sigmoid(torch.cat(full, dim=1)).mean(dim=1)
        presences = [presence for presence, _ in shots if presence is not None]
        if len(presences) < len(shots):  # the method only segments
            return probability.amax(dim=(1, 2)), probability
        return torch.stack(presences).mean(dim=0), probability

    def _learner_logits(self, pixels: Tensor, learnt: Learnt) -> Tensor:
        """The learner's logits (B, N, h, w) at the photos' detail, from pixels (B, 3, h, w) in [0, 1]."""
        maps = pixel_maps(pixels, self.backbone)
        total: Tensor | None = None
        start = 0
        for one in maps:
            part = slice(start, start + one.shape[1])
            start += one.shape[1]
            mean, spread = (each[part][:, None, None] for each in (learnt.mean, learnt.spread))
            scaled = ((one - mean) / spread).clamp(-LARGEST_VALUE, LARGEST_VALUE)
            summed = F.conv2d(scaled, learnt.weights[:, part, None, None])
            summed = F.interpolate(summed, tuple(maps[0].shape[2:]), mode="bilinear", align_corners=False)
            total = summed if total is None else total + summed
        assert total is not None
        total = total + learnt.bias[:, None, None]
        return F.interpolate(total, self.detail, mode="bilinear", align_corners=False)

    def _mixed(
        self, score: Tensor, probability: Tensor, learner: Tensor, choice: "LearntChoice"
    ) -> tuple[Tensor, Tensor]:
        """Score and map of a way with what the learner (B, h, w) adds, as `LearningMethod.decide` does it."""
        own = self.own_thresholds
        head = torch.logit(probability, CERTAIN) - logit(own.mask)
        mixed = choice.mixture.logits(head, learner)
        found = torch.sigmoid(mixed + logit(own.mask))
        if not self.tells_presence or not choice.mixture.head:
            certain = presence_logit(choice.rule or MASK_DECIDES, mixed)
        else:
            certain = torch.logit(score, LEAST_CERTAIN) - logit(own.presence)
            if choice.rule is not None:
                own_rule = presence_logit(choice.rule, mixed)
                certain = own_rule if choice.knows_absence else (own_rule + certain) / 2
        score = torch.sigmoid((certain + logit(own.presence)).clamp(-50, 50))
        drawn = (found >= self.thresholds.mask).flatten(1).any(dim=1)
        return torch.where(drawn, score, score.clamp(max=self.thresholds.presence * ALMOST)), found


@dataclass(frozen=True)
class LearntChoice:
    """What was chosen for one class when the segmenter learnt."""

    mixture: Mixture
    rule: PresenceRule | None
    knows_absence: bool


def _choice(learnt: Learnt, way: int) -> LearntChoice:
    return LearntChoice(learnt.mixture(way), learnt.presence_rule(way), learnt.knows_absence(way))


class HeadGraph(nn.Module):
    """Query tokens and supports to logits: the network alone, for any classes and examples.

    Args:
        method: A method of EMAT's family.

    Raises:
        EmatError: If the method has no such network.
    """

    def __init__(self, method: Method) -> None:
        super().__init__()
        inner = unwrapped(method)
        if not isinstance(inner, CorrelationMethod):
            raise EmatError(f"the method {inner.name} has no head of EMAT's family; export the whole segmenter instead")
        self.network = inner.network
        side = inner.preparation.image_size
        self.grid = inner.backbone.grid(side, side)
        self.form = PlainForm.of(self.network.form, dense=True)

    def forward(self, query: Tensor, support: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Compare tokens (B, C, 1 + T, d) of queries and supports; masks (B, H, W) are the class above 0."""
        presence, masks = plain_forward(self.form, dict(self.network.named_parameters()), query, support, mask)
        return (masks,) if presence is None else (masks, presence)


def check_method(method: Method) -> None:
    """Raise an EmatError if the method cannot be put into a graph."""
    inner = unwrapped(method)
    if not isinstance(inner, (CorrelationMethod, Prototype)):
        raise EmatError(
            f"the method {inner.name} cannot be exported: its steps depend on values; EMAT, CST and prototype can"
        )
    if isinstance(backbone_of(inner), Stack):
        raise EmatError("a stack of backbones cannot be exported; use a head of one backbone")


def backbone_of(method: Method) -> Backbone:
    """The backbone of a method."""
    backbone: Any = getattr(method, "backbone", None)
    assert isinstance(backbone, Backbone)
    return backbone


def patch_shot(patches: Tensor, support: Prototypes, rule: PrototypePresence) -> Shot:
    """What a prototype says of unit patches (B, C, h, w, d), as `emat.methods.prototype.patch_evidence` does."""
    if support.foreground is None:
        return patches.new_zeros(1).expand(patches.shape[0]), torch.full_like(patches[:, 0, :, :, 0], -SHARPNESS)
    near = _similarity(patches, support.foreground)
    far = torch.zeros_like(near) if support.background is None else _similarity(patches, support.background)
    seen = _similarity(patches[:, rule.first_channel :], support.foreground[rule.first_channel :]).flatten(1)
    best = seen.topk(max(1, round(BEST_SHARE * seen.shape[1])), dim=1).values.mean(dim=1)
    return torch.sigmoid(PRESENCE_SHARPNESS * (best - rule.level)), SHARPNESS * (near - far - MARGIN)


def _trained_shot(method: CorrelationMethod, query: Tensor, support: SupportEncoding, grid: tuple[int, int]) -> Shot:
    presence, masks = plain_compare(method.network, query, support, grid)
    return None if presence is None else presence.softmax(dim=1)[:, 1], masks[:, 1] - masks[:, 0]


def _shot_with_prior(
    method: PriorMethod, query: Tensor, patches: Tensor, support: SupportWithPrior, grid: tuple[int, int]
) -> Shot:
    """The trained answer averaged with the prototype's, as `emat.methods.prior` does."""
    presence, trained = _trained_shot(method, query, support.encoding, grid)
    prior_presence, prior = patch_shot(patches, support.prototypes, method.presence_rule)
    size = (trained.shape[1], trained.shape[2])
    upsampled = F.interpolate(prior[:, None], size, mode="bilinear", align_corners=True)[:, 0]
    mask = (trained + PRIOR_WEIGHT * upsampled) / (1 + PRIOR_WEIGHT)
    if presence is None:
        return None, mask
    assert prior_presence is not None
    both = (_bounded_logit(presence) + PRIOR_WEIGHT * _bounded_logit(prior_presence)) / (1 + PRIOR_WEIGHT)
    return torch.sigmoid(both), mask


def _judged(ways: list[list[Shot]]) -> list[list[Shot]]:
    """Judge the presence of all ways together, as `PriorMethod.decide` does."""
    means = []
    for shots in ways:
        presences = [presence for presence, _ in shots if presence is not None]
        if not presences:  # a network that only segments says nothing about presence
            return ways
        means.append(_bounded_logit(torch.stack(presences).mean(dim=0)))
    highest = torch.stack(means).amax(dim=0)
    judged: list[list[Shot]] = []
    for way, own in enumerate(means):
        presence = own - RIVALRY * (highest - own)
        change = PRESENCE_SHARE * presence + ABSENCE_SHARE * presence.clamp(max=0) - MASK_MARGIN
        judged.append([(torch.sigmoid(presence), mask + change[:, None, None]) for _, mask in ways[way]])
    return judged


def _scores_by_masks(scores: Sequence[Tensor], maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Scores (B,) that heed the maps (B, h, w) of all ways, as `emat.methods.prior.scores_by_masks` does."""
    if len(scores) == 1:
        return tuple(scores)
    likely = [score >= LIKELY for score in scores]
    competing = [torch.where(may[:, None, None], map_, -1.0) for may, map_ in zip(likely, maps, strict=True)]
    winners = torch.stack(competing).argmax(dim=0)  # (B, h, w)
    found = []
    for way, (score, may, map_) in enumerate(zip(scores, likely, maps, strict=True)):
        mask = map_ >= LIKELY
        taken = [(mask & (winners == other)).flatten(1).sum(dim=1) for other in range(len(maps)) if other != way]
        share = torch.stack(taken).amax(dim=0) / mask.flatten(1).sum(dim=1).clamp(min=1)
        found.append(torch.where(may, score * (1 - share), score))
    return tuple(found)


def _bounded_logit(probability: Tensor) -> Tensor:
    return torch.log(probability / (1 - probability)).clamp(-LARGEST_LOGIT, LARGEST_LOGIT)


def _similarity(patches: Tensor, prototype: Tensor) -> Tensor:
    """(B, C, h, w, d) and (C, d) -> (B, h, w)."""
    products = patches.flatten(2, 3) @ prototype[None, :, :, None]  # (B, C, h * w, 1)
    return products.mean(dim=1)[..., 0].unflatten(1, tuple(patches.shape[2:4]))


def presence_logit(rule: PresenceRule, logits: Tensor) -> Tensor:
    """`PresenceRule.logit` for B photos (B, h, w)."""
    values = logits.flatten(1)
    count = max(1, round(rule.share * values.shape[1]))
    return (values.topk(count, dim=1).values.mean(dim=1) - rule.level) / rule.scale
