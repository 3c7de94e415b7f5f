import torch

from emat.methods.gf_sam import alignment, gated
from tests.methods.coloured import BLUE, GREY, RED, picture, support_of


def covering(*patches: set[int]) -> torch.Tensor:
    """Masks over six patches in a row."""
    return torch.tensor([[index in held for index in range(6)] for held in patches])


def test_alignment_is_high_for_the_class_and_low_for_the_background() -> None:
    image = picture(RED, slice(0, 2), slice(0, 2))
    red, grey, blue = alignment(torch.tensor([RED, GREY, BLUE]), support_of(image, image[..., 0])).tolist()
    assert (red, grey, blue) == (1, -1, 0)


def test_a_mask_that_reaches_beyond_the_points_has_overshot() -> None:
    evidence = torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0, -1.0])
    kept = gated(covering({0, 1}, {0, 1, 2, 3, 4}), [0, 1], evidence, evidence > 0)
    assert kept.tolist() == [True, False]


def test_a_cluster_with_more_evidence_against_the_class_is_left_out() -> None:
    evidence = torch.tensor([0.1, -0.9, 1.0, 1.0, -1.0, -1.0])
    kept = gated(covering({0, 1}, {2, 3}), [0, 2], evidence, evidence > 0)
    assert kept.tolist() == [False, True]


def test_linked_masks_are_judged_together() -> None:
    # Alone the first mask would be left out; the second one, which holds its point, has enough evidence for both.
    evidence = torch.tensor([0.1, -0.2, 1.0, 1.0, -1.0, -1.0])
    kept = gated(covering({0, 1}, {0, 2, 3}), [0, 2], evidence, evidence > 0)
    assert kept.tolist() == [True, True]
