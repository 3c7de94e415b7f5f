"""Masked attention over the support axis, for every query token on its own.

`attend` is the arithmetic of one chunk of query tokens and serves both layers. `attend_correlation` is the first
layer's hot path: it walks the query tokens in chunks - correlate, project, attend - and keeps only the outputs, so the
correlation (289 MB at the paper's size) never exists as a whole; its backward pass makes each chunk again. Attention's
logits are larger still, so it goes through a chunk in pieces.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from emat.device import workspace_bytes

ATTENTION_HEADS = 8
LOG2_E = 1 / math.log(2)
# Parts of the workspace. On a CPU: 6 MB of correlations and projections, 3 MB of logits, found by trying.
CHUNK_SHARE, PIECE_SHARE = 4, 8


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of q (H, n, t_d) over k, v (H, n, t): attended values (H, n, t_d).

    Logits are not scaled. With no key at all the attended values are zero.
    """
    if k.shape[2] == 0:
        return torch.zeros_like(q)
    ones = v.new_ones(v.shape[1], ATTENTION_HEADS, 1, v.shape[2])
    q, k, v = LOG2_E * _by_head(q), _centred(_by_head(k)), torch.cat([_by_head(v), ones], dim=2)  # (n, heads, e, t)
    shift = not _within_range(q, k)
    # The row of ones gives the softmax's denominator: (n, heads, e + 1, t_d).
    summed = torch.cat([v @ _exponentials(q, k, shift=shift) for q, k, v in _pieces(q, k, v)])
    return _by_row(summed[:, :, :-1] / summed[:, :, -1:])


