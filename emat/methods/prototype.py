"""The method that needs no training: mean foreground and background vectors of a support, compared by cosine.

Its four constants and its channels were chosen on photos of the train list of voc2012-mini alone (400 tasks whose query
has the class and 400 whose query does not, 1-way 1-shot, 400 px): blocks 18 to 20 of EfficientNet-Lite2 reach 40.2 mIoU
where the query has the class and an AUC of 0.91 for presence, against 39.4 and 0.88 for block 18 alone. Leaving out
the classes of any one fold leads to the same channels, a margin of 0.03 to 0.06 and a presence level of 0.27 to 0.31.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    TaskEvidence,
    Thresholds,
    TrainingBatch,
)

CHANNELS: Mapping[str, slice] = {"efficientnet-lite2": slice(28, 42)}  # other backbones use all channels
MARGIN, SHARPNESS = 0.05, 15.0  # a patch is foreground if it is nearer to the foreground by this margin
BEST_SHARE = 0.05  # share of the patches, those most similar to the foreground, that decide on presence
PRESENCE_LEVEL, PRESENCE_SHARPNESS = 0.28, 17.0


@dataclass(frozen=True)
class Prototypes:
    """Unit mean vectors of a class and of its surroundings in every channel; None if there is no pixel of it."""

    foreground: Tensor | None  # (C, d)
    background: Tensor | None  # (C, d)


@dataclass(frozen=True)
class PatchEvidence:
    """What one shot says about a query: the probability that its class is present, and a foreground logit per patch."""

    presence: float
    logits: Tensor  # (h, w)


class Prototype(Method):
    """Prototypes on the tokens of any backbone; nothing is trained.

    Similarity is the cosine, averaged over channels. Logits are resized bilinearly to the size of the answer.
    """

    name = "prototype"
    takes_undecided = True

    def __init__(self, backbone: Backbone, image_size: int | None = None) -> None:
        super().__init__()
        spec = backbone.spec
        if spec is None:
            raise EmatError("a method needs a backbone from the registry, which knows how photos are prepared for it")
        self.backbone = backbone
        self.channels = prototype_channels(spec.name)
        self.preparation = Preparation(image_size or spec.image_size, spec.mean, spec.std)

    def features(self, pixels: Tensor) -> list[Features]:
        """Compute the backbone's tokens (C, 1 + T, d) of each photo, for the channels that are used."""
        size = (pixels.shape[2], pixels.shape[3])
        return [Features((tokens[self.channels],), size) for tokens in self.backbone(pixels)]

    def encode_query(self, features: Features) -> Tensor:
        """Normalise the patch vectors: (C, h, w, d)."""
        tokens = features.tensors[0].float()
        return F.normalize(tokens[:, 1:], dim=-1).unflatten(1, self.backbone.grid(*features.size))

    def encode_support(self, features: Features, mask: Tensor) -> Prototypes:
        """Average the patches, each weighted by how much of it the mask covers."""
        return make_prototypes(features.tensors[0].float(), mask, self.backbone.grid(*features.size))

    def compare(self, query: Tensor, supports: Sequence[Prototypes]) -> list[PatchEvidence]:
        """Compare with each support on its own."""
        return [patch_evidence(query, support) for support in supports]

    def decide(self, evidence: TaskEvidence, thresholds: Thresholds = PAPER_THRESHOLDS) -> Decision:
        """Average the probabilities over each way's shots."""
        probabilities = torch.stack([_way_probability(shots, evidence.size) for shots in evidence.by_way])  # (N, H, W)
        scores = [sum(shot.presence for shot in shots) / len(shots) for shots in evidence.by_way]
        return Decision.of(scores, probabilities, thresholds)

    def loss(self, batch: TrainingBatch, weights: LossWeights) -> Losses:
        """Raise an EmatError, because there is nothing to train."""
        raise EmatError("the prototype method has nothing to train; evaluate it as it is, with --method prototype")


def prototype_channels(backbone: str) -> slice:
    """Return which correlation channels of a backbone prototypes are made of."""
    return CHANNELS.get(backbone, slice(None))


def make_prototypes(tokens: Tensor, mask: Tensor, grid: Grid) -> Prototypes:
    """Average the patches of a photo, each weighted by how much of it the mask covers.

    Args:
        tokens: (C, 1 + T, d); the class tokens are not used.
        mask: (H, W) of any size; the class is where it is above 0, and nothing is known where it is below 0.
        grid: Rows and columns of the T patches.

    Raises:
        EmatError: If the mask has another shape.
    """
    if mask.ndim != 2 or mask.numel() == 0:
        raise EmatError(f"a support mask must have shape (H, W), this one has {tuple(mask.shape)}")
    patches = tokens[:, 1:]
    inside, outside = (
        F.adaptive_avg_pool2d(part.to(patches)[None, None], grid).flatten() for part in (mask > 0, mask == 0)
    )  # (T,)
    return Prototypes(_mean(patches, inside), _mean(patches, outside))


@dataclass(frozen=True)
class PrototypePresence:
    """How presence follows from the patches that resemble the foreground most."""

    level: float = PRESENCE_LEVEL  # the cosine at which presence is undecided
    first_channel: int = 0  # the prototypes' channels from this one on are compared


def patch_evidence(query: Tensor, support: Prototypes, rule: PrototypePresence = PrototypePresence()) -> PatchEvidence:
    """Compare the unit patch vectors (C, h, w, d) of a query with prototypes."""
    if support.foreground is None:  # an empty mask: there is nothing to look for
        return PatchEvidence(0.0, query.new_full(query.shape[1:3], -SHARPNESS))
    near = _similarity(query, support.foreground)  # (h, w)
    far = torch.zeros_like(near) if support.background is None else _similarity(query, support.background)
    seen = _similarity(query[rule.first_channel :], support.foreground[rule.first_channel :])
    best = seen.flatten().topk(max(1, round(BEST_SHARE * seen.numel()))).values.mean()
    presence = torch.sigmoid(PRESENCE_SHARPNESS * (best - rule.level))
    return PatchEvidence(float(presence), SHARPNESS * (near - far - MARGIN))


def _mean(patches: Tensor, weights: Tensor) -> Tensor | None:
    """The weighted mean of patches (C, T, d) as unit vectors (C, d); None if no patch has weight."""
    if not bool((weights > 0).any()):
        return None
    return F.normalize(torch.einsum("ctd,t->cd", patches, weights), dim=-1)


def _similarity(query: Tensor, prototype: Tensor) -> Tensor:
    """The cosine of each patch (C, h, w, d) with the prototype (C, d), averaged over channels: (h, w)."""
    return torch.einsum("chwd,cd->hw", query, prototype) / len(prototype)


def _way_probability(shots: Sequence[PatchEvidence], size: tuple[int, int]) -> Tensor:
    """The mean of the shots' foreground probabilities at full size, (H, W)."""
    logits = torch.stack([shot.logits for shot in shots])[:, None]  # (K, 1, h, w)
    return torch.sigmoid(F.interpolate(logits, size, mode="bilinear", align_corners=True)).mean(dim=(0, 1))
