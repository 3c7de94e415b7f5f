"""Masked attention over the support axis, separately for every query token (the paper's Eq. 6).

For one query token and one attention head, Eq. 6 is

    attended = softmax(Q^d K^T) V

| paper | here |
|---|---|
| i, j, k | one of t_d positions, one of t_q query tokens, one of H features |
| Q^d | `q`, the queries at the downscaled positions, from `Projections.project` |
| K, V after masking | `k`, `v`, from `Projections.keys_values`: only the support tokens that the mask keeps |
| O | `attended` |

`attend` is this equation, and both layers use it. `attend_correlation` is the first layer's hot path. It goes through
the query tokens in chunks: it correlates a chunk, projects it, attends, and keeps only the result, so that the
correlation (289 MB at the paper's size) never exists as a whole. The backward pass computes each chunk again, except
for pairs that memory has room for, whose chunks are kept together with the softmax's exponentials.

Reading order: `projections.Projections`, `attend` with its softmax, `attend_correlation` with its chunks, then the
backward passes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from emat.device import free_memory, workspace_bytes
from emat.model.projections import ProjectionGradients, Projections

ATTENTION_HEADS = 8
LOG2_E = 1 / math.log(2)
# The logits of a piece take this part of the workspace, and a chunk all of it. On a CPU these are 0.75 MB, which stay
# in the second-level cache, and 24 MB: the products of smaller chunks are too thin.
PIECE_SHARE = 32
# What a pair's backward pass needs is kept if it takes up to this many bytes, or this part of the memory that is free.
# Otherwise it is computed again, which takes longer.
SMALL_PAIR = 32 * 2**20
KEPT_SHARE = 1 / 16


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend, for every query token n, from its t_d downscaled positions over its t support tokens.

    Logits are not scaled. If there is no key, the attended values are zero.

    Args:
        q: (H, n, t_d).
        k: (H, n, t).
        v: (H, n, t).

    Returns:
        The attended values (H, n, t_d).
    """
    if k.shape[2] == 0:
        return torch.zeros_like(q)
    values, _ = _attended(_by_heads(q, k, v))
    return _by_row(values)


class _ByHeads(NamedTuple):
    """The inputs of attention by attention head, in the layout for batched matrix products."""

    q: Tensor  # (n, heads, e, t_d), times LOG2_E, so that exp2 can be taken instead of exp
    k: Tensor  # (n, heads, e, t), centred
    v: Tensor  # (n, heads, e + 1, t), with a row of ones at the end
    shift: bool  # whether the largest logit must be subtracted before exp2 is taken


def _by_heads(q: Tensor, k: Tensor, v: Tensor) -> _ByHeads:
    """Split (H, n, t_d) and twice (H, n, t) by attention head.

    Keys are moved around zero, so that logits are small and `_within_range` holds. All logits of a query change by the
    same amount, which does not change their softmax.
    """
    scaled_q, by_head_k, by_head_v = LOG2_E * _by_head(q), _by_head(k), _by_head(v)
    middle, reach = _middle_and_reach(by_head_k.detach())
    ones = by_head_v.new_ones(*by_head_v.shape[:2], 1, by_head_v.shape[3])
    shift = not _within_range(scaled_q, reach, k.shape[2])
    return _ByHeads(scaled_q, by_head_k - middle, torch.cat([by_head_v, ones], dim=2), shift)


