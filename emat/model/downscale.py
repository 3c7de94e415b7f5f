"""Learnable downscaling and plain pooling of the support axis, both as: average first, then one matrix product.

A layer turns a `side` x `side` support grid into `side / window` cells a side. Inside a cell, every `stride`-th token
of a row or column shares its weights: a 2 x 2 convolution with stride 2 has four such positions, a 1 x 1 projection has
one. Averaging over the rest of the cell (`pool`) is linear, so it comes before the projection, where it is cheapest -
in the first layer even before the correlation.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Window:
    """How a layer shrinks its support grid: positions with weights of their own, and how many of each are averaged."""

    stride: int  # 2 = learnable (2 x 2 convolution), 1 = plain projection
    pool: int

    @property
    def side(self) -> int:
        """Tokens a side that become one cell."""
        return self.stride * self.pool

    @property
    def positions(self) -> int:
        """Positions inside a cell that have weights of their own."""
        return self.stride**2

    def cells(self, side: int) -> int:
        """Cells of a support grid of this side."""
        return (side // self.side) ** 2

    def gather(self, image: Tensor, side: int) -> Tensor:
        """Image tokens (..., side², d), row-major, as averages (positions, ..., cells, d), cells row-major."""
        n = side // self.side
        lead, width = image.shape[:-2], image.shape[-1]
        split = image.reshape(*lead, n, self.pool, self.stride, n, self.pool, self.stride, width)
        mean = split.mean(dim=(-3, -6)) if self.pool > 1 else split.squeeze(-3).squeeze(-5)
        mean = mean.movedim((-4, -2), (0, 1))  # (stride, stride, ..., n, n, d)
        return mean.reshape(self.positions, *lead, n * n, width)


def position_order(side: int, window: Window) -> Tensor:
    """Row-major indices of a grid's cells, sorted by the position each takes inside the next layer's `window`.

    With the first layer's outputs in this order, every position of the second layer is one contiguous run.

    >>> position_order(4, Window(stride=2, pool=2)).tolist()
    [0, 2, 8, 10, 1, 3, 9, 11, 4, 6, 12, 14, 5, 7, 13, 15]
    """
    index = torch.arange(side * side).reshape(1, side * side, 1)
    n, s = side // window.stride, window.stride
    return index.reshape(n, s, n, s).permute(1, 3, 0, 2).flatten()


class Projection(nn.Module):
    """Learnable downscaling: a strided convolution for image tokens, a 1 x 1 of its own for the class token.

    The weights keep the shapes and names of published checkpoints; the network reads them as matrices.
    """

    def __init__(self, channels: int, out: int, *, class_token: bool, bias: bool) -> None:
        super().__init__()
        self.q_seg = nn.Conv3d(channels, out, (1, 2, 2), stride=(1, 2, 2), bias=bias)
        self.q_cls = nn.Conv2d(channels, out, 1, bias=bias) if class_token else None
