"""Cross-validation: photos are left out in turn to see what would happen on new ones.

The left-out photos choose how much photos without a class count, the mixture of head and learner and the presence rule
of every class, all classes together, and say what to expect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from emat.images import VOID
from emat.pixel_learner.competition import Rivals, all_rivals, calibrate, margins
from emat.pixel_learner.features import WORKING_SIDE
from emat.pixel_learner.mixture import (
    HEAD_ALONE,
    LEARNER_MOST,
    LEAST_SHARE,
    MASK_DECIDES,
    Chosen,
    LeftOut,
    Mixture,
    Presence,
    PresenceRule,
    best_mixture,
    best_presence,
    highest,
    mixture_of_one,
    rule_from_backgrounds,
    rule_of_one,
    shares_for,
)
from emat.pixel_learner.photo_threshold import PhotoThreshold, learn_threshold
from emat.pixel_learner.regression import LabelledPhoto, PixelClassifier, Training, at_grid, content_order

MOST_FOLDS = 5  # of the cross-validation

# The head compares every left-out photo with other examples. These limits keep fitting quick.
COMPARED_PHOTOS = 4  # examples that a photo with the class is compared with
COMPARED_ABSENT = 2  # examples that a photo without the class is compared with
MOST_ABSENT = 8  # photos without the class that are compared at all

# The weight of photos without a class in training: the first that lowers the IoU of left-out photos by less than HARM.
NEGATIVE_WEIGHTS = (1.0, 0.25, 0.0)
MOST_WEIGHED = 5  # classes up to which this is tried, because the time of fitting grows with every weight
HARM = 0.02
WORSE = 0.01  # mean IoU of left-out photos that a threshold of their own may cost before it is not used

NAN = float("nan")
GUESS = 0.5  # the share of right verdicts where photos with and without a class cannot be told apart
# IoU, area and absence of a class are measured on photos of which at least this share is labelled; strokes are less.
LEAST_LABELLED = 0.5

# (photo, class, supports) -> the head's logit (h, w) for the class on a photo, from the supports of these photos
HeadLogits: TypeAlias = Callable[[int, int, Sequence[int]], Tensor]


@dataclass(frozen=True)
class ClassChoice:
    """How the answer for one class is made."""

    mixture: Mixture
    rule: PresenceRule | None  # None where the head's own presence counts
    knows_absence: bool  # whether the rule comes from photos that lack the class
    was_left_out: bool = True  # whether the rule comes from left-out photos that show it
    competed: bool = False  # whether mixture and rule were chosen beside the other classes
    threshold: PhotoThreshold | None = None  # None where all photos have the same: a mixed logit of 0


@dataclass(frozen=True)
class Learnt:
    """What examples taught. N is the number of classes, P the number of photos."""

    mean: Tensor  # (features,), this and the next three are the classifier's
    spread: Tensor  # (features,)
    weights: Tensor  # (N, features)
    bias: Tensor  # (N,)
    mixtures: Tensor  # (N, 3): head, learner, shift
    presence: Tensor  # (N, 3): share, level, scale; NaN where the head's own presence counts
    left_out_iou: Tensor  # (P, N): what was reached on a photo of the class when it was left out; NaN if not known
    presence_right: Tensor  # (N,): share of the left-out photos whose presence was right; NaN if not known
    side: Tensor | None = None  # (1,): the longest side at which photos were learnt from; None in early files
    presence_auroc: Tensor | None = None  # (N,): of left-out photos with and without the class; NaN if not known
    confusion: Tensor | None = None  # (N, N): the share of a class's left-out pixels that are called each class
    left_out_area: Tensor | None = None  # (P, N): area found on such a photo, in areas of the class's usual mask
    photo_thresholds: Tensor | None = None  # (N, 2): slope, bias; NaN where all photos have the same threshold

    @property
    def classifier(self) -> PixelClassifier:
        """The pixel classifier."""
        return PixelClassifier(self.mean, self.spread, self.weights, self.bias)

    def choice(self, c: int) -> ClassChoice:
        """What was chosen for a class."""
        was_left_out = not bool(torch.isnan(self.left_out_iou[:, c]).all())
        # Early files have no confusion: their classes were chosen one at a time.
        competed = was_left_out and self.confusion is not None
        return ClassChoice(
            self.mixture(c), self.presence_rule(c), self.knows_absence(c), was_left_out, competed, self.threshold(c)
        )

    def only(self, classes: Sequence[int]) -> Learnt:
        """What was learnt of some classes, in their order."""
        if list(classes) == list(range(len(self.bias))):
            return self
        chosen = torch.tensor(list(classes), device=self.bias.device)
        names = ("weights", "bias", "mixtures", "presence", "presence_right", "presence_auroc", "photo_thresholds")
        own = {name: value[chosen] for name in names if (value := getattr(self, name)) is not None}
        confusion = None if self.confusion is None else self.confusion[chosen][:, chosen]
        area = None if self.left_out_area is None else self.left_out_area[:, chosen]
        return replace(self, left_out_iou=self.left_out_iou[:, chosen], left_out_area=area, confusion=confusion, **own)

    def mixture(self, c: int) -> Mixture:
        """The mixture of a class."""
        return Mixture(*self.mixtures[c, :3].tolist())  # early files have a fourth column

    def threshold(self, c: int) -> PhotoThreshold | None:
        """How the threshold of a class follows from a photo; None if it does not."""
        if self.photo_thresholds is None or bool(torch.isnan(self.photo_thresholds[c]).any()):
            return None
        return PhotoThreshold(*self.photo_thresholds[c].tolist())

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
class CrossValidated:
    """What examples taught, and what they would have taught without one fold of them."""

    learnt: Learnt
    folds: tuple[int, ...]  # of each photo, in the order of the caller; empty for a single photo
    by_fold: Mapping[int, PixelClassifier]
    maps: Mapping[int, Mapping[int, Tensor]]  # by photo and class, the mixed logits (h, w) of photos that were left out

    def without(self, photo: int) -> Learnt:
        """What the photos outside of a photo's fold taught; mixtures and presence rules are those of all photos."""
        left = self.by_fold[self.folds[photo]]
        return replace(self.learnt, mean=left.mean, spread=left.spread, weights=left.weights, bias=left.bias)


