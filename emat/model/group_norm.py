"""GroupNorm taken apart: statistics gathered chunk by chunk, applied chunk by chunk, and the same for its gradient.

Within a layer only the statistics of these norms look at all query tokens at once. Between two of them everything can
be computed for a chunk that fits the cache, so no intermediate of full size is ever written.
"""

import torch
from torch import Tensor

NORM_GROUPS = 4
EPSILON = 1e-5


class ChunkedGroupNorm:
    """One GroupNorm over (E, N): `add` every chunk, `fit`, then call it on chunks; for its gradient the same once more.

    >>> x = torch.randn(8, 100)
    >>> norm = ChunkedGroupNorm(torch.ones(8), torch.zeros(8))
    >>> for chunk in x.split(30, dim=1):
    ...     norm.add(chunk)
    >>> expected = torch.nn.functional.group_norm(x[None], NORM_GROUPS)[0]
    >>> torch.allclose(norm.fit()(x), expected, atol=1e-5)
    True
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias = weight, bias  # (E,)
        self._sums: list[tuple[int, Tensor, Tensor]] = []  # of each chunk: columns, sums and square sums (E,)

    def add(self, x: Tensor) -> None:
        """Take in the statistics of a chunk (E, n)."""
        self._sums.append((x.shape[1], x.sum(dim=1), torch.linalg.vecdot(x, x)))

    def fit(self) -> "ChunkedGroupNorm":
        """Join the chunks' statistics; from now on the norm can be applied."""
        channels = len(self.weight) // NORM_GROUPS
        self._count = channels * sum(columns for columns, _, _ in self._sums)  # elements of a group
        # Chunks and channels are few, so they are joined in float64: nothing is lost in the difference below.
        parts = torch.stack([part for _, *both in self._sums for part in both]).view(-1, 2, NORM_GROUPS, channels)
        mean, mean_square = parts.sum(dim=(0, 3), dtype=torch.float64) / self._count  # (groups,) each
        inverse = ((mean_square - mean.square()).clamp_(min=0) + EPSILON).rsqrt()
        self._mean, self._inverse = (
            torch.stack([mean, inverse]).to(self.weight.dtype).repeat_interleave(channels, dim=1)
        )
        self.scale = (self.weight * self._inverse)[:, None]
        self.shift = (self.bias - self._mean * self._inverse * self.weight)[:, None]
        self._sums.clear()
        self._bias_grad = torch.zeros_like(self.weight, dtype=torch.float64)
        self._products = torch.zeros_like(self._bias_grad)
        return self

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """The normalised chunk, written to `out`, which may be x itself, or else to a new tensor."""
        return torch.mul(x, self.scale, out=out).add_(self.shift)  # addcmul takes twice as long where it broadcasts

    def add_gradient(self, grad: Tensor, x: Tensor) -> None:
        """Take in a chunk's gradient (E, n) together with the input it belongs to."""
        self._bias_grad += grad.sum(dim=1)
        self._products += torch.linalg.vecdot(grad, x)

    def fit_gradient(self) -> tuple[Tensor, Tensor]:
        """The gradients of weight and bias; from now on `gradient` can be applied."""
        bias_grad = self._bias_grad.to(self.weight.dtype)
        weight_grad = (self._products - self._mean * self._bias_grad).to(self.weight.dtype) * self._inverse
        by_group = torch.stack([self.weight * bias_grad, self.weight * weight_grad]).unflatten(1, (NORM_GROUPS, -1))
        through_mean, through_variance = (by_group.sum(dim=2) / self._count).repeat_interleave(
            len(self.weight) // NORM_GROUPS, dim=1
        )
        self._on_input = -(self._inverse.square() * through_variance)[:, None]
        self._constant = (self._inverse * (self._inverse * self._mean * through_variance - through_mean))[:, None]
        return weight_grad, bias_grad

    def gradient(self, grad: Tensor, x: Tensor) -> Tensor:
        """The gradient of the chunk's input, a new tensor."""
        return (grad * self.scale).add_(x * self._on_input).add_(self._constant)
