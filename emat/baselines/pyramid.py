"""PFENet's feature enrichment: query, support vector and prior joined at four resolutions, from fine to coarse."""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 256
BINS = (1.0, 0.5, 0.26, 0.14)  # sides of the four resolutions: 50, 25, 13, 7 of 50 x 50


class Pyramid(nn.Module):
    """Attributes are called as in published checkpoints.

    `inner_cls` judged every resolution on its own in the published training; neither the output nor the loss of the
    few-shot classification and segmentation form uses it, but checkpoints carry it.
    """

    def __init__(self) -> None:
        super().__init__()
        count = len(BINS)
        self.init_merge = nn.ModuleList(_pointwise(2 * WIDTH + 1) for _ in range(count))
        self.beta_conv = nn.ModuleList(_two_3x3() for _ in range(count))
        self.inner_cls = nn.ModuleList(_classifier() for _ in range(count))
        self.res1 = _pointwise(count * WIDTH)
        self.res2 = _two_3x3()
        self.alpha_conv = nn.ModuleList(_pointwise(2 * WIDTH) for _ in range(count - 1))
        self.cls = _classifier()

    def forward(self, query: Tensor, vector: Tensor, prior: Tensor) -> Tensor:
        """query (B, 256, h, w), support vector (B, 256), prior (B, 1, h, w) -> logits (B, 2, h, w)."""
        size = query.shape[2:]
        levels: list[Tensor] = []
        for index, bin_size in enumerate(_bins(size)):
            inputs = (
                F.adaptive_avg_pool2d(query, bin_size),
                vector[:, :, None, None].expand(-1, -1, *bin_size),
                _resize(prior, bin_size),
            )
            x = self.init_merge[index](torch.cat(inputs, dim=1))
            if index:  # what the finer level found
                x = x + self.alpha_conv[index - 1](torch.cat([x, _resize(levels[-1], bin_size)], dim=1))
            x = x + self.beta_conv[index](x)
            levels.append(_resize(x, size))
        x = self.res1(torch.cat(levels, dim=1))
        return cast(Tensor, self.cls(x + self.res2(x)))


def _bins(size: Sequence[int]) -> list[tuple[int, int]]:
    rows, columns = size
    return [(max(1, round(rows * share)), max(1, round(columns * share))) for share in BINS]


def _resize(x: Tensor, size: Sequence[int]) -> Tensor:
    return F.interpolate(x, tuple(size), mode="bilinear", align_corners=True)


def _pointwise(features: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(features, WIDTH, 1, bias=False), nn.ReLU())


def _two_3x3() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False),
        nn.ReLU(),
    )


def _classifier() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False), nn.ReLU(), nn.Dropout2d(0.1), nn.Conv2d(WIDTH, 2, 1)
    )
