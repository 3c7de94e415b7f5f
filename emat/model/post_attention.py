"""What follows attention in a layer: aggregation, residual, norm, feed-forward with its own residual, norm.

With the attended values a (H channels) and the projected residual r (E channels), each of N = t_q * t_d columns:

    g = W_g relu(norm_a(a))
    x = relu(norm_g(g)) + relu(norm_r(r))    (r alone where the residual is the layer's own input, which has no norm)
    y = norm_x(x)
    f = W_1 y            z = y + W_2 relu(norm_f(f))
    out = norm_z(z)

`plain_post_attention` is this formula, written with torch's own layers. It keeps about fourteen tensors of full size
for the backward pass, which is fastest for small pairs. `_ChunkedPostAttention` computes the same for large pairs. Only
the statistics of the six norms depend on all columns, so between two norms it goes through the columns in chunks that
fit the processor's cache. For its backward pass it keeps only a, r and the statistics, and computes the rest again.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from emat.device import workspace_bytes
from emat.model.group_norm import (
    EPSILON,
    NORM_GROUPS,
    Affine,
    AffineGradient,
    ChunkedGroupNorm,
    ClippedNorm,
    GroupNormGradient,
)

SMALL_PAIR = 4 * 2**20  # up to this many bytes of one pair's residual, the plain formula was measured to be faster
CHUNK_SHARE = 48  # a chunk takes this part of the workspace: 0.5 MB on a CPU, so that several fit its fast cache


class PostAttentionWeights(NamedTuple):
    """The parameters of the chain in this module's docstring, under the names used there."""

    w_g: Tensor  # (E, H)
    w_1: Tensor  # (E / 2, E)
    w_2: Tensor  # (E, E / 2)
    norm_a: Affine
    norm_r: Affine | None
    norm_g: Affine
    norm_x: Affine
    norm_f: Affine
    norm_z: Affine

    @classmethod
    def from_modules(
        cls, aggregation: nn.Sequential, shortcut_norm: nn.Module | None, norm: nn.Module, feed_forward: nn.Module
    ) -> "PostAttentionWeights":
        """Take the parameters from the modules that give them their published names.

        Args:
            aggregation: norm_a, ReLU, W_g, norm_g, ReLU.
            shortcut_norm: norm_r, if there is one.
            norm: norm_x.
            feed_forward: Has `ff` (W_1, norm_f, ReLU, W_2) and `out_norm` (norm_z).
        """
        ff, out_norm = cast(nn.Sequential, feed_forward.ff), cast(nn.Module, feed_forward.out_norm)
        return cls(
            w_g=cast(Tensor, aggregation[2].weight).flatten(1),
            w_1=cast(Tensor, ff[0].weight).flatten(1),
            w_2=cast(Tensor, ff[3].weight).flatten(1),
            norm_a=_affine(aggregation[0]),
            norm_r=None if shortcut_norm is None else _affine(shortcut_norm),
            norm_g=_affine(aggregation[3]),
            norm_x=_affine(norm),
            norm_f=_affine(ff[1]),
            norm_z=_affine(out_norm),
        )

    @classmethod
    def from_tensors(cls, tensors: Sequence[Any]) -> "PostAttentionWeights":
        """Make the weights from what `tensors` returned."""
        pairs = zip(tensors[3::2], tensors[4::2], strict=True)
        norms: Any = (None if weight is None else Affine(weight, bias) for weight, bias in pairs)
        return cls(*tensors[:3], *norms)

    def tensors(self) -> tuple[Tensor | None, ...]:
        """Return all tensors in order, with two None for a norm that does not exist."""
        return self.w_g, self.w_1, self.w_2, *_in_order(*self[3:])


class PostAttentionGradients(NamedTuple):
    """The gradients of `PostAttentionWeights`, under the same names."""

    w_g: Tensor
    w_1: Tensor
    w_2: Tensor
    norm_a: AffineGradient
    norm_r: AffineGradient | None
    norm_g: AffineGradient
    norm_x: AffineGradient
    norm_f: AffineGradient
    norm_z: AffineGradient

    def tensors(self) -> tuple[Tensor | None, ...]:
        """Return the gradients in the order of `PostAttentionWeights.tensors`."""
        return self.w_g, self.w_1, self.w_2, *_in_order(*self[3:])


def _affine(norm: nn.Module) -> Affine:
    return Affine(cast(Tensor, norm.weight), cast(Tensor, norm.bias))


def _in_order(*norms: Affine | AffineGradient | None) -> Iterator[Tensor | None]:
    """Give weight and bias of one norm after the other, and two None for a norm that does not exist."""
    return (tensor for norm in norms for tensor in norm or (None, None))


