import pytest
import torch

from emat.methods.hsnet import CenterPivotConv
from emat.methods.resnet_base import correlate
from tests.methods.tiny import tasks_for, tiny_method


def unit_maps(channels: int, height: int, width: int) -> torch.Tensor:
    maps = torch.randn(channels, 6, height, width)
    return maps / maps.norm(dim=1, keepdim=True)


def test_a_centre_pivot_convolution_is_the_sum_of_two_plain_ones_at_every_position() -> None:
    layer = CenterPivotConv(2, 3, kernel=3, stride=2)
    x = torch.randn(1, 2, 4, 5, 7, 6)
    out = layer(x)
    assert out.shape == (1, 3, 4, 5, 4, 3)
    for i, j, m, n in ((0, 0, 0, 0), (2, 3, 1, 2), (3, 4, 3, 0)):
        over_query = layer.conv1(x[0, :, :, :, 2 * m, 2 * n])[:, i, j]
        over_support = layer.conv2(x[0, :, i, j])[:, m, n]
        torch.testing.assert_close(out[0, :, i, j, m, n], over_query + over_support)


@pytest.mark.parametrize("kept_bytes", [0, 2**30], ids=["computed again", "kept"])
@pytest.mark.parametrize("workspace", [1, 20_000, 10**9])
def test_a_correlation_made_in_chunks_gives_what_a_whole_one_gives(
    workspace: int, kept_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emat.methods.resnet_base.workspace_bytes", lambda _: workspace)
    monkeypatch.setattr("emat.methods.resnet_base.KEPT_BYTES", kept_bytes)
    layer = CenterPivotConv(4, 8, kernel=5, stride=4)
    query, support = unit_maps(4, 6, 5), unit_maps(4, 9, 10)
    support[:, :, :, 4:] = 0  # off the mask
    whole = layer(correlate(query.flatten(2), support.flatten(2)).view(1, 4, 6, 5, 9, 10))
    chunked = layer.from_features(query, support)
    torch.testing.assert_close(chunked, whole)
    weights = torch.randn_like(whole)
    parameters = list(layer.parameters())
    expected = torch.autograd.grad((whole * weights).sum(), parameters)
    for ours, theirs in zip(torch.autograd.grad((chunked * weights).sum(), parameters), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_what_lies_off_the_mask_changes_nothing() -> None:
    method = tiny_method("hsnet")
    tasks = tasks_for(method)
    mask = torch.zeros(64, 64)
    mask[:16, :16] = 1
    query, support = method.encode_query(tasks.queries[0]), method.encode_support(tasks.supports[0], mask)
    changed = [maps.clone() for maps in tasks.supports[0].tensors]
    for maps in changed:
        maps[..., -1, -1] = 7
    other = method.encode_support(type(tasks.supports[0])(tuple(changed), (64, 64)), mask)
    first, second = method.compare(query, [support, other])
    assert torch.equal(first, second)