def _middle_and_reach(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the middle of the values along the last axis, and how far from it they reach."""
    # `aminmax` takes five times as long, because along one axis PyTorch does not vectorise it.
    smallest, largest = x.amin(dim=-1, keepdim=True), x.amax(dim=-1, keepdim=True)
    return (smallest + largest) / 2, (largest - smallest) / 2


def _attended(inputs: _ByHeads, kept: list[Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """Return the attended values (n, heads, e, t_d) and the softmax's denominators (n, heads, 1, t_d).

    The numerators of every piece are added to `kept`, if that is given.
    """
    sums = []
    for q, k, v in _pieces(*inputs[:3]):
        exponentials = _exponentials(q, k, shift=inputs.shift)
        sums.append(v @ exponentials)  # (n, heads, e + 1, t_d); the row of ones gives the denominator
        if kept is not None:
            kept.append(exponentials)
    values, denominators = _joined(sums).split([inputs.v.shape[2] - 1, 1], dim=2)
    return values / denominators, denominators


def _pieces(q: Tensor, k: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut all tensors (n, heads, e, ...) along n, so that the logits of a piece stay in a CPU's cache."""
    logits = ATTENTION_HEADS * q.shape[3] * k.shape[3] * q.element_size()
    length = max(1, workspace_bytes(q.device) // PIECE_SHARE // logits)
    return zip(*(x.split(length) for x in (q, k, *others)), strict=True)


def _joined(pieces: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    """Put the pieces together along n."""
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _exponentials(q: Tensor, k: Tensor, *, shift: bool) -> Tensor:
    """Return the numerators (n, heads, t, t_d) of the softmax, from q times LOG2_E and the centred k of a piece.

    On a CPU, exp2 takes a third of the time of exp. The division by the denominator comes later, because it is cheaper
    for t_d outputs than for t_d * t weights.
    """
    logits = k.transpose(2, 3) @ q
    if shift:
        logits.sub_(logits.detach().amax(dim=2, keepdim=True))
    return logits.exp2_()


def _within_range(q: Tensor, reach: Tensor, keys: int) -> bool:
    """Whether exp2 of every logit is finite, given the largest absolute keys `reach`; this is nearly always so.

    Then the largest logit need not be found and subtracted, which would take a third of attention's time. On a GPU this
    is not checked, because the CPU would have to wait for the answer.
    """
    if q.device.type != "cpu":
        return False
    middle, spread = _middle_and_reach(q.detach())
    largest = ((middle.abs() + spread) * reach).sum(dim=2).max()  # at least the largest logit
    exponents = math.log2(torch.finfo(q.dtype).max) / 2  # the other half is left for products
    return float(largest) + math.log2(keys) < exponents


def _by_head(x: Tensor) -> Tensor:
    """(H, n, t) -> (n, heads, H / heads, t), the layout for batched matrix products."""
    return _view_by_head(x).contiguous()


def _view_by_head(x: Tensor) -> Tensor:
    """Do the same as `_by_head` without a copy."""
    return x.unflatten(0, (ATTENTION_HEADS, -1)).permute(2, 0, 1, 3)


def _by_row(x: Tensor) -> Tensor:
    """(n, heads, e, t) -> (heads * e, n, t), the opposite of `_by_head`."""
    return x.permute(1, 2, 0, 3).flatten(0, 1)


def attend_correlation(query: Tensor, cells: Tensor, kept: Tensor, projections: Projections) -> tuple[Tensor, Tensor]:
    """Compute the first layer's attention from unit tokens, without the whole correlation in memory.

    If there is a class token, it comes first in `kept` and in t_d.

    Args:
        query: (C, t_q, d).
        cells: (P, C, n_cells, d), the support tokens by position inside their cell.
        kept: (C, k, d), the support tokens that attention sees.
        projections: The layer's weights.

    Returns:
        The attended values (H, t_q, t_d) and the projected residual (E, t_q, t_d).
    """
    positions, channels, n_cells, _ = cells.shape
    t_d = projections.first + n_cells
    numbers = channels * (positions * n_cells + kept.shape[1]) + 2 * len(projections.w_cells) * t_d
    token_bytes = numbers * query.element_size()  # of one query token's correlations and projections
    chunk = max(1, workspace_bytes(query.device) // token_bytes)
    kept_bytes = token_bytes + ATTENTION_HEADS * t_d * kept.shape[1] * query.element_size()
    keep_chunks = torch.is_grad_enabled() and _can_keep(kept_bytes * query.shape[1], query.device)
    return _CorrelationAttention.apply(query, cells, kept, chunk, keep_chunks, *projections.tensors())


def _can_keep(pair_bytes: int, device: torch.device) -> bool:
    """Whether there is room for what one pair of a training step would keep."""
    return pair_bytes <= SMALL_PAIR or pair_bytes <= KEPT_SHARE * free_memory(device)


class _Chunk(NamedTuple):
    """What is computed for a chunk of query tokens before attention, and the numerators of attention's pieces."""

    by_cell: Tensor  # (P, C, n, n_cells), correlations
    by_token: Tensor  # (C, n, k), correlations
    heads: _ByHeads
    exponentials: list[Tensor]  # each (n of the piece, heads, k, t_d); empty if they are to be computed again


class _CorrelationAttention(torch.autograd.Function):
    """`attend_correlation`, a chunk of query tokens at a time."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, cells: Tensor, kept: Tensor, chunk: int, keep_chunks: bool, *weights: Any
    ) -> tuple[Tensor, Tensor]:
        projections = Projections(*weights).scaled(LOG2_E)
        hidden, t_q, t_d = projections.hidden, query.shape[1], projections.first + cells.shape[2]
        attended = query.new_empty(hidden, t_q, t_d)
        residual = query.new_empty(len(projections.w_cells) - hidden, t_q, t_d)
        denominators = query.new_empty(t_q, ATTENTION_HEADS, 1, t_d)
        chunks = []
        workspace = None if keep_chunks else _workspace(query, cells, projections, chunk)
        for part in _parts(t_q, chunk):
            made = _make_chunk(query[:, part], cells, kept, projections, residual[:, part], workspace=workspace)
            values, denominators[part] = _attended(made.heads, made.exponentials if keep_chunks else None)
            attended[:, part] = _by_row(values)
            if keep_chunks:
                chunks.append(made)
        ctx.save_for_backward(query, cells, kept, attended, denominators, *weights)
        ctx.chunk, ctx.chunks = chunk, chunks
        return attended, residual

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_attended: Tensor, d_residual: Tensor) -> tuple[Tensor | None, ...]:
        query, cells, kept, attended, denominators, *weights = ctx.saved_tensors
        projections = Projections(*weights)
        scaled = projections.scaled(LOG2_E)
        chunks, ctx.chunks = ctx.chunks, []  # a second backward pass would compute them again
        first, weight_grads = projections.first, ProjectionGradients(projections)
        wanted = zip((query, cells, kept), ctx.needs_input_grad[:3], strict=True)
        token_grads = _TokenGradients(*(torch.zeros_like(tokens) if needed else None for tokens, needed in wanted))
        workspace = None if chunks else _workspace(query, cells, projections, ctx.chunk)
        for index, part in enumerate(_parts(query.shape[1], ctx.chunk)):
            made = chunks[index] if chunks else _make_chunk(query[:, part], cells, kept, scaled, workspace=workspace)
            d_q, d_kv = _attend_backward(made, denominators[part], attended[:, part], d_attended[:, part])
            d_projected = (d_q, d_residual[:, part])
            d_image = torch.cat([d[:, :, first:] for d in d_projected])  # (H + E, n, n_cells)
            d_class = torch.cat([d[:, :, 0] for d in d_projected]) if first else None  # (H + E, n)
            weight_grads.add(d_image, d_class, d_kv, made.by_cell, made.by_token)
            if token_grads.wanted:
                d_by_cell, d_by_token = projections.backward(d_image, d_class, d_kv)
                token_grads.add(query, cells, kept, part, d_by_cell, d_by_token)
        return token_grads.query, token_grads.cells, token_grads.kept, None, None, *weight_grads.tensors()


def _parts(t_q: int, chunk: int) -> Iterator[slice]:
    """Give the query tokens in chunks."""
    return (slice(start, min(start + chunk, t_q)) for start in range(0, t_q, chunk))


def _workspace(query: Tensor, cells: Tensor, projections: Projections, chunk: int) -> Tensor:
    """Return memory for the correlations and projections of a chunk's cells, a row for each query token.

    One chunk after the other uses it. New memory would have to be cleared by the system for every chunk.
    """
    positions, channels, n_cells, _ = cells.shape
    return query.new_empty(min(chunk, query.shape[1]), (positions * channels + len(projections.w_cells)) * n_cells)


def _make_chunk(
    query: Tensor,
    cells: Tensor,
    kept: Tensor,
    projections: Projections,
    *residual: Tensor,
    workspace: Tensor | None,
) -> _Chunk:
    """Correlate and project a chunk of query tokens (C, n, d), with `projections` whose queries are scaled by LOG2_E.

    The projected residual is written to `residual`, if that is given; a backward pass does not need it. With a
    `workspace`, the correlations are only valid until it is used again.
    """
    positions, channels, n_cells, _ = cells.shape
    if workspace is None:
        by_cell, image = query.new_empty(positions, channels, query.shape[1], n_cells), None
    else:
        rows = workspace[: query.shape[1]].view(-1, query.shape[1], n_cells)  # P * C + H + E
        by_cell = rows[: positions * channels].unflatten(0, (positions, channels))
        image = rows[positions * channels :]
    by_token = _correlate(query, cells, kept, by_cell)
    n, heads, e = query.shape[1], ATTENTION_HEADS, projections.hidden // ATTENTION_HEADS
    # Written in the layout of `_by_heads`, with as few copies as possible.
    q = query.new_empty(n, heads, e, projections.first + cells.shape[2])
    projections.project(by_cell, by_token[:, :, 0], q.flatten(1, 2).transpose(0, 1), *residual, image=image)
    keys, values = projections.keys_values(by_token)
    middle, reach = _middle_and_reach(keys)
    k, v = query.new_empty(n, heads, e, keys.shape[2]), query.new_empty(n, heads, e + 1, keys.shape[2])
    torch.sub(_view_by_head(keys), _view_by_head(middle), out=k)
    v[:, :, :e], v[:, :, e] = _view_by_head(values), 1
    shift = not _within_range(q, _view_by_head(reach), keys.shape[2])
    return _Chunk(by_cell, by_token, _ByHeads(q, k, v, shift), [])


def _correlate(query: Tensor, cells: Tensor, kept: Tensor, by_cell: Tensor) -> Tensor:
    """Return the cosines of query tokens (C, n, d) with kept tokens, (C, n, k).

    Those with the cells are written to `by_cell` (P, C, n, n_cells).
    """
    for out, tokens in zip(by_cell, cells, strict=True):
        torch.bmm(query, tokens.transpose(1, 2), out=out)
    return query @ kept.transpose(1, 2)


@dataclass(frozen=True)
class _TokenGradients:
    """The gradients of query, cells and kept tokens, summed over chunks; None for those that are not needed."""

    query: Tensor | None
    cells: Tensor | None
    kept: Tensor | None

    @property
    def wanted(self) -> bool:
        return not (self.query is None and self.cells is None and self.kept is None)

    def add(
        self, query: Tensor, cells: Tensor, kept: Tensor, part: slice, d_by_cell: Tensor, d_by_token: Tensor
    ) -> None:
        """Add a chunk, given the gradients (P * C, n, n_cells) and (C, n, k) of its correlations."""
        d_by_cell = d_by_cell.view(*cells.shape[:2], *d_by_cell.shape[1:])
        if self.query is not None:
            self.query[:, part] = d_by_token @ kept + (d_by_cell @ cells).sum(dim=0)
        if self.cells is not None:
            self.cells.add_(d_by_cell.transpose(2, 3) @ query[:, part])
        if self.kept is not None:
            self.kept.add_(d_by_token.transpose(1, 2) @ query[:, part])


def _attend_backward(
    chunk: _Chunk, denominators: Tensor, attended: Tensor, d_attended: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of q (H, n, t_d) and, stacked, of k and v (2 H, n, t).

    The attended values and their gradient have the shape of q. With the weights w = exponentials / denominators, and
    d_w = v^T d_out, the backward pass of the softmax is

        d_logits = w * (d_w - sum of w * d_w over t)

    where the sum equals the inner product of out and d_out over the features e.
    """
    q, k, v, shift = chunk.heads
    # With d_out divided, exponentials can stand for w. The inner product stands beside the row of ones in v, so that
    # the product with v subtracts it.
    n, heads, e, t_d = q.shape
    with_inner = q.new_empty(n, heads, e + 1, t_d)
    divided = torch.div(_view_by_head(d_attended), denominators, out=with_inner[:, :, :e])
    torch.sum(_view_by_head(attended) * divided, dim=2, keepdim=True, out=with_inner[:, :, e:]).neg_()
    grads = []
    for index, (piece_q, piece_k, piece_v, rows) in enumerate(_pieces(q, k, v, with_inner)):
        kept = chunk.exponentials
        exponentials = kept[index] if kept else _exponentials(piece_q, piece_k, shift=shift)  # (n, heads, t, t_d)
        d_v = rows @ exponentials.transpose(2, 3)  # with a row too many
        d_logits = (piece_v.transpose(2, 3) @ rows).mul_(exponentials)
        # The gradients are those of q before it was scaled, and of k times LOG2_E.
        grads.append((piece_k @ d_logits, piece_q @ d_logits.transpose(2, 3), d_v[:, :, :-1]))
    d_q, d_k, d_v = (_joined(parts) for parts in zip(*grads, strict=True))
    return _by_row(d_q), torch.cat([_by_row(d_k).div_(LOG2_E), _by_row(d_v)])
