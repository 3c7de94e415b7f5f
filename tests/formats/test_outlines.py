"""Single outlines fill to the region again, and simplified ones stay close to it."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw
from pycocotools import mask as coco

from emat.formats.outlines import outline, simplify
from emat.formats.polygons import Region, signed_area, trace_regions
from emat.formats.run_lengths import counts_of_region, mask_of_counts
from tests.formats.label_maps import MASKS, rich_label_map


def filled(corners: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    runs = coco.frPyObjects([corners.ravel().tolist()], shape[0], shape[1])
    return coco.decode(coco.merge(runs)).astype(bool)


def pixels(region: Region, shape: tuple[int, ...]) -> np.ndarray:
    return mask_of_counts(counts_of_region(region, (shape[0], shape[1])), (shape[0], shape[1]))


@given(MASKS)
@settings(max_examples=300)
def test_pycocotools_fills_an_exact_outline_to_the_regions_pixels(mask: np.ndarray) -> None:
    for region in trace_regions(mask):
        assert np.array_equal(filled(outline(region), mask.shape), pixels(region, mask.shape))


def test_cuts_to_holes_run_through_the_region() -> None:
    (region,) = [region for region in trace_regions(rich_label_map() == 1) if region.holes]
    corners = outline(region)
    assert [3, 4] in corners.tolist()  # the cut goes left from the hole's upper left corner, (6, 4), to x = 3
    assert corners.tolist().count([3, 4]) == corners.tolist().count([6, 4]) == 2
    # A tool that draws outlines as lines therefore paints no pixel outside but those along the border.
    canvas = Image.new("1", (30, 20))
    ImageDraw.Draw(canvas).line([tuple(corner) for corner in corners.tolist()], fill=1)
    grown = np.zeros((21, 31), bool)
    mask = pixels(region, (20, 30))
    for dy in (0, 1):
        for dx in (0, 1):
            grown[dy : dy + 20, dx : dx + 30] |= mask
    assert not (np.asarray(canvas) & ~grown[:20, :30]).any()


@given(MASKS, st.floats(0.1, 4))
def test_simplified_corners_are_corners_of_the_ring_and_the_others_within_the_tolerance(
    mask: np.ndarray, tolerance: float
) -> None:
    for region in trace_regions(mask):
        simple = simplify(region.outer, tolerance)
        assert {tuple(c) for c in simple.tolist()} <= {tuple(c) for c in region.outer.tolist()}
        ends = np.roll(simple, -1, axis=0)
        for corner in region.outer:
            along = ends - simple
            share = np.clip(((corner - simple) * along).sum(1) / np.maximum((along**2).sum(1), 1), 0, 1)
            nearest = np.hypot(*(corner - simple - share[:, None] * along).T).min()
            assert nearest <= tolerance + 1e-9


@given(MASKS, st.floats(0.1, 4))
def test_nothing_vanishes_by_simplifying(mask: np.ndarray, tolerance: float) -> None:
    for region in trace_regions(mask):
        for ring in (region.outer, *region.holes):
            assert 0.5 <= signed_area(simplify(ring, tolerance)) / signed_area(ring) <= 1.5


def test_a_disc_keeps_its_shape_with_a_tenth_of_the_corners() -> None:
    y, x = np.ogrid[-100:100, -100:100]
    ring = (np.hypot(y, x) < 90) & (np.hypot(y, x) > 40)
    (region,) = trace_regions(ring)
    exact, simple = outline(region), outline(region, 1.0)
    assert len(simple) < len(exact) / 5
    again = filled(simple, ring.shape)
    assert (again & ring).sum() / (again | ring).sum() > 0.97


def test_many_holes_in_a_row_are_all_cut_open() -> None:
    mask = np.ones((5, 4001), bool)
    mask[2, 1::2] = False
    (region,) = trace_regions(mask)
    assert len(region.holes) == 2000
    assert np.array_equal(filled(outline(region), mask.shape), mask)


def test_cuts_from_one_edge_are_taken_in_the_order_they_are_met() -> None:
    mask = np.ones((9, 9), bool)
    mask[2, 2] = mask[6, 2] = False
    (region,) = trace_regions(mask)
    corners = outline(region)
    length = np.abs(np.roll(corners, -1, axis=0) - corners).sum()
    assert length == 4 * 9 + 2 * 4 + 2 * 2 * 2  # the border, two holes, and two cuts there and back
