"""How much of a class's answer comes from the head and how much from the learner, and when the class counts as present.

Mixtures are chosen on the logits of a few sampled pixels of left-out photos, presence rules on whole maps of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Mixture(NamedTuple):
    """The weights in `head * head logit + learner * (learner logit + shift)`; 0 is the border of the mask."""

    head: float
    learner: float
    shift: float

    def logits(self, head: Tensor, learner: Tensor) -> Tensor:
        """Mix the two logits of one photo, which have the same shape.

        Args:
            head: Logits counted from the head's threshold.
            learner: Logits of the learner.
        """
        if not self.learner:
            return self.head * head
        mixed = self.learner * (learner + self.shift)
        return mixed + self.head * head if self.head else mixed


# The weights of head and learner that are tried. Five left-out photos are a small sample, so the first pair is taken
# unless another one is better by a margin, averaged over several shifts. This rule was chosen on photos of PASCAL's
# training list, with heads that never saw the class, and on every second photo of nuclei and steel. Mean IoU there with
# five examples (PASCAL; nuclei and steel):
#   this rule                                                    51.2; 68.4
#   the weights and the shift with the highest left-out IoU      50.8; 63.4
#   the first pair of weights and a shift of 1, always           49.9; 67.0
#   the head alone                                               42.8; 27.7
WEIGHTS = ((1.0, 2.0), (1.0, 1.0), (1.0, 0.5), (1.0, 0.25), (1.0, 4.0), (0.0, 1.0))
IOU_MARGIN = 0.02  # by which the mean IoU of another pair must be higher than that of the first
USUAL_SHIFTS = (0.0, 0.5, 1.0, 1.5, 2.0)  # over which weights are compared
SHIFTS = tuple(quarter / 4 for quarter in range(-4, 17))  # among which the shift is found
AS_GOOD = 0.01  # IoU: shifts that differ by no more are equally good for a photo
HEAD_ALONE = Mixture(1.0, 0.0, 0.0)

# With a single example nothing can be left out. What can be seen is how sure the head is of the example itself: the
# mean of its logits inside the example's own mask is 2.5 to 3.5 for most of PASCAL's objects, 1 to 3 for defects of
# steel and -1 to 2 for nuclei. Below UNSURE the learner counts as much as the head, above SURE it has a small say.
# The constants were chosen on PASCAL's training list, with heads that never saw the class, and on the even photos of
# steel and nuclei: `docs/trials.md`. mIoU with one example when the rule was made, with 1.5 and 2.25 (20 classes of
# PASCAL's validation list, one task of 20 photos each; steel and nuclei, two tasks of ten):
#   this rule                                46.3; 45.6; 75.7
#   the head alone                           45.9; 35.7; 33.1
#   a learner weight of 1, always            42.2; 47.0; 75.7
#   a learner weight of 0.1, always          46.0; 40.1; 51.1
UNSURE, SURE = 2.3, 3.0  # logits
LEARNER_MOST, LEARNER_LEAST = 1.0, 0.1
ONE_SHIFT = 1.0

LEAST_SHARE = 0.002  # of a photo: a class whose size is not known is asked to cover this before it counts as present
FEWEST_CELLS = 0.0002  # of a photo: no class is asked to cover less
AUROC_MARGIN = 0.03  # by which another share must be better than half of the smallest area
NARROWEST = 0.25  # the scale on which presence turns from unlikely to likely is at least this wide, in logits
# A missed class loses its whole mask, a false alarm often costs a few pixels only. In tasks of three steel defects and
# of pairs of PASCAL's training list, a cost of 1 missed 5 to 20 % of the classes that were there, 2 missed 5 to 7 %.
MISS_COST = 2.0  # of a missed class, in false alarms
LEVELS = 200  # that are tried
SEPARATES = 0.7  # AUROC below which photos with and without a class are not told apart, and no class is called absent


@dataclass(frozen=True)
class LeftOut:
    """One class at the drawn pixels of one photo that was left out."""

    head: Tensor  # (n,): the head's logit, counted from its threshold
    learner: Tensor  # (n,)
    inside: Tensor  # (n,) bool: the pixel is of the class
    shares: Tensor  # (n,): the share of the photo that a pixel stands for

    def iou(self, mixture: Mixture) -> float:
        """The intersection over union that the mixture reaches; 1 if the class is neither there nor found."""
        predicted = mixture.logits(self.head, self.learner) >= 0
        union = float((self.shares * (predicted | self.inside)).sum())
        return float((self.shares * (predicted & self.inside)).sum()) / union if union else 1.0


@dataclass(frozen=True)
class Chosen:
    """The mixture that left-out photos chose, and of each photo the one that the others would have chosen."""

    mixture: Mixture
    by_others: list[Mixture]
    iou: float  # mean over the photos, each by the choice of the others


def best_mixture(left_out: Sequence[LeftOut]) -> Chosen:
    """Choose weights and shift by the left-out photos.

    The weights are those of the highest IoU over all photos and usual shifts. The shift is the mean of the shifts that
    suit each photo best, which is steadier than the one that does best on all of them together.
    """

    def over_shifts(weights: tuple[float, float]) -> float:
        return _mean([photo.iou(Mixture(*weights, shift)) for photo in left_out for shift in USUAL_SHIFTS])

    first, *others = WEIGHTS
    ious = {first: over_shifts(first) + IOU_MARGIN} | {weights: over_shifts(weights) for weights in others}
    head, learner = max(ious, key=lambda weights: ious[weights])
    shifts = [_best_shift(photo, head, learner) for photo in left_out]
    by_others = [
        Mixture(head, learner, _mean([*shifts[:index], *shifts[index + 1 :]] or shifts))
        for index in range(len(left_out))
    ]
    reached = [photo.iou(mixture) for photo, mixture in zip(left_out, by_others, strict=True)]
    return Chosen(Mixture(head, learner, _mean(shifts)), by_others, _mean(reached))


def _best_shift(photo: LeftOut, head: float, learner: float) -> float:
    """The middle of the shifts that suit a photo best."""
    reached = [photo.iou(Mixture(head, learner, shift)) for shift in SHIFTS]
    return _mean([shift for shift, iou in zip(SHIFTS, reached, strict=True) if iou >= max(reached) - AS_GOOD])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class PresenceRule(NamedTuple):
    """A class is present when the mean of its highest margins, over a share of the photo, reaches a level."""

    share: float
    level: float
    scale: float

    def logit(self, margins: Tensor) -> Tensor:
        """The presence logits (B,) of whole photos, from the margins (B, h, w) of the class; 0: undecided."""
        return (highest(margins.flatten(1), self.share) - self.level) / self.scale


def highest(logits: Tensor, share: float) -> Tensor:
    """The mean (B,) of the highest logits (B, positions) of a photo, over a share of it."""
    return logits.topk(max(1, round(share * logits.shape[1])), dim=1).values.mean(dim=1)


MASK_DECIDES = PresenceRule(LEAST_SHARE, 0.0, 1.0)  # present if the mask covers at least this share


class Presence(NamedTuple):
    """The presence rule of a class, and how well it separates left-out photos with the class from those without."""

    rule: PresenceRule | None  # None if the two do not differ in the right direction
    right: float  # share of the photos that the rule of the others judges rightly
    auroc: float  # how often a photo with the class scores higher than one without
    missed: Sequence[int] = ()  # which of the photos with the class, from 0, the rule of the others misses


def best_presence(with_class: Sequence[Tensor], without_class: Sequence[Tensor], shares: Sequence[float]) -> Presence:
    """Choose the share of a photo by which those with the class are best told from those without, and the level.

    A large share asks for area, a small one for a few sure pixels.

    Args:
        with_class: The margins (h, w) of the class on left-out photos that show it.
        without_class: The same of photos that do not.
        shares: Those that are tried; the first is taken unless another is better by a margin.
    """
    candidates = []
    for share in shares:
        high, low = (
            [float(highest(margins.reshape(1, -1), share)) for margins in maps] for maps in (with_class, without_class)
        )
        candidates.append((_auroc(high, low), share, high, low))
    first = candidates[0]
    best = max(candidates[1:], key=lambda candidate: candidate[0], default=first)
    auroc, share, high, low = best if best[0] > first[0] + AUROC_MARGIN else first
    right = [_judged(high, low, index) for index in range(len(high) + len(low))]
    pairs = len(high) * len(low)
    # As if one more pair had been right and one wrong: a few photos never prove that all are told apart.
    missed = [index for index in range(len(high)) if auroc >= SEPARATES and not right[index]]
    return Presence(presence_rule(high, low, share), sum(right) / len(right), (auroc * pairs + 1) / (pairs + 2), missed)


def _judged(high: Sequence[float], low: Sequence[float], index: int) -> bool:
    """Whether a photo, one of those with the class and then those without, is judged rightly by the others' rule."""
    score, is_high = (*high, *low)[index], index < len(high)
    others = [value for number, value in enumerate(high) if number != index] or high
    negatives = [value for number, value in enumerate(low) if number + len(high) != index] or low
    rule = presence_rule(others, negatives, 0.0)
    return rule is not None and (score >= rule.level) == is_high


