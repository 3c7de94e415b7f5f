"""The chain after attention against the same chain written with torch's own layers."""

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from emat.model.group_norm import Affine
from emat.model.post_attention import CHUNK_SHARE, PostAttentionWeights, post_attention_

HIDDEN, WIDTH = 4, 8


def parameters(dtype: torch.dtype) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    matrices = [random(WIDTH, HIDDEN), random(HIDDEN, WIDTH), random(WIDTH, HIDDEN)]
    norms = [(1 + 0.3 * random(w), random(w)) for w in (HIDDEN, WIDTH, WIDTH, WIDTH, HIDDEN, WIDTH)]
    return matrices, norms


def plain(a: Tensor, r: Tensor, matrices: list[Tensor], norms: Sequence[tuple[Tensor, Tensor] | None]) -> Tensor:
    def norm(index: int, x: Tensor) -> Tensor:
        affine = norms[index]
        assert affine is not None
        return F.group_norm(x[None], 4, *affine)[0]

    def product(w: Tensor, x: Tensor) -> Tensor:
        return torch.einsum("oi,iqt->oqt", w, x)

    x = norm(2, product(matrices[0], norm(0, a).relu())).relu() + (r if norms[1] is None else norm(1, r).relu())
    y = norm(3, x)
    return norm(5, y + product(matrices[2], norm(4, product(matrices[1], y)).relu()))


def finish(a: Tensor, r: Tensor, matrices: list[Tensor], norms: Sequence[tuple[Tensor, Tensor] | None]) -> Tensor:
    affines = [None if norm is None else Affine(*norm) for norm in norms]
    return post_attention_(a[None], r[None], PostAttentionWeights(*matrices, *affines))[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("small", [0, 10**6])
@pytest.mark.parametrize("elements", [1, 100, 10**6])
@pytest.mark.parametrize("identity", [False, True])
def test_values_and_gradients_equal_the_plain_chain(
    elements: int, identity: bool, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emat.model.post_attention.workspace_bytes", lambda device: 8 * elements * CHUNK_SHARE)
    monkeypatch.setattr("emat.model.post_attention.SMALL_PAIR", small)
    matrices, all_norms = parameters(torch.float64)
    norms: list[tuple[Tensor, Tensor] | None] = [*all_norms]
    if identity:
        norms[1] = None
    a, r = torch.randn(HIDDEN, 7, 5, dtype=torch.float64) + 3, torch.randn(WIDTH, 7, 5, dtype=torch.float64)
    inputs = [a, r, *matrices, *(p for pair in norms if pair for p in pair)]
    for tensor in inputs:
        tensor.requires_grad_()
    weights = torch.randn(WIDTH, 7, 5, dtype=torch.float64)
    ours, expected = finish(a, r, matrices, norms), plain(a, r, matrices, norms)
    torch.testing.assert_close(ours, expected)
    with torch.no_grad():  # then the inputs' buffers are used
        torch.testing.assert_close(finish(a.clone(), r.clone(), matrices, norms), expected)
    ours_grads = torch.autograd.grad((ours * weights).sum(), inputs)
    for ours_grad, grad in zip(ours_grads, torch.autograd.grad((expected * weights).sum(), inputs), strict=True):
        torch.testing.assert_close(ours_grad, grad)


@pytest.mark.parametrize("small", [0, 10**8])
def test_statistics_stay_exact_far_from_zero(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emat.model.post_attention.SMALL_PAIR", small)
    matrices, norms = parameters(torch.float32)
    a, r = torch.randn(HIDDEN, 300, 50) + 30, torch.randn(WIDTH, 300, 50) - 30
    exact = plain(a.double(), r.double(), [m.double() for m in matrices], [(w.double(), b.double()) for w, b in norms])
    torch.testing.assert_close(finish(a, r, matrices, list(norms)).double(), exact, atol=1e-3, rtol=1e-3)
