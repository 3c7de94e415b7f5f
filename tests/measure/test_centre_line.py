"""Lines of known length and width are measured within a percent, from a pixel wide, at any angle."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial import cKDTree

from emat.measure.centre_line import measure_line
from tests.measure.shapes import Mask, bar, ring, row_of

ONE_PERCENT = 0.01


def close(value: float, part: float = ONE_PERCENT) -> object:
    return pytest.approx(value, rel=part)


@pytest.mark.parametrize("degrees", [0, 5, 13, 22.5, 45, 70, 90, 135, 175])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 6, 8, 15, 20, 41])
def test_a_line_has_its_length_and_width_at_any_angle(width: int, degrees: float) -> None:
    mask = bar(300, width, degrees)
    row = row_of(mask, "skeleton")
    drawn = mask.sum() / 300  # the width that is left of it on a grid of pixels
    assert row["skeleton_length"] == close(300)
    assert row["width_mean"] == close(drawn)
    assert drawn - 0.1 <= float(row["width_max"] or 0) <= drawn + 0.7
    assert row["branch_points"] == 0


def test_a_width_does_not_depend_on_where_the_centre_line_lies() -> None:
    mask = bar(300, 15, -5)  # its skeleton is a pixel beside the middle for a third of its length
    assert row_of(mask, "skeleton")["width_mean"] == close(mask.sum() / 300)


def test_the_centre_line_of_a_ring_is_a_circle() -> None:
    row = row_of(ring(95, 105), "skeleton")
    assert row["skeleton_length"] == close(2 * math.pi * 100)
    assert row["width_mean"] == close(10)


def test_a_wedge_is_widest_at_its_wide_end() -> None:
    y, x = np.mgrid[:200, :500]
    wedge = (np.abs(y - 100) <= 2 + (x - 50) / 20) & (x >= 50) & (x < 450)
    row = row_of(wedge, "skeleton")
    assert row["width_max"] == pytest.approx(2 * (2 + 400 / 20), rel=0.1)
    assert row["width_mean"] == pytest.approx(2 * (2 + 200 / 20), rel=0.1)


@pytest.mark.parametrize(("arms", "branches"), [((0,), 0), ((0, 90), 1), ((20, 110), 1)])
def test_branch_points_are_counted_once(arms: tuple[float, ...], branches: int) -> None:
    mask = np.any([bar(300, 8, degrees) for degrees in arms], axis=0)
    row = row_of(mask, "skeleton")
    assert row["branch_points"] == branches
    assert row["skeleton_length"] == close(300 * len(arms))


@pytest.mark.parametrize(
    ("length", "width", "degrees"), [(333, 27.5, -138.8), (336, 11.8, -142.4), (341, 10.7, -118.2)]
)
def test_an_end_at_a_corner_is_one_end(length: float, width: float, degrees: float) -> None:
    """The skeleton of these ends in a fork of single pixels, or in a corner."""
    row = row_of(bar(length, width, degrees), "skeleton")
    assert row["skeleton_length"] == close(length)
    assert row["branch_points"] == 0


def tube(path: NDArray[np.float64], width: float, size: int = 500) -> Mask:
    """Everything that is nearer to a path (n, 2) of y, x than half the width."""
    y, x = np.mgrid[:size, :size]
    near = cKDTree(path).query(np.stack([y.ravel(), x.ravel()], axis=1))[0]
    return np.asarray(near.reshape(size, size) <= width / 2)


@pytest.mark.parametrize("width", [3, 4, 6, 10, 16])
def test_a_winding_line_has_its_length_and_width(width: float) -> None:
    along = np.linspace(0, 1, 20_000)
    path = np.stack([250 + 40 * np.sin(along * 19.5), 50 + 400 * along], axis=1)
    length = np.linalg.norm(np.diff(path, axis=0), axis=1).sum() + width
    found = measure_line(tube(path, width))
    assert found.length == close(length)
    assert found.width_mean == close(width)
    assert found.branch_points == 0


def test_where_lines_cross_they_are_as_wide_as_elsewhere() -> None:
    mask = bar(300, 10, 20) | bar(300, 10, 110)
    assert row_of(mask, "skeleton")["width_mean"] == close(10)


def test_no_blob_is_wider_or_longer_than_its_box() -> None:
    random = np.random.default_rng(0)
    for _ in range(60):
        noise = ndimage.gaussian_filter(random.normal(size=random.integers(3, 30, 2)), random.uniform(0, 2))
        labels = ndimage.label(noise > 0, np.ones((3, 3)))[0]
        for number, window in enumerate(ndimage.find_objects(labels), start=1):
            found = measure_line(labels[window] == number)
            across = math.hypot(*labels[window].shape)
            assert found.length > 0
            assert 0 < found.width_max <= 1.2 * across


def test_an_object_of_two_pixels_apart_has_a_width() -> None:
    mask = np.zeros((5, 9), bool)
    mask[2, [1, 7]] = True
    found = measure_line(mask)
    assert (found.length, found.width_mean) == (2, 1)
