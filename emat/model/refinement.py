"""What follows attention in a layer: aggregation, residual, norm, feed-forward with residual, norm.

In the letters of the code, all (width, N) with N = t_q * t_d:

    a  attended (H)      r  residual (E)
    g = W_g relu(norm_a(a))
    x = relu(norm_g(g)) + relu(norm_r(r))    (r alone where the residual is the layer's own input, which has no norm)
    y = norm_x(x)
    f = W_1 y            z = y + W_2 relu(norm_f(f))
    out = norm_z(z)

Written with autograd this keeps some fourteen tensors of full size. Here the six norms are the only barriers: between
them the work goes chunk by chunk through the cache, forward needs no memory beyond its inputs, and backward starts
again from a and r.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from emat.device import workspace_bytes
from emat.model.group_norm import ChunkedGroupNorm

Affine = tuple[Tensor, Tensor]  # weight and bias of a norm

CHUNK_SHARE = 24  # of the workspace: on a CPU 1 MB, a few of which fit the second-level cache


def refine(attended: Tensor, residual: Tensor, matrices: Sequence[Tensor], norms: Sequence[Affine | None]) -> Tensor:
    """a (H, t_q, t_d) and r (E, t_q, t_d) -> out (E, t_q, t_d).

    `matrices` are W_g, W_1, W_2; `norms` the weights and biases for a, r, g, x, f, z; only r's may be None. Without
    gradients, a and r are overwritten.
    """
    affines = ((None, None) if norm is None else norm for norm in norms)
    tensors = (attended, residual, *matrices, *itertools.chain.from_iterable(affines))
    reuse = not (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors))
    return _Refinement.apply(reuse, *tensors)


class _Refinement(torch.autograd.Function):
    """`refine` as one step of autograd. Without gradients, the inputs' buffers become scratch space and result."""

    @staticmethod
    def forward(ctx: Any, reuse: bool, attended: Tensor, residual: Tensor, *parameters: Any) -> Tensor:
        a, r = attended.flatten(1), residual.flatten(1)
        chain = _Chain(a, r, *parameters)
        out = chain.forward(f=a if reuse else torch.empty_like(a), out=r if reuse else torch.empty_like(r))
        if not reuse:
            ctx.chain, ctx.shapes = chain, (attended.shape, residual.shape)
            ctx.save_for_backward(attended, residual)  # for autograd's check that nobody changes them in place
        return out.view(residual.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.chain is None:
            raise RuntimeError("backward through the same layer twice; build the graph again")
        ctx.saved_tensors  # noqa: B018
        da, dr, parameter_grads = ctx.chain.backward(grad.reshape(len(grad), -1))
        shape_a, shape_r = ctx.shapes
        ctx.chain = None
        return None, da.view(shape_a), dr.view(shape_r), *parameter_grads


class _Chain:
    """The chain of the module's docstring on given inputs: its norms and matrices, and the two ways through it."""

    def __init__(self, a: Tensor, r: Tensor, *parameters: Any) -> None:
        self.a, self.r = a, r
        self.w_g, self.w_1, self.w_2 = parameters[:3]
        a_affine, r_affine, *others = zip(parameters[3::2], parameters[4::2], strict=True)
        self.norm_a = ChunkedGroupNorm(*a_affine)
        self.norm_r = None if r_affine[0] is None else ChunkedGroupNorm(*r_affine)
        self.norm_g, self.norm_x, self.norm_f, self.norm_z = (ChunkedGroupNorm(*affine) for affine in others)
        self.norms = (self.norm_a, self.norm_r, self.norm_g, self.norm_x, self.norm_f, self.norm_z)

    def _parts(self) -> Iterator[slice]:
        columns = self.r.shape[1]
        size = max(1, workspace_bytes(self.r.device) // CHUNK_SHARE // self.r[:, 0].nbytes)
        for start in range(0, columns, size):
            yield slice(start, min(start + size, columns))

    def _shortcut(self, part: slice, out: Tensor | None = None) -> Tensor:
        r = self.r[:, part]
        return r if self.norm_r is None else self.norm_r(r, out).relu_()

    def _f(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        # W_1 norm_x(x), with the norm folded into the matrix.
        return torch.mm(self.w_1 * self.norm_x.scale.T, x, out=out).add_(self.w_1 @ self.norm_x.shift)

    def forward(self, *, f: Tensor, out: Tensor) -> Tensor:
        """Fit every norm and write the result to `out`, which may be r's own buffer.

        One pass for each norm, which leaves what the next ones need in `out` and in `f`, which may be a's own buffer.
        """
        for part in self._parts():
            self.norm_a.add(self.a[:, part])
            if self.norm_r is not None:
                self.norm_r.add(self.r[:, part])
        self.norm_a.fit()
        if self.norm_r is not None:
            self.norm_r.fit()
        for part in self._parts():
            self.norm_g.add(self.w_g @ self.norm_a(self.a[:, part], out=f[:, part]).relu_())
        self.norm_g.fit()
        for part in self._parts():
            from_g = self.norm_g(self.w_g @ f[:, part]).relu_()
            self.norm_x.add(torch.add(self._shortcut(part, out=out[:, part]), from_g, out=out[:, part]))
        self.norm_x.fit()
        for part in self._parts():
            self.norm_f.add(self._f(out[:, part], out=f[:, part]))
        self.norm_f.fit()
        for part in self._parts():
            hidden = self.norm_f(f[:, part], out=f[:, part]).relu_()
            self.norm_z.add(self.norm_x(out[:, part], out=out[:, part]).addmm_(self.w_2, hidden))
        self.norm_z.fit()
        for part in self._parts():
            self.norm_z(out[:, part], out=out[:, part])
        return out

    def backward(self, grad: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...]]:
        """Gradients of a, r and the parameters. `wide` and `narrow` hold the gradient on its way, of one width each."""
        wide, narrow = torch.empty_like(self.r), torch.empty_like(self.a)
        d_g, d_1, d_2 = (torch.zeros_like(w) for w in (self.w_g, self.w_1, self.w_2))
        norm_grads: dict[ChunkedGroupNorm, tuple[Tensor, Tensor]] = {}

        for part in self._parts():
            x = self._x(part)
            f = self._f(x)
            self.norm_z.add_gradient(grad[:, part], self._z(x, f)[0])
            wide[:, part], narrow[:, part] = x, f  # these buffers are free until the next pass, which needs both
        norm_grads[self.norm_z] = self.norm_z.fit_gradient()
        for part in self._parts():
            f = narrow[:, part]
            z, hidden = self._z(wide[:, part], f)
            dz = self.norm_z.gradient(grad[:, part], z)
            d_2.addmm_(dz, hidden.T)
            d_hidden = _through_relu(self.w_2.T @ dz, hidden)
            self.norm_f.add_gradient(d_hidden, f)
            wide[:, part], narrow[:, part] = dz, d_hidden
        norm_grads[self.norm_f] = self.norm_f.fit_gradient()
        for part in self._parts():
            x = self._x(part)
            y = self.norm_x(x)
            df = self.norm_f.gradient(narrow[:, part], self.w_1 @ y)
            d_1.addmm_(df, y.T)
            dy = torch.addmm(wide[:, part], self.w_1.T, df)
            self.norm_x.add_gradient(dy, x)
            wide[:, part] = dy
        norm_grads[self.norm_x] = self.norm_x.fit_gradient()
        for part in self._parts():
            g = self._g(part)
            from_g, from_r = self.norm_g(g).relu_(), self._shortcut(part)
            dx = self.norm_x.gradient(wide[:, part], from_g + from_r)
            self.norm_g.add_gradient(_through_relu(dx, from_g), g)
            if self.norm_r is not None:
                self.norm_r.add_gradient(_through_relu(dx, from_r), self.r[:, part])
            wide[:, part] = dx
        norm_grads[self.norm_g] = self.norm_g.fit_gradient()
        if self.norm_r is not None:
            norm_grads[self.norm_r] = self.norm_r.fit_gradient()
        for part in self._parts():
            a, r, dx = self.a[:, part], self.r[:, part], wide[:, part]
            from_a = self.norm_a(a).relu_()
            g = self.w_g @ from_a
            dg = self.norm_g.gradient(_through_relu(dx, self.norm_g(g)), g)
            d_g.addmm_(dg, from_a.T)
            da = _through_relu(self.w_g.T @ dg, from_a)
            self.norm_a.add_gradient(da, a)
            narrow[:, part] = da
            if self.norm_r is not None:  # else r's gradient is dx itself
                wide[:, part] = self.norm_r.gradient(_through_relu(dx, self.norm_r(r)), r)
        norm_grads[self.norm_a] = self.norm_a.fit_gradient()
        for part in self._parts():
            narrow[:, part] = self.norm_a.gradient(narrow[:, part], self.a[:, part])
        flat = (grad for norm in self.norms for grad in ((None, None) if norm is None else norm_grads[norm]))
        return narrow, wide, (d_g, d_1, d_2, *flat)

    # What `forward` left in its buffers, made again from a and r once all norms are fitted:

    def _g(self, part: slice) -> Tensor:
        return self.w_g @ self.norm_a(self.a[:, part]).relu_()

    def _x(self, part: slice) -> Tensor:
        return self.norm_g(self._g(part)).relu_().add_(self._shortcut(part))

    def _z(self, x: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        """z and relu(norm_f(f)) of a chunk."""
        hidden = self.norm_f(f).relu_()
        return self.norm_x(x).addmm_(self.w_2, hidden), hidden


def _through_relu(grad: Tensor, activated: Tensor) -> Tensor:
    """The gradient where the ReLU's input (or output) is positive, else 0."""
    return torch.ops.aten.threshold_backward(grad, activated, 0)
