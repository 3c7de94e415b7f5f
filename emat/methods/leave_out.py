"""Learning from examples: the learner is trained, and photos are left out in turn to see what would happen on new ones.

The left-out photos choose the mixture of head and learner and the presence rule of every class, and say what to expect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from emat.methods.learner import UNKNOWN, LabelledPhoto, Learner, Trained, train
from emat.methods.mixture import (
    HEAD_ALONE,
    LEARNER_MOST,
    LEAST_SHARE,
    MASK_DECIDES,
    LeftOut,
    Mixture,
    PresenceRule,
    best_mixture,
    mixture_of_one,
    presence_rule,
    rule_from_backgrounds,
    rule_of_one,
    share_for,
)
from emat.methods.pixel_features import WORKING_SIDE

MOST_FOLDS = 5  # groups of photos that are left out in turn
COMPARED_PHOTOS = 4  # a left-out photo is compared by the head with so many others, which keeps fitting quick
MOST_ABSENT = 4  # photos without a class that the head looks at, for the same reason
NAN = float("nan")
GUESS = 0.5  # the share of right verdicts where photos with and without a class cannot be told apart
WHOLE = 0.5  # the share of a photo that must be known of a class to measure IoU, area or absence; strokes are far less

# (photo, class, supports) -> the head's logit (h, w) for the class on a photo, from the supports of these photos
HeadLogits: TypeAlias = Callable[[int, int, Sequence[int]], Tensor]


@dataclass(frozen=True)
class Learnt:
    """What examples taught. N is the number of classes, P the number of photos."""

    mean: Tensor  # (features,), this and the next three are the learner's
    spread: Tensor  # (features,)
    weights: Tensor  # (N, features)
    bias: Tensor  # (N,)
    mixtures: Tensor  # (N, 3): head, learner, shift
    presence: Tensor  # (N, 3): share, level, scale; NaN where the head's own presence counts
    left_out_iou: Tensor  # (P, N): what was reached on a photo of the class when it was left out; NaN if not known
    presence_right: Tensor  # (N,): share of the left-out photos whose presence was right; NaN if not known
    side: Tensor | None = None  # (1,): the longest side at which photos were learnt from; None in early files

    @property
    def learner(self) -> Learner:
        """The pixel classifier."""
        return Learner(self.mean, self.spread, self.weights, self.bias)

    def mixture(self, c: int) -> Mixture:
        """The mixture of a class."""
        return Mixture(*self.mixtures[c, :3].tolist())  # early files have a fourth column

    @property
    def needs_head(self) -> bool:
        """Whether the head counts in the answer for any class."""
        return bool((self.mixtures[:, 0] != 0).any())

    def knows_absence(self, c: int) -> bool:
        """Whether the presence rule of a class comes from photos that lack it."""
        return not bool(torch.isnan(self.presence_right[c]))

    @property
    def working_side(self) -> int:
        """The longest side, in pixels, at which photos were learnt from."""
        return WORKING_SIDE if self.side is None else int(self.side)

    def presence_rule(self, c: int) -> PresenceRule | None:
        """The presence rule of a class; None where the head's own presence counts."""
        rule = PresenceRule(*self.presence[c].tolist())
        return rule if rule.scale > 0 else None


@dataclass(frozen=True)
class _Choice:
    """What was found for one class."""

    mixture: Mixture
    rule: PresenceRule | None
    iou: dict[int, float]  # by photo
    presence_right: float


