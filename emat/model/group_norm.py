"""GroupNorm over columns that come in chunks, and its gradient, both written as formulas.

A norm needs the mean and the variance of all columns before it can be applied to any. So each class here is given every
chunk (`add`), computes what it needs from all of them (`fit`), and is then called on chunks.
"""

from typing import NamedTuple

import torch
from torch import Tensor

NORM_GROUPS = 4
EPSILON = 1e-5
SMALLEST_WEIGHT = 1e-8


class Affine(NamedTuple):
    """Weight and bias of a norm."""

    weight: Tensor  # (channels,)
    bias: Tensor


class AffineGradient(NamedTuple):
    """The gradients of a norm's weight and bias."""

    weight: Tensor  # (channels,)
    bias: Tensor


class ChunkedGroupNorm:
    """One GroupNorm over (E, N) whose columns come in chunks: `add` every chunk, `fit`, then call it on chunks.

    In each group of channels, with mean m and variance v over the group's channels and all N columns,

        i = 1 / sqrt(v + EPSILON)        norm(x) = weight * (x - m) * i + bias = scale * x + shift

    >>> x = torch.randn(8, 100)
    >>> norm = ChunkedGroupNorm(torch.ones(8), torch.zeros(8))
    >>> for chunk in x.split(30, dim=1):
    ...     norm.add(chunk)
    >>> norm.fit()
    >>> torch.allclose(norm(x), torch.nn.functional.group_norm(x[None], NORM_GROUPS)[0], atol=1e-5)
    True
    """

    def __init__(self, weight: Tensor, bias: Tensor, statistics: Tensor | None = None) -> None:
        """Take weight and bias (E,), and the `statistics` if a norm was already fitted to the same chunks."""
        self.weight, self.bias = weight, bias
        self._chunks: list[tuple[int, Tensor, Tensor]] = []  # columns, sums (E,) and sums of squares (E,)
        if statistics is not None:
            self._set_statistics(statistics)

    def add(self, x: Tensor) -> None:
        """Add the sums of a chunk (E, n)."""
        # `vector_norm` would be faster, but not precise enough where the mean is far from zero.
        self._chunks.append((x.shape[1], x.sum(dim=1), torch.linalg.vecdot(x, x)))

    def fit(self, factor: Tensor | None = None, offset: Tensor | None = None) -> None:
        """Compute the statistics from the sums of all chunks; from now on the norm can be applied.

        Args:
            factor: If it is given, the norm's input is factor * x + offset for the chunks x; (E, 1).
            offset: (E, 1), zero if it is None.
        """
        channels = len(self.weight) // NORM_GROUPS
        columns = sum(number for number, _, _ in self._chunks)
        # There are few chunks and channels, so summing them in float64 costs little and keeps the difference precise.
        sums = torch.stack([total for _, total, _ in self._chunks]).double().sum(dim=0)  # (E,)
        squares = torch.stack([total for _, _, total in self._chunks]).double().sum(dim=0)
        if factor is not None:
            sums, squares = sums * factor.squeeze(1), squares * factor.squeeze(1).square()
        if offset is not None:
            constant = offset.squeeze(1).double()
            squares = squares + 2 * constant * sums + columns * constant.square()
            sums = sums + columns * constant
        both = torch.stack([sums, squares]).unflatten(1, (NORM_GROUPS, channels))
        mean, mean_square = both.mean(dim=2) / columns  # (groups,) each
        inverse = ((mean_square - mean.square()).clamp_(min=0) + EPSILON).rsqrt()
        by_group = torch.stack([mean, inverse]).to(self.weight.dtype)
        self._set_statistics(by_group.repeat_interleave(channels, dim=1))
        self._chunks.clear()

    def _set_statistics(self, statistics: Tensor) -> None:
        self.statistics = statistics  # (2, E): m and i of every channel's group
        self.mean, self.inverse = statistics
        self.scale = (self.weight * self.inverse)[:, None]
        self.shift = (self.bias - self.mean * self.inverse * self.weight)[:, None]

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the normalised chunk. It is written to `out`, which may be x itself, or to a new tensor."""
        return torch.mul(x, self.scale, out=out).add_(self.shift)  # addcmul takes twice as long where it broadcasts


class ClippedNorm:
    """The ReLU of a fitted norm as

        relu(norm(x)) = slope * max(sign * x, limit) + shift

    with a positive slope. Only the maximum is computed for all columns. The rest goes into the matrices that follow.

    >>> norm = ChunkedGroupNorm(torch.tensor([1.0, -1.0, 2.0, 0.5]), torch.tensor([0.5, 0.1, -0.3, 0.0]))
    >>> x = torch.randn(4, 100)
    >>> norm.add(x)
    >>> norm.fit()
    >>> clipped = ClippedNorm(norm)
    >>> torch.allclose(clipped.slope * clipped(x) + norm.shift, norm(x).relu(), atol=1e-5)
    True
    """

    def __init__(self, norm: ChunkedGroupNorm) -> None:
        # A weight of zero counts as a tiny one, so that the limit is finite; the result stays the same.
        self.slope = (norm.weight.abs().clamp(min=SMALLEST_WEIGHT) * norm.inverse)[:, None]
        self.sign = torch.where(norm.weight < 0, -1, 1).to(norm.weight.dtype)[:, None]
        self.limit = -norm.shift / self.slope
        self._flips = bool((norm.weight < 0).any())

    def __call__(self, x: Tensor, limit: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Return max(sign * x, limit), with the norm's own limit if none is given, in `out` or a new tensor."""
        if self._flips:  # one more pass, which is rarely needed
            x = torch.mul(x, self.sign, out=out)
        return torch.maximum(x, self.limit if limit is None else limit, out=out)