def cross_validate(
    photos: Sequence[LabelledPhoto],
    head_logits: HeadLogits,
    side: int,
    rivals: Sequence[Sequence[int]] | None = None,
) -> CrossValidated:
    """Learn from photos, and choose mixtures and presence rules on those that were left out.

    Each class chooses the weight of the photos that lack it, and its mixture. Then all classes compete for the pixels
    of left-out photos, and their mixtures are calibrated together. Presence rules and the thresholds of single photos
    come last.

    Args:
        photos: In any order: they are sorted by their content first, so the order does not matter.
        head_logits: What the head says of a photo.
        side: The longest side, in pixels, at which the photos were looked at.
        rivals: For each class those that it competes with; by default all others.
    """
    # The order of the examples must not change anything, so they are sorted by their content.
    order = content_order(photos)
    photos = [photos[index] for index in order]
    shown = [[bool((mask == 1).any()) for mask in photo.masks] for photo in photos]
    folds = _folds(shown)

    def sorted_logits(photo: int, c: int, others: Sequence[int]) -> Tensor:
        return head_logits(order[photo], c, [order[other] for other in others])

    # Train once with every fold left out, with the weight of photos without the class that suits each class.
    classes = range(len(shown[0]))
    if rivals is None:
        rivals = all_rivals(len(classes))
    left_out = _LeftOutPhotos(photos, shown, folds, Training(photos, folds), sorted_logits, rivals)
    weighed = [_weighed(c, left_out) for c in classes]
    trained = left_out.training.trained([weight for weight, _ in weighed])
    left_out.take(trained.left_out, trained.by_fold)
    # Choose how head and learner are mixed, first for each class, then with the classes in competition.
    firsts = [_first_mixture(c, chosen, left_out) for c, (_, chosen) in enumerate(weighed)]
    mixtures, competition = _compete([chosen for _, chosen in weighed], firsts, left_out)
    presences = [_presence(c, mixtures, left_out) for c in classes]
    thresholds, competition = _photo_thresholds(mixtures, competition, left_out)
    won = competition.won()
    iou = competition.iou(won)
    # IoU and area of every left-out photo, in the order in which the photos were given.
    areas, shown_areas = competition.areas(won), competition.areas(competition.inside)
    left_out_iou = torch.full((len(photos), len(classes)), NAN)
    left_out_area = left_out_iou.clone()
    for c, presence in enumerate(presences):
        judged = left_out.judged(c)
        for number, photo in enumerate(judged):
            # A photo on which the class would be called absent gets no mask of it.
            is_found = number not in presence.missed
            left_out_iou[order[photo], c] = iou[photo, c] if is_found else 0.0
            left_out_area[order[photo], c] = areas[photo, c] / shown_areas[judged, c].median() if is_found else 0.0
    classifier = trained.classifier
    learnt = Learnt(
        mean=classifier.mean,
        spread=classifier.spread,
        weights=classifier.weights,
        bias=classifier.bias,
        mixtures=torch.tensor([tuple(mixture) for mixture in mixtures]),
        presence=torch.tensor(
            [(NAN, NAN, NAN) if presence.rule is None else tuple(presence.rule) for presence in presences]
        ),
        left_out_iou=left_out_iou,
        presence_right=torch.tensor([presence.right for presence in presences]),
        side=torch.tensor([side]),
        presence_auroc=torch.tensor([presence.auroc for presence in presences]),
        confusion=competition.confusion(won) if len(classes) > 1 else None,
        left_out_area=left_out_area,
        photo_thresholds=torch.tensor(
            [(NAN, NAN) if threshold is None else tuple(threshold) for threshold in thresholds]
        ),
    )
    # Folds and maps of the left-out photos, in the given order too, for the decisions that follow.
    fold_of = dict(zip(order, folds, strict=True)) if folds else {}
    maps: dict[int, dict[int, Tensor]] = {}
    for c in classes:
        for photo in left_out.judged(c):
            logits = left_out.mixed(photo, c, mixtures[c])
            threshold = thresholds[c]
            maps.setdefault(order[photo], {})[c] = logits if threshold is None else logits - threshold.on(logits[None])
    return CrossValidated(learnt, tuple(fold_of[index] for index in sorted(fold_of)), trained.by_fold, maps)


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
    """Move a photo to another fold. Where it can be, that is not the fold of all other photos of one of its classes."""
    classes = [c for c, is_shown in enumerate(shown[photo]) if is_shown]
    others = [{folds[i] for i, classes_shown in enumerate(shown) if i != photo and classes_shown[c]} for c in classes]
    elsewhere = [fold for fold in range(MOST_FOLDS) if fold != folds[photo]]
    folds[photo] = min(elsewhere, key=lambda fold: sum(other_folds == {fold} for other_folds in others))


