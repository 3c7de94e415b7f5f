"""Pillow's bilinear resizing as two matrix products, bit for bit, so that a graph prepares photos as `predict` does.

Pillow resizes bytes in two passes, first along the rows, then along the columns. Each pass sums whole numbers, which
are its coefficients times 2 ** 22, and rounds to bytes. Sums stay below 2 ** 53, so products of float64 are exact.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

PRECISION = 22  # bits behind the point of Pillow's coefficients


def bilinear_weights(length: int, target: int) -> NDArray[np.float64]:
    """Return the matrix (target, length) of an antialiased bilinear filter, each row adding up to 1."""
    scale = length / target
    reach = max(scale, 1.0)  # wider where it shrinks: that is the antialiasing
    weights = np.zeros((target, length))
    for index in range(target):
        centre = (index + 0.5) * scale
        first, last = max(0, int(centre - reach + 0.5)), min(length, int(centre + reach + 0.5))
        distance = np.abs((np.arange(first, last) - centre + 0.5) / reach)
        row = np.maximum(0.0, 1.0 - distance)
        weights[index, first:last] = row / row.sum()
    return weights


class PillowResize(nn.Module):
    """Resizes photos (B, 3, H, W) of whole numbers from 0 to 255 to `target` (h, w), exactly as Pillow does.

    Args:
        size: Height and width of the photos.
        target: Height and width of the result.
    """

    def __init__(self, size: tuple[int, int], target: tuple[int, int]) -> None:
        super().__init__()
        self.down = nn.Buffer(_whole(size[0], target[0])) if size[0] != target[0] else None
        self.across = nn.Buffer(_whole(size[1], target[1])) if size[1] != target[1] else None

    def forward(self, photo: Tensor) -> Tensor:
        """Return whole numbers (B, 3, h, w) as float32."""
        x = photo.double()
        if self.across is not None:
            x = _to_bytes(x @ self.across.T)
        if self.down is not None:
            x = _to_bytes(self.down @ x)
        return x.float()


def _whole(length: int, target: int) -> Tensor:
    return torch.from_numpy(np.floor(0.5 + bilinear_weights(length, target) * 2**PRECISION))


def _to_bytes(sums: Tensor) -> Tensor:
    return torch.floor((sums + 2 ** (PRECISION - 1)) / 2**PRECISION).clamp(0, 255)
