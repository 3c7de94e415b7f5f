"""Images ready to be compared: unit tokens, so that a product of two is their cosine.

A query is encoded once for all ways and shots, a support once for all queries.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from emat.errors import EmatError
from emat.model.downscale import Window, position_order
from emat.model.masking import kept_cells

Grid = tuple[int, int]


@dataclass(frozen=True)
class QueryEncoding:
    """One query image: every patch token as a unit vector, in every channel."""

    tokens: Tensor  # (C, t_q, d)
    grid: Grid

    def to(self, dtype: torch.dtype) -> "QueryEncoding":
        """The same in another precision."""
        return self if self.tokens.dtype == dtype else QueryEncoding(self.tokens.to(dtype), self.grid)


@dataclass(frozen=True)
class SupportEncoding:
    """One support image with one class's mask.

    `cells` are the tokens that the first layer's queries and residual are made of, already averaged where the method
    pools; `kept` the class token and the tokens under the mask, all that its keys and values are made of.
    """

    cells: Tensor  # (P, C, cells, d)
    kept: Tensor  # (C, k, d)
    kept_later: Tensor  # (k,) of int64: what the second layer keeps among the first layer's t_d outputs

    def to(self, dtype: torch.dtype) -> "SupportEncoding":
        """The same in another precision."""
        if self.cells.dtype == dtype:
            return self
        return SupportEncoding(self.cells.to(dtype), self.kept.to(dtype), self.kept_later)

    @property
    def sees_nothing(self) -> bool:
        """The mask vanishes at the first layer's grid and there is no class token either.

        (Nothing left for the second layer alone is no such case: its attended values are zero, as published.)
        """
        return self.kept.shape[1] == 0


def encode_query(tokens: Tensor, grid: Grid | None = None) -> QueryEncoding:
    """Tokens (C, 1 + T, d) of a query image; the class token plays no part. `grid` defaults to a square."""
    grid = _check_tokens(tokens, grid, "query")
    return QueryEncoding(F.normalize(tokens[:, 1:], dim=-1), grid)


def encode_support(
    tokens: Tensor,
    mask: Tensor,
    grid: Grid | None,
    *,
    side: int,
    windows: tuple[Window, Window],
    class_token: bool,
) -> SupportEncoding:
    """Tokens (C, 1 + T, d) of a support image and the mask (H, W) of one class in it, of any size.

    Patch tokens are resized to side x side before they are normalised; `windows` are the two layers' downscalings.
    """
    h, w = _check_tokens(tokens, grid, "support")
    if mask.ndim != 2 or mask.numel() == 0:
        raise EmatError(f"a support mask must have shape (H, W), this one has {tuple(mask.shape)}")
    # The width stands where interpolate expects channels, and its memory is last: no copy is made of the tokens.
    image = tokens[:, 1:].unflatten(1, (h, w)).permute(0, 3, 1, 2)  # (C, d, h, w)
    image = F.interpolate(image, (side, side), mode="bilinear", align_corners=True)
    image = F.normalize(image.permute(0, 2, 3, 1).flatten(1, 2), dim=-1)  # (C, side², d)
    first, second = windows
    later_side = side // first.side
    order = position_order(later_side, second).to(tokens.device)
    kept = image[:, kept_cells(mask, side)]
    place = torch.argsort(order)  # where a row-major cell stands among the first layer's outputs
    kept_later = place[kept_cells(mask, later_side)]
    if class_token:
        kept = torch.cat([F.normalize(tokens[:, :1], dim=-1), kept], dim=1)
        kept_later = torch.cat([kept_later.new_zeros(1), 1 + kept_later])
    return SupportEncoding(first.gather(image, side)[:, :, order], kept, kept_later)


def _check_tokens(tokens: Tensor, grid: Grid | None, role: str) -> Grid:
    if tokens.ndim != 3 or tokens.shape[1] < 2:
        raise EmatError(
            f"{role} tokens of one image must have shape (channels, 1 + patches, width), "
            f"these have {tuple(tokens.shape)}; a backbone's output for one image is what is wanted"
        )
    if not tokens.is_floating_point():
        raise EmatError(f"{role} tokens must be floating point, these are {tokens.dtype}")
    if not torch.isfinite(tokens.sum()):
        raise EmatError(
            f"{role} tokens hold NaN or infinite values; check the photo's pixels and the backbone's weights"
        )
    patches = tokens.shape[1] - 1
    if grid is None:
        grid = (round(patches**0.5),) * 2
        if grid[0] ** 2 != patches:
            raise EmatError(f"{patches} {role} patch tokens are no square grid; say the grid (rows, columns)")
    if grid[0] * grid[1] != patches:
        raise EmatError(f"a {role} grid of {grid[0]} x {grid[1]} does not fit {patches} patch tokens")
    return grid
