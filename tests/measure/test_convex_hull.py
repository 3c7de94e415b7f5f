"""Hulls are those of the outline, wherever an object lies; `test_properties` compares them with scikit-image's."""

import numpy as np
import pytest

from emat.measure.convex_hull import hull_of
from tests.measure.shapes import Mask, disc, ring


def test_a_hull_does_not_depend_on_the_inside() -> None:
    assert hull_of(ring(30, 60)) == hull_of(disc(60))


@pytest.mark.parametrize("mask", [disc(10), disc(40), np.pad(np.ones((20, 20), bool), 30)])
def test_the_hull_does_not_depend_on_where_an_object_lies(mask: Mask) -> None:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    cut = hull_of(mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1])
    whole = hull_of(mask)
    assert (whole.area, whole.longest, whole.shortest) == pytest.approx((cut.area, cut.longest, cut.shortest))
