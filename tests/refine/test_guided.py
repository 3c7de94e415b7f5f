import numpy as np
import pytest

from emat.refine.guided import guided


def test_a_blurred_edge_moves_to_the_photos_edge() -> None:
    photo = np.full((80, 120, 3), 40, np.uint8)
    photo[:, 62:] = (200, 180, 90)
    soft = (1 / (1 + np.exp(-(np.arange(120, dtype=np.float32) - 58) / 4)))[None].repeat(80, axis=0)
    blurred = np.asarray(soft, np.float32)
    before, after = blurred >= 0.5, guided(blurred, photo, radius=0.06) >= 0.5
    truth = np.zeros((80, 120), bool)
    truth[:, 62:] = True
    assert (after != truth).sum() < 0.3 * (before != truth).sum()


def test_a_photo_without_edges_changes_little() -> None:
    random = np.random.default_rng(0)
    map_ = np.clip(np.linspace(0, 1, 60, dtype=np.float32)[None].repeat(50, axis=0), 0, 1)
    photo = np.full((50, 60, 3), 128, np.uint8) + random.integers(0, 2, (50, 60, 3)).astype(np.uint8)
    assert np.abs(guided(map_, photo) - map_)[:, 3:-3].max() < 0.05


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (40, 900)])
def test_any_size_gives_its_own_size_and_probabilities(size: tuple[int, int]) -> None:
    random = np.random.default_rng(1)
    photo = random.integers(0, 255, (2 * size[0], 2 * size[1], 3)).astype(np.uint8)
    out = guided(random.random(size, np.float32), photo)
    assert out.shape == size
    assert out.dtype == np.float32
    assert 0 <= out.min() <= out.max() <= 1
