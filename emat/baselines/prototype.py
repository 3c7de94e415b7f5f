"""The training-free baseline: a support's mean foreground and background vectors, and the nearer of the two by cosine.

Its four numbers and the choice of channels were made on photos of the train list of voc2012-mini alone (400 has-class
and 400 absent-class tasks, 1-way 1-shot, 400 px): blocks 18 to 20 of EfficientNet-Lite2 gave 40.2 mIoU where the query
has the class and an AUC of 0.91 for presence, against 39.4 and 0.88 of block 18 alone. Leaving out the classes of any
one fold chooses the same channels, a margin of 0.03 to 0.06 and a presence level of 0.27 to 0.31.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from emat.backbone import Backbone
from emat.errors import EmatError
from emat.method import PAPER_THRESHOLDS, Decision, Features, Losses, LossWeights, Method, Preparation, Thresholds

CHANNELS: Mapping[str, slice] = {"efficientnet-lite2": slice(28, 42)}  # other backbones: all of them
MARGIN, SHARPNESS = 0.05, 15.0  # a patch is foreground where it is nearer to it by the margin
BEST_SHARE = 0.05  # of the patches, the most similar to the foreground: they speak for presence
PRESENCE_LEVEL, PRESENCE_SHARPNESS = 0.28, 17.0


@dataclass(frozen=True)
class Prototypes:
    """Unit mean vectors of one class and of what surrounds it, in every channel; None where there is no pixel."""

    foreground: Tensor | None  # (C, d)
    background: Tensor | None  # (C, d)


@dataclass(frozen=True)
class PatchEvidence:
    """One shot's word on a query: the probability that its class is there, and of foreground as logits by patch."""

    presence: float
    logits: Tensor  # (h, w)


class Prototype(Method):
    """Works on any backbone's tokens; nothing in it is trained.

    Similarity is the cosine, averaged over channels. Logits are resized bilinearly to the size of the answer.
    """

    name = "prototype"

    def __init__(self, backbone: Backbone, image_size: int | None = None) -> None:
        super().__init__()
        spec = backbone.spec
        if spec is None:
            raise EmatError("a method needs a backbone from the registry, which knows how photos are prepared for it")
        self.backbone = backbone
        self.channels = CHANNELS.get(spec.name, slice(None))
        self.preparation = Preparation(image_size or spec.image_size, spec.mean, spec.std)

    def features(self, pixels: Tensor) -> list[Features]:
        """The backbone's tokens of each image, (C, 1 + T, d) of the channels that are used."""
        size = (pixels.shape[2], pixels.shape[3])
        return [Features((tokens[self.channels],), size) for tokens in self.backbone(pixels)]

    def encode_query(self, features: Features) -> Tensor:
        """Unit patch vectors (C, h, w, d)."""
        tokens = features.tensors[0].float()
        return F.normalize(tokens[:, 1:], dim=-1).unflatten(1, self.backbone.grid(*features.size))

    def encode_support(self, features: Features, mask: Tensor) -> Prototypes:
        """Means over patches, each weighted by how much of it the mask covers."""
        if mask.ndim != 2 or mask.numel() == 0:
            raise EmatError(f"a support mask must have shape (H, W), this one has {tuple(mask.shape)}")
        patches = features.tensors[0][:, 1:].float()  # (C, T, d)
        shown = (mask > 0).to(patches)
        cover = F.adaptive_avg_pool2d(shown[None, None], self.backbone.grid(*features.size)).flatten()  # (T,)
        return Prototypes(_mean(patches, cover), _mean(patches, 1 - cover))

    def compare(self, query: Tensor, supports: Sequence[Prototypes]) -> list[PatchEvidence]:
        """Each support on its own."""
        return [self._evidence(query, support) for support in supports]

    def decide(
        self,
        evidence: Sequence[Sequence[PatchEvidence]],
        size: tuple[int, int],
        thresholds: Thresholds = PAPER_THRESHOLDS,
    ) -> Decision:
        """Probabilities are averaged over a way's shots; a pixel goes to the likeliest way if that is likely enough."""
        probabilities = torch.stack([_way_probability(shots, size) for shots in evidence])  # (N, H, W)
        best, way = probabilities.max(dim=0)
        scores = tuple(sum(shot.presence for shot in shots) / len(shots) for shots in evidence)
        return Decision(
            scores=scores,
            present=tuple(score >= thresholds.presence for score in scores),
            probabilities=probabilities.cpu().numpy(),
            label_map=torch.where(best >= thresholds.mask, way + 1, 0).to(torch.uint8).cpu().numpy(),
        )

    def loss(
        self,
        queries: Sequence[Features],
        supports: Sequence[Features],
        support_masks: Sequence[Tensor],
        query_masks: Tensor,
        weights: LossWeights,
    ) -> Losses:
        """Nothing to train: always an EmatError."""
        raise EmatError("the prototype method has nothing to train; evaluate it as it is, by --method prototype")

    def _evidence(self, query: Tensor, support: Prototypes) -> PatchEvidence:
        if support.foreground is None:  # an empty mask shows nothing that could be found again
            return PatchEvidence(0.0, query.new_full(query.shape[1:3], -SHARPNESS))
        near = _similarity(query, support.foreground)  # (h, w)
        far = torch.zeros_like(near) if support.background is None else _similarity(query, support.background)
        best = near.flatten().topk(max(1, round(BEST_SHARE * near.numel()))).values.mean()
        presence = torch.sigmoid(PRESENCE_SHARPNESS * (best - PRESENCE_LEVEL))
        return PatchEvidence(float(presence), SHARPNESS * (near - far - MARGIN))


def _mean(patches: Tensor, weights: Tensor) -> Tensor | None:
    """Unit vector (C, d) of the weighted mean of patches (C, T, d); None if no patch has weight."""
    if not bool((weights > 0).any()):
        return None
    return F.normalize(torch.einsum("ctd,t->cd", patches, weights), dim=-1)


def _similarity(query: Tensor, prototype: Tensor) -> Tensor:
    """(h, w): the cosine of each patch (C, h, w, d) with the prototype (C, d), averaged over channels."""
    return torch.einsum("chwd,cd->hw", query, prototype) / len(prototype)


def _way_probability(shots: Sequence[PatchEvidence], size: tuple[int, int]) -> Tensor:
    """(H, W): the shots' foreground probabilities at full size, averaged."""
    logits = torch.stack([shot.logits for shot in shots])[:, None]  # (K, 1, h, w)
    return torch.sigmoid(F.interpolate(logits, size, mode="bilinear", align_corners=True)).mean(dim=(0, 1))