def _first(shown: Sequence[bool]) -> int:
    return list(shown).index(True) if any(shown) else len(shown)


class _LeftOutPhotos:
    """The logits of head and learner on every photo, made without the photos of its fold."""

    def __init__(
        self,
        photos: Sequence[LabelledPhoto],
        shown: Sequence[Sequence[bool]],  # for each photo, whether it shows each class
        folds: Sequence[int],
        training: Training,
        head_logits: HeadLogits,
        competing: Sequence[Sequence[int]],
    ) -> None:
        self.photos, self.shown, self.folds, self.training = photos, shown, folds, training
        self.competing = competing
        # Whether enough of its pixels are known to judge a photo as a whole.
        labelled = [[float((mask != VOID).float().mean()) for mask in photo.masks] for photo in photos]
        self.whole = [[share >= LEAST_LABELLED for share in shares] for shares in labelled]
        self.samples = training.samples
        self._head_logits = head_logits
        self._heads: dict[tuple[int, int], Tensor] = {}
        self._maps: dict[int, Tensor] = {}
        self._asked: dict[int, list[int]] = {}
        self._learner: Tensor | None = None
        self._by_fold: Mapping[int, PixelClassifier] = {}

    def take(self, learner: Tensor, by_fold: Mapping[int, PixelClassifier]) -> None:
        """Take the chosen learner's logits (n, N) at the drawn pixels, and its classifiers without each fold."""
        self._learner, self._by_fold = learner, by_fold

    def positives(self, c: int) -> list[int]:
        """The photos that show a class."""
        return [index for index, classes in enumerate(self.shown) if classes[c]]

    def was_left_out(self, index: int, c: int) -> bool:
        """Whether the learner could be trained on a class without the photo."""
        return bool(self.folds) and any(self.folds[other] != self.folds[index] for other in self.positives(c))

    def tried(self, c: int) -> list[int]:
        """The photos of a class that can be left out."""
        positives = self.positives(c)
        return [index for index in positives if self.was_left_out(index, c)] if len(positives) > 1 else []

    def judged(self, c: int) -> list[int]:
        """Those of them that are known as a whole: a few strokes say nothing about IoU and area."""
        return [index for index in self.tried(c) if self.whole[index][c]]

    def absent(self, c: int) -> list[int]:
        """Photos that are known not to show a class, of every kind alike: those without any class, with each other."""
        kinds: dict[tuple[bool, ...], list[int]] = {}
        for index, classes in enumerate(self.shown):
            labels = self.samples.labels[self.samples.photo == index, c]
            lacks = not classes[c] and self.whole[index][c] and len(labels) and bool((labels == 0).all())
            if lacks and self.was_left_out(index, c):
                kinds.setdefault(tuple(classes), []).append(index)
        ranked = [(rank, any(kind), index) for kind, photos in kinds.items() for rank, index in enumerate(photos)]
        return [index for *_, index in sorted(ranked)][:MOST_ABSENT]

    def head(self, index: int, c: int) -> Tensor:
        """The head's logits (h, w) of a class on a photo, from the supports of photos in other groups."""
        if (index, c) not in self._heads:
            positives = self.positives(c)
            later = sorted(positives, key=lambda other: (other <= index, other))  # the next photos, then from the start
            others = [other for other in later if not self.folds or self.folds[other] != self.folds[index]]
            most = COMPARED_PHOTOS if self.shown[index][c] else COMPARED_ABSENT
            self._heads[index, c] = self._head_logits(index, c, others[:most] or [index])
        return self._heads[index, c]

    def head_at_samples(self, index: int, c: int) -> Tensor:
        """The same at the drawn pixels (n,)."""
        return _at_points(self.head(index, c), self.samples.points[self.samples.photo == index])

    def left_out(self, index: int, c: int, learner: Tensor) -> LeftOut:
        """One class at the drawn pixels of one photo whose class is known there; `learner` (n,) is of all pixels."""
        of_photo = self.samples.photo == index
        labels = self.samples.labels[of_photo, c]
        labelled = labels <= 1
        return LeftOut(
            self.head_at_samples(index, c)[labelled],
            learner[of_photo][labelled],
            labels[labelled] == 1,
            self.samples.shares[of_photo][labelled],
        )

    def mixed(self, index: int, c: int, mixture: Mixture) -> Tensor:
        """The mixed logits (h, w) of a class on a whole photo that was left out."""
        if index not in self._maps:
            self._maps[index] = self._by_fold[self.folds[index]].logits(self.photos[index].features.batch)[0]
        learner = self._maps[index][c]
        return mixture.logits(self.head(index, c) if mixture.head else learner, learner)

    def labels(self, index: int, c: int) -> Tensor:
        """What is known of a class (h, w) where `mixed` gives its logits: 1 inside, 0 outside, 255 unknown."""
        photo = self.photos[index]
        return at_grid(photo.masks[c : c + 1], photo.features.grid)[0]

    def margins(self, index: int, c: int, mixtures: Sequence[Mixture]) -> Tensor:
        """The margins (h, w) of a class on a whole photo that was left out.

        A rival counts if the photo shows it, or is one of those on which its absence is judged, as in `rivals`.
        """
        others = [other for other in self.competing[c] if index in self.asked(other)]
        logits = torch.stack([self.mixed(index, class_, mixtures[class_]) for class_ in (c, *others)])[None]
        return margins(logits, [range(1, len(others) + 1), *([()] * len(others))])[0, 0]

    def asked(self, c: int) -> list[int]:
        """The photos on which a class is looked for."""
        if c not in self._asked:
            self._asked[c] = [*self.tried(c), *self.absent(c)]
        return self._asked[c]

    def rivals(self, mixtures: Mapping[tuple[int, int], Mixture]) -> Rivals:
        """The mixed logits of the classes at the drawn pixels of the photos, by the mixture of (photo, class)."""
        assert self._learner is not None
        samples = self.samples
        logits = torch.full_like(self._learner, -torch.inf)
        for (index, c), mixture in mixtures.items():
            of_photo = samples.photo == index
            learner = self._learner[of_photo, c]
            logits[of_photo, c] = mixture.logits(self.head_at_samples(index, c) if mixture.head else learner, learner)
        inside, labelled = samples.labels == 1, samples.labels != VOID
        return Rivals(logits, inside, labelled, samples.shares, samples.photo, self.competing)


