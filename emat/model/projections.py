"""The projections of an attention layer as matrices: from correlations to queries, keys, values and the residual.

Letters: C correlation channels, P positions inside a cell of the support grid, H the width that attention works in, E
the layer's output width, n query tokens, k support tokens that the mask keeps, t_d positions after downscaling.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Projections:
    """A layer's projections as matrices, which are applied to a chunk of query tokens.

    Queries (H rows) and residual (E rows) have the same inputs, so their weights are stacked to one matrix.
    """

    w_cells: Tensor  # (H + E, P * C), of the cells by position
    b_cells: Tensor  # (H + E,)
    w_class: Tensor | None  # (H + E, C), of the class token, if there is one
    b_class: Tensor | None
    w_kv: Tensor  # (2 H, C), keys, then values
    b_kv: Tensor  # (2 H,)

    @property
    def first(self) -> int:
        """The index of the first cell among the t_d tokens: 1 after a class token, otherwise 0."""
        return 0 if self.w_class is None else 1

    @property
    def hidden(self) -> int:
        """H, the width that attention works in."""
        return len(self.w_kv) // 2

    def to(self, dtype: torch.dtype) -> "Projections":
        """Return the same projections in another precision."""
        if self.w_kv.dtype == dtype:
            return self
        return Projections(*[None if t is None else t.to(dtype) for t in self.tensors()])  # type: ignore[arg-type]

    def scaled(self, factor: float) -> "Projections":
        """Return the same projections with the queries times `factor`."""
        w_cells, b_cells, w_class, b_class, w_kv, b_kv = (None if t is None else t.clone() for t in self.tensors())
        for tensor in (w_cells, b_cells, w_class, b_class):
            if tensor is not None:
                tensor[: self.hidden] *= factor
        return Projections(w_cells, b_cells, w_class, b_class, w_kv, b_kv)  # type: ignore[arg-type]

    def tensors(self) -> tuple[Tensor | None, ...]:
        """Return all fields in order."""
        return self.w_cells, self.b_cells, self.w_class, self.b_class, self.w_kv, self.b_kv

    def project(self, by_cell: Tensor, by_class: Tensor, *outs: Tensor, image: Tensor | None = None) -> None:
        """Project correlations to queries, and to the residual if a tensor for it is given.

        Args:
            by_cell: Correlations with the cells, (P, C, n, n_cells).
            by_class: Correlations with the class token, (C, n).
            outs: Filled with the results: queries (H, n, t_d), then the residual (E, n, t_d).
            image: Memory (H + E, n, n_cells) for the projected cells; new memory if it is None.
        """
        rows = [len(out) for out in outs]
        w, n_cells = self.w_cells[: sum(rows)], by_cell.shape[3]
        product = None if image is None else image[: len(w)].flatten(1)
        projected = torch.mm(w, by_cell.flatten(0, 1).flatten(1), out=product).unflatten(1, (-1, n_cells))
        biases = self.b_cells[: len(w), None, None].split(rows)
        for out, part, bias in zip(outs, projected.split(rows), biases, strict=True):
            # Added here and not in the product, which would fill its result with the bias in a pass of its own.
            if part.requires_grad:
                out[:, :, self.first :] = part + bias
            else:
                torch.add(part, bias, out=out[:, :, self.first :])
        if self.w_class is not None and self.b_class is not None:
            token = torch.addmm(self.b_class[: len(w), None], self.w_class[: len(w)], by_class)
            for out, part in zip(outs, token.split(rows), strict=True):
                out[:, :, 0] = part

    def keys_values(self, by_token: Tensor) -> tuple[Tensor, Tensor]:
        """Project correlations with kept tokens (C, n, k) to keys (H, n, k) and values (H, n, k)."""
        k, v = torch.addmm(self.b_kv[:, None], self.w_kv, by_token.flatten(1)).chunk(2)
        return k.view(self.hidden, *by_token.shape[1:]), v.view(self.hidden, *by_token.shape[1:])

    def backward(self, d_image: Tensor, d_class: Tensor | None, d_kv: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of the inputs of `project` and `keys_values`: (P * C, n, n_cells) and (C, n, k).

        Args:
            d_image: Gradient of queries and residual at the cells, (H + E, n, n_cells).
            d_class: The same at the class token, (H + E, n).
            d_kv: Gradient of keys and values, (2 H, n, k).
        """
        d_by_cell = (self.w_cells.T @ d_image.flatten(1)).view(self.w_cells.shape[1], *d_image.shape[1:])
        d_by_token = (self.w_kv.T @ d_kv.flatten(1)).view(self.w_kv.shape[1], *d_kv.shape[1:])
        if self.w_class is not None and d_class is not None:
            d_by_token[:, :, 0] += self.w_class.T @ d_class
        return d_by_cell, d_by_token


class ProjectionGradients:
    """The gradients of a layer's `Projections`, summed over chunks of query tokens."""

    def __init__(self, weights: Projections) -> None:
        self.w_cells, self.b_cells = torch.zeros_like(weights.w_cells), torch.zeros_like(weights.b_cells)
        self.w_class = None if weights.w_class is None else torch.zeros_like(weights.w_class)
        self.b_class = None if weights.b_class is None else torch.zeros_like(weights.b_class)
        self.w_kv, self.b_kv = torch.zeros_like(weights.w_kv), torch.zeros_like(weights.b_kv)

    def add(self, d_image: Tensor, d_class: Tensor | None, d_kv: Tensor, by_cell: Tensor, by_token: Tensor) -> None:
        """Add the gradients of one chunk, from the arguments of `Projections.backward` and the inputs of the chunk."""
        self.w_cells.addmm_(d_image.flatten(1), by_cell.flatten(0, 1).flatten(1).T)
        self.b_cells.add_(d_image.flatten(1).sum(dim=1))
        if self.w_class is not None and self.b_class is not None and d_class is not None:
            self.w_class.addmm_(d_class, by_token[:, :, 0].T)
            self.b_class.add_(d_class.sum(dim=1))
        self.w_kv.addmm_(d_kv.flatten(1), by_token.flatten(1).T)
        self.b_kv.add_(d_kv.flatten(1).sum(dim=1))

    def tensors(self) -> tuple[Tensor | None, ...]:
        """Return the gradients in the order of `Projections.tensors`."""
        return self.w_cells, self.b_cells, self.w_class, self.b_class, self.w_kv, self.b_kv
