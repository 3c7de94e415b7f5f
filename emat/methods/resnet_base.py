"""What PANet, PFENet, HSNet and ASNet share: a ResNet, public tensor names, and how shots and ways are merged.

Each of them gives log-probabilities of background and foreground on a small map. A way is present if its foreground
reaches the threshold anywhere on that map; with several shots, each shot has a vote. Every pixel goes to the highest
score at the query's size, where the background competes with the ways and no threshold applies.

HSNet and ASNet also share hyper-correlations: every bottleneck's map of the query is compared with the support's. Such
a correlation is 4D (query rows, query columns, support rows, support columns) and takes 100 MB for layer2 at 400 x 400
pixels, so it is computed in chunks of query positions. Only the chunks of small photos are kept, in training.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from emat.backbone.base import Backbone
from emat.backbone.resnet import ResNet
from emat.device import workspace_bytes
from emat.errors import EmatError
from emat.methods.base import (
    PAPER_THRESHOLDS,
    Decision,
    EvidenceT,
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
from emat.tensor_files import misfits, shapes_of

BACKBONE = "backbone"  # prefix of the backbone's tensors, here and in public checkpoints
CLASSIFIER = "backbone.fc."  # the ImageNet classifier; checkpoints may hold it, but no feature depends on it
KEPT_BYTES = 2**30  # chunks of one layer of a pair are kept for the backward pass if they take no more than this
LAYER_FEATURES = (512, 1024, 2048)  # of the maps of layer2, layer3 and layer4
STRIDES = (8, 16, 32)  # of these maps
EPSILON = 1e-5  # added to the length of a feature vector before dividing by it


class ResNetMethod(Method[QueryT, SupportT, EvidenceT]):
    """A method on the maps of a ResNet. Its state dict has the names of public checkpoints."""

    backbone: ResNet

    def __init__(self, backbone: Backbone, image_size: int | None = None) -> None:
        super().__init__()
        spec = backbone.spec
        if not isinstance(backbone, ResNet) or spec is None:
            given = spec.name if spec else type(backbone).__name__
            raise EmatError(
                "wrong-backbone",
                f"{self.name} works on the maps of a ResNet's bottlenecks, which {given} does not have; "
                "use the backbone resnet50 or resnet101",
            )
        self.backbone = backbone
        self.preparation = Preparation(image_size or spec.image_size, spec.mean, spec.std)

    def feature_weights(self) -> Mapping[str, Tensor]:
        """Return the backbone's weights, named for the function that reads them.

        The methods keep different maps of the same ResNet, and a cache must tell these apart.
        """
        reader = type(self).features.__qualname__
        return {f"{reader}.{name}": value for name, value in self.backbone.state_dict().items()}

    def trained_weights(self) -> dict[str, Tensor]:
        """Return all weights except those of a frozen backbone, under the names of public checkpoints."""
        return {name: value for name, value in self.state_dict().items() if self._is_trained(name)}

    def load_trained_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Load `trained_weights` or a public checkpoint of the method; tensors of a frozen backbone are ignored.

        Raises:
            EmatError: If a name or shape does not fit; nothing is loaded then.
        """
        expected = self.trained_weights()
        given = {name: value for name, value in tensors.items() if self._is_trained(name)}
        given = {name: value for name, value in given.items() if not name.endswith("num_batches_tracked")}
        if wrong := misfits(shapes_of(given), shapes_of(expected)):
            raise EmatError("weights-do-not-fit", f"these tensors are not a {self.name} on this ResNet: {wrong}")
        self.load_state_dict({name: given[name] for name in expected}, strict=False)

    def _is_trained(self, name: str) -> bool:
        if self.recipe.trains_backbone:
            return not name.startswith(CLASSIFIER)
        return not name.startswith(BACKBONE)

    def _maps(self, features: Features) -> tuple[Tensor, ...]:
        """The features in the precision of the parameters; a cache may keep them in half precision."""
        dtype = self.backbone.conv1.weight.dtype
        return tuple(map_.to(dtype) for map_ in features.tensors)