def _weighed(c: int, left_out: _LeftOutPhotos) -> tuple[float, Chosen | None]:
    """The weight of photos without a class, and the mixture that its left-out photos choose; None if there are none."""
    tried, training = left_out.tried(c), left_out.training
    if not tried:
        return NEGATIVE_WEIGHTS[0], None
    tries = training.has_negatives(c) and training.classes <= MOST_WEIGHED
    weights = NEGATIVE_WEIGHTS if tries else NEGATIVE_WEIGHTS[:1]
    chosen = {}
    for weight in weights:
        learner = training.left_out(c, weight)
        chosen[weight] = best_mixture([left_out.left_out(index, c, learner) for index in tried])
    best = max(choice.iou for choice in chosen.values())
    weight = next(weight for weight in weights if chosen[weight].iou >= best - HARM)
    return weight, chosen[weight]


def _first_mixture(c: int, chosen: Chosen | None, left_out: _LeftOutPhotos) -> Mixture:
    """The mixture of a class before the classes compete."""
    if chosen is not None:
        return chosen.mixture
    positives = left_out.positives(c)
    if len(positives) > 1:
        return HEAD_ALONE
    of_photo = left_out.samples.photo == positives[0]
    inside = left_out.samples.labels[of_photo, c] == 1
    return mixture_of_one(float(left_out.head_at_samples(positives[0], c)[inside].mean()))


