"""How much of a class's answer comes from the head and how much from the learner, and when the class counts as present.

Everything in this module works on the logits of a few sampled pixels of left-out photos, so it takes little time
compared with training.
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
MARGIN = 0.02  # IoU
USUAL_SHIFTS = (0.0, 0.5, 1.0, 1.5, 2.0)  # over which weights are compared
SHIFTS = tuple(quarter / 4 for quarter in range(-4, 17))  # among which the shift is found
AS_GOOD = 0.01  # IoU: shifts that differ by no more are equally good for a photo
HEAD_ALONE = Mixture(1.0, 0.0, 0.0)

# With a single example nothing can be left out. What can be seen is how sure the head is of the example itself: the
# mean of its logits inside the example's own mask was 2.1 to 4.8 for PASCAL's objects, 1.2 to 2.7 for defects of steel
# and -0.3 to 1.4 for nuclei. Below UNSURE the learner counts as much as the head, above SURE it has a small say.
# The constants were chosen on PASCAL's training list, with heads that never saw the class, and on steel and nuclei.
# mIoU with one example by `benchmarks/own_photos.py --examples 1 --weights 0.1,1` (20 classes of PASCAL's validation
# list, --tasks 1 --queries 20; steel and nuclei, --tasks 2):
#   this rule                                46.3; 45.6; 75.7
#   the head alone                           45.9; 35.7; 33.1
#   a learner weight of 1, always            42.2; 47.0; 75.7
#   a learner weight of 0.1, always          46.0; 40.1; 51.1
UNSURE, SURE = 1.5, 2.25  # logits
LEARNER_MOST, LEARNER_LEAST = 1.0, 0.1
ONE_SHIFT = 1.0

LEAST_SHARE = 0.002  # of a photo: a class is not asked to cover less before it counts as present
NARROWEST = 0.25  # the scale on which presence turns from unlikely to likely is at least this wide, in logits


@dataclass(frozen=True)
class LeftOut:
    """One class at the drawn pixels of one photo that was left out."""

    head: Tensor  # (n,): the head's logit, counted from its threshold
    learner: Tensor  # (n,)
    inside: Tensor  # (n,) bool: the pixel is of the class
    shares: Tensor  # (n,): the share of the photo that a pixel stands for

    def iou(self, mixture: Mixture) -> float:
        """The intersection over union that the mixture reaches; 1 if the class is neither there nor found."""
        found = mixture.logits(self.head, self.learner) >= 0
        union = float((self.shares * (found | self.inside)).sum())
        return float((self.shares * (found & self.inside)).sum()) / union if union else 1.0

    def highest(self, mixture: Mixture, share: float) -> float:
        """The mean of the highest mixed logits that stand together for `share` of the photo."""
        values, order = mixture.logits(self.head, self.learner).sort(descending=True)
        shares = self.shares[order] / self.shares.sum().clamp_min(1e-12)
        weight = (share - (shares.cumsum(dim=0) - shares)).clamp_min(0).minimum(shares)
        return float((values * weight).sum() / weight.sum().clamp_min(1e-12))

    def background(self) -> LeftOut:
        """The photo without its class: what a photo that lacks the class might look like."""
        outside = ~self.inside
        return LeftOut(self.head[outside], self.learner[outside], self.inside[outside], self.shares[outside])


def best_mixture(left_out: Sequence[LeftOut]) -> tuple[Mixture, list[float]]:
    """Choose weights and shift by the left-out photos.

    The weights are those of the highest IoU over all photos and usual shifts. The shift is the mean of the shifts that
    suit each photo best, which is steadier than the one that does best on all of them together.

    Returns:
        The mixture, and its IoU on each photo.
    """

    def over_shifts(weights: tuple[float, float]) -> float:
        return _mean([photo.iou(Mixture(*weights, shift)) for photo in left_out for shift in USUAL_SHIFTS])

    first, *others = WEIGHTS
    found = {first: over_shifts(first) + MARGIN} | {weights: over_shifts(weights) for weights in others}
    head, learner = max(found, key=lambda weights: found[weights])
    best = Mixture(head, learner, _mean([_best_shift(photo, head, learner) for photo in left_out]))
    return best, [photo.iou(best) for photo in left_out]


def _best_shift(photo: LeftOut, head: float, learner: float) -> float:
    """The middle of the shifts that suit a photo best."""
    reached = [photo.iou(Mixture(head, learner, shift)) for shift in SHIFTS]
    return _mean([shift for shift, iou in zip(SHIFTS, reached, strict=True) if iou >= max(reached) - AS_GOOD])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class PresenceRule(NamedTuple):
    """A class is present when the mean of its highest logits, over a share of the photo, reaches a level."""

    share: float
    level: float
    scale: float

    def logit(self, logits: Tensor) -> float:
        """The presence logit of a whole photo, from the mixed logits of all its positions; 0 is undecided."""
        values = logits.flatten()
        count = max(1, round(self.share * values.numel()))
        return (float(values.topk(count).values.mean()) - self.level) / self.scale


MASK_DECIDES = PresenceRule(LEAST_SHARE, 0.0, 1.0)  # present if the mask covers at least this share


def presence_rule(with_class: Sequence[float], without_class: Sequence[float], share: float) -> PresenceRule | None:
    """Choose the level between photos that show the class and photos that do not.

    Args:
        with_class: `LeftOut.highest` of left-out photos that show the class.
        without_class: The same of photos that do not.
        share: The share that both were taken over.

    Returns:
        The rule; None if the two do not differ in the right direction.
    """
    high, low = torch.tensor(with_class), torch.tensor(without_class)
    gap = float(high.mean() - low.mean())
    if gap <= 0:
        return None
    wide = [max(float(each.std()) if len(each) > 1 else 0.0, gap / 8) for each in (high, low)]
    level = (float(high.mean()) * wide[1] + float(low.mean()) * wide[0]) / sum(wide)
    return PresenceRule(share, level, max(gap / 4, NARROWEST))


def rule_from_backgrounds(with_class: Sequence[float], backgrounds: Sequence[float], share: float) -> PresenceRule:
    """Choose the level where no photo is known to lack the class.

    Args:
        with_class: `LeftOut.highest` of left-out photos that show the class.
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
        without_class: `LeftOut.highest` of photos that lack the class.
        share: The share that they were taken over.
    """
    return PresenceRule(share, max(0.0, *(value + NARROWEST for value in without_class)), 1.0)


def share_for(shares: Sequence[float]) -> float:
    """The share of a photo that decides presence: half of the smallest that an example shows."""
    return max(LEAST_SHARE, min(shares) / 2) if shares else LEAST_SHARE


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


def sigmoid(value: float) -> float:
    """The probability of a logit."""
    return 1 / (1 + math.exp(-min(max(value, -50.0), 50.0)))
