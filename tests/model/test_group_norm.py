"""GroupNorm in chunks gives the values and gradients of torch's own, however the columns are cut."""

import pytest
import torch
import torch.nn.functional as F

from emat.model.group_norm import EPSILON, NORM_GROUPS, ChunkedGroupNorm, GroupNormGradient


@pytest.mark.parametrize("length", [1, 7, 50])
def test_values_and_gradients_equal_torch(length: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, d_out = torch.randn(2, 8, 50, dtype=torch.float64, generator=generator)
    weight, bias = torch.randn(2, 8, dtype=torch.float64, generator=generator)
    inputs = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    expected = F.group_norm(inputs[0][None], NORM_GROUPS, inputs[1], inputs[2], EPSILON)[0]
    expected.backward(d_out)

    norm = ChunkedGroupNorm(weight, bias)
    for chunk in x.split(length, dim=1):
        norm.add(chunk)
    norm.fit()
    torch.testing.assert_close(norm(x), expected.detach())

    gradient = GroupNormGradient(norm)
    for d_chunk, chunk in zip(d_out.split(length, dim=1), x.split(length, dim=1), strict=True):
        gradient.add(d_chunk, chunk)
    found = gradient.fit()
    torch.testing.assert_close((gradient(d_out, x), found.weight, found.bias), tuple(one.grad for one in inputs))
