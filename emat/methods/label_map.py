"""The one rule that turns the probabilities of several classes into a label map.

Every pixel goes to the class with the highest probability, if that probability reaches the threshold; otherwise the
pixel is background. Predictions, evaluation, threshold tuning and the studio all call the functions below.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ProbabilityMap: TypeAlias = Tensor | NDArray[np.float32]  # (H, W)


@dataclass(frozen=True)
class Likeliest:
    """The winner at every pixel."""

    labels: Tensor  # (H, W) uint8: the winning class's label, 0 where no class won
    values: Tensor  # (H, W): the winner's probability; without a winner, the value that a class had to exceed


def make_label_map(
    probabilities: Iterable[ProbabilityMap],
    threshold: float | Sequence[float] | ProbabilityMap,
    labels: Iterable[int] | None = None,
) -> NDArray[np.uint8]:
    """Decide the class of every pixel.

    Args:
        probabilities: One map (H, W) for each class. They are read one after the other, so a generator keeps only
            one large map in memory.
        threshold: What a pixel must reach to belong to a class: one number for all classes, one number for each
            class, or a map (H, W) of the background's probability, which a class must exceed.
        labels: The label of each class; by default 1 for the first class, 2 for the second, and so on.

    Returns:
        The label map (H, W): 0 is background. Of two classes with equal probability the first one wins.

    Raises:
        ValueError: If there is no map at all.

    >>> maps = np.array([[[0.9, 0.2, 0.6]], [[0.8, 0.3, 0.7]]], np.float32)
    >>> make_label_map(maps, 0.5)
    array([[1, 0, 2]], dtype=uint8)
    >>> make_label_map(maps, [0.5, 0.75], labels=[4, 9])
    array([[4, 0, 4]], dtype=uint8)
    """
    return likeliest(probabilities, threshold, labels).labels.cpu().numpy()


def likeliest(
    probabilities: Iterable[ProbabilityMap],
    threshold: float | Sequence[float] | ProbabilityMap,
    labels: Iterable[int] | None = None,
) -> Likeliest:
    """Find the winning class of every pixel and its probability; the arguments are those of `make_label_map`."""
    thresholds = list(threshold) if isinstance(threshold, (list, tuple)) else None
    best: Tensor | None = None
    winners = torch.empty(0)  # (H, W): the number of the winning class, counted from 1
    for number, values in enumerate(probabilities, start=1):
        probability = torch.as_tensor(values)
        if best is None:
            best = _start(-1.0 if thresholds else threshold, probability)  # type: ignore[arg-type]
            winners = torch.zeros_like(probability, dtype=torch.uint8)
        better = probability > best
        if thresholds:
            better &= probability >= thresholds[number - 1]
            probability = torch.where(better, probability, best)
        # Later classes have higher numbers, so a maximum overwrites. On a CPU this takes a sixth of the time of a
        # maximum with its indices, and less than filling under a mask.
        winners = torch.maximum(winners, better.to(torch.uint8).mul_(number))
        best = torch.maximum(best, probability)
    if best is None:
        raise ValueError("a label map needs at least one class")
    if labels is not None:
        winners = torch.tensor([0, *labels], dtype=torch.uint8, device=winners.device)[winners.int()]
    return Likeliest(winners, best)


def _start(threshold: float | ProbabilityMap, like: Tensor) -> Tensor:
    """What the first class must exceed (H, W): the background's map, or the number just below the threshold."""
    if isinstance(threshold, (int, float)):
        level = torch.tensor(float(threshold), dtype=like.dtype, device=like.device)
        return torch.nextafter(level, torch.full_like(level, -torch.inf)).expand_as(like)
    return torch.as_tensor(threshold).to(like)
