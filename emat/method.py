"""What every few-shot method is, whatever it is made of: the one path that prediction, evaluation and training share.

    photo ─▶ Features                dear, once per photo; caches keep them
    Features ─▶ query encoding       once per photo
    Features + mask ─▶ support encoding   once per (photo, class)
    (query, support) ─▶ evidence     once per pair, shared by every way, shot and setting that has it
    evidence by way and shot ─▶ Decision  which ways are there, and where

Encodings and evidence are a method's own business: whoever calls keeps them and hands them back.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from emat.errors import EmatError

PAPER_THRESHOLD = 0.5  # delta (paper, Sec. 4): presence and foreground probabilities that count
PAPER_LAMBDA = 0.1  # the classification loss's weight (paper, Sec. 5)


@dataclass(frozen=True)
class Thresholds:
    """From which probability on a class counts as present, and a pixel as the class's."""

    presence: float = PAPER_THRESHOLD
    mask: float = PAPER_THRESHOLD

    def __post_init__(self) -> None:
        for name in ("presence", "mask"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and 0 <= value <= 1):
                raise EmatError(f"the {name} threshold is a probability between 0 and 1, not {value!r}")


PAPER_THRESHOLDS = Thresholds()


@dataclass(frozen=True)
class Preparation:
    """How a photo becomes pixels: the square size it is resized to, and its normalisation."""

    image_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True)
class Features:
    """What a method keeps of one photo."""

    tensors: tuple[Tensor, ...]
    size: tuple[int, int]  # height and width of the pixels they come from


@dataclass(frozen=True)
class Decision:
    """The answer to one task. Scores and presence are None for a method that only segments."""

    scores: tuple[float, ...] | None  # probability of each way's presence
    present: tuple[bool, ...] | None
    probabilities: NDArray[np.float32]  # (N, H, W): each way's foreground
    label_map: NDArray[np.uint8]  # (H, W): 0 = background, i = the i-th way, counted from 1

    @property
    def certainty(self) -> tuple[float, ...]:
        """How surely each way is there: its score, or of a method that only segments its likeliest pixel."""
        if self.scores is not None:
            return self.scores
        return tuple(float(value) for value in self.probabilities.max(axis=(1, 2)))


@dataclass(frozen=True)
class LossWeights:
    """What the training loss is made of."""

    presence: float = PAPER_LAMBDA
    foreground: float = 1.0  # a foreground pixel counts this many background pixels


@dataclass(frozen=True)
class Losses:
    """The loss of a batch of 1-way 1-shot tasks and its parts."""

    total: Tensor
    presence: Tensor | None
    masks: Tensor


@dataclass(frozen=True)
class Recipe:
    """How a method's trainable part is optimised; the paper's own unless a method says otherwise."""

    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 1e-3
    momentum: float = 0.0  # of SGD
    weight_decay: float = 0.0
    trains_backbone: bool = False  # then its features change with every step, and no cache gains anything


class Method(nn.Module, ABC):
    """A few-shot method with its backbone. What training changes are the parameters that ask for gradients."""

    name: str
    preparation: Preparation
    recipe: Recipe = Recipe()

    @abstractmethod
    def features(self, pixels: Tensor) -> list[Features]:
        """Prepared pixels (B, 3, H, W) -> one Features for each image; never dependent on weights that are trained."""

    def feature_weights(self) -> Mapping[str, Tensor]:
        """The weights that `features` depend on, so that kept features are told apart: here all that are frozen."""
        frozen = {name: value for name, value in self.named_parameters() if not value.requires_grad}
        return {**frozen, **dict(self.named_buffers())}

    def trained_weights(self) -> dict[str, Tensor]:
        """What training changes and a file of the trained part holds: here the parameters that ask for gradients,
        and the buffers beside them.
        """
        weights: dict[str, Tensor] = {}
        for prefix, module in self.named_modules():
            own = dict(module.named_parameters(prefix, recurse=False))
            if any(value.requires_grad for value in own.values()):
                weights.update({name: value for name, value in own.items() if value.requires_grad})
                weights.update(module.named_buffers(prefix, recurse=False))
        return weights

    def load_trained_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `trained_weights` gave; names and shapes must fit."""
        own = {name: tuple(value.shape) for name, value in self.trained_weights().items()}
        if own != {name: tuple(value.shape) for name, value in tensors.items()}:
            raise EmatError(f"these weights are not those of a trained {self.name}; check the method and the backbone")
        self.load_state_dict(dict(tensors), strict=False)

    @abstractmethod
    def encode_query(self, features: Features) -> Any:
        """A photo in which the ways are looked for."""

    @abstractmethod
    def encode_support(self, features: Features, mask: Tensor) -> Any:
        """A photo that shows one class, where its mask (H, W), of any size, is above 0."""

    @abstractmethod
    def compare(self, query: Any, supports: Sequence[Any]) -> list[Any]:
        """What each support says about the query: one piece of evidence for each."""

    @abstractmethod
    def decide(
        self, evidence: Sequence[Sequence[Any]], size: tuple[int, int], thresholds: Thresholds = PAPER_THRESHOLDS
    ) -> Decision:
        """The answer at `size` (H, W), from evidence[way][shot]; masks do not depend on presence."""

    @abstractmethod
    def loss(
        self,
        queries: Sequence[Features],
        supports: Sequence[Features],
        support_masks: Sequence[Tensor],
        query_masks: Tensor,
        weights: LossWeights,
    ) -> Losses:
        """The training loss of B tasks, 1-way 1-shot: query_masks (B, H, W) is 1 where the query shows the class."""
