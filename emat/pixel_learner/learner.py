"""The pixel learner beside a head: what the head knows of objects, and what the examples show of the rest.

A head answers for the classes of its training and for whatever resembles them. The learner knows nothing but the
examples of a user: it classifies single pixels. Each class has a mixture of both answers. With two or more photos of a
class, cross-validation chooses it; with one photo, a rule does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from emat.backbone import Backbone, build_backbone
from emat.backbone.base import Stack
from emat.backbone.mobilesam import find_mobilesam
from emat.errors import EmatError
from emat.images import Pixels
from emat.methods.base import Comparison, Decision, EvidenceT, Method, QueryT, SupportT, Thresholds
from emat.pixel_learner.competition import margins
from emat.pixel_learner.cross_validation import ClassChoice, CrossValidated, HeadLogits, Learnt, cross_validate
from emat.pixel_learner.features import WORKING_SIDE, PixelFeatures, pixel_features
from emat.pixel_learner.mixture import MASK_DECIDES, logit
from emat.pixel_learner.regression import LabelledPhoto, PixelClassifier, content_order, train
from emat.recent import Recent
from emat.refine.mobilesam import fetch_mobilesam
from emat.weights import is_offline

ENCODER = "mobilesam"  # the name of the backbone whose maps are added
HEAD_RANGE = 1e-4  # the head's probabilities are kept that far from 0 and 1
SCORE_RANGE = 1e-6  # and its scores that far
LARGEST_LOGIT = 50.0
# How much a presence rule counts beside the head's presence where no photo lacks the class. Missed classes and false
# alarms, in per cent, with five examples (20 classes of PASCAL's training list; five of steel and nuclei, even photos;
# by a script that was not kept):
#   1         9.8, 27.1;  0, 53.3
#   0.75      9.8, 25.4;  0, 60.0
#   0.5      10.7, 22.9;  0, 90.0
#   0        18.0, 13.6;  0, 93.3
RULE_SHARE = 0.75
# Added to the presence logit of a class that a single photo shows, because a missed class loses its whole mask: on ten
# classes of PASCAL's training list with heads that never saw them, two tasks a class and six photos with and without it
# each, it is missed on 8.3 instead of 15.5 % of photos, for 44.0 instead of 40.5 % false alarms (docs/trials.md).
BENEFIT_OF_DOUBT = 0.2
# The share of a photo that is drawn of a class that a single photo shows, if it is probably there and would be drawn
# nowhere: without a pixel it would be called absent (docs/trials.md).
LEAST_DRAWN = 0.03
ALMOST = 0.999  # a score just below a threshold is the threshold times this
KEPT_BYTES = 1 << 28  # of the examples' features, which are learnt from again when an example is added


class PixelLearner:
    """Trains pixel classifiers on the maps of a backbone, and mixes their answers with a head's.

    Args:
        backbone: The head's backbone.
        thresholds: Those of the head, from which its logits are counted: 0 means undecided, whichever head it is.
        encoder: MobileSAM's encoder, whose maps are learnt from as well; None to do without.
    """

    def __init__(self, backbone: Backbone, thresholds: Thresholds, encoder: Backbone | None = None) -> None:
        self.backbone, self.thresholds, self.encoder = backbone, thresholds, encoder
        self._kept = Recent[PixelFeatures](KEPT_BYTES, _bytes)

    @classmethod
    def of(
        cls, method: Method, thresholds: Thresholds, encoder: bool | None = None, fetch: bool = False
    ) -> PixelLearner:
        """Return the pixel learner beside a method.

        Args:
            method: The method.
            thresholds: Those of its head.
            encoder: Whether to learn from the maps of MobileSAM's encoder; by default if its weights are on this
                machine. Where it is a part of the method's backbone, that part is taken.
            fetch: Whether to download these weights where they are wanted and not here.

        Raises:
            EmatError: If the method has no backbone to learn from, or the encoder's weights are not here.
        """
        if not can_learn(method):
            raise EmatError(
                "unsupported-method",
                f"the method {method.name!r} has no backbone whose maps could be learnt from; use --no-learn",
            )
        backbone, held = _without_encoder(method.backbone)  # type: ignore[arg-type]
        sees_encoder = held is not None or _name(backbone) == ENCODER
        if fetch and encoder is not False and not sees_encoder and not is_offline():
            fetch_mobilesam()
        if encoder is None:
            encoder = held is not None or (find_mobilesam() is not None and _name(backbone) != ENCODER)
        if not encoder:
            return cls(backbone, thresholds)
        if held is None and find_mobilesam() is None:
            raise EmatError(
                "weights-missing",
                "this segmenter learnt from MobileSAM's features, whose weights are not on this machine; run `emat "
                "weights fetch mobilesam`, or load it with learn=False",
            )
        return cls(backbone, thresholds, held or _shared_encoder(next(backbone.parameters()).device))

    def features(self, photo: Pixels, side: int = WORKING_SIDE) -> PixelFeatures:
        """Compute the features of a photo (H, W, 3) whose longest side is brought to `side` pixels."""
        return pixel_features(photo, self.backbone, side, self.encoder)

    def example_features(self, photo: Pixels, side: int) -> PixelFeatures:
        """The features of an example, which are kept while there is room, for when more examples come."""
        return self._kept.get(photo, lambda: self.features(photo, side), side)

    @torch.no_grad()
    def fit(
        self, photos: Sequence[LabelledPhoto], head_logits: HeadLogits, side: int, rivals: Sequence[Sequence[int]]
    ) -> CrossValidated:
        """Train on photos, and choose by cross-validation how much the head counts beside the classifier.

        Args:
            photos: The examples.
            head_logits: What the head says of a photo, see `cross_validation.HeadLogits`.
            side: The longest side, in pixels, at which the features were computed.
            rivals: For each class those that it competes with.
        """
        return cross_validate(photos, head_logits, side, rivals)

    @torch.no_grad()
    def logits(self, photos: Sequence[LabelledPhoto], features: PixelFeatures) -> Tensor:
        """Train on what is known of photos, without cross-validation, and look at one photo.

        Args:
            photos: What is known.
            features: Those of the photo to look at, which may be one of them.

        Returns:
            The logits (N, h, w) of every class.
        """
        return self._classifier(photos).logits(features.batch)[0]

    def _classifier(self, photos: Sequence[LabelledPhoto]) -> PixelClassifier:
        return train([photos[index] for index in content_order(photos)]).classifier

    @torch.no_grad()
    def fill_in(self, photos: Sequence[LabelledPhoto]) -> list[Tensor]:
        """Find the classes on the photos themselves, from what is known of their pixels.

        Returns:
            A mask (N, h, w) of each photo, true to what is known.
        """
        classifier = self._classifier(photos)
        masks = []
        for photo in photos:
            size = (photo.masks.shape[1], photo.masks.shape[2])
            logits = F.interpolate(classifier.logits(photo.features.batch), size, mode="bilinear", align_corners=False)[
                0
            ]
            masks.append(((logits >= 0) & (photo.masks != 0)) | (photo.masks == 1))
        return masks

    def head_logits(self, probability: Tensor) -> Tensor:
        """The logit of a head's probability, counted from the logit of its threshold."""
        return torch.logit(probability.float(), HEAD_RANGE) - logit(self.thresholds.mask)

    def probability(self, mixed: Tensor) -> Tensor:
        """The probability of mixed logits: what is not below 0 reaches the threshold."""
        return torch.sigmoid(mixed + logit(self.thresholds.mask))

    def answer(
        self,
        comparison: Comparison[QueryT, SupportT, EvidenceT],
        ways: Sequence[Sequence[SupportT]],
        size: tuple[int, int],
        logits: Tensor,
        learnt: Learnt,
        thresholds: Thresholds,
        rivals: Sequence[Sequence[int]],
        whole: bool = True,
    ) -> Decision:
        """Answer for a photo, or a part of it, with what head and classifier say together.

        Where a class competed with the others in cross-validation, the head judges it by itself as it did there: what
        separates the classes is in their mixtures and presence rules. The other classes are judged by the head beside
        each other.

        Args:
            comparison: The photo, compared by the head.
            ways: The supports of every class.
            size: Height and width of the answer.
            logits: The classifier's (N, h, w) on the same part of the photo.
            learnt: What was learnt of these classes.
            thresholds: The probabilities that count; mixtures and presence rules were chosen with the head's own.
            rivals: For each class those that it competes with.
            whole: Whether this is the whole photo. Where a mask begins on a photo does not follow from a part of it.
        """
        choices = [learnt.choice(c) for c in range(len(ways))]
        beside = comparison.decide_independently(ways, size, thresholds)
        scores, maps = list(beside.scores or ()), beside.probabilities.copy()
        for c, choice in enumerate(choices):
            if choice.competed and len(ways) > 1:
                alone = comparison.decide_independently([ways[c]], size, thresholds)
                maps[c] = alone.probabilities[0]
                if alone.scores is not None:
                    scores[c] = alone.scores[0]
        mixed_scores, mixed_maps = self.mix(
            [torch.tensor([score], dtype=torch.float64) for score in scores] if scores else [None] * len(ways),
            torch.from_numpy(maps)[None],
            F.interpolate(logits[None].float().cpu(), size, mode="bilinear", align_corners=False),
            choices,
            thresholds,
            rivals,
            whole,
        )
        decision = Decision.of(mixed_scores[0].tolist(), mixed_maps[0], thresholds)
        return comparison.method.suppress_overlaps(decision, thresholds, [not choice.competed for choice in choices])

    def mix(
        self,
        scores: Sequence[Tensor | None],
        probabilities: Tensor,
        logits: Tensor,
        choices: Sequence[ClassChoice],
        thresholds: Thresholds,
        rivals: Sequence[Sequence[int]],
        whole: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Mix the answers of head and classifier for N classes on B photos.

        Args:
            scores: The head's (B,) of each class; None if it only segments.
            probabilities: The head's (B, N, H, W).
            logits: The classifier's (B, N, H, W).
            choices: How each class is mixed.
            thresholds: The probabilities that count.
            rivals: For each class those that it competes with.
            whole: Whether the photos are whole, and not parts of photos.

        Returns:
            The scores (B, N) and the probability maps (B, N, H, W).
        """
        mixed = torch.stack(
            [
                choice.mixture.logits(self.head_logits(probabilities[:, c]), logits[:, c])
                for c, choice in enumerate(choices)
            ],
            dim=1,
        )
        over_rivals = margins(mixed, rivals)
        # Presence is judged before, since a photo without the class would draw its threshold down.
        certain = [
            self._certainty(score, (over_rivals if choice.competed else mixed)[:, c], choice)
            for c, (score, choice) in enumerate(zip(scores, choices, strict=True))
        ]
        if whole:
            begins = [_threshold(mixed[:, c], certain[c], choice) for c, choice in enumerate(choices)]
            mixed = mixed - torch.stack(begins, dim=1)[..., None, None]
        mixed_maps = self.probability(mixed)
        answers = [self._score(one, mixed_maps[:, c], thresholds) for c, one in enumerate(certain)]
        return torch.stack(answers, dim=1), mixed_maps

    def _certainty(self, score: Tensor | None, over_rivals: Tensor, choice: ClassChoice) -> Tensor:
        """The presence logit (B,) of one class, from the head's score (B,) and its margins (B, H, W)."""
        if score is None or not choice.mixture.head:
            return (choice.rule or MASK_DECIDES).logit(over_rivals)
        certain = torch.logit(score, SCORE_RANGE) - logit(self.thresholds.presence)
        if choice.rule is None:
            return certain
        # Without photos that lack the class, the rule is no better than the head's own presence for objects, but the
        # head finds textures everywhere: see RULE_SHARE.
        by_rule = choice.rule.logit(over_rivals).to(certain)
        if choice.knows_absence:
            return by_rule
        if choice.was_left_out or choice.rule.level > 0:
            return RULE_SHARE * by_rule + (1 - RULE_SHARE) * certain
        # A single example is too little for either of them to doubt what the other sees.
        return torch.maximum(by_rule, certain) + BENEFIT_OF_DOUBT

    def _score(self, certain: Tensor, mixed_map: Tensor, thresholds: Thresholds) -> Tensor:
        """The score (B,) of one class, from its presence logit (B,) and its map (B, H, W).

        A class without a pixel in the answer is not present, whatever its score would be.
        """
        answer = torch.sigmoid((certain + logit(self.thresholds.presence)).clamp(-LARGEST_LOGIT, LARGEST_LOGIT))
        drawn = (mixed_map >= thresholds.mask).flatten(1).any(dim=1)
        return torch.where(drawn, answer, answer.clamp(max=thresholds.presence * ALMOST))


def _threshold(logits: Tensor, certain: Tensor, choice: ClassChoice) -> Tensor:
    """The mixed logit (B,) from which the mask of a class begins on each photo.

    Args:
        logits: The mixed logits (B, H, W).
        certain: The presence logits (B,).
        choice: How the answer for the class is made.
    """
    if choice.threshold is not None:
        return choice.threshold.on(logits)
    nothing = torch.zeros_like(logits[:, 0, 0])
    if choice.was_left_out:
        return nothing
    # Where no example could be left out, what is probably there is drawn where it is likeliest, if it would be drawn
    # nowhere.
    positions = logits.flatten(1)  # (B, H * W)
    level = positions.topk(max(1, round(LEAST_DRAWN * positions.shape[1])), dim=1).values[:, -1]
    return torch.where((certain >= 0) & (positions.amax(dim=1) < 0), level, nothing)


def _without_encoder(backbone: Backbone) -> tuple[Backbone, Backbone | None]:
    """A stack of a backbone and MobileSAM's encoder as its two parts; any other backbone as it is, and None."""
    if isinstance(backbone, Stack) and len(backbone.parts) == 2:
        first, second = backbone.parts
        if _name(second) == ENCODER:
            return first, second
    return backbone, None


def _name(backbone: Backbone) -> str:
    assert backbone.spec is not None
    return backbone.spec.name


@lru_cache(maxsize=2)
def _shared_encoder(device: torch.device) -> Backbone:
    """The one encoder of this process."""
    return build_backbone(ENCODER, device=device)


def can_learn(method: Method) -> bool:
    """Whether the method has a backbone whose maps a learner can use."""
    backbone = getattr(method, "backbone", None)
    return isinstance(backbone, Backbone) and backbone.spec is not None


def _bytes(features: PixelFeatures) -> int:
    return sum(one.numel() * one.element_size() for one in features.maps)
