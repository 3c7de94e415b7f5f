"""EMAT and CST as few-shot methods: the tokens of a frozen backbone, the network, and the paper's rule for K shots.

The probabilities of a way's shots are averaged; every pixel goes to the likeliest way (`emat.methods.label_map`).

Evidence has an axis B for several queries: a method compares one at a time, an exported graph any number, and both call
the same functions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from emat.backbone import Backbone
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
from emat.model import load_public
from emat.model.encoding import QueryEncoding, SupportEncoding, support_mask
from emat.model.network import Network, Shape


@dataclass(frozen=True)
class ShotEvidence:
    """What one shot says about B queries: the probability that its class is present, and mask logits."""

    presence: Tensor | None  # (B,); None if the network only segments
    masks: Tensor  # (B, 2, 2h, 2w) for a query grid of (h, w): background, foreground

    @property
    def foreground(self) -> Tensor:
        """The logit of the foreground against the background (B, 2h, 2w)."""
        return self.masks[:, 1] - self.masks[:, 0]


class CorrelationMethod(Method[QueryT, SupportT, ShotEvidence]):
    """What methods with a network on the cosines of a frozen backbone's tokens have in common.

    Args:
        backbone: A backbone from the registry.
        network: What `emat.model.build` returned, with as many channels as its shape takes of the backbone's.
        image_size: Side of the square that photos are resized to; by default the backbone's.

    Raises:
        EmatError: If backbone and network do not fit.
    """

    decision_version = 1

    def __init__(self, backbone: Backbone, network: Network, image_size: int | None = None) -> None:
        super().__init__()
        self.channels = channel_slice(network.shape, backbone.channels)
        given = self.channels.stop - self.channels.start
        if given != network.channels:
            raise EmatError(
                "wrong-backbone",
                f"this {network.method} head was trained for {network.channels} channels, the backbone gives "
                f"{given}; use the backbone it was trained with",
            )
        self.backbone, self.network, self.name = backbone, network, network.method
        self.shape = network.shape
        spec = backbone.spec
        if spec is None:
            raise EmatError(
                "wrong-backbone",
                "a method needs a backbone from the registry, which knows how photos are prepared for it",
            )
        self.preparation = Preparation(image_size or spec.image_size, spec.mean, spec.std)

    def features(self, pixels: Tensor) -> list[Features]:
        """Compute what the backbone keeps of each photo; its tokens are made from that when they are needed."""
        size = (pixels.shape[2], pixels.shape[3])
        maps = self.backbone.maps(pixels)
        # As caches keep them: another layout in memory changes the last digits of what follows.
        return [Features(tuple(map_[index].contiguous() for map_ in maps), size) for index in range(len(pixels))]

    def mirror(self, features: Features) -> Features:
        """Mirror the features of a photo from left to right."""
        maps = self.backbone.mirror([tensor[None] for tensor in features.tensors], features.size)
        return Features(tuple(map_[0] for map_ in maps), features.size)

    def all_tokens(self, features: Features) -> Tensor:
        """Return the tokens (C, 1 + T, d) of all the backbone's channels."""
        dtype = next(self.network.parameters()).dtype  # a cache may keep features in half precision
        maps = [tensor[None].to(dtype) for tensor in features.tensors]
        return self.backbone.tokens_from(maps, features.size)[0]

    def tokens(self, features: Features) -> Tensor:
        """Return the tokens (C, 1 + T, d) that the network compares."""
        return self.all_tokens(features)[self.channels]

    def feature_weights(self) -> Mapping[str, Tensor]:
        """Return the weights of the backbone."""
        return self.backbone.state_dict()

    def trained_weights(self) -> dict[str, Tensor]:
        """Return the weights of the network, under the names of public checkpoints."""
        return self.network.state_dict()

    def load_trained_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the weights of the network; EmatError says what does not fit."""
        load_public(self.network, tensors)

    def network_query(self, features: Features) -> QueryEncoding:
        """Normalise the tokens of the query."""
        return self.network.encode_query(self.tokens(features), self.backbone.grid(*features.size))

    def network_support(self, features: Features, mask: Tensor) -> SupportEncoding:
        """Normalise the tokens of the support, and find which of them the mask keeps."""
        at_photo_side = support_mask(mask, self.preparation.image_size)
        return self.network.encode_support(self.tokens(features), at_photo_side, self.backbone.grid(*features.size))

    def support_lengths(self) -> dict[str, int]:
        """Return the lengths that the network expects."""
        form = self.network.form
        cells = (form.support_grid // form.windows[0].side) ** 2
        return {"P": form.windows[0].positions, "C": self.network.channels, "s": cells, "d": self.backbone.width}

    @torch.no_grad()
    def network_evidence(self, query: QueryEncoding, support: SupportEncoding) -> ShotEvidence:
        """Run the network for one pair, so that a result never depends on other supports."""
        out = self.network.compare(query, [support])
        # In double precision from here on: the mean over shots is compared with thresholds.
        presence = None if out.presence is None else out.presence.float().softmax(dim=1)[:, 1].double()
        return ShotEvidence(presence, out.masks.float())

    def decide(self, evidence: TaskEvidence[ShotEvidence], thresholds: Thresholds = PAPER_THRESHOLDS) -> Decision:
        """Average the probabilities over each way's shots."""
        joined = [join_shots(shots, evidence.size) for shots in evidence.by_way]
        scores = [float(score) for score, _ in joined if score is not None]
        probabilities = torch.cat([probability for _, probability in joined])  # (N, H, W)
        return Decision.of(scores if len(scores) == len(joined) else None, probabilities, thresholds)

    def loss(self, batch: TrainingBatch, weights: LossWeights) -> Losses:
        """Compute the cross entropies of presence and masks; masks are compared at the size of the query masks."""
        supports = [self.network_support(support, mask) for _, support, mask in batch.tasks()]
        out = self.network.pairs([self.network_query(query) for query in batch.queries], supports)
        logits = F.interpolate(out.masks, batch.query_masks.shape[1:], mode="bilinear", align_corners=True)
        balance = logits.new_tensor([1.0, weights.foreground])
        masks = F.cross_entropy(logits, batch.query_masks.long(), balance)
        if out.presence is None:
            return Losses(masks, None, masks)
        presence = F.cross_entropy(out.presence, batch.query_masks.flatten(1).any(dim=1).long())
        return Losses(weights.presence * presence + masks, presence, masks)