def mask_at(mask: Tensor, like: Tensor) -> Tensor:
    """Resize a mask (H, W) bilinearly to the size of the map (..., h, w) that it belongs to: (h, w)."""
    if mask.ndim != 2 or mask.numel() == 0:
        raise EmatError("mask-shape", f"a support mask must have shape (H, W), this one has {tuple(mask.shape)}")
    covered = (mask > 0).to(like)
    return F.interpolate(covered[None, None], like.shape[-2:], mode="bilinear", align_corners=True)[0, 0]


def merge_ways(ways: Tensor) -> Tensor:
    """Merge the log-probabilities (..., N, 2, h, w) of N ways into scores (..., 1 + N, h, w).

    The first score is the mean of the backgrounds, the others are the foregrounds.

    >>> merge_ways(torch.tensor([[-1.0, -2.0], [-3.0, -4.0]]).view(2, 2, 1, 1)).flatten()
    tensor([-2., -2., -4.])
    """
    background, foreground = ways.unbind(dim=-3)  # each (..., N, h, w)
    return torch.cat([background.mean(dim=-3, keepdim=True), foreground], dim=-3)


def decide_by_votes(ways: Sequence[Tensor], size: tuple[int, int], threshold: float) -> Decision:
    """Decide from the log-probabilities (K, 2, h, w) of each way's shots.

    The shots of a way vote on its presence. Their log-probabilities are averaged before the ways are merged.
    """
    scores = merge_ways(torch.stack([shots.mean(dim=0) for shots in ways]))
    votes = [winning_vote(shots[:, 1].flatten(1).amax(dim=1)) for shots in ways]
    return decision(scores, torch.stack(votes), size, threshold)


