"""The two uses of masked attention: the arithmetic of a chunk, and the chunked hot path with its own gradient."""

import pytest
import torch
from torch import Tensor

from emat.model.attention import attend, attend_correlation
from emat.model.projections import Projections


def matrices(channels: int, positions: int, hidden: int, width: int, *, class_token: bool = True) -> Projections:
    generator = torch.Generator().manual_seed(0)

    def weight(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    return Projections(
        weight(hidden + width, positions * channels),
        weight(hidden + width),
        weight(hidden + width, channels) if class_token else None,
        weight(hidden + width) if class_token else None,
        weight(2 * hidden, channels),
        weight(2 * hidden),
    )


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0.01, 1, 5, 30, 1000])
def test_attention_equals_the_softmax_formula_unscaled_however_large_the_logits(
    size: float, dtype: torch.dtype
) -> None:
    q, k, v = (x.to(dtype) for x in (size * random(16, 3, 5), random(16, 3, 4), random(16, 3, 4)))
    out = attend(q, k, v)
    for head in range(8):
        rows = slice(2 * head, 2 * head + 2)
        for n in range(3):
            expected = torch.softmax(q[rows, n].T @ k[rows, n], dim=-1)
            torch.testing.assert_close(out[rows, n], v[rows, n] @ expected.T)


def test_attention_over_nothing_is_zero() -> None:
    out = attend(random(16, 3, 5), random(16, 3, 0), random(16, 3, 0))
    assert out.shape == (16, 3, 5)
    assert not out.any()


def test_many_keys_leave_the_sum_of_exponentials_within_half_precision() -> None:
    """401 logits that are just small enough one by one: their sum is not."""
    q, k = torch.full((8, 1, 1), 5.5, dtype=torch.float16), torch.ones(8, 1, 401, dtype=torch.float16)
    k[:, :, 0] = -1  # so that the keys' middle stays where it is
    out = attend(q, k, torch.full_like(k, 0.5))
    torch.testing.assert_close(out, torch.full_like(q, 0.5), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("small", [0, 10**6])
@pytest.mark.parametrize("shifted", [True, False])
@pytest.mark.parametrize("class_token", [True, False])
def test_gradients_of_the_hot_path_pass_gradcheck_for_tokens_and_weights(
    class_token: bool, shifted: bool, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emat.model.attention.SMALL_PAIR", small)  # kept for backward, or computed again
    monkeypatch.setattr("emat.model.attention.KEPT_SHARE", 0)
    monkeypatch.setattr("emat.model.attention._within_range", lambda q, reach, keys: not shifted)
    given = matrices(2, 4, 8, 8, class_token=class_token)
    tokens = [random(2, 5, 3), random(4, 2, 2, 3), random(2, 3, 3)]

    def function(query: Tensor, cells: Tensor, kept: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
        full = iter(weights)
        rebuilt = Projections(*(None if t is None else next(full) for t in given.tensors()))  # type: ignore[arg-type]
        return attend_correlation(query, cells, kept, rebuilt)

    inputs = [t.requires_grad_() for t in tokens] + [t for t in given.tensors() if t is not None]
    assert torch.autograd.gradcheck(function, inputs)


def test_keys_and_values_come_from_the_kept_tokens_alone() -> None:
    """Masked-out support tokens reach the attention queries and the residual, but never keys and values."""
    given = matrices(4, 1, 8, 8)
    query, cells, kept = random(4, 6, 3), random(1, 4, 2, 3), random(4, 5, 3)
    attended, residual = attend_correlation(query, cells, kept, given)
    fewer, same_residual = attend_correlation(query, cells, kept[:, :3], given)
    assert not torch.allclose(attended, fewer)
    torch.testing.assert_close(residual, same_residual)
    constant = Projections(*(torch.zeros_like(t) if i < 4 else t for i, t in enumerate(given.tensors())))  # type: ignore[arg-type]
    first, _ = attend_correlation(query, cells, kept, constant)
    second, _ = attend_correlation(query, 7 * cells, kept, constant)
    torch.testing.assert_close(first, second)


def test_with_a_full_mask_the_efficient_attention_equals_dense_attention() -> None:
    given = matrices(4, 1, 8, 8)
    query, tokens = random(4, 6, 3), random(4, 5, 3)
    attended, _ = attend_correlation(query, tokens[None, :, 1:], tokens, given)
    correlation = query @ tokens.transpose(1, 2)  # (C, t_q, t_s)
    cls, image = correlation[:, :, :1], correlation[:, :, 1:]
    project = torch.einsum
    q = torch.cat(
        [
            project("oc,cqs->oqs", given.w_class[:8], cls) + given.b_class[:8, None, None],  # type: ignore[index]
            project("oc,cqs->oqs", given.w_cells[:8], image) + given.b_cells[:8, None, None],
        ],
        dim=2,
    )
    k, v = (project("oc,cqs->oqs", given.w_kv, correlation) + given.b_kv[:, None, None]).chunk(2)
    dense = torch.softmax(q[:, :, :, None] * k[:, :, None, :], dim=-1) @ v[..., None]  # heads of width 1
    torch.testing.assert_close(attended, dense.squeeze(-1))