def presence_rule(with_class: Sequence[float], without_class: Sequence[float], share: float) -> PresenceRule | None:
    """Choose the level between photos that show the class and photos that do not.

    Args:
        with_class: `highest` of left-out photos that show the class.
        without_class: The same of photos that do not.
        share: The share that both were taken over.

    Returns:
        The rule; None if the two do not differ in the right direction.
    """
    high, low = torch.tensor(with_class), torch.tensor(without_class)
    gap = float(high.mean() - low.mean())
    if gap <= 0:
        return None
    if _auroc(with_class, without_class) < SEPARATES:
        # A scale as wide as the photos differ: on a narrower one, all scores would be 1 and tell nothing apart.
        return PresenceRule(share, float(high.min()) - NARROWEST, max(float(torch.cat([high, low]).std()), NARROWEST))
    # New photos lie around the left-out ones, as far as those of a kind lie from each other.
    around = torch.cat([high - high.mean(), low - low.mean()])
    spread = max(float(around.std()), gap / 8)
    levels = torch.linspace(float(torch.cat([high, low]).min()) - spread, float(high.max()), LEVELS)
    missed, alarmed = (_below((levels[:, None] - values) / spread).mean(dim=1) for values in (high, low))
    level = float(levels[(MISS_COST * missed + 1 - alarmed).argmin()])
    return PresenceRule(share, level, max(gap / 4, NARROWEST))


