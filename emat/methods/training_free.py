"""What the methods that need no training share: features, evidence of patches, and how shots and presence are judged.

`PatchMethod` is for methods that compare patches as they are: each patch is one unit vector, so that the product of two
is their cosine, averaged over the backbone's channels. Such a method only says how much more a query's patch resembles
the class than anything else; 0 is undecided.

The papers of these methods assume that the query shows the class. Here each has a presence rule as well: the mean of
the best patches' scores, compared with a level that was chosen for every method in the same way, on tasks of train-list
photos (`python benchmarks/peers.py levels`). Masks do not depend on it, as in the papers.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from emat.backbone import Backbone
from emat.backbone.tokens import Grid
from emat.errors import EmatError
from emat.methods.base import (
    PAPER_THRESHOLDS,
    Decision,
    Features,
    Losses,
    LossWeights,
    Method,
    Preparation,
    QueryT,
    SupportT,
    TaskEvidence,
    Thresholds,
    TrainingBatch,
)

# Channels that tell classes apart; other backbones use all. EfficientNet-Lite2's are those of blocks 18 to 20,
# MobileSAM's those of its last two stages: with its other maps too, masks were worse
# (`python benchmarks/peers.py channels`).
LAST_BLOCKS = tuple(range(28, 42))
CHANNELS: Mapping[str, tuple[int, ...]] = {
    "efficientnet-lite2": LAST_BLOCKS,
    "efficientnet-lite2+mobilesam": (*LAST_BLOCKS, *range(45, 55)),
}
BEST_SHARE = 0.05  # share of the patches, those that resemble the class most, that decide on presence
CERTAIN_LOGIT = 15.0  # a logit that leaves no doubt
HALF = 0.5  # a patch belongs to the class if the mask covers at least this much of it


@dataclass(frozen=True)
class PatchEvidence:
    """What one shot says about B queries: the probability that its class is present, and a logit for each patch."""

    presence: Tensor  # (B,)
    logits: Tensor  # (B, h, w): of the foreground


class TrainingFreeMethod(Method[QueryT, SupportT, PatchEvidence]):
    """A method on the tokens of any backbone, with nothing to train. Logits are resized to the size of the answer."""

    takes_undecided = True

    def __init__(self, backbone: Backbone, image_size: int | None = None) -> None:
        super().__init__()
        spec = backbone.spec
        if spec is None:
            raise EmatError(
                "wrong-backbone",
                "a method needs a backbone from the registry, which knows how photos are prepared for it",
            )
        self.backbone = backbone
        self.channels = class_channels(spec.name)
        self.preparation = Preparation(image_size or spec.image_size, spec.mean, spec.std)

    def features(self, pixels: Tensor) -> list[Features]:
        """Compute the backbone's tokens (C, 1 + T, d) of each photo, for the channels that are used."""
        size = (pixels.shape[2], pixels.shape[3])
        return [Features((tokens[self.channels],), size) for tokens in self.backbone(pixels)]

    def decide(self, evidence: TaskEvidence[PatchEvidence], thresholds: Thresholds = PAPER_THRESHOLDS) -> Decision:
        """Average the probabilities over each way's shots."""
        ways = [join_shots(shots, evidence.size) for shots in evidence.by_way]
        scores = [float(score) for score, _ in ways]
        return Decision.of(scores, torch.cat([probability for _, probability in ways]), thresholds)

    def loss(self, batch: TrainingBatch, weights: LossWeights) -> Losses:
        """Raise an EmatError, because there is nothing to train."""
        raise EmatError(
            "nothing-to-train", f"{self.name} has nothing to train; evaluate it as it is, with --method {self.name}"
        )


def class_channels(backbone: str) -> list[int] | slice:
    """Return which correlation channels of a backbone are compared by methods that do not learn to weigh them."""
    return list(CHANNELS[backbone]) if backbone in CHANNELS else slice(None)


