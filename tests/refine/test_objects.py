import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import ndimage

from emat.refine.objects import absorb_fringes, find_remnants, measure, separate, split_touching


def discs(*centres: tuple[int, int, int], size: tuple[int, int] = (60, 100)) -> NDArray[np.bool_]:
    y, x = np.ogrid[: size[0], : size[1]]
    return np.any([(y - row) ** 2 + (x - column) ** 2 <= radius**2 for row, column, radius in centres], axis=0)


def test_touching_discs_come_apart_at_their_neck() -> None:
    mask = discs((30, 20, 12), (30, 41, 12), (30, 80, 10))
    assert ndimage.label(mask)[1] == 2
    labels = split_touching(mask)
    assert labels.max() == 3
    assert len({int(labels[30, column]) for column in (20, 41, 80)}) == 3
    assert np.array_equal(labels > 0, mask)


def test_a_long_thing_stays_one() -> None:
    mask = np.zeros((40, 100), bool)
    mask[15:23, 5:95] = True
    assert split_touching(mask).max() == 1


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_every_pixel_of_the_mask_belongs_to_one_object(seed: int) -> None:
    mask = ndimage.gaussian_filter(np.random.default_rng(seed).random((30, 40)), 2) > 0.5
    labels = split_touching(mask)
    assert np.array_equal(labels > 0, mask)
    assert set(np.unique(labels)) - {0} == set(range(1, labels.max() + 1))


def test_known_objects_keep_their_borders_and_the_rest_is_split() -> None:
    mask = discs((30, 20, 10), (30, 80, 10))
    objects = np.zeros(mask.shape, np.int32)
    objects[:, :20][mask[:, :20]] = 1
    objects[:, 20:50][mask[:, 20:50]] = 2
    labels = separate(mask, objects)
    assert labels.max() == 3
    assert len({int(labels[30, column]) for column in (15, 25, 80)}) == 3


def test_the_rim_around_a_known_object_is_part_of_it() -> None:
    mask = discs((30, 30, 20), (30, 85, 8))
    smaller = discs((30, 30, 19))
    smaller[::3] &= discs((30, 30, 18))[::3]  # jagged, as after resizing
    labels = separate(mask, smaller.astype(np.int32))
    assert labels.max() == 2, "the object with its rim, and the disc that was not known"
    np.testing.assert_array_equal(labels == labels[30, 30], discs((30, 30, 20)))


def test_rows_say_what_the_label_image_shows() -> None:
    mask = discs((30, 20, 10), (20, 70, 6))
    mask[50:52, 50] = True
    probability = np.where(np.arange(100) < 50, 0.9, 0.6)[None].repeat(60, axis=0).astype(np.float32)
    found = measure(split_touching(mask), probability, smallest=5)
    assert len(found) == 2
    by_left = sorted(found.rows, key=lambda row: row.box)
    first, second = by_left
    assert first.area == int((found.label_image == first.id).sum()) == int(discs((30, 20, 10)).sum())
    assert first.box == (10, 20, 21, 21)
    assert first.centroid == (20.0, 30.0)
    assert round(first.score, 3) == 0.9
    assert round(second.score, 3) == 0.6


def test_an_empty_mask_has_no_objects() -> None:
    found = measure(split_touching(np.zeros((5, 6), bool)), np.zeros((5, 6), np.float32))
    assert found.rows == ()
    assert found.label_image.shape == (5, 6)


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


@pytest.mark.filterwarnings("error")
def test_a_class_that_covers_the_whole_photo_or_nothing_leaves_no_warning() -> None:
    everything = np.ones((4, 10), bool)
    assert not find_remnants(everything, everything).any()
    assert find_remnants(everything, ~everything).all()
    assert not find_remnants(~everything, ~everything).any()
