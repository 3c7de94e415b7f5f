import math

import pytest
import torch

from emat.methods.panet import FeatureSums, prototype_scores, sums_of
from tests.methods.tiny import tiny_method


def sums(foreground: list[float], background: list[float], count: float = 1.0) -> FeatureSums:
    number = torch.tensor(count)
    return FeatureSums(torch.tensor(foreground) * count, number, torch.tensor(background) * count, number)


def test_the_softmax_is_over_the_background_and_all_ways() -> None:
    query = torch.tensor([1.0, 0.0]).view(2, 1, 1)
    ways = [[sums([1.0, 0.0], [0.0, 1.0])], [sums([0.6, 0.8], [1.0, 0.0])]]
    scores = prototype_scores(query, ways)
    background = 20 / math.sqrt(2)  # one mean over both ways' backgrounds
    expected = torch.tensor([background, 20.0, 12.0]).log_softmax(dim=0)
    torch.testing.assert_close(scores.flatten(), expected)


def test_prototypes_are_means_over_the_positions_of_all_shots() -> None:
    query = torch.tensor([1.0, 1.0]).view(2, 1, 1)
    shots = [sums([1.0, 0.0], [1.0, -1.0], count=3), sums([0.0, 1.0], [1.0, -1.0], count=1)]
    (_, foreground) = prototype_scores(query, [shots])
    cosine = (3 + 1) / math.sqrt(3**2 + 1) / math.sqrt(2)
    assert foreground.item() == pytest.approx(-math.log(1 + math.exp(-20 * cosine)), abs=1e-6)


def test_positions_that_the_mask_touches_are_foreground() -> None:
    support = torch.ones(3, 4, 4)
    mask = torch.zeros(100, 100)
    mask[:50, :50] = 1
    found = sums_of(support, mask)
    assert (found.foreground_count.item(), found.background_count.item()) == (4, 12)


def test_the_backbone_is_trained_with_its_batch_statistics_left_alone() -> None:
    method = tiny_method("panet").train()
    before = method.backbone.bn1.running_mean
    assert before is not None
    kept = before.clone()
    method.encode_query(method.features(torch.randn(1, 3, 64, 64))[0])
    assert torch.equal(kept, before)
    assert all(value.requires_grad for value in method.backbone.parameters())
