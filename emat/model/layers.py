"""The layers of the network: the attention layer, and the two branches that end in presence and masks.

The modules give the parameters the names and shapes of published checkpoints. What an attention layer computes with
them is in `attention` and `post_attention`, which take the parameters as matrices.
"""

import torch
from torch import Tensor, nn

from emat.model.attention import attend, attend_correlation
from emat.model.encoding import QueryEncoding, SupportEncoding, Window
from emat.model.group_norm import NORM_GROUPS
from emat.model.post_attention import PostAttentionWeights, post_attention_
from emat.model.projections import Projections


class AttentionLayer(nn.Module):
    """Masked attention over the support axis, then aggregation, residual and feed-forward.

    Its two forms differ in how queries and residual are projected: `_LearnedAttention` (EMAT) and `_PooledAttention`
    (CST).
    """

    def __init__(self, channels: int, width: int, window: Window, *, class_token: bool) -> None:
        super().__init__()
        self.window = window
        form = _LearnedAttention if window.stride > 1 else _PooledAttention
        self.attn: _LearnedAttention | _PooledAttention = form(channels, width, class_token)
        self.ff = _FeedForward(width)

    def from_correlation(self, query: QueryEncoding, support: SupportEncoding, projections: Projections) -> Tensor:
        """Compute the first layer (E, t_q, t_d) from a pair of encodings."""
        attended, residual = attend_correlation(query.tokens, support.cells, support.kept, projections)
        return self.post_attention_(attended[None], residual[None])[0]

    def attend(self, x: Tensor, kept: Tensor, projections: Projections) -> tuple[Tensor, Tensor]:
        """Compute the second layer's attention for one pair.

        Args:
            x: The first layer's output (C, t_q, t_d).
            kept: Indices (k,) of the tokens among t_d that attention sees.
            projections: `self.projections()`, made once for all pairs.

        Returns:
            Attended values (H, t_q, 2) and residual (E, t_q, 2), both for `post_attention_`.
        """
        positions = self.window.positions
        chosen = x @ self._choice(kept, x, projections.first)
        means, by_class, by_token = chosen.split([positions, 1, len(kept)], dim=2)  # (C, t_q, P), 1 and k
        projected = x.new_empty(len(projections.w_cells), x.shape[1], projections.first + 1)
        projections.project(means.permute(2, 0, 1).unsqueeze(3), by_class.squeeze(2), projected)
        hidden = projections.hidden
        return attend(projected[:hidden], *projections.keys_values(by_token)), projected[hidden:]

    def _choice(self, kept: Tensor, x: Tensor, first: int) -> Tensor:
        """Return a matrix (t_d, P + 1 + k) whose columns average the positions, and choose token 0 and the kept tokens.

        As one product, the backward pass writes the gradient of the first layer's output once. Means and slices would
        fill it with zeros several times.
        """
        positions, t_d = self.window.positions, x.shape[2]
        choice = x.new_zeros(positions + 1 + len(kept), t_d)
        means, others = choice.split([positions, 1 + len(kept)])
        by_position = means[:, first:].unflatten(1, (positions, -1))  # the cells of a position follow one another
        by_position.diagonal().fill_(1 / by_position.shape[2])
        others[0, 0] = 1
        others[1:].scatter_(1, kept[:, None], 1)
        return choice.T

    def projections(self) -> Projections:
        """Return the layer's weights as matrices; this is done once for all pairs of a batch."""
        return self.attn.projections()

    def post_attention_(self, attended: Tensor, residual: Tensor) -> Tensor:
        """Compute what follows attention: (B, H, t_q, t_d) and (B, E, t_q, t_d) -> (B, E, t_q, t_d).

        The inputs must not be used afterwards, because they may be overwritten.
        """
        attn, ff = self.attn, self.ff
        weights = PostAttentionWeights.from_modules(attn.agg, attn.short_cut[-1], attn.out_norm, ff)
        # Norms need the parameters' full precision, whatever attention was computed in.
        attended, residual = (x.to(weights.w_g.dtype) for x in (attended, residual))
        return post_attention_(attended, residual, weights)


