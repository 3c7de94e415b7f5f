"""Traced regions are exactly the mask, and hang together as they should."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw
from pycocotools import mask as coco

from emat.formats.coco import read_coco
from emat.formats.regions import Region, outline, signed_area, simplify, trace_objects, trace_regions
from emat.formats.run_lengths import counts_of_regions, mask_of_counts
from emat.formats.writing import WriteOptions, open_writer
from tests.formats.label_maps import MASKS, rich_label_map


def flooded(mask: np.ndarray) -> list[set[tuple[int, int]]]:
    """The 8-connected regions, found pixel by pixel."""
    rest = {(int(y), int(x)) for y, x in zip(*np.nonzero(mask), strict=True)}
    regions = []
    while rest:
        region, border = set(), [min(rest)]
        while border:
            y, x = border.pop()
            if (y, x) in rest:
                rest.remove((y, x))
                region.add((y, x))
                border += [(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
        regions.append(region)
    return regions


@given(MASKS)
@settings(max_examples=300)
def test_regions_are_those_that_flooding_finds_in_the_same_order(mask: np.ndarray) -> None:
    expected = flooded(mask)
    regions = trace_regions(mask)
    assert len(regions) == len(expected)
    for region, pixels in zip(regions, expected, strict=True):
        drawn = mask_of_counts(counts_of_regions([region], mask.shape), mask.shape)
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
    found = [(index, region.area, len(region.holes)) for index, (region,) in trace_objects(rich_label_map())]
    assert found == [(1, 12 * 14 - 8 * 8 + 4, 1), (2, 40, 0), (3, 24, 1)]


def test_nothing_has_no_regions() -> None:
    assert trace_regions(np.zeros((4, 5), bool)) == []


@pytest.mark.parametrize("radius", [1400, 300])
def test_a_photo_of_twelve_million_pixels_is_traced_whole(radius: int) -> None:
    y, x = np.ogrid[-1500:1500, -2000:2000]
    mask = (np.hypot(y, x) < radius) & (np.hypot(y, x) > radius / 2)
    (region,) = trace_regions(mask)
    assert (region.area, len(region.holes)) == (int(mask.sum()), 1)


def filled(corners: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    runs = coco.frPyObjects([corners.ravel().tolist()], shape[0], shape[1])
    return coco.decode(coco.merge(runs)).astype(bool)


def pixels(region: Region, shape: tuple[int, ...]) -> np.ndarray:
    return mask_of_counts(counts_of_regions([region], (shape[0], shape[1])), (shape[0], shape[1]))


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


@pytest.mark.parametrize("shapes", ["masks", "polygons"])
def test_coco_has_one_object_for_each_number_of_the_table(tmp_path: Path, shapes: str) -> None:
    label_map = np.zeros((20, 30), np.uint8)
    label_map[2:6, 2:6] = label_map[6, 6] = label_map[7:9, 7:9] = 1  # parts that touch at corners
    label_map[12:18, 2:12] = 1
    objects = np.zeros(label_map.shape, np.int32)
    objects[:10][label_map[:10] > 0] = 1
    objects[12:18, 2:7], objects[12:18, 7:12] = 2, 3
    objects[17, 11] = 2  # a piece apart from the rest of its object
    for numbers, count in ((objects, 3), (None, 2)):
        out = tmp_path / f"{shapes}{count}"
        with open_writer("coco", out, ["cat"], options=WriteOptions(shapes, 0)) as writer:
            writer.write("a.jpg", label_map, objects=numbers)
        content = json.loads((out / "annotations.json").read_text())["annotations"]
        assert len(content) == count
        read = read_coco(out / "annotations.json")
        assert np.array_equal(read.drawings["a.jpg"].label_map(["cat"]), label_map)
        for number, drawn in enumerate(content if numbers is not None else (), start=1):
            mask = objects == number
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            assert drawn["area"] == mask.sum()
            assert drawn["bbox"] == [columns[0], rows[0], np.ptp(columns) + 1, np.ptp(rows) + 1]
