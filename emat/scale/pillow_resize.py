"""Pillow's resizing of photos as a module that an ONNX graph can hold."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

PRECISION = 22  # bits behind the point of Pillow's coefficients
LOWER = 8  # of these bits; sums stay exact as long as a photo is at most 128 times as large as the result


class PillowResize(nn.Module):
    """Resizes photos (B, 3, H, W) of whole numbers from 0 to 255 to `target` (h, w), bit for bit as Pillow does.

    Pillow resizes bytes in two passes, first along the rows, then along the columns. Each pass sums whole numbers,
    which are its coefficients times 2 ** 22, and rounds to bytes. Here a coefficient is split into its upper bits and
    its lowest 8, so that all sums stay below 2 ** 24: products of float32 are then exact, in any runtime.

    Args:
        size: Height and width of the photos.
        target: Height and width of the result.
    """

    def __init__(self, size: tuple[int, int], target: tuple[int, int]) -> None:
        super().__init__()
        self.down = nn.Buffer(_split(size[0], target[0])) if size[0] != target[0] else None
        self.across = nn.Buffer(_split(size[1], target[1])) if size[1] != target[1] else None

    def forward(self, photo: Tensor) -> Tensor:
        """Return whole numbers (B, 3, h, w) as float32."""
        x = photo.float()
        if self.across is not None:
            x = _to_bytes(*(x @ self.across.T).chunk(2, dim=3))
        if self.down is not None:
            x = _to_bytes(*(self.down @ x).chunk(2, dim=2))
        return x


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


def _split(length: int, target: int) -> Tensor:
    """Pillow's coefficients as whole numbers (2 target, length): the upper bits of all, then the lower ones."""
    whole = np.floor(0.5 + bilinear_weights(length, target) * 2**PRECISION)
    upper = np.floor(whole / 2**LOWER)
    return torch.from_numpy(np.concatenate([upper, whole - upper * 2**LOWER]).astype(np.float32))


def _to_bytes(upper: Tensor, lower: Tensor) -> Tensor:
    """Round sums to bytes, half up. What is left of the lower bits after the carry cannot change the result."""
    total = upper + torch.floor(lower / 2**LOWER)
    bits = PRECISION - LOWER
    return torch.floor((total + 2 ** (bits - 1)) / 2**bits).clamp(0, 255)
