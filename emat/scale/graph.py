"""A fitted segmenter, or its head alone, as a module whose every step an ONNX graph can hold.

`SegmenterGraph` goes the way of `Segmenter.predict_unrefined` from the bytes of photos to scores and probability maps,
by the same functions of `emat.methods` and `emat.pixel_learner`. The examples and what was learnt from them are
constants in it, and so is the size of photos; the number of photos is free. Post-processing is not in the graph.
`HeadGraph` goes from tokens to logits. What cannot be put into a graph is refused with the reason.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emat.backbone import Backbone
from emat.backbone.base import Stack
from emat.errors import EmatError
from emat.inference.segmenter import Segmenter
from emat.inference.tiles import detail_size
from emat.methods import correlation, training_free
from emat.methods.base import Method
from emat.methods.correlation import CorrelationMethod, ShotEvidence
from emat.methods.prior import PriorMethod, judge_together, scores_by_masks, with_prior
from emat.methods.prototype import Prototype, patch_evidence, unit_patches
from emat.model.encoding import support_mask
from emat.model.plain import PlainForm, plain_compare, plain_forward
from emat.pixel_learner.features import pixel_maps, working_size
from emat.scale.pillow_resize import PillowResize


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
        if segmenter.tiles_ is not None:
            raise EmatError(
                "cannot-export",
                "tiles are cut by the size of each photo and cannot be in a graph; export without tiles",
            )
        self.method, self.thresholds, self.learner = segmenter.method, segmenter.thresholds, segmenter.learner
        self.ways = [
            [example.encodings[name] for example in segmenter.examples_ if name in example.encodings]
            for name in segmenter.classes_
        ]
        self.learnt = segmenter.learnt_
        # Read here, because a graph cannot choose by the values of tensors.
        self.choices = [] if self.learnt is None else [self.learnt.choice(way) for way in range(len(self.ways))]
        self.rivals = segmenter.rivals_
        self.size, self.detail = size, detail_size(size)
        preparation = self.method.preparation
        self.square = (preparation.image_size, preparation.image_size)
        self.to_square = PillowResize(size, self.square)
        self.to_working = PillowResize(size, working_size(size, segmenter.working_side))
        self.mean = nn.Buffer(torch.tensor(preparation.mean).view(3, 1, 1))
        self.std = nn.Buffer(torch.tensor(preparation.std).view(3, 1, 1))
        self.backbone = backbone_of(self.method)
        self.encoder = None if self.learner is None else self.learner.encoder

    def forward(self, photo: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores (B, N) and maps (B, N, h, w) of photos (B, H, W, 3)."""
        bytes_first = photo.permute(0, 3, 1, 2)
        answers = self._head_answers((self.to_square(bytes_first) / 255 - self.mean) / self.std)
        scored = all(score is not None for score, _ in answers) or self.learnt is not None
        probabilities = torch.stack([probability for _, probability in answers], dim=1)
        if self.learnt is not None and self.learner is not None:
            maps = pixel_maps(self.to_working(bytes_first) / 255, self.backbone, self.encoder)
            logits = self.learnt.classifier.logits(maps)
            logits = F.interpolate(logits, self.detail, mode="bilinear", align_corners=False)
            scores, probabilities = self.learner.mix(
                [score for score, _ in answers], probabilities, logits, self.choices, self.thresholds, self.rivals
            )
        else:
            # A method that only segments is scored by its surest pixel, as in `Decision.certainty`.
            scores = torch.stack([one.amax(dim=(1, 2)) if score is None else score for score, one in answers], dim=1)
        if isinstance(self.method, PriorMethod) and scored:
            ways = [not choice.competed for choice in self.choices] if self.choices else None
            scores = scores_by_masks(scores, probabilities, ways)
        return scores, probabilities

    def _head_answers(self, pixels: Tensor) -> list[tuple[Tensor | None, Tensor]]:
        """The head's score (B,) and map (B, h, w) of every class, from prepared pixels (B, 3, S, S)."""
        tokens = self.backbone.tokens_from(self.backbone.encode_maps(pixels), self.square)  # (B, C, 1 + T, d)
        grid, method = self.backbone.grid(*self.square), self.method
        if isinstance(method, Prototype):
            patches = unit_patches(tokens[:, method.channels], grid)
            shots = [[patch_evidence(patches, support) for support in supports] for supports in self.ways]
            return [training_free.join_shots(way, self.detail) for way in shots]
        assert isinstance(method, CorrelationMethod)
        query = F.normalize(tokens[:, method.channels, 1:], dim=-1)
        if not isinstance(method, PriorMethod):
            ways = [[self._trained(query, support, grid) for support in supports] for supports in self.ways]
            return [correlation.join_shots(way, self.detail) for way in ways]
        patches = unit_patches(tokens[:, method.prior_channels], grid)
        ways = [
            [
                with_prior(
                    self._trained(query, support.encoding, grid),
                    patch_evidence(patches, support.prototypes, method.presence_rule),
                )
                for support in supports
            ]
            for supports in self.ways
        ]
        # As in `PixelLearner.answer`: a class that competed in cross-validation is judged by itself.
        beside = judge_together(ways)
        judged = [
            judge_together([ways[c]])[0] if self.choices and self.choices[c].competed else beside[c]
            for c in range(len(ways))
        ]
        return [correlation.join_shots(way, self.detail) for way in judged]

    def _trained(self, query: Tensor, support: Any, grid: tuple[int, int]) -> ShotEvidence:
        """What the network says of unit vectors (B, C, T, d)."""
        assert isinstance(self.method, CorrelationMethod)
        presence, masks = plain_compare(self.method.network, query, support, grid)
        return ShotEvidence(None if presence is None else presence.softmax(dim=1)[:, 1], masks)


class HeadGraph(nn.Module):
    """Query tokens and supports to logits: the network alone, for any classes and examples.

    Args:
        method: A method of EMAT's family.

    Raises:
        EmatError: If the method has no such network.
    """

    def __init__(self, method: Method) -> None:
        super().__init__()
        if not isinstance(method, CorrelationMethod):
            raise EmatError(
                "cannot-export", f"the method {method.name} has no head of EMAT's family; export the whole segmenter"
            )
        self.network = method.network
        self.side = method.preparation.image_size
        self.grid = method.backbone.grid(self.side, self.side)
        self.form = PlainForm.of(self.network.form, dense=True)

    def forward(self, query: Tensor, support: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Compare tokens (B, C, 1 + T, d) of queries and supports; masks (B, H, W) are the class above 0."""
        weights, mask = dict(self.network.named_parameters()), support_mask(mask, self.side)
        presence, masks = plain_forward(self.form, weights, query, support, mask)
        return (masks,) if presence is None else (masks, presence)


def check_method(method: Method) -> None:
    """Raise an EmatError if the method cannot be put into a graph."""
    if not isinstance(method, (CorrelationMethod, Prototype)):
        raise EmatError(
            "cannot-export",
            f"the method {method.name} cannot be exported: its steps depend on values; EMAT, CST and prototype can",
        )
    if isinstance(backbone_of(method), Stack):
        raise EmatError("stack-of-backbones", "a stack of backbones cannot be exported; use a head of one backbone")


def backbone_of(method: Method) -> Backbone:
    """The backbone of a method."""
    backbone: Any = getattr(method, "backbone", None)
    assert isinstance(backbone, Backbone)
    return backbone
