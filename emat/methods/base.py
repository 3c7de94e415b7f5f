"""The interface that every few-shot method implements.

Prediction, evaluation and training all run a method through the same steps:

    photo                       -> Features            expensive; once per photo, kept by caches
    Features                    -> query encoding      once per photo
    Features, mask and photo    -> support encoding    once per (photo, class)
    query and support encoding  -> evidence            once per pair, shared by every task that has the pair
    evidence by way and shot    -> Decision            which ways are present, and where they are

`Comparison` runs the last three steps for everybody. Encodings and evidence belong to the method: callers keep them and
hand them back without looking inside.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import TypeVar  # with defaults, so that `Method` alone stands for any method

from emat.device import autocast
from emat.errors import EmatError
from emat.images import Pixels, to_pixels
from emat.methods.label_map import make_label_map
from emat.model.network import PUBLISHED_SHAPE, Shape
from emat.tensor_files import misfits, shapes_of

PAPER_THRESHOLD = 0.5  # delta (paper, Sec. 4): the least presence or foreground probability that counts
PAPER_LAMBDA = 0.1  # weight of the classification loss (paper, Sec. 5)


@dataclass(frozen=True)
class Thresholds:
    """The least probability at which a class counts as present, and at which a pixel counts as the class.

    Raises:
        EmatError: If a threshold is not a number from 0 to 1.
    """

    presence: float = PAPER_THRESHOLD
    mask: float = PAPER_THRESHOLD

    def __post_init__(self) -> None:
        for name in ("presence", "mask"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and 0 <= value <= 1):
                raise EmatError("bad-number", f"the {name} threshold is a probability between 0 and 1, not {value!r}")


PAPER_THRESHOLDS = Thresholds()


@dataclass(frozen=True)
class Preparation:
    """How a photo becomes pixels for a method."""

    image_size: int  # the side, in pixels, of the square that the photo is resized to
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True)
class Features:
    """What a method keeps of one photo."""

    tensors: tuple[Tensor, ...]
    size: tuple[int, int]  # height and width of the pixels that the tensors were computed from


QueryT = TypeVar("QueryT", default=Any)  # what `Method.encode_query` returns
SupportT = TypeVar("SupportT", default=Any)  # what `Method.encode_support` returns
EvidenceT = TypeVar("EvidenceT", default=Any)  # what `Method.compare` returns for each support


@dataclass(frozen=True)
class TaskEvidence(Generic[EvidenceT]):
    """Everything that `Method.decide` needs to answer a task."""

    by_way: Sequence[Sequence[EvidenceT]]  # by_way[way][shot]: what `compare` returned
    size: tuple[int, int]  # height and width of the answer


@dataclass(frozen=True)
class TrainingBatch:
    """B tasks to train on, each 1-way 1-shot."""

    queries: Sequence[Features]
    supports: Sequence[Features]
    support_masks: Sequence[Tensor]  # B masks (H, W) of any size; the class is where they are above 0
    query_masks: Tensor  # (B, H, W): 1 where the query shows the class

    def tasks(self) -> Iterator[tuple[Features, Features, Tensor]]:
        """Give the query, the support and the support's mask of one task after the other."""
        return zip(self.queries, self.supports, self.support_masks, strict=True)


@dataclass(frozen=True)
class Decision:
    """A method's answer to one task. `scores` and `present` are None if the method only segments."""

    scores: tuple[float, ...] | None  # the probability that each way is present
    present: tuple[bool, ...] | None
    probabilities: NDArray[np.float32]  # (N, H, W): the foreground probability of each way
    mask_threshold: float = PAPER_THRESHOLD
    background: NDArray[np.float32] | None = None  # (H, W): replaces the mask threshold if the background competes

    @classmethod
    def of(cls, scores: Sequence[float] | None, probabilities: Tensor, thresholds: Thresholds) -> "Decision":
        """Make the decision that follows from the scores (N,) and probabilities (N, H, W) of the ways."""
        return cls(
            scores=None if scores is None else tuple(scores),
            present=None if scores is None else tuple(score >= thresholds.presence for score in scores),
            probabilities=probabilities.cpu().numpy(),
            mask_threshold=thresholds.mask,
        )

    @cached_property
    def label_map(self) -> NDArray[np.uint8]:
        """The label map (H, W): 0 = background, i = the i-th way, counted from 1; computed when first asked for."""
        return make_label_map(self.probabilities, self.mask_threshold if self.background is None else self.background)

    @property
    def certainty(self) -> tuple[float, ...]:
        """How likely each way is present: its score, or its highest pixel probability if the method only segments."""
        if self.scores is not None:
            return self.scores
        return tuple(float(value) for value in self.probabilities.max(axis=(1, 2)))