def post_attention_(attended: Tensor, residual: Tensor, weights: PostAttentionWeights) -> Tensor:
    """Compute the chain of this module's docstring for B pairs, each with norms of its own.

    The inputs must not be used afterwards: if no gradient is needed, they are overwritten with intermediate values and
    with the result.

    Args:
        attended: a, (B, H, t_q, t_d).
        residual: r, (B, E, t_q, t_d).
        weights: The layer's parameters.

    Returns:
        The layer's output (B, E, t_q, t_d).
    """
    if residual[0].nbytes <= SMALL_PAIR:
        return plain_post_attention(attended.flatten(2), residual.flatten(2), weights).view(residual.shape)
    tensors = weights.tensors()
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (attended, residual, *tensors)):
        pairs = [_ChunkedPostAttention.apply(a, r, *tensors) for a, r in zip(attended, residual, strict=True)]
        return torch.stack(pairs) if len(pairs) > 1 else pairs[0][None]
    attended, residual = attended.contiguous(), residual.contiguous()
    for a, r in zip(attended.flatten(2), residual.flatten(2), strict=True):
        _Chain(a, r, weights).forward(narrow=a, wide=r)
    return residual


def plain_post_attention(a: Tensor, r: Tensor, weights: PostAttentionWeights) -> Tensor:
    """Compute the chain with torch's own layers: (B, H, N) and (B, E, N) -> (B, E, N)."""

    def norm(x: Tensor, affine: Affine) -> Tensor:
        return F.group_norm(x, NORM_GROUPS, affine.weight, affine.bias, EPSILON)

    def product(w: Tensor, x: Tensor) -> Tensor:
        return F.conv1d(x, w[:, :, None])  # half the time of a matrix product that broadcasts w

    g = product(weights.w_g, norm(a, weights.norm_a).relu_())
    shortcut = r if weights.norm_r is None else norm(r, weights.norm_r).relu_()
    y = norm(norm(g, weights.norm_g).relu_() + shortcut, weights.norm_x)
    f = product(weights.w_1, y)
    z = y + product(weights.w_2, norm(f, weights.norm_f).relu_())
    return norm(z, weights.norm_z)


