"""A threshold that follows from a photo."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emat.pixel_learner.photo_threshold import FEWEST_PHOTOS, HIGHEST, LOWEST, PhotoThreshold, learn_threshold


def expected_iou(logits: torch.Tensor, threshold: float, rule: PhotoThreshold) -> float:
    probabilities = torch.sigmoid(rule.slope * logits + rule.bias)
    inside = logits >= threshold
    return float(probabilities[inside].sum() / (inside.sum() + probabilities[~inside].sum()))


@given(st.integers(0, 10_000), st.floats(0.3, 3), st.floats(-2, 2))
@settings(max_examples=60, deadline=None)
def test_hardly_any_threshold_has_a_higher_expected_iou(seed: int, slope: float, bias: float) -> None:
    logits = 3 * torch.randn(30, 40, generator=torch.Generator().manual_seed(seed))
    rule = PhotoThreshold(slope, bias)
    threshold = float(rule.on(logits[None]))
    assert LOWEST <= threshold <= HIGHEST
    others = torch.linspace(LOWEST, HIGHEST, 61).tolist()
    assert expected_iou(logits, threshold, rule) > max(expected_iou(logits, other, rule) for other in others) - 0.02


@given(st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_rounding_does_not_move_it(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(1, 100, 120, generator=generator) - 2
    rule = PhotoThreshold(0.8, -0.3)
    noisy = logits + 1e-5 * torch.randn(logits.shape, generator=generator)
    assert abs(float(rule.on(logits)) - float(rule.on(noisy))) < 1e-4


def test_every_photo_of_a_batch_has_its_own_threshold() -> None:
    rule = PhotoThreshold(1.0, 0.0)
    photos = (
        torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(0)) + torch.tensor([-2.0, 0, 1])[:, None, None]
    )
    together = rule.on(photos)
    assert torch.allclose(together, torch.cat([rule.on(one[None]) for one in photos]), atol=1e-5)
    assert len(set(together.tolist())) == 3


def test_a_photo_without_the_class_does_not_become_all_mask() -> None:
    flat = torch.full((1, 20, 20), -4.0)
    assert float(PhotoThreshold(1.0, 0.0).on(flat)) > -4


def test_logits_are_calibrated_by_left_out_photos() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = [3 * torch.randn(60, 60, generator=generator) for _ in range(4)]
    labels = [
        (torch.rand(60, 60, generator=generator) < torch.sigmoid(0.5 * one - 1)).to(torch.uint8) for one in logits
    ]
    labels[0][:30] = 255  # unknown pixels do not count
    rule = learn_threshold(logits, labels)
    assert rule is not None
    assert abs(rule.slope - 0.5) < 0.05
    assert abs(rule.bias + 1) < 0.15


def test_too_few_photos_and_useless_logits_teach_nothing() -> None:
    logits = [torch.linspace(-3, 3, 100).reshape(10, 10)] * FEWEST_PHOTOS
    labels = [(one < 0).to(torch.uint8) for one in logits]  # the wrong way round
    assert learn_threshold(logits, labels) is None
    assert learn_threshold(logits[1:], [1 - one for one in labels[1:]]) is None
