import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

from emat.refine.regions import Map, certainty, describe_region, find_regions, points_against, undecided_reach


def hills(*centres: tuple[int, int], width: float = 6.0, size: tuple[int, int] = (60, 90)) -> Map:
    y, x = np.mgrid[: size[0], : size[1]]
    each = [np.exp(-((y - row) ** 2 + (x - column) ** 2) / (2 * width**2)) for row, column in centres]
    return np.max(each, axis=0).astype(np.float32)


@given(threshold=st.floats(0.05, 0.95), power=st.floats(0.3, 3))
def test_certainty_keeps_the_order_and_puts_the_threshold_at_a_half(threshold: float, power: float) -> None:
    probability = (np.linspace(0.001, 0.999, 50, dtype=np.float32) ** np.float32(power))[None]
    certain = certainty(probability, threshold)
    assert (np.diff(certain[0]) >= 0).all()
    assert np.array_equal(certain >= 0.5, probability >= np.float32(threshold))


def test_certainty_does_not_depend_on_how_sure_a_head_is() -> None:
    logits = np.random.default_rng(0).normal(0, 1, (20, 20)).astype(np.float32)
    timid, bold = (1 / (1 + np.exp(-scale * logits)) for scale in (0.3, 1.5))
    np.testing.assert_allclose(certainty(timid, 0.5), certainty(bold, 0.5), atol=1e-3)


def test_regions_are_found_apart_and_the_largest_comes_first() -> None:
    map_ = np.maximum(hills((20, 20), width=4), hills((35, 65), width=10))
    regions = find_regions(map_)
    assert [region.mask[20, 20] for region in regions] == [False, True]
    left, top, right, bottom = regions[0].box
    assert regions[0].mask[top:bottom, left:right].sum() == regions[0].area == (map_[:, 45:] >= 0.5).sum()


def test_two_hills_that_hang_together_by_a_saddle_are_two_regions() -> None:
    map_ = hills((30, 30), (30, 48), width=9)
    assert map_[30, 39] > 0.5  # one component
    regions = find_regions(map_)
    assert len(regions) == 2
    assert not (regions[0].mask & regions[1].mask).any()
    assert ((regions[0].mask | regions[1].mask) == (map_ >= 0.5)).all()


def test_one_hill_is_one_region_and_nothing_is_none() -> None:
    assert len(find_regions(hills((30, 30), width=9))) == 1
    assert find_regions(np.zeros((20, 20), np.float32)) == []


def test_points_lie_inside_apart_from_each_other_and_the_surest_is_first() -> None:
    map_ = hills((30, 30), width=12)
    region = describe_region(map_ >= 0.5, map_)
    assert region.points[0] == (30.5, 30.5)
    assert len(set(region.points)) == len(region.points) == 3
    assert all(region.mask[int(y), int(x)] for x, y in region.points)


def test_only_certain_points_outside_speak_against_a_region() -> None:
    region = find_regions(hills((30, 30)))[0]
    assert points_against(region, [hills((40, 70))]) == ((70.5, 40.5),)
    assert points_against(region, [0.7 * hills((40, 70)), hills((30, 30), width=1)]) == ()


@pytest.mark.parametrize("size", [(1, 1), (1, 30), (40, 2)])
def test_any_size_will_do(size: tuple[int, int]) -> None:
    assert len(find_regions(np.ones(size, np.float32))) in (0, 1)


def test_a_blurred_map_is_undecided_further_from_its_borders() -> None:
    square = np.zeros((60, 90), np.float32)
    square[20:40, 30:60] = 1
    blurred = [ndimage.gaussian_filter(square, width) for width in (0, 2, 5)]
    reach = [undecided_reach(map_, 0.5) for map_ in blurred]
    assert reach[0] < 2 < reach[1] < reach[2]
    assert undecided_reach(np.ones((9, 9), np.float32), 0.5) == 0