class _Attention(nn.Module):
    """What both forms of attention have: aggregation of the attended values, and the norm after the residual."""

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
    """EMAT's attention, which projects queries and residual with strided convolutions."""

    def __init__(self, channels: int, width: int, class_token: bool) -> None:
        super().__init__(width)
        self.q = _Projection(channels, width // 2, class_token=class_token, bias=True)
        self.kv = nn.Conv2d(channels, width, 1)
        residual = _Projection(channels, width, class_token=class_token, bias=False)
        self.short_cut = nn.Sequential(residual, nn.GroupNorm(NORM_GROUPS, width))

    def projections(self) -> Projections:
        query, residual = self.q, self.short_cut[0]
        assert isinstance(residual, _Projection)
        assert self.kv.bias is not None
        by_position = torch.cat([query.q_seg.weight, residual.q_seg.weight]).squeeze(2)  # (H + E, C, 2, 2)
        w_class = b_class = None
        if query.q_cls is not None and residual.q_cls is not None:
            w_class = torch.cat([query.q_cls.weight, residual.q_cls.weight]).flatten(1)
            b_class = _stacked_bias(query.q_cls.bias, len(w_class))
        return Projections(
            w_cells=by_position.permute(0, 2, 3, 1).flatten(1),
            b_cells=_stacked_bias(query.q_seg.bias, len(by_position)),
            w_class=w_class,
            b_class=b_class,
            w_kv=self.kv.weight.flatten(1),
            b_kv=self.kv.bias,
        )


class _Projection(nn.Module):
    """Learnable downscaling: a strided convolution for image tokens, a 1 x 1 of its own for the class token.

    Weights keep the shapes and names of published checkpoints; `projections` reads them as matrices.
    """

    def __init__(self, channels: int, out: int, *, class_token: bool, bias: bool) -> None:
        super().__init__()
        self.q_seg = nn.Conv3d(channels, out, (1, 2, 2), stride=(1, 2, 2), bias=bias)
        self.q_cls = nn.Conv2d(channels, out, 1, bias=bias) if class_token else None


class _PooledAttention(_Attention):
    """CST's attention, which projects queries and residual with 1 x 1 convolutions and average pooling."""

    def __init__(self, channels: int, width: int, class_token: bool) -> None:
        super().__init__(width)
        self.class_token = class_token
        self.qkv = nn.Conv2d(channels, width // 2 * 3, 1)
        residual = nn.Conv2d(channels, width, 1, bias=False)
        # Published names count the pooling as short_cut.1. It has no parameters, and comes before the projection here.
        self.short_cut = nn.Sequential(residual, nn.Identity(), nn.GroupNorm(NORM_GROUPS, width))

    def projections(self) -> Projections:
        weight, bias, residual = self.qkv.weight.flatten(1), self.qkv.bias, self.short_cut[0]
        assert isinstance(residual, nn.Conv2d)
        assert bias is not None
        hidden = len(weight) // 3
        w_cells = torch.cat([weight[:hidden], residual.weight.flatten(1)])
        b_cells = _stacked_bias(bias[:hidden], len(w_cells))
        return Projections(
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
    """Return the bias of the queries, followed by zeros for the residual, which has no bias."""
    assert query_bias is not None
    return torch.cat([query_bias, query_bias.new_zeros(rows - len(query_bias))])


def presence_branch_stages(width: int) -> tuple[nn.Sequential, nn.Sequential]:
    """Make the two stages of a presence branch. A network gives them the names of its published weights."""
    half = width // 2
    first = nn.Sequential(nn.Conv2d(width, width, 1), nn.ReLU(), nn.Conv2d(width, half, 1), nn.ReLU())
    second = nn.Sequential(nn.Conv2d(half, half, 1), nn.ReLU(), nn.Conv2d(half, 2, 1))
    return first, second


def presence_branch(stages: tuple[nn.Module, nn.Module], x: Tensor) -> Tensor:
    """Compute whether the class is in the query: (B, E, h, w) -> logits (B, 2) of absent and present."""
    first, second = stages
    return second(nn.functional.avg_pool2d(first(x), 3, stride=2, padding=1)).mean(dim=(2, 3))


def mask_branch_stages(width: int) -> tuple[nn.Sequential, nn.Sequential]:
    """Make the two stages of a mask branch. A network gives them the names of its published weights."""
    half = width // 2
    first = nn.Sequential(conv3x3(width, width), nn.ReLU(), conv3x3(width, half), nn.ReLU())
    second = nn.Sequential(conv3x3(half, half), nn.ReLU(), conv3x3(half, 2))
    return first, second


def mask_branch(stages: tuple[nn.Module, nn.Module], x: Tensor) -> Tensor:
    """Compute where the class is in the query: (B, E, h, w) -> logits (B, 2, 2h, 2w) of background and foreground."""
    first, second = stages
    return second(nn.functional.interpolate(first(x), scale_factor=2, mode="bilinear", align_corners=True))


def conv3x3(channels: int, out: int) -> nn.Conv2d:
    """Make a 3 x 3 convolution that keeps the size."""
    return nn.Conv2d(channels, out, 3, padding=1)