class NetworkMethod(CorrelationMethod[QueryEncoding, SupportEncoding]):
    """The network's own answer: EMAT, CST and their ablations."""

    support_type = SupportEncoding

    def encode_query(self, features: Features) -> QueryEncoding:
        """Encode a query for the network."""
        return self.network_query(features)

    def encode_support(self, features: Features, mask: Tensor) -> SupportEncoding:
        """Encode a support for the network."""
        return self.network_support(features, mask)

    def compare(self, query: QueryEncoding, supports: Sequence[SupportEncoding]) -> list[ShotEvidence]:
        """Run the network for each support on its own."""
        return [self.network_evidence(query, support) for support in supports]


def channel_slice(shape: Shape, channels: int) -> slice:
    """Return which of a backbone's correlation channels a network of `shape` compares.

    Raises:
        EmatError: If the backbone does not have these channels.
    """
    first, end = shape.channels or (0, channels)
    if not 0 <= first < end <= channels:
        raise EmatError("bad-number", f"channels {first} to {end - 1} are not among the backbone's 0 to {channels - 1}")
    return slice(first, end)


def join_shots(shots: Sequence[ShotEvidence], size: tuple[int, int]) -> tuple[Tensor | None, Tensor]:
    """Average the shots of a way: its score (B,), None if the network only segments, and its map (B, H, W)."""
    # The softmax of two logits is the sigmoid of their difference, which takes half the memory.
    full = [F.interpolate(shot.masks, size, mode="bilinear", align_corners=True) for shot in shots]
    probability = torch.stack([torch.sigmoid(logits[:, 1] - logits[:, 0]) for logits in full]).mean(dim=0)
    presences = [shot.presence for shot in shots if shot.presence is not None]
    return (torch.stack(presences).mean(dim=0) if len(presences) == len(shots) else None), probability