def _compete(
    chosen: Sequence[Chosen | None], mixtures: Sequence[Mixture], left_out: _LeftOutPhotos
) -> tuple[list[Mixture], Rivals]:
    """Let the classes compete for the pixels of left-out photos.

    Returns:
        The mixtures, and the classes with the logits that these give.
    """
    asked: dict[tuple[int, int], Mixture] = {}
    for c, own in enumerate(chosen):
        if own is not None:  # on its own photos, by the mixture that the others chose
            asked |= {(index, c): mixture for index, mixture in zip(left_out.tried(c), own.by_others, strict=True)}
    if len(chosen) == 1:
        return list(mixtures), left_out.rivals(asked)
    asked |= {(index, c): mixtures[c] for c in range(len(chosen)) for index in left_out.absent(c)}
    rivals = left_out.rivals(asked)
    calibrated, logits = calibrate(rivals, mixtures, [own is not None for own in chosen])
    return calibrated, replace(rivals, logits=logits)


def _photo_thresholds(
    mixtures: Sequence[Mixture], competition: Rivals, left_out: _LeftOutPhotos
) -> tuple[list[PhotoThreshold | None], Rivals]:
    """Learn thresholds of single photos, and keep those of the classes that do not lose by them on left-out photos.

    Returns:
        The thresholds, and the classes with logits that are counted from them.
    """
    thresholds: list[PhotoThreshold | None] = []
    for c, mixture in enumerate(mixtures):
        judged = left_out.judged(c)
        maps = [left_out.mixed(index, c, mixture) for index in judged]
        labels = [left_out.labels(index, c) for index in judged]
        threshold = learn_threshold(maps, labels)
        if threshold is not None:
            logits = competition.logits.clone()
            for index, one in zip(judged, maps, strict=True):
                logits[competition.photo == index, c] -= threshold.on(one[None])
            moved = replace(competition, logits=logits)
            before, after = (rivals.iou(rivals.won())[judged, c].mean() for rivals in (competition, moved))
            if after < before - WORSE:
                threshold = None
            else:
                competition = moved
        thresholds.append(threshold)
    return thresholds, competition