def channel_count(chosen: list[int] | slice, backbone: Backbone) -> int:
    """Return how many channels of a backbone these are."""
    return len(chosen) if isinstance(chosen, list) else len(range(backbone.channels)[chosen])


def coverage(mask: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Compute how much of each patch of a grid is the class, and how much is known not to be: (T,) each.

    Args:
        mask: (H, W) of any size; the class is where it is above 0, and nothing is known where it is below 0.
        grid: Rows and columns of the T patches.

    Raises:
        EmatError: If the mask has another shape.
    """
    if mask.ndim != 2 or mask.numel() == 0:
        raise EmatError("mask-shape", f"a support mask must have shape (H, W), this one has {tuple(mask.shape)}")
    inside, outside = (
        F.adaptive_avg_pool2d(part.float()[None, None], grid).flatten() for part in (mask > 0, mask == 0)
    )
    return inside, outside


@dataclass(frozen=True)
class Patches:
    """The patches of a photo as unit vectors."""

    vectors: Tensor  # (T, D)
    grid: Grid


@dataclass(frozen=True)
class SupportPatches:
    """The patches of a support as unit vectors, and how much of each the class and its surroundings cover."""

    vectors: Tensor  # (T, D)
    inside: Tensor  # (T,)
    outside: Tensor  # (T,)

    @cached_property
    def chosen(self) -> Tensor:
        """Which patches (T,) are the class: those it covers by half, or else the one it covers most, if it is there."""
        return self.inside >= self.inside.max().clamp(1e-6, HALF)

    @property
    def foreground(self) -> Tensor:
        """The patches (n, D) of the class; none if the mask is empty."""
        return self.vectors[self.chosen]

    @property
    def background(self) -> Tensor:
        """The patches (n, D) that are mostly known not to be the class; there may be none."""
        return self.vectors[(self.outside >= HALF) & ~self.chosen]


@dataclass(frozen=True)
class PresenceRule:
    """How presence follows from the mean score of the best patches."""

    level: float  # the score at which presence is undecided
    sharpness: float  # the logit of a score that is 1 above the level

    def probability(self, scores: Tensor) -> Tensor:
        """Return the probability (B,) that the class is somewhere among the patches with these scores (B, h, w)."""
        return torch.sigmoid(self.sharpness * (best_patches(scores) - self.level))


def best_patches(scores: Tensor) -> Tensor:
    """Return the mean of the highest BEST_SHARE of the scores (B, h, w): (B,)."""
    patches = scores.flatten(1)
    return patches.topk(max(1, round(BEST_SHARE * patches.shape[1])), dim=1).values.mean(dim=1)


QueryPatchesT = TypeVar("QueryPatchesT", bound=Patches)
SupportPatchesT = TypeVar("SupportPatchesT", bound=SupportPatches)


class PatchMethod(TrainingFreeMethod[QueryPatchesT, SupportPatchesT]):
    """A method that scores every patch of the query by the patches of one support."""

    support_type: type[SupportPatches] = SupportPatches
    presence_rule: PresenceRule
    sharpness: float  # the logit of a patch whose score is 1

    def patches(self, features: Features) -> Patches:
        """Join the channels of each patch to one unit vector."""
        tokens = F.normalize(features.tensors[0][:, 1:].float(), dim=2)  # (C, T, d)
        vectors = tokens.transpose(0, 1).flatten(1) / len(tokens) ** 0.5  # (T, D)
        return Patches(vectors, self.backbone.grid(*features.size))

    def support_lengths(self) -> dict[str, int]:
        """Return the number of patches and the width of their vectors."""
        side = self.preparation.image_size
        rows, columns = self.backbone.grid(side, side)
        return {"t": rows * columns, "d": channel_count(self.channels, self.backbone) * self.backbone.width}

    def support_patches(self, features: Features, mask: Tensor) -> SupportPatches:
        """Do the same for a support, and find out how much of each patch is the class."""
        patches = self.patches(features)
        return SupportPatches(patches.vectors, *coverage(mask, patches.grid))

    @torch.no_grad()
    def compare(self, query: QueryPatchesT, supports: Sequence[SupportPatchesT]) -> list[PatchEvidence]:
        """Compare with each support on its own. A support without the class finds nothing."""
        return [self._evidence(query, support) for support in supports]

    def _evidence(self, query: QueryPatchesT, support: SupportPatchesT) -> PatchEvidence:
        if not bool(support.chosen.any()):
            return PatchEvidence(torch.zeros(1), torch.full((1, *query.grid), -CERTAIN_LOGIT))
        scores = self.scores(query, support).view(query.grid)
        mask = self.mask_logits(query, support, scores)
        return PatchEvidence(self.presence_rule.probability(scores[None]), mask[None])

    @abstractmethod
    def scores(self, query: QueryPatchesT, support: SupportPatchesT) -> Tensor:
        """Score the T patches of the query: above 0 they resemble the class more than its surroundings."""

    def mask_logits(self, query: QueryPatchesT, support: SupportPatchesT, scores: Tensor) -> Tensor:
        """Return the mask as logits of any size, from the scores (h, w) of the patches."""
        return self.sharpness * scores


class PlainPatchMethod(PatchMethod[Patches, SupportPatches]):
    """A patch method that needs nothing but the patches."""

    def encode_query(self, features: Features) -> Patches:
        """Join the channels of each patch to one unit vector."""
        return self.patches(features)

    def encode_support(self, features: Features, mask: Tensor) -> SupportPatches:
        """Join the channels of each patch to one unit vector, and find out how much of each patch is the class."""
        return self.support_patches(features, mask)


def mean_similarity(query: Tensor, support: Tensor) -> Tensor:
    """Return the mean cosine of query vectors (T, D) with support vectors (n, D): (T,); 0 if there are none."""
    return query @ support.mean(dim=0) if len(support) else query.new_zeros(len(query))


def contrast(query: Tensor, support: SupportPatches) -> Tensor:
    """Return how much nearer each query vector (T, D) is to the class's mean direction than to the background's: (T,).

    As with the prototype, mean directions have length 1.
    """
    near, far = (
        F.normalize(part.mean(dim=0), dim=0) if len(part) else query.new_zeros(query.shape[1])
        for part in (support.foreground, support.background)
    )
    return query @ (near - far)


def cluster(vectors: Tensor, count: int, rounds: int = 10) -> Tensor:
    """Return the centres (k, D) of k-means with at most `count` clusters, the same for the same vectors (n, D).

    The first centre is the vector nearest to the mean, each other one the vector that is farthest from those before.

    >>> cluster(torch.tensor([[0.0], [1.0], [9.0], [10.0]]), 2).flatten().sort().values
    tensor([0.5000, 9.5000])
    """
    centres = vectors[torch.cdist(vectors, vectors.mean(dim=0, keepdim=True)).argmin()][None]
    while len(centres) < min(count, len(vectors)):
        distances = torch.cdist(vectors, centres).amin(dim=1)
        if float(distances.max()) == 0:
            break
        centres = torch.cat([centres, vectors[distances.argmax()][None]])
    for _ in range(rounds):
        nearest = torch.cdist(vectors, centres).argmin(dim=1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, vectors)
        counts = torch.bincount(nearest, minlength=len(centres))[:, None]
        centres = torch.where(counts > 0, sums / counts.clamp(min=1), centres)
    return centres


def join_shots(shots: Sequence[PatchEvidence], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Average the shots of a way: its score (B,) and its map (B, H, W)."""
    full = [F.interpolate(shot.logits[:, None], size, mode="bilinear", align_corners=True)[:, 0] for shot in shots]
    probability = torch.stack([torch.sigmoid(logits) for logits in full]).mean(dim=0)
    return torch.stack([shot.presence for shot in shots]).mean(dim=0), probability
