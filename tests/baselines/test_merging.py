"""Shots and ways on hand-made scores."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

from emat.baselines.merging import decide_by_votes, merge_ways, segmentation_loss, winning_vote
from emat.method import LossWeights


def shot(*foreground: float) -> Tensor:
    """Log-probabilities (2, 1, n) of these foreground probabilities."""
    p = torch.tensor([foreground])
    return torch.stack([1 - p, p]).log()


def test_a_pixel_goes_to_the_best_of_the_mean_background_and_every_foreground() -> None:
    first, second = shot(0.6, 0.1, 0.30), shot(0.7, 0.2, 0.45)
    decision = decide_by_votes([first[None], second[None]], (1, 3), 0.5)
    assert decision.label_map.tolist() == [[2, 0, 0]]
    background = (math.log(0.4) + math.log(0.3)) / 2
    expected = torch.tensor([background, math.log(0.6), math.log(0.7)]).softmax(dim=0)
    np.testing.assert_allclose(decision.probabilities[:, 0, 0], expected[1:], rtol=1e-5)


def test_no_threshold_applies_to_pixels() -> None:
    ways = [shot(0.45)[None], shot(0.01)[None], shot(0.01)[None]]  # the mean background of three ways falls to 0.81
    assert decide_by_votes(ways, (1, 1), 0.5).label_map.item() == 0
    strong = [shot(0.45)[None], shot(0.44)[None], torch.tensor([-9.0, -9.0]).view(1, 2, 1, 1)]
    assert decide_by_votes(strong, (1, 1), 0.99).label_map.item() == 1


def test_a_way_is_present_where_its_foreground_reaches_one_half_anywhere() -> None:
    ways = [shot(0.1, 0.5)[None], shot(0.1, 0.499)[None]]
    decision = decide_by_votes(ways, (4, 4), 0.5)
    assert decision.present == (True, False)
    assert decision.scores == pytest.approx((0.5, 0.499))


def test_equal_logits_reach_one_half() -> None:
    even = torch.zeros(1, 2, 3, 3).log_softmax(dim=1)
    assert decide_by_votes([even], (3, 3), 0.5).present == (True,)


def test_shots_vote_on_presence_and_average_their_log_probabilities() -> None:
    shots = torch.stack([shot(0.9, 0.1), shot(0.4, 0.1), shot(0.4, 0.2)])
    decision = decide_by_votes([shots], (1, 2), 0.5)
    assert decision.present == (False,)  # one vote of three
    assert decide_by_votes([shots[:2]], (1, 2), 0.5).present == (True,)  # one of two
    foreground, background = 0.9 * 0.4 * 0.4, 0.1 * 0.6 * 0.6
    assert decision.label_map.tolist() == [[1 if foreground > background else 0, 0]]


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=7), st.floats(0, 1, width=32))
def test_the_winning_vote_passes_when_half_of_the_votes_do(votes: list[float], threshold: float) -> None:
    passed = np.mean([vote >= threshold for vote in votes]) >= 0.5
    assert bool(winning_vote(torch.tensor(votes)) >= threshold) == passed


def test_one_way_merges_to_itself() -> None:
    way = torch.randn(1, 2, 4, 5).log_softmax(dim=1)
    assert torch.equal(merge_ways(way), way[0])


def test_the_loss_is_the_negative_log_likelihood_at_the_masks_resolution() -> None:
    scores = shot(0.8, 0.3)[None]  # (1, 2, 1, 2)
    masks = torch.tensor([[[1.0, 0.0]]])
    losses = segmentation_loss(scores, masks, LossWeights())
    assert losses.presence is None
    assert losses.total.item() == pytest.approx(-(math.log(0.8) + math.log(0.7)) / 2)
    weighted = segmentation_loss(scores, masks, LossWeights(foreground=3)).total.item()
    assert weighted == pytest.approx(-(3 * math.log(0.8) + math.log(0.7)) / 4)
