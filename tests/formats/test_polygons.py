"""Traced regions are exactly the mask, and hang together as they should."""

import numpy as np
import pytest
from hypothesis import given, settings

from emat.formats.polygons import signed_area, trace_classes, trace_regions
from emat.formats.run_lengths import counts_of_region, mask_of_counts
from tests.formats.label_maps import MASKS, rich_label_map


def flooded(mask: np.ndarray) -> list[set[tuple[int, int]]]:
    """The 4-connected regions, found pixel by pixel."""
    rest = {(int(y), int(x)) for y, x in zip(*np.nonzero(mask), strict=True)}
    regions = []
    while rest:
        region, border = set(), [min(rest)]
        while border:
            y, x = border.pop()
            if (y, x) in rest:
                rest.remove((y, x))
                region.add((y, x))
                border += [(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)]
        regions.append(region)
    return regions


@given(MASKS)
@settings(max_examples=300)
def test_regions_are_those_that_flooding_finds_in_the_same_order(mask: np.ndarray) -> None:
    expected = flooded(mask)
    regions = trace_regions(mask)
    assert len(regions) == len(expected)
    for region, pixels in zip(regions, expected, strict=True):
        drawn = mask_of_counts(counts_of_region(region, mask.shape), mask.shape)
        assert {(int(y), int(x)) for y, x in zip(*np.nonzero(drawn), strict=True)} == pixels
        assert region.area == len(pixels)
        rows, columns = [y for y, _ in pixels], [x for _, x in pixels]
        left, top = min(columns), min(rows)
        assert region.box == (left, top, max(columns) + 1 - left, max(rows) + 1 - top)


@given(MASKS)
def test_rings_run_along_pixels_outer_ones_clockwise_and_holes_the_other_way(mask: np.ndarray) -> None:
    for region in trace_regions(mask):
        assert signed_area(region.outer) > 0
        assert all(signed_area(hole) < 0 for hole in region.holes)
        for ring in (region.outer, *region.holes):
            steps = np.roll(ring, -1, axis=0) - ring
            assert ((steps == 0).sum(axis=1) == 1).all()  # level or upright
            assert ((steps[:, 0] == 0) != (np.roll(steps, -1, axis=0)[:, 0] == 0)).all()  # no corner to spare


def test_classes_are_traced_one_after_another_without_background_and_void() -> None:
    found = [(index, region.area, len(region.holes)) for index, region in trace_classes(rich_label_map())]
    assert found == [(1, 12 * 14 - 8 * 8, 1), (1, 4, 0), (2, 40, 0), (3, 24, 1)]


def test_nothing_has_no_regions() -> None:
    assert trace_regions(np.zeros((4, 5), bool)) == []


@pytest.mark.parametrize("radius", [1400, 300])
def test_a_photo_of_twelve_million_pixels_is_traced_whole(radius: int) -> None:
    y, x = np.ogrid[-1500:1500, -2000:2000]
    mask = (np.hypot(y, x) < radius) & (np.hypot(y, x) > radius / 2)
    (region,) = trace_regions(mask)
    assert (region.area, len(region.holes)) == (int(mask.sum()), 1)
