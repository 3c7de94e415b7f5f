"""ASNet's attentive squeeze layer: attention among one query position's support cells, which become fewer.

The same layer as CST's but for its projections, which are convolutions over the support's axes.
"""

from typing import cast

import torch
from torch import Tensor, nn

from emat.baselines.hyper_correlation import correlate, in_chunks
from emat.baselines.resnet_method import mask_at
from emat.model.attention import ATTENTION_HEADS, attend
from emat.model.group_norm import NORM_GROUPS
from emat.model.refinement import Affine, refine


class SqueezeLayer(nn.Module):
    """(C, Q, hs, ws) -> (E, Q, hs', ws').

    >>> layer = SqueezeLayer(3, 32, kernel=5, stride=4)
    >>> layer(torch.zeros(3, 10, 13, 13), mask=torch.ones(400, 400)).shape
    torch.Size([32, 10, 4, 4])
    """

    def __init__(self, channels: int, width: int, kernel: int, stride: int, *, pooled_keys: bool = False) -> None:
        super().__init__()
        self.attn = _Attention(channels, width, kernel, stride, pooled_keys)
        self.ff = _FeedForward(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """From a map that exists as a whole; `mask` (H, W) is the support's. Without gradients x may be overwritten."""
        projected = self.attn(x, mask)
        if self.attn.short_cut is None:
            projected = torch.cat([projected, x.flatten(2)])
        return self._refine(projected, self.attn.cells(x))

    def from_features(self, query: Tensor, support: Tensor, mask: Tensor) -> Tensor:
        """From unit features (C, features, h, w): their correlation is made in chunks and not kept."""
        s, grid = support.flatten(2), support.shape[2:]

        def attended(chunk: Tensor) -> Tensor:
            return cast(Tensor, self.attn(correlate(chunk, s).unflatten(2, grid), mask))

        projected = in_chunks(attended, query.flatten(2), self.attn.numbers(support))
        return self._refine(projected, self.attn.cells(support))

    def _refine(self, projected: Tensor, cells: tuple[int, int]) -> Tensor:
        """Attended values and residual, one below the other (H + E, Q, t_d) -> (E, Q, hs', ws')."""
        attn, ff = self.attn, self.ff
        attended, residual = projected.split([attn.hidden, 2 * attn.hidden])
        convolutions = (attn.agg[2], ff.ff[0], ff.ff[3])
        shortcut_norm = None if attn.short_cut is None else attn.short_cut[1]
        norms = (attn.agg[0], shortcut_norm, attn.agg[3], attn.out_norm, ff.ff[1], ff.out_norm)
        refined = refine(
            attended,
            residual,
            [cast(Tensor, convolution.weight).flatten(1) for convolution in convolutions],
            [None if norm is None else cast(Affine, (norm.weight, norm.bias)) for norm in norms],
        )
        return refined.unflatten(2, cells)


class _Attention(nn.Module):
    """Queries and residual have the layer's kernel and stride; keys and values too where they are pooled, else 1 x 1.

    Attributes are called as in published checkpoints.
    """

    def __init__(self, channels: int, width: int, kernel: int, stride: int, pooled_keys: bool) -> None:
        super().__init__()
        self.hidden = width // 2
        key_kernel, key_stride = (kernel, stride) if pooled_keys else (1, 1)
        self.short_cut = None  # the residual is the input itself where width and size stay
        if channels != width or kernel > 1:
            residual = _convolution(channels, width, kernel, stride, bias=False)
            self.short_cut = nn.Sequential(residual, nn.GroupNorm(NORM_GROUPS, width), nn.ReLU())
        self.qhead = _convolution(channels, self.hidden, kernel, stride)
        self.khead = _convolution(channels, self.hidden, key_kernel, key_stride)
        self.vhead = _convolution(channels, self.hidden, key_kernel, key_stride)
        self.agg = nn.Sequential(
            nn.GroupNorm(NORM_GROUPS, self.hidden),
            nn.ReLU(),
            nn.Conv3d(self.hidden, width, 1, bias=False),
            nn.GroupNorm(NORM_GROUPS, width),
            nn.ReLU(),
        )
        self.out_norm = nn.GroupNorm(NORM_GROUPS, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(C, n, hs, ws) -> attended values (H, n, t_d) and, below them, the projected residual (E, n, t_d) if any."""
        q, k, v = (head(x[None])[0] for head in (self.qhead, self.khead, self.vhead))
        kept = mask_at(mask, k).flatten().nonzero().squeeze(1)
        q, k, v = q.flatten(2), k.flatten(2), v.flatten(2)
        # Where the mask leaves no cell, published code fills every logit with one number: all cells count alike.
        everywhere = v.mean(dim=2, keepdim=True).expand_as(q)
        attended = attend(q, k[:, :, kept], v[:, :, kept]) if len(kept) else everywhere
        if self.short_cut is None:
            return attended
        return torch.cat([attended, self.short_cut[0](x[None])[0].flatten(2)])

    def cells(self, x: Tensor) -> tuple[int, int]:
        """The support grid (hs', ws') that a support grid (..., hs, ws) becomes."""
        _, kernel, _ = self.qhead.kernel_size
        _, stride, _ = self.qhead.stride
        rows, columns = ((side + 2 * _padding(kernel) - kernel) // stride + 1 for side in x.shape[-2:])
        return rows, columns

    def numbers(self, support: Tensor) -> int:
        """How many numbers one query position needs: its correlation, projections, logits and weights."""
        cells = support.shape[2] * support.shape[3]
        rows, columns = self.cells(support)
        t_d = rows * columns
        keys = t_d if self.khead.kernel_size == self.qhead.kernel_size else cells
        return len(support) * cells + self.hidden * (6 * t_d + 4 * keys) + 2 * ATTENTION_HEADS * t_d * keys


class _FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ff = nn.Sequential(
            nn.Conv3d(width, width // 2, 1, bias=False),
            nn.GroupNorm(NORM_GROUPS, width // 2),
            nn.ReLU(),
            nn.Conv3d(width // 2, width, 1, bias=False),
        )
        self.out_norm = nn.GroupNorm(NORM_GROUPS, width)


def _convolution(channels: int, out: int, kernel: int, stride: int, *, bias: bool = True) -> nn.Conv3d:
    """Over the support's axes alone; the first axis is the query's positions."""
    padding = (0, _padding(kernel), _padding(kernel))
    return nn.Conv3d(channels, out, (1, kernel, kernel), (1, stride, stride), padding, bias=bias)


def _padding(kernel: int) -> int:
    return kernel // 2 if kernel > 2 else 0
