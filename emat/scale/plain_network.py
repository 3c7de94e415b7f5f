"""The network of EMAT and CST in plain steps that a graph can hold: batches of queries, and no choice by value.

`emat.model` computes the same faster, but chooses its way by the values that it meets. Here masked tokens are left out
where the mask is known when the graph is made, and get no attention where it is an input of the graph.
"""

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from emat.model.attention import ATTENTION_HEADS
from emat.model.encoding import Grid, SupportEncoding, position_order
from emat.model.layers import AttentionLayer, mask_branch, presence_branch
from emat.model.network import NO_FOREGROUND, Network
from emat.model.projections import Projections
from emat.model.refinement import RefinementWeights, plain_refinement

LARGEST_LOGITS = 32 << 20  # bytes of attention logits that exist at once for one query
HIDDEN = -1e9  # what CST adds to the logits of masked tokens


@dataclass(frozen=True)
class DenseSupport:
    """Supports whose masks are inputs of the graph: all tokens, and which of them attention sees."""

    cells: Tensor  # (B, P, C, cells, d)
    tokens: Tensor  # (B, C, t, d): the class token, then the grid
    seen: Tensor  # (B, t) bool
    seen_later: Tensor  # (B, t_d) bool, in the order of the first layer's outputs


def compare_fixed(
    network: Network, query: Tensor, support: SupportEncoding, grid: Grid
) -> tuple[Tensor | None, Tensor]:
    """Compare B queries with one support that is known when the graph is made.

    Args:
        network: The network.
        query: Unit tokens (B, C, t_q, d).
        support: The support.
        grid: Rows and columns of the query's tokens.

    Returns:
        Presence logits (B, 2), None without a class token, and mask logits (B, 2, 2h, 2w).
    """
    if support.sees_nothing:
        logits = query.new_tensor(NO_FOREGROUND)[None, :, None, None]
        return None, logits.expand(query.shape[0], 2, 2 * grid[0], 2 * grid[1])
    first, second = (cast(AttentionLayer, layer) for layer in network.corrtransformer)
    parts = []
    for part in query.split(_chunk(support), dim=2):  # by a number of tokens: the batch stays free
        by_cell = part[:, None] @ support.cells.transpose(2, 3)[None]  # (B, P, C, n, cells)
        by_token = part @ support.kept.transpose(1, 2)[None]  # (B, C, n, k)
        parts.append(_attend(first, by_cell, by_token, None))
    x = _refined(first, *(torch.cat(each, dim=2) for each in zip(*parts, strict=True)))
    attended = _attend(second, _by_cell(second, x), x[:, :, :, support.kept_later], None)
    return _branches(network, _refined(second, *attended), grid)


def compare_dense(network: Network, query: Tensor, support: DenseSupport, grid: Grid) -> tuple[Tensor | None, Tensor]:
    """Compare B queries (B, C, t_q, d) each with its own support; returns what `compare_fixed` returns."""
    first, second = (cast(AttentionLayer, layer) for layer in network.corrtransformer)
    by_cell = query[:, None] @ support.cells.transpose(3, 4)
    by_token = query @ support.tokens.transpose(2, 3)
    x = _refined(first, *_attend(first, by_cell, by_token, support.seen))
    attended = _attend(second, _by_cell(second, x), x, support.seen_later)
    presence, masks = _branches(network, _refined(second, *attended), grid)
    if not network.form.class_token:
        nothing = ~support.seen.any(dim=1)[:, None, None, None]
        masks = torch.where(nothing, masks.new_tensor(NO_FOREGROUND)[None, :, None, None], masks)
    return presence, masks


