import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import ndimage

from emat.refine.instances import measure, separate, split_touching


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
