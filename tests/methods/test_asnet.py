"""The squeeze layer against the same written with torch's own layers, and its chunks against the whole."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from emat.methods.asnet import ASNet, SqueezeLayer
from emat.methods.resnet_base import correlate
from tests.methods.test_hsnet import unit_maps
from tests.methods.tiny import tiny_method
from tests.raises import raises_code


def plain(layer: SqueezeLayer, x: Tensor, mask: Tensor) -> Tensor:
    """(C, Q, hs, ws) -> (E, Q, hs', ws'), as published: masked logits are filled with -1e9."""
    attn, ff = layer.attn, layer.ff
    q, k, v = (head(x[None])[0] for head in (attn.qhead, attn.khead, attn.vhead))
    seen = F.interpolate(mask[None, None], k.shape[2:], mode="bilinear", align_corners=True).flatten()
    cells = q.shape[2:]
    q, k, v = (part.flatten(2).unflatten(0, (8, -1)) for part in (q, k, v))  # (heads, e, Q, t)
    logits = torch.einsum("heqd,heqt->hqdt", q, k).masked_fill(seen == 0, -1e9)
    attended = torch.einsum("hqdt,heqt->heqd", logits.softmax(dim=-1), v).flatten(0, 1).unflatten(2, cells)
    residual = x[None] if attn.short_cut is None else attn.short_cut(x[None])
    y = attn.out_norm(attn.agg(attended[None]) + residual)
    return ff.out_norm(y + ff.ff(y))[0]


def mask_of(kind: str) -> Tensor:
    mask = torch.zeros(60, 60)
    if kind == "partial":
        mask[20:50, :25] = 1
    return mask


@pytest.mark.parametrize("mask", ["partial", "empty"])
@pytest.mark.parametrize(
    "layer",
    [
        SqueezeLayer(3, 32, 5, 4),
        SqueezeLayer(6, 32, 5, 4, pooled_keys=True),
        SqueezeLayer(32, 32, 1, 1),
        SqueezeLayer(32, 32, 2, 1),
    ],
    ids=["full keys", "pooled keys", "identity", "last"],
)
def test_a_layer_is_the_plain_formula(layer: SqueezeLayer, mask: str) -> None:
    x = torch.randn(layer.attn.qhead.in_channels, 10, 9, 11)
    expected = plain(layer, x, mask_of(mask))
    torch.testing.assert_close(layer(x, mask_of(mask)), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kept_bytes", [0, 2**30], ids=["computed again", "kept"])
@pytest.mark.parametrize("workspace", [1, 100_000, 10**9])
@pytest.mark.parametrize("mask", ["partial", "empty"])
def test_a_correlation_attended_in_chunks_gives_what_a_whole_one_gives(
    workspace: int, kept_bytes: int, mask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emat.methods.resnet_base.workspace_bytes", lambda _: workspace)
    monkeypatch.setattr("emat.methods.resnet_base.KEPT_BYTES", kept_bytes)
    torch.manual_seed(0)  # in float32, one draw in a hundred has a sum that cancels beyond the tolerance
    layer = SqueezeLayer(4, 32, 5, 4, pooled_keys=True)
    query, support = unit_maps(4, 6, 5), unit_maps(4, 9, 10)
    whole = layer(correlate(query.flatten(2), support.flatten(2)).unflatten(2, (9, 10)), mask_of(mask))
    chunked = layer.from_features(query, support, mask_of(mask))
    torch.testing.assert_close(chunked, whole)
    weights = torch.randn_like(whole)
    parameters = list(layer.parameters())
    # Without a kept cell queries and keys have no say, hence no gradient.
    expected = torch.autograd.grad((whole * weights).sum(), parameters, materialize_grads=True)
    ours = torch.autograd.grad((chunked * weights).sum(), parameters, materialize_grads=True)
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_only_large_support_maps_are_pooled() -> None:
    method = tiny_method("asnet")
    assert isinstance(method, ASNet)
    mask = torch.ones(4, 4)
    assert method.seen_of_support(torch.zeros(1, 8, 50, 50), mask).shape[2:] == (25, 25)
    assert method.seen_of_support(torch.zeros(1, 8, 49, 49), mask).shape[2:] == (49, 49)


def test_photos_too_small_for_its_last_kernel_are_refused() -> None:
    with raises_code("photo-size", "257", "256"):
        ASNet(tiny_method("hsnet").backbone, image_size=256)
