import torch
from torch import nn

from emat.training.step import WeightAverage


def test_the_average_follows_its_formula() -> None:
    layer = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        layer.weight.fill_(0.0)
    average = WeightAverage(layer, 0.9)
    expected = 0.0
    for step in range(200):
        with torch.no_grad():
            layer.weight.fill_(float(step))
        average.update(step)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
    torch.testing.assert_close(average.tensors["weight"], torch.full((1, 1), expected))


def test_inside_the_block_the_average_is_in_place_and_after_it_the_weights_are_back() -> None:
    layer = nn.Linear(2, 2)
    average = WeightAverage(layer, 0.5)
    start = layer.weight.detach().clone()
    with torch.no_grad():
        layer.weight.add_(1.0)
    moved = layer.weight.detach().clone()
    with average.in_place():
        assert torch.equal(layer.weight, start)
    assert torch.equal(layer.weight, moved)


def test_frozen_parameters_are_not_averaged() -> None:
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    assert set(WeightAverage(layer, 0.5).tensors) == {"weight"}


def test_without_decay_the_weights_are_their_own_average() -> None:
    layer = nn.Linear(2, 2)
    average = WeightAverage(layer, 0.0)
    average.update(0)
    with average.in_place():
        assert average.tensors == {}


def test_an_average_that_was_not_kept_starts_from_the_weights() -> None:
    layer = nn.Linear(2, 2)
    average = WeightAverage(layer, 0.5)
    with torch.no_grad():
        layer.weight.add_(1.0)
    average.restore({})
    assert torch.equal(average.tensors["weight"], layer.weight)