def learn_from(photos: Sequence[LabelledPhoto], head_logits: HeadLogits, order: Sequence[int]) -> Learnt:
    """Learn from photos.

    Args:
        photos: In an order that depends on their content alone.
        head_logits: What the head says of a photo.
        order: The index that each photo has for the caller.
    """
    shown = [[bool((mask == 1).any()) for mask in photo.masks] for photo in photos]
    folds = _folds(shown)
    whole = [[float((mask != UNKNOWN).float().mean()) >= WHOLE for mask in photo.masks] for photo in photos]
    seen = _Seen(shown, whole, folds, train(photos, folds), head_logits)
    choices = [_choose(c, seen) for c in range(len(shown[0]))]
    left_out = torch.full((len(photos), len(choices)), NAN)
    for c, choice in enumerate(choices):
        for photo, iou in choice.iou.items():
            left_out[order[photo], c] = iou
    learner = seen.trained.learner
    return Learnt(
        mean=learner.mean,
        spread=learner.spread,
        weights=learner.weights,
        bias=learner.bias,
        mixtures=torch.tensor([tuple(choice.mixture) for choice in choices]),
        presence=torch.tensor([(NAN, NAN, NAN) if each.rule is None else tuple(each.rule) for each in choices]),
        left_out_iou=left_out,
        presence_right=torch.tensor([choice.presence_right for choice in choices]),
    )


def _folds(shown: Sequence[Sequence[bool]]) -> list[int]:
    """The group of each photo; the photos of a class are spread over the groups. Empty for a single photo."""
    if len(shown) < 2:
        return []
    by_class = sorted(range(len(shown)), key=lambda index: (not any(shown[index]), _first(shown[index]), index))
    folds = [0] * len(shown)
    for number, index in enumerate(by_class):
        folds[index] = number % MOST_FOLDS
    for c in range(len(shown[0])):
        positives = [index for index, classes in enumerate(shown) if classes[c]]
        if len(positives) > 1 and len({folds[index] for index in positives}) == 1:
            _move(positives[-1], folds, shown)
    return folds


def _move(photo: int, folds: list[int], shown: Sequence[Sequence[bool]]) -> None:
    """Put a photo into another group, one that does not hold all other photos of a class that it shows."""
    classes = [c for c, is_shown in enumerate(shown[photo]) if is_shown]
    others = [{folds[i] for i, each in enumerate(shown) if i != photo and each[c]} for c in classes]
    elsewhere = [fold for fold in range(MOST_FOLDS) if fold != folds[photo]]
    folds[photo] = min(elsewhere, key=lambda fold: sum(each == {fold} for each in others))


def _first(shown: Sequence[bool]) -> int:
    return list(shown).index(True) if any(shown) else len(shown)


@dataclass(frozen=True)
class _Seen:
    """What head and learner say of the photos, each as if its group had not been shown."""

    shown: Sequence[Sequence[bool]]  # for each photo, whether it shows each class
    whole: Sequence[Sequence[bool]]  # likewise, whether enough of its pixels are known to judge it as a whole
    folds: Sequence[int]  # the group of each photo
    trained: Trained
    head_logits: HeadLogits

    def positives(self, c: int) -> list[int]:
        """The photos that show a class."""
        return [index for index, classes in enumerate(self.shown) if classes[c]]

    def left_out(self, index: int, c: int) -> LeftOut:
        """One class at the drawn pixels of one photo whose class is known there."""
        samples = self.trained.samples
        # The next photos first, then from the start.
        later = sorted(self.positives(c), key=lambda other: (other <= index, other))
        others = [other for other in later if self.folds[other] != self.folds[index]][:COMPARED_PHOTOS]
        own = samples.photo == index
        labels = samples.labels[own, c]
        known = labels <= 1
        return LeftOut(
            self.head(index, c, others)[known],
            self.trained.left_out[own, c][known],
            labels[known] == 1,
            samples.shares[own][known],
        )

    def head(self, index: int, c: int, others: Sequence[int]) -> Tensor:
        """The head's logit (n,) at the drawn pixels of a photo, from the supports of other photos."""
        samples = self.trained.samples
        return _at_points(self.head_logits(index, c, others), samples.points[samples.photo == index])

    def was_left_out(self, index: int, c: int) -> bool:
        """Whether the learner could be trained on a class without the photo."""
        return not bool(torch.isnan(self.trained.left_out[self.trained.samples.photo == index, c]).any())

    def absent(self, c: int) -> list[int]:
        """Photos that are known not to show a class: those without any class first."""
        samples = self.trained.samples
        without = []
        for index, classes in enumerate(self.shown):
            labels = samples.labels[samples.photo == index, c]
            lacks = not classes[c] and self.whole[index][c] and len(labels) and bool((labels == 0).all())
            if lacks and self.was_left_out(index, c):
                without.append(index)
        return sorted(without, key=lambda index: (any(self.shown[index]), index))[:MOST_ABSENT]