@dataclass(frozen=True)
class LossWeights:
    """The weights of the parts of the training loss."""

    presence: float = PAPER_LAMBDA
    foreground: float = 1.0  # weight of a foreground pixel; a background pixel has weight 1


@dataclass(frozen=True)
class Losses:
    """The loss of a batch of 1-way 1-shot tasks and its parts."""

    total: Tensor
    presence: Tensor | None
    masks: Tensor


@dataclass(frozen=True)
class Recipe:
    """How the trainable part of a method is optimised; the defaults are those of the paper."""

    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 1e-3
    momentum: float = 0.0  # for SGD
    weight_decay: float = 0.0
    trains_backbone: bool = False  # if so, features change with every step and are not worth caching


class Method(nn.Module, ABC, Generic[QueryT, SupportT, EvidenceT]):
    """A few-shot method with its backbone. Training changes the parameters that require gradients.

    To add a method, subclass this, implement the abstract methods and list the class in `emat.methods.registry`; a
    separate package lists it under the entry point group `emat.methods` instead.
    """

    name: str
    preparation: Preparation
    # The class of its support encodings, which fitted files hold: a dataclass whose fields are tensors, tuples of
    # tensors or None, or a plain tensor.
    support_type: type[Any] = Tensor
    recipe: Recipe = Recipe()
    takes_undecided: bool = False  # whether `encode_support` tells undecided pixels of a mask from background
    shape: Shape = PUBLISHED_SHAPE  # sizes of its network that differ from the published ones
    decision_version: int = 0  # to be raised when answers change, so that no evaluation mixes old and new answers
    precision: torch.dtype = torch.float32  # in which photos are encoded; what follows always has single precision

    @abstractmethod
    def features(self, pixels: Tensor) -> list[Features]:
        """Compute what is kept of each photo; it must not depend on trained weights.

        Args:
            pixels: Prepared pixels (B, 3, H, W).

        Returns:
            One `Features` for each of the B photos.
        """

    @torch.no_grad()
    def photo_features(self, photo: Pixels) -> Features:
        """Compute what is kept of one photo (H, W, 3), on the method's device."""
        return in_precision(self.precision, self.features, self.prepare(photo))[0]

    @torch.no_grad()
    def features_together(self, photos: Sequence[Pixels]) -> list[Features]:
        """Compute what `photo_features` returns for each photo, with all of them in one pass through the backbone."""
        together = torch.cat([self.prepare(photo) for photo in photos])
        return in_precision(self.precision, self.features, together)

    def prepare(self, photo: Pixels) -> Tensor:
        """Resize a photo (H, W, 3) to the square that the method takes and normalise it: (1, 3, S, S)."""
        side, device = self.preparation.image_size, next(self.parameters()).device
        pixels = to_pixels(photo, (side, side), self.preparation.mean, self.preparation.std)
        return torch.from_numpy(pixels)[None].to(device)

    def mirror(self, features: Features) -> Features | None:
        """Mirror the features of a photo from left to right; None if only a mirrored photo gives mirrored features."""
        return None

    def feature_weights(self) -> Mapping[str, Tensor]:
        """Return the weights that `features` depend on, by default all frozen ones.

        Caches compare them, so that features of other weights are never taken for these.
        """
        frozen = {name: value for name, value in self.named_parameters() if not value.requires_grad}
        return {**frozen, **dict(self.named_buffers())}

    def trained_weights(self) -> dict[str, Tensor]:
        """Return what training changes and a head file holds.

        By default these are the parameters that require gradients and the buffers of the modules that have them.
        """
        weights: dict[str, Tensor] = {}
        for prefix, module in self.named_modules():
            parameters = dict(module.named_parameters(prefix, recurse=False))
            if any(value.requires_grad for value in parameters.values()):
                weights.update({name: value for name, value in parameters.items() if value.requires_grad})
                weights.update(module.named_buffers(prefix, recurse=False))
        return weights

    def load_trained_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Load what `trained_weights` returned.

        Raises:
            EmatError: If a name or shape does not fit; nothing is loaded then.
        """
        expected = self.trained_weights()
        if wrong := misfits(shapes_of(tensors), shapes_of(expected)):
            raise EmatError(
                "weights-do-not-fit", f"these tensors are not the weights of a trained {self.name} head: {wrong}"
            )
        self.load_state_dict(dict(tensors), strict=False)

    @abstractmethod
    def encode_query(self, features: Features) -> QueryT:
        """Encode a photo in which the ways are looked for."""

    @abstractmethod
    def encode_support(self, features: Features, mask: Tensor) -> SupportT:
        """Encode a photo that shows one class.

        Args:
            features: What `features` returned for the photo.
            mask: (H, W) of any size; the class is where it is above 0. If the method `takes_undecided`, nothing is
                known where it is below 0.
        """

    def encode_example(
        self,
        mask: Tensor,
        photo: Callable[[], Pixels],
        features: Callable[[], Features],
        encode: Callable[[Pixels], Features] | None = None,
    ) -> SupportT:
        """Encode a photo that shows one class, whose pixels may be looked at again.

        By default they are not, and this is `encode_support`.

        Args:
            mask: As `encode_support` takes it.
            photo: Returns the photo (H, W, 3).
            features: Returns what `features` returned for it.
            encode: Encodes parts of the photo, and may keep their features; by default `photo_features`.
        """
        return self.encode_support(features(), mask)

    def support_lengths(self) -> Mapping[str, int]:
        """Return how long the axes of a support encoding are, by the letters of `emat.inference.fitted_file.SHAPES`.

        A fitted file whose encodings have other lengths is refused. Letters that are left out are not checked.
        """
        return {}

    @abstractmethod
    def compare(self, query: QueryT, supports: Sequence[SupportT]) -> list[EvidenceT]:
        """Compare a query with each support on its own.

        Args:
            query: What `encode_query` returned.
            supports: What `encode_support` returned, for any ways.

        Returns:
            One piece of evidence for each support.
        """

    @abstractmethod
    def decide(self, evidence: TaskEvidence[EvidenceT], thresholds: Thresholds = PAPER_THRESHOLDS) -> Decision:
        """Join the evidence into the answer to a task. Masks do not depend on presence.

        Args:
            evidence: The evidence of every way and shot, and the size of the answer.
            thresholds: The probabilities that count.
        """

    def decide_independently(
        self, evidence: TaskEvidence[EvidenceT], thresholds: Thresholds = PAPER_THRESHOLDS
    ) -> Decision:
        """Decide each way by itself; `suppress_overlaps` compares the ways after the pixel learner changed them."""
        return self.decide(evidence, thresholds)

    def suppress_overlaps(
        self, decision: Decision, thresholds: Thresholds, ways: Sequence[bool] | None = None
    ) -> Decision:
        """Lower the scores of ways whose pixels other ways explain better; by default, scores stay as they are.

        Args:
            decision: The decision.
            thresholds: The probabilities that count.
            ways: Of each way whether its score may change; by default all may.
        """
        return decision

    @abstractmethod
    def loss(self, batch: TrainingBatch, weights: LossWeights) -> Losses:
        """Compute the training loss of a batch of tasks.

        Args:
            batch: The tasks.
            weights: The weights of the parts of the loss.
        """


def in_precision(
    precision: torch.dtype, features: Callable[[Tensor], list[Features]], pixels: Tensor
) -> list[Features]:
    """Compute the features of photos in another precision; the result has single precision."""
    if precision is torch.float32:
        return features(pixels)
    with autocast(pixels.device, precision):
        encoded = features(pixels)

    def single(tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.is_floating_point() else tensor

    return [Features(tuple(map(single, features.tensors)), features.size) for features in encoded]


class Comparison(Generic[QueryT, SupportT, EvidenceT]):
    """A query and its evidence: every support is compared with it once, however many tasks ask.

    Args:
        method: The method that compares.
        features: Those of the query.
    """

    def __init__(self, method: Method[QueryT, SupportT, EvidenceT], features: Features) -> None:
        self.method = method
        self._query = method.encode_query(features)
        # By the identity of the support, which is kept as well so that no other object takes its place.
        self._evidence: dict[int, tuple[SupportT, EvidenceT]] = {}

    def evidence(self, ways: Sequence[Sequence[SupportT]], size: tuple[int, int]) -> TaskEvidence[EvidenceT]:
        """Return the evidence of a task's supports `ways[way][shot]`, for an answer of `size` (H, W)."""
        missing = {id(shot): shot for shots in ways for shot in shots if id(shot) not in self._evidence}
        compared = self.method.compare(self._query, list(missing.values())) if missing else []
        for support, evidence in zip(missing.values(), compared, strict=True):
            self._evidence[id(support)] = support, evidence
        return TaskEvidence([[self._evidence[id(shot)][1] for shot in shots] for shots in ways], size)

    def decide(
        self,
        ways: Sequence[Sequence[SupportT]],
        size: tuple[int, int],
        thresholds: Thresholds = PAPER_THRESHOLDS,
    ) -> Decision:
        """Answer a task.

        Args:
            ways: The supports of every way and shot.
            size: Height and width of the answer.
            thresholds: The probabilities that count.
        """
        return self.method.decide(self.evidence(ways, size), thresholds)

    def decide_independently(
        self, ways: Sequence[Sequence[SupportT]], size: tuple[int, int], thresholds: Thresholds = PAPER_THRESHOLDS
    ) -> Decision:
        """Answer a task without `Method.suppress_overlaps`, for whoever changes the masks first."""
        return self.method.decide_independently(self.evidence(ways, size), thresholds)
