"""Tiny real inputs for the network: a few channels, a small grid, masks that keep different numbers of tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

CHANNELS, WIDTH = 8, 6


@dataclass(frozen=True)
class Batch:
    query: Tensor  # (B, C, 1 + T, d)
    support: Tensor
    masks: Tensor  # (B, H, W)


def tiny_batch(dtype: torch.dtype = torch.float32, grid: int = 5, seed: int = 0) -> Batch:
    """Three pairs: a mask of middle size, one that vanishes at every grid, a full one."""
    generator = torch.Generator().manual_seed(seed)

    def tokens() -> Tensor:
        return torch.randn(3, CHANNELS, 1 + grid**2, WIDTH, generator=generator, dtype=dtype) + 0.5

    masks = torch.zeros(3, 60, 80)
    masks[0, 10:40, 20:50] = 1
    masks[2] = 1
    return Batch(tokens(), tokens(), masks)
