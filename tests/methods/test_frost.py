import pytest
import torch

from emat.methods.frost import BANDWIDTHS, LARGEST_RATIO, best_bandwidth, log_density, log_ratio
from emat.methods.training_free import SupportPatches


def cloud(*directions: float, inside: int) -> SupportPatches:
    """Unit vectors of the plane by their angles, of which the first `inside` are the class."""
    angles = torch.tensor(directions)
    covered = (torch.arange(len(angles)) < inside).float()
    return SupportPatches(torch.stack([angles.cos(), angles.sin()], dim=1), covered, 1 - covered)


def test_the_ratio_is_that_of_mean_kernels() -> None:
    support = cloud(0.0, 0.4, 1.5, inside=2)
    vector = torch.tensor([[0.0, 1.0]])
    kernels = (support.vectors @ vector[0] / 0.5).exp()
    expected = (kernels[:2].mean() / kernels[2]).log()
    torch.testing.assert_close(log_ratio(vector, support, 0.5)[0], expected)


def test_equally_dense_places_are_undecided() -> None:
    support = cloud(-0.5, 0.5, inside=1)
    assert float(log_ratio(torch.tensor([[1.0, 0.0]]), support, 0.1)[0]) == pytest.approx(0, abs=1e-6)


def test_more_background_patches_at_the_same_place_change_nothing() -> None:
    vector = torch.tensor([[0.8, 0.6]])
    one, many = cloud(0.0, 2.0, inside=1), cloud(0.0, 2.0, 2.0, 2.0, inside=1)
    torch.testing.assert_close(log_ratio(vector, one, 0.5), log_ratio(vector, many, 0.5))


def test_ratios_are_bounded() -> None:
    support = cloud(0.0, 3.1, inside=1)
    assert float(log_ratio(torch.tensor([[1.0, 0.0]]), support, 0.02)[0]) == LARGEST_RATIO


def test_a_pair_that_is_left_out_does_not_count() -> None:
    cosines = torch.tensor([[-torch.inf, 0.5, 0.5]])
    torch.testing.assert_close(log_density(cosines, 0.5), torch.tensor([1.0]))


def test_two_narrow_interleaved_clouds_ask_for_a_narrow_kernel() -> None:
    # Foreground and background have the same mean, so a wide kernel could not tell them apart.
    narrow = cloud(0.0, 0.01, 2.0, 2.01, 1.0, 1.01, inside=4)
    assert best_bandwidth(narrow) == BANDWIDTHS[0]


def test_a_cloud_of_one_patch_has_the_middle_bandwidth() -> None:
    assert best_bandwidth(cloud(0.0, 1.0, 2.0, inside=1)) == BANDWIDTHS[len(BANDWIDTHS) // 2]
