"""A tiny fitted segmenter, and the photos that it was fitted with."""

from pathlib import Path

import numpy as np
import pytest

from emat import Example, Segmenter
from emat.images import Pixels
from tests.inference.conftest import tiny_head

__all__ = ["tiny_head"]


def photo_of(number: int, size: tuple[int, int] = (48, 64)) -> Pixels:
    """A photo with a bright square somewhere."""
    random = np.random.default_rng(number)
    photo = random.integers(0, 90, (*size, 3), dtype=np.uint8)
    top, left = 4 + number % 20, 6 + (7 * number) % 30
    photo[top : top + 20, left : left + 22] += 140
    return photo


@pytest.fixture(scope="session")
def fitted_file(tiny_head: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes, three examples, with the learner."""
    path = tmp_path_factory.mktemp("fitted") / "shapes.emat"
    examples = [
        Example(photo_of(n), {"square": (6 + (7 * n) % 30, 4 + n % 20, 28 + (7 * n) % 30, 24 + n % 20)}) for n in (0, 1)
    ]
    examples.append(Example(photo_of(2), {"corner": (0, 0, 9, 9)}))
    Segmenter.load(tiny_head, device="cpu").fit(examples).save(path)
    return path


@pytest.fixture
def fitted(fitted_file: Path) -> Segmenter:
    return Segmenter.load(fitted_file, device="cpu")