def _auroc(high: Sequence[float], low: Sequence[float]) -> float:
    """How often one of the first values is higher than one of the second; ties count half."""
    return sum((a > b) + (a == b) / 2 for a in high for b in low) / (len(high) * len(low))


def _below(deviations: Tensor) -> Tensor:
    """The share of a normal distribution that lies below so many standard deviations."""
    return (1 + torch.erf(deviations / math.sqrt(2))) / 2


def rule_from_backgrounds(with_class: Sequence[float], backgrounds: Sequence[float], share: float) -> PresenceRule:
    """Choose the level where no photo is known to lack the class.

    Args:
        with_class: `highest` of left-out photos that show the class.
        backgrounds: The same of their backgrounds alone. They lie close to the class, so the level is nearer to them,
            and no left-out photo falls below it.
        share: The share that both were taken over.
    """
    high, low = torch.tensor(with_class), torch.tensor(backgrounds)
    gap = max(float(high.mean() - low.mean()), 0.0)
    level = min(float(low.mean()) + gap / 4, float(high.min()) - NARROWEST)
    return PresenceRule(share, level, max(gap / 4, NARROWEST))


def rule_of_one(without_class: Sequence[float], share: float) -> PresenceRule:
    """Choose the level where a single photo shows the class: the mask decides, if it stands out from photos without.

    Args:
        without_class: `highest` of photos that lack the class.
        share: The share that they were taken over.
    """
    return PresenceRule(share, max(0.0, *(value + NARROWEST for value in without_class)), 1.0)


def shares_for(areas: Sequence[float]) -> list[float]:
    """The shares of a photo that may decide presence: half of the smallest that an example shows, and less."""
    half = min(areas) / 2 if areas else LEAST_SHARE
    return list(dict.fromkeys(max(FEWEST_CELLS, half / part) for part in (1, 4, 16)))


def logit(probability: float) -> float:
    """The logit of a probability, kept finite."""
    bounded = min(max(probability, 1e-6), 1 - 1e-6)
    return math.log(bounded / (1 - bounded))


def mixture_of_one(certainty: float) -> Mixture:
    """Choose the mixture of a class that a single photo shows.

    Args:
        certainty: The mean of the head's logits inside the photo's own mask.

    >>> mixture_of_one(4.0), mixture_of_one(0.0)
    (Mixture(head=1.0, learner=0.1, shift=1.0), Mixture(head=1.0, learner=1.0, shift=1.0))
    """
    learner = LEARNER_MOST * (SURE - certainty) / (SURE - UNSURE)
    return Mixture(1.0, min(max(learner, LEARNER_LEAST), LEARNER_MOST), ONE_SHIFT)
