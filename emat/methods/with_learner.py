"""A few-shot method together with the learner: what the head knows of objects, and what the examples show of the rest.

The head's mask logit is counted from its own threshold, so that 0 always means undecided, whichever head it is. Each
class has a mixture of both logits: with two or more photos of a class, the one that does best on photos left out;
with one photo, a rule decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from emat.backbone import Backbone
from emat.errors import EmatError
from emat.images import Pixels
from emat.methods.base import (
    PAPER_THRESHOLDS,
    Decision,
    Features,
    LabelledFeatures,
    Losses,
    LossWeights,
    Method,
    TaskEvidence,
    Thresholds,
    TrainingBatch,
)
from emat.methods.learner import UNKNOWN, LabelledPhoto, content_order, train
from emat.methods.leave_out import Learnt, learn_from
from emat.methods.mixture import MASK_DECIDES, logit, sigmoid
from emat.methods.pixel_features import WORKING_SIDE, PixelFeatures, pixel_features

CERTAIN = 1e-4  # the head's probabilities are kept that far from 0 and 1
ALMOST = 0.999  # a score just below a threshold is the threshold times this
FEATURES_VERSION = 1  # of the maps, for caches


@dataclass(frozen=True)
class Query:
    """A query's encoding: the head's own, and the features of its pixels."""

    inner: Any
    pixels: PixelFeatures


@dataclass(frozen=True)
class LearntEvidence:
    """What was learnt, applied to a query."""

    logits: Tensor  # (N, h, w): the learner's
    learnt: Learnt

    def part(self, shares: tuple[float, float, float, float]) -> LearntEvidence:
        """What lies in a rectangle: its top, left, height and width as shares of the photo."""
        top, left, height, width = shares
        rows, columns = self.logits.shape[1:]
        first, start = int(top * rows), int(left * columns)
        last, end = max(first + 1, round((top + height) * rows)), max(start + 1, round((left + width) * columns))
        return replace(self, logits=self.logits[:, first:last, start:end])


class LearningMethod(Method):
    """`inner` with a learner. Pairs of photos are compared as by `inner`; `learn` and `decide` add the learner."""

    def __init__(
        self, inner: Method, thresholds: Thresholds = PAPER_THRESHOLDS, working_side: int = WORKING_SIDE
    ) -> None:
        """Wrap a method.

        Args:
            inner: The method.
            thresholds: Those of its head, by which mixtures are chosen.
            working_side: The longest side, in pixels, at which the learner sees photos.
        """
        super().__init__()
        self.inner, self.thresholds, self.working_side = inner, thresholds, working_side
        self.name, self.preparation, self.recipe = inner.name, inner.preparation, inner.recipe
        self.takes_undecided, self.rules = inner.takes_undecided, inner.rules
        backbone = getattr(inner, "backbone", None)
        if not isinstance(backbone, Backbone) or backbone.spec is None:
            raise EmatError(
                f"the method {inner.name!r} has no backbone whose maps could be learnt from; use --no-learn"
            )
        self.backbone = backbone

    def at_side(self, working_side: int) -> LearningMethod:
        """The same method with a learner that sees photos at another size."""
        if working_side == self.working_side:
            return self
        return LearningMethod(self.inner, self.thresholds, working_side).eval()

    @property
    def learns(self) -> bool:
        """True: `learn` returns something."""
        return True

    def features(self, pixels: Tensor) -> list[Features]:
        """Raise a TypeError: the square that the backbone takes has lost the photo's aspect and its fine detail."""
        raise TypeError("the features of single pixels need whole photos; call photo_features or features_together")

    def photo_features(self, photo: Pixels) -> Features:
        """The features of `inner`, then the maps of the photo at its own aspect."""
        return self._joined(self.inner.photo_features(photo), photo)

    def features_together(self, photos: Sequence[Pixels]) -> list[Features]:
        """The features of `inner` in one pass, then the maps of each photo at its own aspect."""
        found = self.inner.features_together(photos)
        return [self._joined(one, photo) for one, photo in zip(found, photos, strict=True)]

    def _joined(self, features: Features, photo: Pixels) -> Features:
        maps = pixel_features(photo, self.backbone, self.working_side).maps
        return Features((*features.tensors, *maps, torch.tensor([len(maps)])), features.size)

    def feature_weights(self) -> Mapping[str, Tensor]:
        """The weights of `inner`, marked, because the features hold more than those of `inner` alone."""
        version = torch.tensor([FEATURES_VERSION, self.working_side])
        return {**self.inner.feature_weights(), "pixel features": version}

    def trained_weights(self) -> dict[str, Tensor]:
        """The weights of the head."""
        return self.inner.trained_weights()

    def load_trained_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the weights of the head."""
        self.inner.load_trained_weights(tensors)

    def encode_query(self, features: Features) -> Query:
        """Encode a query for the head, and keep the maps of its pixels."""
        own, pixels = parts_of(features)
        return Query(self.inner.encode_query(own), pixels)

    def encode_support(self, features: Features, mask: Tensor) -> Any:
        """Encode a support for the head."""
        return self.inner.encode_support(parts_of(features)[0], mask)

    def compare(self, query: Query, supports: Sequence[Any]) -> list[Any]:
        """Compare by the head alone."""
        return self.inner.compare(query.inner, supports)

    def apply_learnt(self, query: Query, learnt: Learnt) -> LearntEvidence:
        """Classify the pixels of a query."""
        return LearntEvidence(learnt.learner.logits(query.pixels), learnt)

    def decide(self, evidence: TaskEvidence, thresholds: Thresholds = PAPER_THRESHOLDS) -> Decision:
        """Mix the head's and the learner's logits of every way.

        A class without a pixel in the answer is not present, whatever its score would be.
        """
        if not isinstance(evidence.learnt, LearntEvidence):
            return self.inner.decide(evidence, thresholds)
        decision = self.inner.decide_by_way(evidence, thresholds)
        learnt = evidence.learnt.learnt
        own = self.thresholds  # mixtures and presence rules were chosen with these; the given ones only decide
        probabilities, scores = [], []
        for way, probability in enumerate(decision.probabilities):
            mixture, rule = learnt.mixture(way), learnt.presence_rule(way)
            head = _from_threshold(torch.from_numpy(probability), own.mask)
            logits = evidence.learnt.logits[way][None, None].float().cpu()
            learner = F.interpolate(logits, evidence.size, mode="bilinear", align_corners=False)[0, 0]
            mixed = mixture.logits(head, learner)  # (H, W)
            found = torch.sigmoid(mixed + logit(own.mask))
            probabilities.append(found)
            certain = logit(decision.scores[way]) - logit(own.presence) if decision.scores and mixture.head else None
            if certain is None:
                certain = (rule or MASK_DECIDES).logit(mixed)
            elif rule is not None:
                # Without photos that lack the class, the rule is no better than the head's own presence, which works
                # for objects (AUROC 0.96 for steel inclusions, the rule 0.6) but not for textures (scratches 0.47).
                own_rule = rule.logit(mixed)
                certain = own_rule if learnt.knows_absence(way) else (own_rule + certain) / 2
            score = sigmoid(certain + logit(own.presence))
            if not bool((found >= thresholds.mask).any()):
                score = min(score, thresholds.presence * ALMOST)
            scores.append(score)
        return self.inner.heed_masks(Decision.of(scores, torch.stack(probabilities), thresholds), thresholds)

    def loss(self, batch: TrainingBatch, weights: LossWeights) -> Losses:
        """The loss of the head."""
        queries, supports = ([parts_of(one)[0] for one in each] for each in (batch.queries, batch.supports))
        return self.inner.loss(replace(batch, queries=queries, supports=supports), weights)

    @torch.no_grad()
    def fill_in(self, photos: Sequence[LabelledFeatures]) -> list[Tensor]:
        """Find the classes on the photos themselves, from what is known of their pixels.

        Returns:
            A mask (N, h, w) of each photo, true to what is known.
        """
        labelled = _labelled(photos)
        order = content_order(labelled)
        learner = train([labelled[index] for index in order]).learner
        found = []
        for photo in labelled:
            size = (photo.masks.shape[1], photo.masks.shape[2])
            logits = F.interpolate(learner.logits(photo.features)[None], size, mode="bilinear", align_corners=False)[0]
            found.append(((logits >= 0) & (photo.masks != 0)) | (photo.masks == 1))
        return found

    @torch.no_grad()
    def learn(self, photos: Sequence[LabelledFeatures]) -> Learnt:
        """Train the learner, and choose mixtures and presence rules by leaving photos out."""
        parts = [parts_of(photo.features) for photo in photos]
        labelled = _labelled(photos)
        order = content_order(labelled)
        queries: dict[int, Any] = {}
        supports: dict[tuple[int, int], Any] = {}

        def head_logits(photo: int, c: int, others: Sequence[int]) -> Tensor:
            index = order[photo]
            if index not in queries:
                queries[index] = self.inner.encode_query(parts[index][0])
            for other in others:
                if (other, c) not in supports:
                    mask = labelled[order[other]].masks[c]
                    signed = (mask == 1).float() - (mask == UNKNOWN).float() * self.takes_undecided
                    supports[other, c] = self.inner.encode_support(parts[order[other]][0], signed)
            evidence = self.inner.compare(queries[index], [supports[other, c] for other in others])
            decision = self.inner.decide(TaskEvidence([evidence], labelled[index].features.grid), self.thresholds)
            found = torch.from_numpy(decision.probabilities[0]).to(labelled[index].masks.device)
            return _from_threshold(found, self.thresholds.mask)

        learnt = learn_from([labelled[index] for index in order], head_logits, order)
        return replace(learnt, side=torch.tensor([self.working_side]))


def _labelled(photos: Sequence[LabelledFeatures]) -> list[LabelledPhoto]:
    return [LabelledPhoto(parts_of(photo.features)[1], photo.masks) for photo in photos]


def can_learn(method: Method) -> bool:
    """Whether the method has a backbone whose maps a learner can use."""
    backbone = getattr(method, "backbone", None)
    return isinstance(backbone, Backbone) and backbone.spec is not None


def unwrapped(method: Method) -> Method:
    """The method itself, without its learner."""
    return method.inner if isinstance(method, LearningMethod) else method


def parts_of(features: Features) -> tuple[Features, PixelFeatures]:
    """The features of the inner method, and the maps of the pixels."""
    count = int(features.tensors[-1])
    own, maps = features.tensors[: -count - 1], features.tensors[-count - 1 : -1]
    return Features(own, features.size), PixelFeatures(tuple(one.float() for one in maps))


def _from_threshold(probability: Tensor, threshold: float) -> Tensor:
    """The logit of a probability, counted from the logit of a threshold."""
    return torch.logit(probability.float(), CERTAIN) - logit(threshold)
