"""4D convolution, reduced to its two centres: one over the query's axes, one over the support's."""

from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from emat.baselines.hyper_correlation import correlate, in_chunks
from emat.model.group_norm import NORM_GROUPS


class CenterPivotConv(nn.Module):
    """(1, C, hq, wq, hs, ws) -> (1, O, hq, wq, hs / stride, ws / stride).

    Every output is a 2D convolution over the query positions around it, at the support position it stands for, plus
    one over the support positions around it, at its query position.

    >>> import torch
    >>> layer = CenterPivotConv(3, 16, kernel=3, stride=2)
    >>> layer(torch.zeros(1, 3, 5, 5, 9, 9)).shape
    torch.Size([1, 16, 5, 5, 5, 5])
    """

    def __init__(self, channels: int, out: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, kernel, padding=kernel // 2)
        self.conv2 = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2)
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """From a 4D map that exists as a whole."""
        return self._sum(x[0, ..., :: self.stride, :: self.stride], self._over_support(x[0].flatten(1, 2)))

    def from_features(self, query: Tensor, support: Tensor) -> Tensor:
        """From unit features (C, features, h, w): their correlation is made in chunks and not kept.

        The convolution over the query's axes needs it only at the support positions that the stride leaves, and it is
        zero where the support's features are: off the mask.
        """
        q, s, grid = query.flatten(2), support.flatten(2), support.shape[2:]
        seen = s.any(dim=1).any(dim=0).nonzero().squeeze(1)
        s_seen = s[:, :, seen]

        def over_support(chunk: Tensor) -> Tensor:
            correlation = chunk.new_zeros(len(chunk), chunk.shape[2], s.shape[2])
            correlation[:, :, seen] = correlate(chunk, s_seen)
            return self._over_support(correlation.unflatten(2, grid))

        sparse = support[..., :: self.stride, :: self.stride]
        pivots = correlate(q, sparse.flatten(2)).view(len(query), *query.shape[2:], *sparse.shape[2:])
        return self._sum(pivots, in_chunks(over_support, q, numbers=3 * len(q) * s.shape[2]))

    def _over_support(self, x: Tensor) -> Tensor:
        """(C, n, hs, ws) -> (O, n, hs', ws')."""
        return cast(Tensor, self.conv2(x.transpose(0, 1))).transpose(0, 1)

    def _sum(self, pivots: Tensor, over_support: Tensor) -> Tensor:
        """Convolve pivots (C, hq, wq, hs', ws') over the query's axes and add the other part (O, Q, hs', ws')."""
        by_support = pivots.permute(3, 4, 0, 1, 2).flatten(0, 1)  # (S', C, hq, wq)
        over_query = self.conv1(by_support).unflatten(0, pivots.shape[3:]).permute(2, 3, 4, 0, 1)
        return (over_query + over_support.unflatten(1, pivots.shape[1:3]))[None]


def squeeze_block(
    channels: int, widths: tuple[int, ...], kernels: tuple[int, ...], strides: tuple[int, ...]
) -> nn.Sequential:
    """Centre-pivot convolutions, each with GroupNorm and ReLU."""
    layers: list[nn.Module] = []
    for width, kernel, stride in zip(widths, kernels, strides, strict=True):
        layers += [CenterPivotConv(channels, width, kernel, stride), nn.GroupNorm(NORM_GROUPS, width), nn.ReLU(True)]
        channels = width
    return nn.Sequential(*layers)


def resize_query_axes(x: Tensor, size: tuple[int, int]) -> Tensor:
    """(1, C, hq, wq, hs, ws) with its query axes resized bilinearly to `size`."""
    hs, ws = x.shape[4:]
    by_support = x[0].permute(0, 3, 4, 1, 2).flatten(0, 2)[None]  # (1, C * S, hq, wq)
    resized = F.interpolate(by_support, size, mode="bilinear", align_corners=True)[0]
    return resized.unflatten(0, (-1, hs, ws)).permute(0, 3, 4, 1, 2)[None]
