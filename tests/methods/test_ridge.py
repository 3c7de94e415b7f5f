"""Ridge regression from sums: the same as from all pixels at once, whatever is left out."""

import torch

from emat.methods.ridge import BIAS_PENALTY, LOGIT_SCALE, PENALTY, UNKNOWN, PixelSamples, photo_sums, solve

FEATURES, PIXELS = 5, 40


def _samples(*photos: str, classes: int = 1, seed: int = 0) -> PixelSamples:
    """Photos of random pixels: "+" shows class 0, "-" does not, "?" is unknown in its second half."""
    generator = torch.Generator().manual_seed(seed)
    count = len(photos) * PIXELS
    labels = torch.zeros(count, classes, dtype=torch.uint8)
    for index, kind in enumerate(photos):
        first = index * PIXELS
        if kind != "-":
            labels[first : first + 10, 0] = 1
        if kind == "?":
            labels[first + PIXELS // 2 : first + PIXELS, 0] = UNKNOWN
    values = torch.randn(count, FEATURES, generator=generator)
    values[:, 0] += 2.0 * (labels[:, 0] == 1)
    photo = torch.arange(len(photos)).repeat_interleave(PIXELS)
    return PixelSamples(values, labels, torch.full((count,), 1 / PIXELS), torch.zeros(count, 2), photo)


def _plain(samples: PixelSamples, weights: torch.Tensor) -> torch.Tensor:
    """The textbook solution: weights (n,) of the pixels."""
    values = torch.cat([samples.values, torch.ones(len(samples.values), 1)], dim=1).double()
    target = torch.where(samples.labels[:, 0] == 1, 1.0, -1.0).double()
    share = (weights / weights.sum()).double()
    penalty = torch.full((FEATURES + 1,), PENALTY).double()
    penalty[-1] = BIAS_PENALTY
    products = values.T @ (share[:, None] * values) + penalty.diag()
    return LOGIT_SCALE * torch.linalg.solve(products, values.T @ (share * target)).float()


def _weights(samples: PixelSamples, photos: list[float]) -> torch.Tensor:
    known = samples.labels[:, 0] != UNKNOWN
    return torch.tensor(photos)[samples.photo] * samples.shares * known


def test_the_sums_give_the_textbook_solution() -> None:
    samples = _samples("+", "?", "+")
    found = solve(photo_sums(samples, [0, 1, 2]), 0)
    torch.testing.assert_close(found, _plain(samples, _weights(samples, [1, 1, 1])), rtol=1e-4, atol=1e-5)


def test_a_fold_that_is_left_out_was_never_there() -> None:
    samples = _samples("+", "?", "+", "-")
    found = solve(photo_sums(samples, [0, 1, 0, 1]), 0, without=0)
    torch.testing.assert_close(found, _plain(samples, _weights(samples, [0, 1, 0, 1])), rtol=1e-4, atol=1e-5)


def test_photos_without_the_class_weigh_no_more_than_those_with_it() -> None:
    samples = _samples("+", "-", "-", "-")
    found = solve(photo_sums(samples, [0, 1, 2, 3]), 0)
    third = 1 / 3
    torch.testing.assert_close(
        found, _plain(samples, _weights(samples, [1, third, third, third])), rtol=1e-4, atol=1e-5
    )


def test_photos_that_count_alike_share_their_sums_and_change_nothing() -> None:
    samples = _samples("+", "+", "-", "+")
    together, apart = photo_sums(samples, [0, 0, 0, 1]), photo_sums(samples, [0, 1, 2, 3])
    assert [unit.count for unit in together] == [2, 1, 1]
    torch.testing.assert_close(solve(together, 0), solve(apart, 0), rtol=1e-4, atol=1e-5)


def test_a_class_of_which_nothing_is_known_gives_zeros() -> None:
    samples = _samples("+", classes=2)
    samples.labels[:, 1] = UNKNOWN
    assert not solve(photo_sums(samples, [0]), 1).any()
