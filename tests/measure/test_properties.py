"""Every number is right on shapes whose numbers are known, and equal to scikit-image's where that has it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage
from skimage.measure import regionprops

from emat.measure.properties import (
    ALWAYS,
    MEASURED,
    column_of,
    object_rows,
    photo_rows,
    read_groups,
)
from emat.refine.objects import split_touching
from tests.measure.shapes import bar, disc, ring, row_of, scene_of
from tests.raises import raises_code

ONE_PERCENT = 0.01


def close(value: float) -> object:
    return pytest.approx(value, rel=ONE_PERCENT)


def test_a_disc_has_the_size_of_a_disc() -> None:
    row = row_of(disc(100), "size", "shape")
    assert row["area"] == close(math.pi * 100**2)
    assert row["equivalent_diameter"] == close(200)
    assert row["perimeter"] == close(2 * math.pi * 100)
    assert (row["feret_max"], row["feret_min"]) == (close(200), close(200))
    assert (row["major_axis"], row["minor_axis"]) == (close(200), close(200))
    assert row["circularity"] == close(1)
    assert row["solidity"] == close(1)
    assert row["euler_number"] == 1
    assert float(row["eccentricity"] or 0) < 0.1
    assert (row["centroid_x"], row["centroid_y"]) == (close(250.13), close(250.13))
    assert (row["left"], row["width"], row["touches_border"]) == (151, 200, False)


def test_a_ring_has_two_outlines_and_a_hole() -> None:
    row = row_of(ring(80, 120), "size", "shape")
    assert row["area"] == close(math.pi * (120**2 - 80**2))
    assert row["perimeter"] == close(2 * math.pi * 200)
    assert row["feret_max"] == close(240)
    assert row["solidity"] == close(1 - (80 / 120) ** 2)
    assert row["euler_number"] == 0


@pytest.mark.parametrize("degrees", [0, 30, 90, 135])
def test_a_bar_has_its_length_width_and_direction(degrees: float) -> None:
    row = row_of(bar(300, 100, degrees), "size", "shape")
    assert row["feret_max"] == close(math.hypot(300, 100))
    assert row["feret_min"] == close(100)
    # The axes of the ellipse with a bar's moments are longer than the bar by 2 / sqrt(3).
    assert row["major_axis"] == close(300 * 2 / math.sqrt(3))
    assert row["minor_axis"] == close(100 * 2 / math.sqrt(3))
    assert row["eccentricity"] == close(math.sqrt(1 - (100 / 300) ** 2))
    assert row["orientation"] == pytest.approx(degrees, abs=0.5)


@pytest.mark.parametrize("side", [1, 2, 5, 40])
def test_blobs_and_single_pixels_have_a_width_too(side: int) -> None:
    mask = np.zeros((60, 60), bool)
    mask[10 : 10 + side, 10 : 10 + side] = True
    row = row_of(mask, "skeleton", "size", "shape", "texture")
    assert row["width_mean"] == pytest.approx(side, rel=0.5)
    assert row["feret_min"] == pytest.approx(side, abs=0.3)  # the outline cuts the corners of pixels
    assert 0 < float(row["solidity"] or 0) <= 1


def test_numbers_are_those_of_scikit_image() -> None:
    random = np.random.default_rng(0)
    mask = ndimage.gaussian_filter(random.normal(size=(200, 200)), 5) > 0.03
    scene = scene_of(mask)
    expected = regionprops(scene.objects["a"])
    rows = object_rows(scene, ("size", "shape"))
    assert len(rows) == len(expected) > 10
    for row, region in zip(rows, expected, strict=True):
        assert row["area"] == region.area
        assert row["perimeter"] == pytest.approx(region.perimeter_crofton)
        assert row["equivalent_diameter"] == pytest.approx(region.equivalent_diameter_area)
        assert row["major_axis"] == pytest.approx(region.axis_major_length)
        assert row["eccentricity"] == pytest.approx(region.eccentricity)
        assert row["euler_number"] == region.euler_number
        assert row["feret_max"] == pytest.approx(region.feret_diameter_max)
        assert row["solidity"] == pytest.approx(region.solidity)


def test_intensities_are_those_of_the_original_values() -> None:
    scene = scene_of(bar(40, 20))
    values = np.zeros((500, 500, 2), np.uint16)
    inside = scene.mask("a")
    random = np.random.default_rng(0)
    values[inside, 0] = random.integers(1000, 60000, int(inside.sum()))
    values[..., 1] = 7
    scene = replace(scene, values=values, channels=("DAPI", "GFP"))
    (row,) = object_rows(scene, ("intensity",))
    own = values[inside, 0].astype(float)
    assert row["intensity_mean_DAPI"] == pytest.approx(own.mean())
    assert (row["intensity_min_DAPI"], row["intensity_max_DAPI"]) == (own.min(), own.max())
    assert row["intensity_sd_DAPI"] == pytest.approx(own.std())
    assert row["intensity_sum_DAPI"] == pytest.approx(own.sum())
    assert row["intensity_mean_GFP"] == 7


def test_the_mean_colour_is_given_in_rgb_and_hsv() -> None:
    photo = np.zeros((500, 500, 3), np.uint8)
    photo[...] = (255, 128, 0)
    (row,) = object_rows(scene_of(disc(30), photo=photo), ("intensity",))
    assert (row["red"], row["green"], row["blue"]) == (255, 128, 0)
    assert row["hue"] == pytest.approx(30.1, abs=0.1)
    assert (row["saturation"], row["value"]) == (100, 100)


def test_an_even_object_has_no_texture_and_stripes_have_one() -> None:
    photo = np.full((500, 500, 3), 90, np.uint8)
    (even,) = object_rows(scene_of(disc(30), photo=photo), ("texture",))
    assert (even["entropy"], even["contrast"], even["homogeneity"]) == (0, 0, 1)
    photo[::2] = 0
    (stripes,) = object_rows(scene_of(disc(30), photo=photo), ("texture",))
    assert stripes["entropy"] == pytest.approx(1, abs=0.01)
    assert float(stripes["contrast"] or 0) > 1


def test_objects_at_the_border_are_marked_and_counted() -> None:
    mask = np.zeros((50, 50), bool)
    mask[:5, 10:15], mask[20:25, 20:25] = True, True
    scene = scene_of(mask)
    rows = object_rows(scene, ())
    assert [row["touches_border"] for row in rows] == [True, False]
    (photo,) = photo_rows(scene, rows)
    assert (photo["count"], photo["count_at_border"], photo["area"], photo["share"]) == (2, 1, 50, 2)


def test_a_class_that_is_not_there_is_a_row_of_zeros() -> None:
    scene = scene_of(disc(10), np.zeros((500, 500), bool))
    rows = photo_rows(scene, object_rows(scene))
    assert [(row["class"], row["count"], row["area"], row["share"]) for row in rows][1] == ("b", 0, 0, 0)


def test_touching_objects_are_taken_apart_if_asked_to() -> None:
    y, x = np.mgrid[:60, :60]
    mask = (np.hypot(y - 30, x - 20) < 11) | (np.hypot(y - 30, x - 40) < 11)
    assert split_touching(mask).max() == 2
    assert len(object_rows(scene_of(mask))) == 1


def test_every_column_has_a_meaning() -> None:
    rows = object_rows(scene_of(disc(20)), read_groups("all"))
    assert len(rows[0]) > 40
    for name in rows[0]:
        assert column_of(name).meaning
    known = {name for columns in (ALWAYS, *MEASURED.values()) for name in columns if not name.endswith("*")}
    assert known - {"z", "t", "track"} <= set(rows[0])


def test_a_group_that_does_not_exist_is_named() -> None:
    with raises_code("unknown-choice", "'colour'", "size, shape"):
        read_groups("size,colour")