class _ChunkedPostAttention(torch.autograd.Function):
    """The chain for one pair, as one step of autograd that keeps only its inputs and the norms' statistics."""

    @staticmethod
    def forward(ctx: Any, attended: Tensor, residual: Tensor, *parameters: Any) -> Tensor:
        a, r = attended.flatten(1), residual.flatten(1)
        chain = _Chain(a, r, PostAttentionWeights.from_tensors(parameters))
        out = chain.forward(narrow=torch.empty_like(a), wide=torch.empty_like(r))
        ctx.save_for_backward(attended, residual, *parameters, *chain.statistics())
        ctx.parameters = len(parameters)
        return out.view(residual.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        attended, residual, *saved = ctx.saved_tensors
        weights = PostAttentionWeights.from_tensors(saved[: ctx.parameters])
        chain = _Chain(attended.flatten(1), residual.flatten(1), weights, saved[ctx.parameters :])
        d_a, d_r, gradients = chain.backward(d_out.reshape(len(d_out), -1))
        return d_a.view(attended.shape), d_r.view(residual.shape), *gradients.tensors()


class _Chain:
    """The forward and backward pass of the chain in the module's docstring, in chunks, for inputs (H, N) and (E, N)."""

    def __init__(
        self, a: Tensor, r: Tensor, weights: PostAttentionWeights, statistics: "Sequence[Tensor | None] | None" = None
    ) -> None:
        """Take the inputs and weights, and the `statistics` of an earlier `forward`; else call `forward` first."""
        self.a, self.r = a, r
        self.w_g, self.w_1, self.w_2 = weights.w_g, weights.w_1, weights.w_2
        of_a, of_r, of_g, of_x, of_f, of_z = statistics or [None] * 6
        self.norm_a = ChunkedGroupNorm(*weights.norm_a, of_a)
        self.norm_r = None if weights.norm_r is None else ChunkedGroupNorm(*weights.norm_r, of_r)
        self.norm_g = ChunkedGroupNorm(*weights.norm_g, of_g)
        self.norm_x = ChunkedGroupNorm(*weights.norm_x, of_x)
        self.norm_f = ChunkedGroupNorm(*weights.norm_f, of_f)
        self.norm_z = ChunkedGroupNorm(*weights.norm_z, of_z)

    def statistics(self) -> list[Tensor | None]:
        """Return the statistics that `forward` found, in the order that the constructor takes."""
        norms = (self.norm_a, self.norm_r, self.norm_g, self.norm_x, self.norm_f, self.norm_z)
        return [None if norm is None else norm.statistics for norm in norms]

    def _parts(self) -> Iterator[slice]:
        columns = self.r.shape[1]
        size = max(1, workspace_bytes(self.r.device) // CHUNK_SHARE // self.r[:, 0].nbytes)
        for start in range(0, columns, size):
            yield slice(start, min(start + size, columns))

    def forward(self, *, narrow: Tensor, wide: Tensor) -> Tensor:
        """Find every norm's statistics and compute the result, in one pass for each norm.

        The two buffers hold what the next pass needs; the comment beside a pass says what that is. Scales and shifts of
        the norms are never applied to all columns, except at the end: they go into the matrices and into the limits of
        `ClippedNorm`, which takes half the time.

        Args:
            narrow: (H, N). It may be a's own memory, which is overwritten then.
            wide: (E, N). It may be r's own memory, which is overwritten then.

        Returns:
            `wide`, which holds the result.
        """
        for part in self._parts():
            self.norm_a.add(self.a[:, part])
            if self.norm_r is not None:
                self.norm_r.add(self.r[:, part])
        self.norm_a.fit()
        if self.norm_r is not None:
            self.norm_r.fit()
        # relu(norm_a(a)) = slope_a c + shift_a, so g = W_g relu(norm_a(a)) = w_c c + g_0
        clip_a = ClippedNorm(self.norm_a)
        w_c, g_0 = self.w_g * clip_a.slope.T, self.w_g @ self.norm_a.shift
        for part in self._parts():  # narrow: c
            self.norm_g.add(w_c @ clip_a(self.a[:, part], out=narrow[:, part]))
        self.norm_g.fit(offset=g_0)
        # x = factor u + x_0 with u = max(w_u c, limit_g) + max(sign_r r, limit_r); r itself if it has no norm
        clip_g, clip_r = ClippedNorm(self.norm_g), None if self.norm_r is None else ClippedNorm(self.norm_r)
        factor = torch.ones_like(clip_g.slope) if clip_r is None else clip_r.slope
        slope_g = clip_g.sign * clip_g.slope
        w_u, limit_g = slope_g / factor * w_c, -(self.norm_g.shift + slope_g * g_0) / factor
        x_0 = slope_g * g_0 + self.norm_g.shift
        if self.norm_r is not None:
            x_0 = x_0 + self.norm_r.shift
        for part in self._parts():  # wide: u; narrow: free
            clipped_g = w_u @ narrow[:, part]
            torch.maximum(clipped_g, limit_g, out=clipped_g)
            shortcut = self.r[:, part] if clip_r is None else clip_r(self.r[:, part], out=wide[:, part])
            self.norm_x.add(torch.add(shortcut, clipped_g, out=wide[:, part]))
        self.norm_x.fit(factor, x_0)
        # y = factor_y u + y_0, f = W_1 y = w_f u + f_0
        factor_y = factor * ClippedNorm(self.norm_x).sign * ClippedNorm(self.norm_x).slope
        y_0 = self.norm_x(x_0)
        w_f, f_0 = self.w_1 * factor_y.T, self.w_1 @ y_0
        for part in self._parts():  # wide: u; narrow: w_f u
            self.norm_f.add(torch.mm(w_f, wide[:, part], out=narrow[:, part]))
        self.norm_f.fit(offset=f_0)
        # z = y + W_2 relu(norm_f(f)) = factor_y (u + w_z max(sign_f w_f u, limit_f)) + z_0
        clip_f = ClippedNorm(self.norm_f)
        limit_f, w_z = clip_f.limit - clip_f.sign * f_0, self.w_2 * clip_f.slope.T / factor_y
        z_0 = y_0 + self.w_2 @ (clip_f.slope * clip_f.sign * f_0 + self.norm_f.shift)
        for part in self._parts():  # wide: (z - z_0) / factor_y; narrow: free
            clipped_f = clip_f(narrow[:, part], limit_f, out=narrow[:, part])
            self.norm_z.add(wide[:, part].addmm_(w_z, clipped_f))
        self.norm_z.fit(factor_y, z_0)
        scale, shift = self.norm_z.scale * factor_y, self.norm_z(z_0)
        for part in self._parts():  # wide: the result
            wide[:, part].mul_(scale).add_(shift)
        return wide

    def backward(self, d_out: Tensor) -> tuple[Tensor, Tensor, PostAttentionGradients]:
        """Return the gradients of a, r and the parameters, from `d_out` (E, N).

        There is one pass for each norm, from the last to the first. A pass computes the forward pass's values again and
        completes the gradient of its norm's output. From that, `GroupNormGradient` gives the gradient of the norm's
        input in the next pass. Between passes, `wide` (E, N) and `narrow` (H, N) hold what the next one needs; the
        comment beside a pass says what that is.
        """
        wide, narrow = torch.empty_like(self.r), torch.empty_like(self.a)
        d_w_g, d_w_1, d_w_2 = (torch.zeros_like(w) for w in (self.w_g, self.w_1, self.w_2))
        through_a, through_g, through_x, through_f, through_z = (
            GroupNormGradient(norm) for norm in (self.norm_a, self.norm_g, self.norm_x, self.norm_f, self.norm_z)
        )
        through_r = None if self.norm_r is None else GroupNormGradient(self.norm_r)

        for part in self._parts():  # wide: x; narrow: f
            x = self._x(part)
            f = self._f(x)
            z, _ = self._z(x, f)
            through_z.add(d_out[:, part], z)
            wide[:, part], narrow[:, part] = x, f
        d_norm_z = through_z.fit()
        for part in self._parts():  # wide: d_z; narrow: d_normed_f
            x, f = wide[:, part], narrow[:, part]
            z, activated_f = self._z(x, f)
            d_z = through_z(d_out[:, part], z)
            d_w_2.addmm_(d_z, activated_f.T)
            d_normed_f = _through_relu(self.w_2.T @ d_z, activated_f)
            through_f.add(d_normed_f, f)
            wide[:, part], narrow[:, part] = d_z, d_normed_f
        d_norm_f = through_f.fit()
        for part in self._parts():  # wide: d_y
            d_z, d_normed_f = wide[:, part], narrow[:, part]
            x = self._x(part)
            y = self.norm_x(x)
            d_f = through_f(d_normed_f, self.w_1 @ y)
            d_w_1.addmm_(d_f, y.T)
            d_y = torch.addmm(d_z, self.w_1.T, d_f)
            through_x.add(d_y, x)
            wide[:, part] = d_y
        d_norm_x = through_x.fit()
        for part in self._parts():  # wide: d_x
            d_y = wide[:, part]
            g, shortcut = self._g(part), self._shortcut(part)
            activated_g = self.norm_g(g).relu_()
            d_x = through_x(d_y, activated_g + shortcut)
            through_g.add(_through_relu(d_x, activated_g), g)
            if through_r is not None:
                through_r.add(_through_relu(d_x, shortcut), self.r[:, part])
            wide[:, part] = d_x
        d_norm_g = through_g.fit()
        d_norm_r = None if through_r is None else through_r.fit()
        for part in self._parts():  # wide: the gradient of r; narrow: d_normed_a
            a, r, d_x = self.a[:, part], self.r[:, part], wide[:, part]
            activated_a = self.norm_a(a).relu_()
            g = self.w_g @ activated_a
            d_g = through_g(_through_relu(d_x, self.norm_g(g)), g)
            d_w_g.addmm_(d_g, activated_a.T)
            d_normed_a = _through_relu(self.w_g.T @ d_g, activated_a)
            through_a.add(d_normed_a, a)
            narrow[:, part] = d_normed_a
            if self.norm_r is not None and through_r is not None:  # else r's gradient is d_x itself
                wide[:, part] = through_r(_through_relu(d_x, self.norm_r(r)), r)
        d_norm_a = through_a.fit()
        for part in self._parts():  # narrow: the gradient of a
            narrow[:, part] = through_a(narrow[:, part], self.a[:, part])
        d_norms = (d_norm_a, d_norm_r, d_norm_g, d_norm_x, d_norm_f, d_norm_z)
        return narrow, wide, PostAttentionGradients(d_w_g, d_w_1, d_w_2, *d_norms)

    # The chain's values for a chunk, once the norms that they need are fitted:

    def _g(self, part: slice) -> Tensor:
        return self.w_g @ self.norm_a(self.a[:, part]).relu_()

    def _shortcut(self, part: slice, out: Tensor | None = None) -> Tensor:
        """Return relu(norm_r(r)), written to `out`; or r itself if it has no norm."""
        r = self.r[:, part]
        return r if self.norm_r is None else self.norm_r(r, out).relu_()

    def _x(self, part: slice) -> Tensor:
        return self.norm_g(self._g(part)).relu_().add_(self._shortcut(part))

    def _f(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        # W_1 norm_x(x), with the norm folded into the matrix.
        return torch.mm(self.w_1 * self.norm_x.scale.T, x, out=out).add_(self.w_1 @ self.norm_x.shift)

    def _z(self, x: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        """Return z, and relu(norm_f(f)), from which it is computed."""
        activated_f = self.norm_f(f).relu_()
        return self.norm_x(x).addmm_(self.w_2, activated_f), activated_f


def _through_relu(grad: Tensor, activated: Tensor) -> Tensor:
    """Return the gradient where the input of the ReLU, or its output, is positive, and 0 elsewhere."""
    return torch.ops.aten.threshold_backward(grad, activated, 0)
