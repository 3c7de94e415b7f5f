"""HSNet: 4D convolutions reduce the support axes of hyper-correlations, from coarse layers to fine ones."""

from collections.abc import Sequence
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from emat.backbone.base import Backbone
from emat.methods.resnet_base import HyperCorrelationMethod, HyperFeatures, correlate, in_chunks, mask_at
from emat.model.group_norm import NORM_GROUPS
from emat.model.layers import mask_branch, mask_branch_stages

WIDTHS = (16, 64, 128)


class HSNet(HyperCorrelationMethod):
    """HSNet (Min et al., ICCV 2021). Support features are weighted by how much of each position the mask covers."""

    name = "hsnet"

    def __init__(self, backbone: Backbone, image_size: int | None = None) -> None:
        super().__init__(backbone, image_size)
        self.learner = HSNetNetwork(self.backbone.blocks[1:])

    def seen_of_support(self, maps: Tensor, mask: Tensor) -> Tensor:
        """Return the maps multiplied by the resized mask."""
        return maps * mask_at(mask, maps)


class HSNetNetwork(nn.Module):
    """The trained part of HSNet. Attributes have the names of public checkpoints."""

    def __init__(self, bottlenecks: Sequence[int]) -> None:
        super().__init__()
        second, third, fourth = bottlenecks
        self.encoder_layer4 = squeeze_block(fourth, WIDTHS, kernels=(3, 3, 3), strides=(2, 2, 2))
        self.encoder_layer3 = squeeze_block(third, WIDTHS, kernels=(5, 3, 3), strides=(4, 2, 2))
        self.encoder_layer2 = squeeze_block(second, WIDTHS, kernels=(5, 5, 3), strides=(4, 4, 2))
        width = WIDTHS[-1]
        self.encoder_layer4to3 = squeeze_block(width, (width,) * 3, kernels=(3, 3, 3), strides=(1, 1, 1))
        self.encoder_layer3to2 = squeeze_block(width, (width,) * 3, kernels=(3, 3, 3), strides=(1, 1, 1))
        self.decoder1, self.decoder2 = mask_branch_stages(width)

    def forward(self, query: HyperFeatures, support: HyperFeatures) -> Tensor:
        """Compute the logits (1, 2, 2h, 2w) of one pair."""
        encoders = (self.encoder_layer2, self.encoder_layer3, self.encoder_layer4)
        second, third, fourth = (
            _squeeze(encoder, q, s) for encoder, q, s in zip(encoders, query.layers, support.layers, strict=True)
        )
        x = self.encoder_layer4to3(third + resize_query_axes(fourth, _query_size(third)))
        x = self.encoder_layer3to2(second + resize_query_axes(x, _query_size(second)))
        return mask_branch((self.decoder1, self.decoder2), x.mean(dim=(4, 5)))


def _squeeze(encoder: nn.Sequential, query: Tensor, support: Tensor) -> Tensor:
    """One layer's unit features (bottlenecks, features, h, w) -> (1, 128, hq, wq, hs', ws')."""
    first = cast(CenterPivotConv, encoder[0])
    return cast(Tensor, encoder[1:](first.from_features(query, support)))


def _query_size(x: Tensor) -> tuple[int, int]:
    return x.shape[2], x.shape[3]


class CenterPivotConv(nn.Module):
    """A 4D convolution (1, C, hq, wq, hs, ws) -> (1, O, hq, wq, hs / stride, ws / stride), reduced to two 2D ones.

    Every output is the sum of a 2D convolution over the query axes at its support position and a 2D convolution over
    the support axes at its query position.

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
        """Convolve a 4D map that is in memory as a whole."""
        return self._sum(x[0, ..., :: self.stride, :: self.stride], self._over_support(x[0].flatten(1, 2)))

    def from_features(self, query: Tensor, support: Tensor) -> Tensor:
        """Convolve the correlation of unit features (C, features, h, w), computing it in chunks.

        The convolution over the query axes needs the correlation only at the support positions that the stride
        keeps. Outside the mask the support's features are zero, and so is the correlation.
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
    """Make a sequence of centre-pivot convolutions, each followed by GroupNorm and ReLU."""
    layers: list[nn.Module] = []
    for width, kernel, stride in zip(widths, kernels, strides, strict=True):
        layers += [CenterPivotConv(channels, width, kernel, stride), nn.GroupNorm(NORM_GROUPS, width), nn.ReLU(True)]
        channels = width
    return nn.Sequential(*layers)


def resize_query_axes(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize the query axes of (1, C, hq, wq, hs, ws) bilinearly to `size`."""
    hs, ws = x.shape[4:]
    by_support = x[0].permute(0, 3, 4, 1, 2).flatten(0, 2)[None]  # (1, C * S, hq, wq)
    resized = F.interpolate(by_support, size, mode="bilinear", align_corners=True)[0]
    return resized.unflatten(0, (-1, hs, ws)).permute(0, 3, 4, 1, 2)[None]