class GroupNormGradient:
    """The backward pass of a fitted norm: `add` every chunk of dy and x, `fit`, then call it on chunks.

    With dy the gradient of norm(x), m and i as in `ChunkedGroupNorm`, and M the number of elements in a group:

        d_bias   = sum of dy over the columns
        d_weight = sum of dy * (x - m) * i over the columns = i * (sum of dy * x  -  m * d_bias)
        through_mean     = sum of weight * d_bias over the group's channels / M
        through_variance = sum of weight * d_weight over the group's channels / M
        dx = i * (weight * dy  -  through_mean  -  (x - m) * i * through_variance)
           = scale * dy  -  i² * through_variance * x  +  i * (m * i * through_variance - through_mean)
    """

    def __init__(self, norm: ChunkedGroupNorm) -> None:
        self.norm = norm
        self._columns = 0
        # Sums over chunks are in float64, since d_weight is a difference of two large sums.
        self._sum_dy = torch.zeros_like(norm.weight, dtype=torch.float64)
        self._sum_dy_x = torch.zeros_like(self._sum_dy)

    def add(self, dy: Tensor, x: Tensor) -> None:
        """Add the sums of a chunk, given the gradient (E, n) of the norm's output and the norm's input."""
        self._columns += dy.shape[1]
        self._sum_dy += dy.sum(dim=1)
        self._sum_dy_x += torch.linalg.vecdot(dy, x)

    def fit(self) -> AffineGradient:
        """Return the gradients of weight and bias; from now on the gradient of the input can be computed."""
        weight, mean, inverse = self.norm.weight, self.norm.mean, self.norm.inverse
        channels = len(weight) // NORM_GROUPS
        d_bias = self._sum_dy.to(weight.dtype)
        d_weight = (self._sum_dy_x - mean * self._sum_dy).to(weight.dtype) * inverse
        by_group = torch.stack([weight * d_bias, weight * d_weight]).unflatten(1, (NORM_GROUPS, channels)).sum(dim=2)
        by_channel = (by_group / (channels * self._columns)).repeat_interleave(channels, dim=1)
        through_mean, through_variance = by_channel
        self._on_x = -(inverse.square() * through_variance)[:, None]
        self._constant = (inverse * (mean * inverse * through_variance - through_mean))[:, None]
        return AffineGradient(d_weight, d_bias)

    def __call__(self, dy: Tensor, x: Tensor) -> Tensor:
        """Return the gradient of a chunk's input in a new tensor."""
        return (dy * self.norm.scale).add_(x * self._on_x).add_(self._constant)
