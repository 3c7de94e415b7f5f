"""One attention layer: its parameters under their public names, read as the matrices that the hot path multiplies by."""

import torch
from torch import Tensor, nn

from emat.model.attention import LayerMatrices, attend, attend_correlation
from emat.model.correlation import QueryEncoding, SupportEncoding
from emat.model.downscale import Projection, Window
from emat.model.group_norm import NORM_GROUPS
from emat.model.refinement import Refinement


class AttentionLayer(nn.Module):
    """Masked attention over the support axis, then aggregation, residual and feed-forward.

    The tree of modules only gives the parameters the names and shapes of published checkpoints; the arithmetic is in
    `attention` and `refinement`.
    """

    def __init__(self, channels: int, width: int, window: Window, *, class_token: bool) -> None:
        super().__init__()
        self.window = window
        self.attn = (_LearnedAttention if window.stride > 1 else _PooledAttention)(
            channels, width, class_token
        )
        self.ff = _FeedForward(width)

    def from_correlation(self, query: QueryEncoding, support: SupportEncoding) -> Tensor:
        """The first layer: (E, t_q, t_d) from a pair of encodings."""
        attended, residual = attend_correlation(
            query.tokens, support.cells, support.kept, self.attn.matrices()
        )
        return self._refine(attended, residual)

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        """The second layer: (E, t_q, 1 + 1) from the first one's output x (C, t_q, t_d), of which attention sees `kept`."""
        matrices = self.attn.matrices()
        image = x[:, :, matrices.first :].unflatten(2, (self.window.positions, -1))
        by_cell = image.mean(dim=3, keepdim=True).permute(2, 0, 1, 3)  # (P, C, t_q, 1)
        by_token = x[:, :, kept]  # (C, t_q, k)
        projected = matrices.project(by_cell, by_token)
        hidden = matrices.hidden
        attended, _ = attend(projected[:hidden], *matrices.keys_values(by_token))
        return self._refine(attended, projected[hidden:])

    def _refine(self, attended: Tensor, residual: Tensor) -> Tensor:
        aggregate, expand, contract = self.attn.agg, self.ff.ff[3], self.ff.ff[0]
        norms = (
            aggregate[0],
            self.attn.short_cut[-1],
            aggregate[3],
            self.attn.out_norm,
            self.ff.ff[1],
            self.ff.out_norm,
        )
        matrices = (layer.weight.flatten(1) for layer in (aggregate[2], contract, expand))
        affine = (p for norm in norms for p in (norm.weight, norm.bias))
        return Refinement.apply(attended, residual, *matrices, *affine)  # type: ignore[no-any-return,no-untyped-call]


class _Attention(nn.Module):
    """What both forms of a layer have: aggregation of the attended values, and the norm after the residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = width // 2
        self.agg = nn.Sequential(
            nn.GroupNorm(NORM_GROUPS, hidden),
            nn.ReLU(),
            nn.Conv2d(hidden, width, 1, bias=False),
            nn.GroupNorm(NORM_GROUPS, width),
            nn.ReLU(),
        )
        self.out_norm = nn.GroupNorm(NORM_GROUPS, width)


class _LearnedAttention(_Attention):
    """EMAT's: queries and residual through strided convolutions."""

    def __init__(self, channels: int, width: int, class_token: bool) -> None:
        super().__init__(width)
        hidden = width // 2
        self.q = Projection(channels, hidden, class_token=class_token, bias=True)
        self.kv = nn.Conv2d(channels, width, 1)
        shortcut = Projection(channels, width, class_token=class_token, bias=False)
        self.short_cut = nn.Sequential(shortcut, nn.GroupNorm(NORM_GROUPS, width))

    def matrices(self) -> LayerMatrices:
        shortcut = self.short_cut[0]
        by_position = torch.cat([self.q.q_seg.weight, shortcut.q_seg.weight]).squeeze(2)  # (H + E, C, 2, 2)
        w_class = b_class = None
        if self.q.q_cls is not None:
            w_class = torch.cat([self.q.q_cls.weight, shortcut.q_cls.weight]).flatten(1)
            b_class = _stacked_bias(self.q.q_cls.bias, len(w_class))
        return LayerMatrices(
            w_cells=by_position.permute(0, 2, 3, 1).flatten(1),
            b_cells=_stacked_bias(self.q.q_seg.bias, len(by_position)),
            w_class=w_class,
            b_class=b_class,
            w_kv=self.kv.weight.flatten(1),
            b_kv=self.kv.bias,
        )


class _PooledAttention(_Attention):
    """CST's: queries and residual through 1 x 1 projections and average pooling."""

    def __init__(self, channels: int, width: int, class_token: bool) -> None:
        super().__init__(width)
        self.class_token = class_token
        self.qkv = nn.Conv2d(channels, width // 2 * 3, 1)
        # Published names count the pooling as short_cut.1; it has no parameters and happens before the projection here.
        self.short_cut = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.Identity(), nn.GroupNorm(NORM_GROUPS, width)
        )

    def matrices(self) -> LayerMatrices:
        hidden = self.qkv.out_channels // 3
        weight, bias = self.qkv.weight.flatten(1), self.qkv.bias
        assert bias is not None
        w_cells = torch.cat([weight[:hidden], self.short_cut[0].weight.flatten(1)])
        b_cells = _stacked_bias(bias[:hidden], len(w_cells))
        return LayerMatrices(
            w_cells=w_cells,
            b_cells=b_cells,
            w_class=w_cells if self.class_token else None,
            b_class=b_cells if self.class_token else None,
            w_kv=weight[hidden:],
            b_kv=bias[hidden:],
        )


class _FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ff = nn.Sequential(
            nn.Conv2d(width, width // 2, 1, bias=False),
            nn.GroupNorm(NORM_GROUPS, width // 2),
            nn.ReLU(),
            nn.Conv2d(width // 2, width, 1, bias=False),
        )
        self.out_norm = nn.GroupNorm(NORM_GROUPS, width)


def _stacked_bias(query_bias: Tensor | None, rows: int) -> Tensor:
    """The queries' bias, then zeros: the residual has none."""
    assert query_bias is not None
    return torch.cat([query_bias, query_bias.new_zeros(rows - len(query_bias))])
