"""How much of a class's answer comes from the head and how much from the learner, and when the class counts as present.

Everything here works on logits at a few drawn pixels of photos that were left out, so it takes no time beside training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Mixture(NamedTuple):
    """The weights in `head * head logit + learner * (learner logit + shift)`; 0 is the border of the mask.

    The learner is left out of a photo where its mask and the head's have an intersection over union below `agreement`:
    then it has met something that the examples do not tell it about.
    """

    head: float
    learner: float
    shift: float
    agreement: float = 0.0

    def logits(self, head: Tensor, learner: Tensor, shares: Tensor | None = None) -> Tensor:
        """Mix the two logits of one photo, which have the same shape.

        Args:
            head: Logits counted from the head's threshold.
            learner: Logits of the learner.
            shares: The share of the photo that each logit stands for; None if all stand for the same.
        """
        if not self.learner or (self.agreement and _agreement(head, learner, shares) < self.agreement):
            return self.head * head
        mixed = self.learner * (learner + self.shift)
        return mixed + self.head * head if self.head else mixed


def _agreement(head: Tensor, learner: Tensor, shares: Tensor | None) -> float:
    """The intersection over union of the two masks; 0 if both are empty."""
    both, either = (head >= 0) & (learner >= 0), (head >= 0) | (learner >= 0)
    weight = torch.ones_like(head) if shares is None else shares
    return float((weight * both).sum() / (weight * either).sum().clamp_min(1e-12))


HEAD_ALONE = Mixture(1.0, 0.0, 0.0)
CANDIDATES = (HEAD_ALONE, *(Mixture(1.0, weight, 1.0) for weight in (0.25, 0.5, 1.0, 2.0)))
# Where the head alone is at most so much IoU behind the mixture on left-out photos, it is trusted on a photo where the
# two agree less than this share of what they do on left-out photos. Chosen, as the rest here, on PASCAL's training
# classes and on photos of nuclei and of steel.
HEAD_COUNTS = 0.15
UNUSUAL = 0.6

# With a single example nothing can be left out. Many separate regions are a texture or small parts, which the learner
# knows better.
MANY_REGIONS = 8
ONE_OBJECT, ONE_TEXTURE = Mixture(1.0, 0.5, 1.0, agreement=0.2), Mixture(1.0, 2.0, 1.0)

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
        found = mixture.logits(self.head, self.learner, self.shares) >= 0
        union = float((self.shares * (found | self.inside)).sum())
        return float((self.shares * (found & self.inside)).sum()) / union if union else 1.0

    def highest(self, mixture: Mixture, share: float) -> float:
        """The mean of the highest mixed logits that stand together for `share` of the photo."""
        values, order = mixture.logits(self.head, self.learner, self.shares).sort(descending=True)
        shares = self.shares[order] / self.shares.sum()
        weight = (share - (shares.cumsum(dim=0) - shares)).clamp_min(0).minimum(shares)
        return float((values * weight).sum() / weight.sum().clamp_min(1e-12))


def best_mixture(left_out: Sequence[LeftOut]) -> tuple[Mixture, list[float]]:
    """Choose the candidate with the highest mean IoU over the left-out photos.

    Returns:
        The mixture, and its IoU on each photo.
    """
    means = [sum(photo.iou(mixture) for photo in left_out) / len(left_out) for mixture in CANDIDATES]
    best = CANDIDATES[means.index(max(means))]
    if best.learner and means[0] >= max(means) - HEAD_COUNTS:
        usual = sum(_agreement(photo.head, photo.learner, photo.shares) for photo in left_out) / len(left_out)
        best = best._replace(agreement=UNUSUAL * usual)
    return best, [photo.iou(best) for photo in left_out]


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


def share_for(shares: Sequence[float]) -> float:
    """The share of a photo that decides presence: half of the smallest that an example shows."""
    return max(LEAST_SHARE, min(shares) / 2) if shares else LEAST_SHARE


def logit(probability: float) -> float:
    """The logit of a probability, kept finite."""
    bounded = min(max(probability, 1e-6), 1 - 1e-6)
    return math.log(bounded / (1 - bounded))


def mixture_of_one(mask: Tensor) -> Mixture:
    """Choose the mixture of a class that a single photo shows, where its mask (H, W) is 1."""
    return ONE_TEXTURE if count_regions(mask == 1) >= MANY_REGIONS else ONE_OBJECT


def count_regions(mask: Tensor) -> int:
    """Count the connected regions of a mask (H, W), not those below a hundredth of the largest.

    Args:
        mask: (H, W) bool. It is looked at on a grid of at most 200 cells a side.

    >>> count_regions(torch.tensor([[1, 0, 1, 1], [0, 1, 0, 0], [0, 0, 0, 1]]) > 0)
    2
    """
    step = -(-max(mask.shape) // 200)
    rows = mask[::step, ::step].cpu().numpy()
    parents: list[int] = []
    sizes: list[int] = []

    def root(label: int) -> int:
        while parents[label] != label:
            label = parents[label]
        return label

    above: list[tuple[int, int, int]] = []  # runs of the row before: start, end, label
    for row in rows:
        edges = np.flatnonzero(np.diff(np.concatenate([[False], row, [False]]).astype(np.int8)))
        runs = []
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            label = len(parents)
            parents.append(label)
            sizes.append(end - start)
            for other_start, other_end, other in above:
                if other_start <= end and other_end >= start:
                    one, two = sorted((root(other), root(label)))
                    if one != two:
                        parents[two] = one
                        sizes[one] += sizes[two]
            runs.append((start, end, label))
        above = runs
    regions = [sizes[label] for label in range(len(parents)) if parents[label] == label]
    return sum(size >= max(regions) / 100 for size in regions)


def sigmoid(value: float) -> float:
    """The probability of a logit."""
    return 1 / (1 + math.exp(-min(max(value, -50.0), 50.0)))
