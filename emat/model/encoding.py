"""Encodings: photos as unit tokens, in the order in which the attention layers need them.

A query is encoded once for all ways and shots, a support once for all queries. The product of two unit tokens is their
cosine; the paper's correlation tokens are all such products of a query and a support.

Each layer shrinks the support grid (`Window`): the tokens of a cell become one. A 2 x 2 convolution with stride 2 has
weights of its own for four positions inside a cell, a 1 x 1 projection for one. If a cell has more tokens than
positions, those of one position are averaged (`pool`). The average is linear, so it can come before the projection,
where it is cheapest, and in the first layer even before the correlation.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from emat.errors import EmatError

Grid = tuple[int, int]
MASK_RULE = "nearest to the photo's side, then bilinear"  # what head files say of the masks they were trained with


@dataclass(frozen=True)
class Window:
    """How a layer shrinks its support grid: positions with weights of their own, and how many of each are averaged."""

    stride: int  # 2 = learnable (2 x 2 convolution), 1 = plain projection
    pool: int

    @property
    def side(self) -> int:
        """The number of tokens along each side of a cell."""
        return self.stride * self.pool

    @property
    def positions(self) -> int:
        """The number of positions inside a cell that have weights of their own."""
        return self.stride**2

    def gather(self, image: Tensor, side: int) -> Tensor:
        """Average image tokens (..., side², d) by position inside their cell: (positions, ..., cells, d).

        Tokens and cells are in row-major order.
        """
        n = side // self.side
        lead, width = image.shape[:-2], image.shape[-1]
        split = image.reshape(*lead, n, self.pool, self.stride, n, self.pool, self.stride, width)
        mean = split.mean(dim=(-3, -6)) if self.pool > 1 else split.squeeze(-3).squeeze(-5)
        mean = mean.movedim((-4, -2), (0, 1))  # (stride, stride, ..., n, n, d)
        return mean.reshape(self.positions, *lead, n * n, width)


@dataclass(frozen=True)
class QueryEncoding:
    """One query photo: every patch token as a unit vector, in every channel."""

    tokens: Tensor  # (C, t_q, d)
    grid: Grid

    def to(self, dtype: torch.dtype) -> "QueryEncoding":
        """Return the encoding in another precision; itself if it has that precision already."""
        return self if self.tokens.dtype == dtype else QueryEncoding(self.tokens.to(dtype), self.grid)


@dataclass(frozen=True)
class SupportEncoding:
    """One support photo with the mask of one class.

    `cells` are the tokens from which the first layer computes its queries and residual, already averaged where the
    network pools. `kept` are the class token and the tokens under the mask: the keys and values come from these alone.
    """

    cells: Tensor  # (P, C, cells, d)
    kept: Tensor  # (C, k, d)
    kept_later: Tensor  # (k',) of int64: indices of what the second layer keeps among the first layer's t_d outputs

    def to(self, dtype: torch.dtype) -> "SupportEncoding":
        """Return the encoding in another precision; itself if it has that precision already."""
        if self.cells.dtype == dtype:
            return self
        return SupportEncoding(self.cells.to(dtype), self.kept.to(dtype), self.kept_later)

    @property
    def sees_nothing(self) -> bool:
        """Whether the mask vanishes at the first layer's grid and there is no class token either.

        A mask that vanishes at the second layer's grid alone does not count: there the attended values are zero, as
        published.
        """
        return self.kept.shape[1] == 0


def encode_query(tokens: Tensor, grid: Grid | None = None) -> QueryEncoding:
    """Encode a query photo. Its class token is not used.

    Args:
        tokens: The backbone's tokens (C, 1 + T, d) of the photo.
        grid: Rows and columns of the T patch tokens; a square if it is None.

    Returns:
        The encoding, for `Network.compare`.

    Raises:
        EmatError: The tokens have another shape, are not floating point, hold NaN, or do not fit the grid.
    """
    grid = check_grid(tokens, grid, "query")
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
    """Encode a support photo with the mask of one class in it.

    Patch tokens are resized to the support grid before they are normalised.

    Args:
        tokens: The backbone's tokens (C, 1 + T, d) of the photo.
        mask: (H, W), of any size and type; values above 0 are the class.
        grid: Rows and columns of the T patch tokens; a square if it is None.
        side: Cells a side of the support grid.
        windows: How the two layers shrink that grid.
        class_token: Whether the network uses the class token.

    Returns:
        The encoding, for `Network.compare`.

    Raises:
        EmatError: Tokens or mask have another shape, or the tokens are not floating point, hold NaN, or do not fit the
            grid.
    """
    h, w = check_grid(tokens, grid, "support")
    if mask.ndim != 2 or mask.numel() == 0:
        raise EmatError("mask-shape", f"a support mask must have shape (H, W), this one has {tuple(mask.shape)}")
    # The width takes the axis where interpolate expects channels, and stays last in memory, so nothing is copied.
    image = tokens[:, 1:].unflatten(1, (h, w)).permute(0, 3, 1, 2)  # (C, d, h, w)
    image = F.interpolate(image, (side, side), mode="bilinear", align_corners=True)
    image = F.normalize(image.permute(0, 2, 3, 1).flatten(1, 2), dim=-1)  # (C, side², d)
    first, second = windows
    later_side = side // first.side
    order = position_order(later_side, second).to(tokens.device)
    kept = image[:, kept_cells(mask, side)]
    index_in_order = torch.argsort(order)  # of a row-major cell, among the first layer's outputs
    kept_later = index_in_order[kept_cells(mask, later_side)]
    if class_token:
        kept = torch.cat([F.normalize(tokens[:, :1], dim=-1), kept], dim=1)
        kept_later = torch.cat([kept_later.new_zeros(1), 1 + kept_later])
    return SupportEncoding(first.gather(image, side)[:, :, order], kept, kept_later)


def support_mask(mask: Tensor, side: int) -> Tensor:
    """Bring a support's mask to the side of the prepared photo, the step before it goes to a layer's grid.

    Training, evaluation, `fit` and exported graphs all take it. Without it, attention would see other tokens than the
    published code's: in more than half of the PASCAL supports some cell is kept that was not, or the other way round.

    Args:
        mask: (..., H, W) of any size and type.
        side: The side S of the square that photos are resized to.

    Returns:
        (..., S, S) of float. Each pixel is the one at floor(i * size / S) of both axes, so no new value appears, and a
        value that marks undecided pixels keeps its meaning.

    Raises:
        EmatError: The mask has no height or width.

    >>> support_mask(torch.tensor([[1, -1, 0]]), 2)
    tensor([[ 1., -1.],
            [ 1., -1.]])
    """
    if mask.ndim < 2 or mask.numel() == 0:
        raise EmatError("mask-shape", f"a support mask must have shape (H, W), this one has {tuple(mask.shape)}")
    # The leading axes take the axis of channels. Pillow's nearest neighbour takes other pixels.
    resized = F.interpolate(mask.float().reshape(1, -1, *mask.shape[-2:]), (side, side), mode="nearest")
    return resized.reshape(*mask.shape[:-2], side, side)


def kept_cells(mask: Tensor, grid: int) -> Tensor:
    """Row-major indices (k,) of the cells of a grid x grid support that `mask` (H, W) covers.

    The mask is resized bilinearly with its corners aligned, and any value above 0 counts: a cell is kept when one of
    the four mask pixels around its sampling point is foreground. Small objects can vanish here; then none is kept.

    >>> import torch
    >>> mask = torch.zeros(100, 100)
    >>> mask[:50, :50] = 1
    >>> kept_cells(mask, 4)
    tensor([0, 1, 4, 5])
    """
    small = F.interpolate(mask[None, None].float(), (grid, grid), mode="bilinear", align_corners=True)
    return (small.flatten() > 0).nonzero().squeeze(1)


def position_order(side: int, window: Window) -> Tensor:
    """Row-major indices of a grid's cells, sorted by the position each takes inside the next layer's `window`.

    With the first layer's outputs in this order, every position of the second layer is one contiguous run.

    >>> position_order(4, Window(stride=2, pool=2)).tolist()
    [0, 2, 8, 10, 1, 3, 9, 11, 4, 6, 12, 14, 5, 7, 13, 15]
    """
    index = torch.arange(side * side).reshape(1, side * side, 1)
    n, s = side // window.stride, window.stride
    return index.reshape(n, s, n, s).permute(1, 3, 0, 2).flatten()


def check_grid(tokens: Tensor, grid: Grid | None, role: str) -> Grid:
    """Check one photo's tokens (C, 1 + T, d) and find their grid.

    Args:
        tokens: The tokens.
        grid: Rows and columns, if they are known; otherwise the grid must be a square.
        role: "query" or "support", for the messages.

    Returns:
        Rows and columns.

    Raises:
        EmatError: The tokens have another shape, are not floating point, hold NaN, or do not fit the grid.
    """
    if tokens.ndim != 3 or tokens.shape[1] < 2:
        raise EmatError(
            "tensor-shape",
            f"{role} tokens of one photo must have shape (channels, 1 + patches, width), "
            f"these have {tuple(tokens.shape)}; pass a backbone's output for one photo",
        )
    if not tokens.is_floating_point():
        raise EmatError("tensor-type", f"{role} tokens must be floating point, these are {tokens.dtype}")
    if not torch.isfinite(tokens.sum()):
        raise EmatError(
            "not-finite",
            f"{role} tokens hold NaN or infinite values; check the photo's pixels and the backbone's weights",
        )
    patches = tokens.shape[1] - 1
    if grid is None:
        grid = (round(patches**0.5),) * 2
        if grid[0] ** 2 != patches:
            raise EmatError(
                "tensor-shape", f"{patches} {role} patch tokens are not a square grid; pass the grid as (rows, columns)"
            )
    if grid[0] * grid[1] != patches:
        raise EmatError("tensor-shape", f"a {role} grid of {grid[0]} x {grid[1]} does not fit {patches} patch tokens")
    return grid
