import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emat.refine.fringes import absorb_fringes


def disc(centre: tuple[int, int], radius: float, size: int = 80) -> np.ndarray:
    rows, columns = np.mgrid[:size, :size]
    return (rows - centre[0]) ** 2 + (columns - centre[1]) ** 2 <= radius**2


def test_a_thin_rim_of_another_class_goes_to_the_object() -> None:
    label_map = np.zeros((80, 80), np.uint8)
    label_map[disc((40, 40), 30)] = 2
    label_map[disc((40, 40), 26)] = 1
    absorbed = absorb_fringes(label_map)
    assert np.array_equal(absorbed > 0, label_map > 0)
    assert set(np.unique(absorbed)) == {0, 1}


def test_a_small_object_that_touches_a_large_one_stays() -> None:
    label_map = np.zeros((80, 80), np.uint8)
    label_map[disc((40, 30), 25)] = 1
    label_map[disc((40, 63), 9)] = 2
    assert np.array_equal(absorb_fringes(label_map), label_map)


def test_a_thin_object_that_touches_no_other_stays() -> None:
    label_map = np.zeros((80, 80), np.uint8)
    label_map[10:40, 10:40] = 1
    label_map[60:62, 5:75] = 2
    assert np.array_equal(absorb_fringes(label_map), label_map)


@given(st.integers(0, 2**32 - 1))
def test_background_stays_background_and_objects_stay_objects(seed: int) -> None:
    coarse = np.random.default_rng(seed).integers(0, 3, (6, 6), dtype=np.uint8)
    label_map = np.kron(coarse, np.ones((7, 7), np.uint8))
    assert np.array_equal(absorb_fringes(label_map) > 0, label_map > 0)


@pytest.mark.parametrize(("lead", "kept"), [(0.1, False), (0.4, True)])
def test_a_compact_part_stays_only_where_its_class_is_clearly_ahead(lead: float, kept: bool) -> None:
    label_map = np.ones((40, 40), np.uint8)
    label_map[10:25, 10:25] = 2
    maps = {1: np.full((40, 40), 0.6, np.float32), 2: np.full((40, 40), 0.6 + lead, np.float32)}
    assert bool((absorb_fringes(label_map, maps.__getitem__) == 2).any()) is kept
    assert (absorb_fringes(label_map) == 2).any(), "without probabilities its shape alone counts"