def winning_vote(votes: Tensor) -> Tensor:
    """Return the value of K votes (K,) that half of them reach; it passes a threshold if half of the votes do.

    >>> winning_vote(torch.tensor([0.1, 0.9, 0.6])), winning_vote(torch.tensor([0.1, 0.9]))
    (tensor(0.6000), tensor(0.9000))
    """
    return votes.sort(descending=True).values[(len(votes) + 1) // 2 - 1]


def decision(scores: Tensor, presence: Tensor, size: tuple[int, int], threshold: float) -> Decision:
    """Make the answer at `size` from merged scores (1 + N, h, w) and the presence (N,) of each way, as logarithms."""
    full = F.interpolate(scores[None].float(), size, mode="bilinear", align_corners=True)[0]  # (1 + N, H, W)
    present = presence >= (math.log(threshold) if threshold > 0 else -math.inf)
    probabilities = full.softmax(dim=0).cpu().numpy()
    return Decision(
        scores=tuple(presence.exp().tolist()),
        present=tuple(present.tolist()),
        probabilities=probabilities[1:],
        background=probabilities[0],
    )


def segmentation_loss(scores: Tensor, query_masks: Tensor, weights: LossWeights) -> Losses:
    """Compute the negative log-likelihood of merged scores (B, 2, h, w) at the resolution of query_masks (B, H, W)."""
    full = F.interpolate(scores, query_masks.shape[1:], mode="bilinear", align_corners=True)
    masks = F.nll_loss(full, query_masks.long(), full.new_tensor([1.0, weights.foreground]))
    return Losses(masks, None, masks)


@dataclass(frozen=True)
class HyperFeatures:
    """The maps of every bottleneck of layer2, layer3 and layer4; the vector at each position has length 1."""

    layers: tuple[Tensor, Tensor, Tensor]  # (bottlenecks, features, h, w)
    mask: Tensor | None = None  # (H, W), for a support


class HyperCorrelationMethod(ResNetMethod[HyperFeatures, HyperFeatures, Tensor]):
    """A trained network on the correlations of one query and one support; the ResNet is frozen."""

    support_type = HyperFeatures
    learner: nn.Module  # (query, support) -> logits (1, 2, 2h, 2w) at twice layer2's resolution; a public name

    def support_lengths(self) -> dict[str, int]:
        """Return the number of bottlenecks, the features and the sides of each layer's maps."""
        network, side = self.backbone, self.preparation.image_size
        lengths: dict[str, int] = {}
        layers = zip((network.layer2, network.layer3, network.layer4), LAYER_FEATURES, STRIDES, strict=True)
        for letters, (layer, features, stride) in zip(("abxy", "cezw", "ghmn"), layers, strict=True):
            sizes = (len(layer), features, -(-side // stride), -(-side // stride))
            lengths.update(zip(letters, sizes, strict=True))
        return lengths

    @torch.no_grad()
    def features(self, pixels: Tensor) -> list[Features]:
        """Keep every bottleneck's map of layer2, layer3 and layer4, before its ReLU: one tensor for each layer."""
        _, *layers = self.backbone.bottlenecks(pixels)
        stacked = [torch.stack(layer, dim=1) for layer in layers]  # (B, bottlenecks, features, h, w)
        size = (pixels.shape[2], pixels.shape[3])
        return [Features(maps, size) for maps in zip(*stacked, strict=True)]

    def encode_query(self, features: Features) -> HyperFeatures:
        """Normalise the features to length 1."""
        second, third, fourth = self._maps(features)
        return HyperFeatures((_unit(second), _unit(third), _unit(fourth)))

    def encode_support(self, features: Features, mask: Tensor) -> HyperFeatures:
        """Normalise what the method uses of a support."""
        second, third, fourth = (self.seen_of_support(maps, mask) for maps in self._maps(features))
        return HyperFeatures((_unit(second), _unit(third), _unit(fourth)), mask)

    @abstractmethod
    def seen_of_support(self, maps: Tensor, mask: Tensor) -> Tensor:
        """Return a layer's maps (bottlenecks, features, h, w) of a support in the form that this method compares."""

    @torch.no_grad()
    def compare(self, query: HyperFeatures, supports: Sequence[HyperFeatures]) -> list[Tensor]:
        """Compute the log-probabilities (2, 2h, 2w) of each support on its own."""
        return [self.pair_scores(query, support) for support in supports]

    def pair_scores(self, query: HyperFeatures, support: HyperFeatures) -> Tensor:
        """Compute the log-probabilities (2, 2h, 2w) of background and foreground."""
        logits: Tensor = self.learner(query, support)
        return logits[0].float().log_softmax(dim=0)

    def decide(self, evidence: TaskEvidence[Tensor], thresholds: Thresholds = PAPER_THRESHOLDS) -> Decision:
        """Let the shots vote on presence, average their log-probabilities, then merge the ways."""
        ways = [torch.stack(list(shots)) for shots in evidence.by_way]
        return decide_by_votes(ways, evidence.size, thresholds.presence)

    def loss(self, batch: TrainingBatch, weights: LossWeights) -> Losses:
        """Compute the segmentation loss; presence has none of its own."""
        scores = [
            self.pair_scores(self.encode_query(query), self.encode_support(support, mask))
            for query, support, mask in batch.tasks()
        ]
        return segmentation_loss(torch.stack(scores), batch.query_masks, weights)


def correlate(query: Tensor, support: Tensor) -> Tensor:
    """Compute the cosines, clamped at 0, of unit features (C, features, n) and (C, features, m): (C, n, m)."""
    return torch.bmm(query.transpose(1, 2), support).clamp_(min=0)


def in_chunks(function: Callable[[Tensor], Tensor], query: Tensor, numbers: int) -> Tensor:
    """Apply `function` to query features (C, features, Q), a chunk of query positions at a time.

    Args:
        function: Takes (C, features, n) and returns (out, n, ...).
        query: (C, features, Q).
        numbers: How many numbers one query position needs in memory on the way.

    Returns:
        The results of all chunks, (out, Q, ...). With gradients, chunks that take more than KEPT_BYTES together are
        computed again in the backward pass instead of being stored.
    """
    position_bytes = numbers * query.element_size()
    chunks = query.split(max(1, workspace_bytes(query.device) // position_bytes), dim=2)
    if torch.is_grad_enabled() and position_bytes * query.shape[2] > KEPT_BYTES:
        return torch.cat([checkpoint(function, chunk, use_reentrant=False) for chunk in chunks], dim=1)
    return torch.cat([function(chunk) for chunk in chunks], dim=1)


def _unit(maps: Tensor) -> Tensor:
    return maps / (maps.norm(dim=1, keepdim=True) + EPSILON)