def dense_support(network: Network, tokens: Tensor, masks: Tensor, grid: Grid) -> DenseSupport:
    """Encode supports (B, C, 1 + T, d) with masks (B, H, W), which are inputs of the graph."""
    form = network.form
    side, (first, second) = form.support_grid, form.windows
    image = tokens[:, :, 1:].unflatten(2, grid).permute(0, 1, 4, 2, 3).flatten(0, 1)  # (B * C, d, h, w)
    image = F.interpolate(image, (side, side), mode="bilinear", align_corners=True)
    image = F.normalize(image.flatten(2).transpose(1, 2), dim=-1).unflatten(0, (-1, network.channels))
    order = position_order(side // first.side, second)
    cells = first.gather(image, side)[:, :, :, order].transpose(0, 1)  # (B, P, C, cells, d)
    seen, later = (_covered(masks, cells_a_side) for cells_a_side in (side, side // first.side))
    later = later[:, order]
    if form.class_token:
        image = torch.cat([F.normalize(tokens[:, :, :1], dim=-1), image], dim=2)
        seen, later = (F.pad(each, (1, 0), value=True) for each in (seen, later))
    return DenseSupport(cells, image, seen, later)


def _covered(masks: Tensor, side: int) -> Tensor:
    """Which cells of a grid the masks (B, H, W) cover: (B, side²) bool."""
    small = F.interpolate(masks[:, None].float(), (side, side), mode="bilinear", align_corners=True)
    return small.flatten(1) > 0


def _attend(layer: AttentionLayer, by_cell: Tensor, by_token: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attention of one layer.

    Args:
        layer: The layer.
        by_cell: What queries and residual come from, (B, P, C, n, cells).
        by_token: What keys and values come from, (B, C, n, t), the class token first.
        seen: (B, t): which tokens attention sees; None for all.

    Returns:
        Attended values (B, H, n, t_d) and residual (B, E, n, t_d).
    """
    projections = layer.projections()
    projected = _project(projections, by_cell, by_token)  # (B, H + E, n, t_d)
    hidden = projections.hidden
    queries, residual = projected[:, :hidden], projected[:, hidden:]
    if by_token.shape[3] == 0:
        return torch.zeros_like(queries), residual
    kv = F.conv2d(by_token, projections.w_kv[:, :, None, None], projections.b_kv)
    q, k, v = (_by_head(x) for x in (queries, kv[:, :hidden], kv[:, hidden:]))  # (B, n, heads, e, t)
    logits = k.transpose(3, 4) @ q  # (B, n, heads, t, t_d)
    if seen is not None:
        logits = logits + torch.where(seen, 0.0, HIDDEN)[:, None, None, :, None]
    attended = v @ logits.softmax(dim=3)  # (B, n, heads, e, t_d)
    attended = attended.permute(0, 2, 3, 1, 4).flatten(1, 2)
    if seen is not None:
        attended = attended * seen.any(dim=1)[:, None, None, None]
    return attended, residual


def _project(projections: Projections, by_cell: Tensor, by_token: Tensor) -> Tensor:
    image = F.conv2d(by_cell.flatten(1, 2), projections.w_cells[:, :, None, None], projections.b_cells)
    if projections.w_class is None:
        return image
    token = F.conv2d(by_token[:, :, :, :1], projections.w_class[:, :, None, None], projections.b_class)
    return torch.cat([token, image], dim=3)


def _by_head(x: Tensor) -> Tensor:
    """(B, H, n, t) -> (B, n, heads, H / heads, t)."""
    return x.unflatten(1, (ATTENTION_HEADS, -1)).permute(0, 3, 1, 2, 4)


def _by_cell(layer: AttentionLayer, x: Tensor) -> Tensor:
    """The second layer's inputs by position, (B, C, n, t_d) -> (B, P, C, n, 1)."""
    first = layer.projections().first
    image = x[:, :, :, first:].unflatten(3, (layer.window.positions, -1))
    return image.mean(dim=4, keepdim=True).permute(0, 3, 1, 2, 4)


def _refined(layer: AttentionLayer, attended: Tensor, residual: Tensor) -> Tensor:
    attn = layer.attn
    weights = RefinementWeights.from_modules(attn.agg, attn.short_cut[-1], attn.out_norm, layer.ff)
    shape = residual.shape[2:]
    return plain_refinement(attended.flatten(2), residual.flatten(2), weights).unflatten(2, tuple(shape))


def _branches(network: Network, x: Tensor, grid: Grid) -> tuple[Tensor | None, Tensor]:
    x = network.linear(x).unflatten(2, grid)  # (B, E, h, w, 2)
    masks = mask_branch((network.decoder1_seg, network.decoder2_seg), x[..., -1])
    if not network.form.class_token:
        return None, masks
    return presence_branch((network.decoder1_cls, network.decoder2_cls), x[..., 0]), masks


def _chunk(support: SupportEncoding) -> int:
    """How many query tokens go through attention together."""
    logits = 4 * ATTENTION_HEADS * max(1, support.kept.shape[1]) * (1 + support.cells.shape[2])
    return max(1, LARGEST_LOGITS // logits)