def _choose(c: int, seen: _Seen) -> _Choice:
    """The mixture and presence rule of one class."""
    positives = seen.positives(c)
    if len(positives) == 1:
        return _choose_by_one(c, positives[0], seen)
    photos = {index: seen.left_out(index, c) for index in positives if seen.was_left_out(index, c)}
    if not photos:
        return _Choice(HEAD_ALONE, None, {}, NAN)
    mixture, reached = best_mixture(list(photos.values()))
    absent = seen.absent(c)
    # What is reached on a few strokes says nothing about whole photos, and neither does their share of them.
    iou = {index: value for index, value in zip(photos, reached, strict=True) if seen.whole[index][c]}
    judged = [photos[index] for index in iou]
    if not judged:
        return _Choice(mixture, _rule_without_areas(c, mixture, absent, seen), {}, NAN)
    share = share_for([float((each.shares * each.inside).sum() / each.shares.sum()) for each in judged])
    high = [each.highest(mixture, share) for each in judged]
    if not absent:
        low = [each.background().highest(mixture, share) for each in judged if not bool(each.inside.all())]
        return _Choice(mixture, rule_from_backgrounds(high, low, share) if low else MASK_DECIDES, iou, NAN)
    low = [seen.left_out(index, c).highest(mixture, share) for index in absent]
    rule = presence_rule(high, low, share)
    if rule is None:
        return _Choice(mixture, None, iou, GUESS)
    right = sum([each >= rule.level for each in high] + [each < rule.level for each in low]) / len(high + low)
    return _Choice(mixture, rule, iou, right)


def _choose_by_one(c: int, only: int, seen: _Seen) -> _Choice:
    """The mixture and presence rule of a class that a single photo shows."""
    samples = seen.trained.samples
    own = samples.photo == only
    inside = samples.labels[own, c] == 1
    mixture = mixture_of_one(float(seen.head(only, c, [only])[inside].mean()))
    # Photos of other classes may show something similar, above which a single photo sets no level.
    absent = [index for index in seen.absent(c) if not any(seen.shown[index])]
    if not absent or not seen.whole[only][c]:
        return _Choice(mixture, _rule_without_areas(c, mixture, absent, seen), {}, NAN)
    share = share_for([float(samples.shares[own][inside].sum() / samples.shares[own].sum())])
    low = [seen.left_out(index, c).highest(mixture, share) for index in absent]
    return _Choice(mixture, rule_of_one(low, share), {}, NAN)


def _rule_without_areas(c: int, mixture: Mixture, absent: Sequence[int], seen: _Seen) -> PresenceRule | None:
    """The presence rule of a class whose size in a photo is not known, or that was never left out."""
    if absent:
        low = [seen.left_out(index, c).highest(mixture, LEAST_SHARE) for index in absent]
        return rule_of_one(low, LEAST_SHARE)
    # Where the head is unsure of its own examples, its presence says little.
    return MASK_DECIDES if mixture.learner >= LEARNER_MOST else None


def _at_points(logits: Tensor, points: Tensor) -> Tensor:
    """A map (h, w) read at points (n, 2): the cell that each lies in."""
    height, width = logits.shape
    rows = (points[:, 1] * height).long().clamp(max=height - 1)
    columns = (points[:, 0] * width).long().clamp(max=width - 1)
    return logits[rows, columns]
