import torch

from emat.methods.whitened import COMPONENTS, SHRINKAGE, whitening


def test_whitened_vectors_vary_alike_in_all_kept_directions() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(400, 6, generator=generator) * torch.tensor([9.0, 3.0, 1.0, 0.5, 0.2, 0.1]) + 4
    mean, directions = whitening(vectors)
    white = (vectors - mean) @ directions
    covariance = white.T @ white / len(white)
    variances = (vectors - mean).square().mean(dim=0).sort().values
    expected = variances / (variances + SHRINKAGE * variances.max())
    torch.testing.assert_close(covariance.diagonal(), expected, rtol=0.05, atol=0.01)
    assert (covariance - covariance.diagonal().diag()).abs().max() < 1e-3


def test_at_most_so_many_directions_are_kept() -> None:
    assert whitening(torch.randn(100, 80))[1].shape == (80, COMPONENTS)
    assert whitening(torch.randn(5, 80))[1].shape == (80, 5)


def test_equal_vectors_become_zero() -> None:
    mean, directions = whitening(torch.ones(9, 4))
    assert bool(directions.isfinite().all())
    assert not ((torch.ones(9, 4) - mean) @ directions).any()