def _pieces(q: Tensor, k: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """All of them (n, heads, e, ...) cut along n, so that the logits of a piece stay in a CPU's cache."""
    logits = ATTENTION_HEADS * q.shape[3] * k.shape[3] * q.element_size()
    length = max(1, workspace_bytes(q.device) // PIECE_SHARE // logits)
    return zip(*(x.split(length) for x in (q, k, *others)), strict=True)


def _exponentials(q: Tensor, k: Tensor, *, shift: bool) -> Tensor:
    """The softmax's numerators, from (n, heads, e, t_d), times LOG2_E, and (n, heads, e, t): (n, heads, t, t_d).

    On a CPU exp2 takes a third of exp's time, and a denominator divides t_d outputs more cheaply than t_d * t weights.
    """
    logits = k.transpose(2, 3) @ q
    if shift:
        logits.sub_(logits.detach().amax(dim=2, keepdim=True))
    return logits.exp2_()


def _centred(k: Tensor) -> Tensor:
    """Keys (n, heads, e, t) around zero, so that logits are small and `_within_range` holds.

    It moves all logits of a query alike, which a softmax does not see.
    """
    return k - (k.detach().amax(dim=3, keepdim=True) + k.detach().amin(dim=3, keepdim=True)) / 2


def _within_range(q: Tensor, k: Tensor) -> bool:
    """Whether exp2 takes every logit of q and the centred k as it is, which is the rule.

    Then the largest logit need not be found and subtracted, which is a third of attention's time and changes no ratio.
    On a GPU it is never asked, since the answer would have to be waited for.
    """
    if q.device.type != "cpu":
        return False
    largest = (q.detach().abs() * k.detach().abs().amax(dim=3, keepdim=True)).sum(dim=2).max()
    exponents = math.log2(torch.finfo(q.dtype).max) / 2  # the other half is left for products
    return float(largest) + math.log2(k.shape[3]) < exponents


def _by_head(x: Tensor) -> Tensor:
    """(H, n, t) -> (n, heads, H / heads, t), the layout batched matrix products want."""
    return x.unflatten(0, (ATTENTION_HEADS, -1)).permute(2, 0, 1, 3).contiguous()


def _by_row(x: Tensor) -> Tensor:
    """(n, heads, e, t) -> (heads * e, n, t), `_by_head` undone."""
    return x.permute(1, 2, 0, 3).flatten(0, 1)


@dataclass(frozen=True)
class LayerMatrices:
    """A layer's projections as matrices, and what they do to a chunk of query tokens.

    Queries (H rows) and residual (E rows) come from the same inputs, so their weights are stacked into one product.
    """

    w_cells: Tensor  # (H + E, P * C), of the cells by position
    b_cells: Tensor  # (H + E,)
    w_class: Tensor | None  # (H + E, C), of the class token, if there is one
    b_class: Tensor | None
    w_kv: Tensor  # (2 H, C), keys, then values
    b_kv: Tensor  # (2 H,)

    @property
    def first(self) -> int:
        """Tokens before the cells: 1 with a class token, else 0."""
        return 0 if self.w_class is None else 1

    @property
    def hidden(self) -> int:
        """H, the width that attention works in."""
        return len(self.w_kv) // 2

    def to(self, dtype: torch.dtype) -> "LayerMatrices":
        """The same in another precision."""
        return LayerMatrices(*[None if t is None else t.to(dtype) for t in self.tensors()])  # type: ignore[arg-type]

    def tensors(self) -> tuple[Tensor | None, ...]:
        """All fields in order."""
        return self.w_cells, self.b_cells, self.w_class, self.b_class, self.w_kv, self.b_kv

    def project(self, by_cell: Tensor, by_class: Tensor, *outs: Tensor) -> None:
        """Inputs by cell (P, C, n, n_cells) and of the class token (C, n); fills `outs` (rows, n, t_d) in order."""
        rows = [len(out) for out in outs]
        w, n_cells = self.w_cells[: sum(rows)], by_cell.shape[3]
        image = torch.addmm(self.b_cells[: len(w), None], w, by_cell.flatten(0, 1).flatten(1))
        for out, part in zip(outs, image.unflatten(1, (-1, n_cells)).split(rows), strict=True):
            out[:, :, self.first :] = part
        if self.w_class is not None and self.b_class is not None:
            token = torch.addmm(self.b_class[: len(w), None], self.w_class[: len(w)], by_class)
            for out, part in zip(outs, token.split(rows), strict=True):
                out[:, :, 0] = part

    def keys_values(self, by_token: Tensor) -> tuple[Tensor, Tensor]:
        """(C, n, k) -> keys (H, n, k), values (H, n, k)."""
        k, v = torch.addmm(self.b_kv[:, None], self.w_kv, by_token.flatten(1)).chunk(2)
        return k.view(self.hidden, *by_token.shape[1:]), v.view(self.hidden, *by_token.shape[1:])

    def add_products(self, d_projected: Tensor, d_kv: Tensor, by_cell: Tensor, by_token: Tensor) -> None:
        """Add one chunk's gradient, when this object holds gradients instead of weights."""
        d_image = d_projected[:, :, self.first :].flatten(1)  # (H + E, n * n_cells)
        self.w_cells.addmm_(d_image, by_cell.flatten(0, 1).flatten(1).T)
        self.b_cells.add_(d_image.sum(dim=1))
        if self.w_class is not None and self.b_class is not None:
            self.w_class.addmm_(d_projected[:, :, 0], by_token[:, :, 0].T)
            self.b_class.add_(d_projected[:, :, 0].sum(dim=1))
        self.w_kv.addmm_(d_kv.flatten(1), by_token.flatten(1).T)
        self.b_kv.add_(d_kv.flatten(1).sum(dim=1))

    def backward(self, d_projected: Tensor, d_kv: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of the chunk's correlations: (P * C, n, n_cells), (C, n, k)."""
        d_image = d_projected[:, :, self.first :]
        d_by_cell = (self.w_cells.T @ d_image.flatten(1)).view(self.w_cells.shape[1], *d_image.shape[1:])
        d_by_token = (self.w_kv.T @ d_kv.flatten(1)).view(self.w_kv.shape[1], *d_kv.shape[1:])
        if self.w_class is not None:
            d_by_token[:, :, 0] += self.w_class.T @ d_projected[:, :, 0]
        return d_by_cell, d_by_token


def attend_correlation(query: Tensor, cells: Tensor, kept: Tensor, matrices: LayerMatrices) -> tuple[Tensor, Tensor]:
    """From unit tokens to the first layer's attended values (H, t_q, t_d) and residual (E, t_q, t_d).

    query (C, t_q, d); cells (P, C, n_cells, d), support tokens by position inside their cell; kept (C, k, d), the
    support tokens that attention sees. Where there is a class token it comes first, in `kept` and in t_d.
    """
    chunk = _chunk_length(query, cells, kept, matrices)
    return _CorrelationAttention.apply(query, cells, kept, *matrices.tensors(), chunk)


def _chunk_length(query: Tensor, cells: Tensor, kept: Tensor, matrices: LayerMatrices) -> int:
    """Query tokens whose correlations and projections fill their part of the workspace."""
    positions, channels, n_cells, _ = cells.shape
    k, t_d = kept.shape[1], matrices.first + n_cells
    numbers = channels * (positions * n_cells + k) + 2 * len(matrices.w_cells) * t_d
    return max(1, workspace_bytes(query.device) // CHUNK_SHARE // (numbers * query.element_size()))


class _CorrelationAttention(torch.autograd.Function):
    """`attend_correlation`, a chunk of query tokens at a time; backward makes each chunk again."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        cells: Tensor,
        kept: Tensor,
        *tensors_and_chunk: Any,
    ) -> tuple[Tensor, Tensor]:
        *tensors, chunk = tensors_and_chunk
        matrices = LayerMatrices(*tensors)
        hidden = matrices.hidden
        t_q, t_d = query.shape[1], matrices.first + cells.shape[2]
        attended = query.new_empty(hidden, t_q, t_d)
        residual = query.new_empty(len(matrices.w_cells) - hidden, t_q, t_d)
        for start in range(0, t_q, chunk):
            part = slice(start, min(start + chunk, t_q))
            by_cell, by_token = _correlate(query[:, part], cells, kept)
            q = query.new_empty(hidden, by_cell.shape[2], t_d)
            matrices.project(by_cell, by_token[:, :, 0], q, residual[:, part])
            attended[:, part] = attend(q, *matrices.keys_values(by_token))
        ctx.save_for_backward(query, cells, kept, *tensors, attended)
        ctx.chunk = chunk
        return attended, residual

    @staticmethod
    def backward(ctx: Any, d_attended: Tensor, d_residual: Tensor) -> tuple[Tensor | None, ...]:
        query, cells, kept, *tensors, attended = ctx.saved_tensors
        matrices = LayerMatrices(*tensors)
        grads = LayerMatrices(*[None if t is None else torch.zeros_like(t) for t in tensors])  # type: ignore[arg-type]
        token_grads = tuple(
            torch.zeros_like(t) if needed else None
            for t, needed in zip((query, cells, kept), ctx.needs_input_grad[:3], strict=True)
        )
        for start in range(0, query.shape[1], ctx.chunk):
            part = slice(start, min(start + ctx.chunk, query.shape[1]))
            by_cell, by_token = _correlate(query[:, part], cells, kept)
            q = torch.empty_like(attended[:, part])
            matrices.project(by_cell, by_token[:, :, 0], q)
            k, v = matrices.keys_values(by_token)
            d_q, d_k, d_v = _attend_backward(q, k, v, attended[:, part], d_attended[:, part])
            d_projected = torch.cat([d_q, d_residual[:, part]])
            d_kv = torch.cat([d_k, d_v])
            grads.add_products(d_projected, d_kv, by_cell, by_token)
            if any(grad is not None for grad in token_grads):
                d_by_cell, d_by_token = matrices.backward(d_projected, d_kv)
                _correlate_backward(query[:, part], cells, kept, d_by_cell, d_by_token, part, token_grads)
        return *token_grads, *grads.tensors(), None


def _correlate(query: Tensor, cells: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines of a chunk of query tokens (C, n, d) with the cells (P, C, n, n_cells) and the kept tokens (C, n, k)."""
    by_cell = query.new_empty(*cells.shape[:2], query.shape[1], cells.shape[2])
    for position, tokens in enumerate(cells):
        torch.bmm(query, tokens.transpose(1, 2), out=by_cell[position])
    return by_cell, query @ kept.transpose(1, 2)


def _correlate_backward(
    query: Tensor,
    cells: Tensor,
    kept: Tensor,
    d_by_cell: Tensor,
    d_by_token: Tensor,
    part: slice,
    grads: tuple[Tensor | None, ...],
) -> None:
    """Add a chunk's gradient to those of query, cells and kept tokens that are asked for."""
    d_query, d_cells, d_kept = grads
    d_by_cell = d_by_cell.view(*cells.shape[:2], *d_by_cell.shape[1:])
    if d_query is not None:
        d_query[:, part] = d_by_token @ kept + (d_by_cell @ cells).sum(dim=0)
    if d_cells is not None:
        d_cells += d_by_cell.transpose(2, 3) @ query
    if d_kept is not None:
        d_kept += d_by_token.transpose(1, 2) @ query


def _attend_backward(
    q: Tensor, k: Tensor, v: Tensor, attended: Tensor, d_attended: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `attend`, its exponentials made again; shapes as there."""
    q, k, v, out, d_out = (_by_head(part) for part in (q, k, v, attended, d_attended))
    q, k = LOG2_E * q, _centred(k)
    shift = not _within_range(q, k)
    grads = [_piece_backward(*piece, shift=shift) for piece in _pieces(q, k, v, out, d_out)]
    d_q, d_k, d_v = (_by_row(torch.cat(parts)) for parts in zip(*grads, strict=True))
    return d_q, d_k / LOG2_E, d_v


def _piece_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, d_out: Tensor, *, shift: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a piece, by head (n, heads, e, t_d or t): of q before it was scaled, of k times LOG2_E, of v."""
    exponentials = _exponentials(q, k, shift=shift)
    d_out = d_out / exponentials.sum(dim=2, keepdim=True)  # from here on no weight needs dividing
    d_v = d_out @ exponentials.transpose(2, 3)
    # The softmax's backward needs sum_t(weight * d_weight), which equals the inner product of output and its gradient.
    inner = (out * d_out).sum(dim=2, keepdim=True)  # (n, heads, 1, t_d)
    d_logits = (v.transpose(2, 3) @ d_out).sub_(inner).mul_(exponentials)  # (n, heads, t, t_d)
    return k @ d_logits, q @ d_logits.transpose(2, 3), d_v