def _presence(c: int, mixtures: Sequence[Mixture], left_out: _LeftOutPhotos) -> Presence:
    """The presence rule of one class, beside its rivals."""
    mixture = mixtures[c]
    judged, absent = left_out.judged(c), left_out.absent(c)
    if judged:
        areas = [float((left_out.photos[index].masks[c] == 1).float().mean()) for index in judged]
        shares = shares_for(areas)
        maps = [left_out.margins(index, c, mixtures) for index in judged]
        if absent:
            presence = best_presence(maps, [left_out.margins(index, c, mixtures) for index in absent], shares)
            return presence if presence.rule is not None else Presence(None, GUESS, presence.auroc)
        inside = [left_out.labels(index, c) for index in judged]
        around = [one[mask != 1] for one, mask in zip(maps, inside, strict=True) if bool((mask != 1).any())]
        if not around:
            return Presence(MASK_DECIDES, NAN, NAN)
        high, low = ([float(highest(one.reshape(1, -1), shares[0])) for one in values] for values in (maps, around))
        return Presence(rule_from_backgrounds(high, low, shares[0]), NAN, NAN)
    # With a single photo of the class, only photos without any class count as absent: something similar on a photo of
    # another class may have higher logits than the class itself, and one photo is too few to set a threshold by that.
    positives = left_out.positives(c)
    if len(positives) == 1:
        absent = [index for index in absent if not any(left_out.shown[index])]
    if absent:
        share = LEAST_SHARE
        if len(positives) == 1 and left_out.whole[positives[0]][c]:
            share = shares_for([float((left_out.photos[positives[0]].masks[c] == 1).float().mean())])[0]
        low = [float(highest(left_out.mixed(index, c, mixture).reshape(1, -1), share)) for index in absent]
        return Presence(rule_of_one(low, share), NAN, NAN)
    # Where the head is unsure of its own examples, its presence says little.
    return Presence(MASK_DECIDES if mixture.learner >= LEARNER_MOST else None, NAN, NAN)


def _at_points(logits: Tensor, points: Tensor) -> Tensor:
    """A map (h, w) read at points (n, 2): the cell that each lies in."""
    height, width = logits.shape
    rows = (points[:, 1] * height).long().clamp(max=height - 1)
    columns = (points[:, 0] * width).long().clamp(max=width - 1)
    return logits[rows, columns]
