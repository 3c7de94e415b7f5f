"""Paint becomes masks and masks become paint."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from PIL import Image

from emat.formats.overlay import colour_of
from emat.studio.painting import masks_of, paint_of
from emat.studio.session import MOST_CLASSES
from tests.studio.conftest import left_half, paint

COLOURS = {f"class {number}": colour_of(number) for number in range(1, MOST_CLASSES + 1)}


@given(arrays.arrays(np.uint8, (9, 11), elements=st.integers(0, MOST_CLASSES)))
def test_masks_come_back_from_their_paint(label_map: NDArray[np.uint8]) -> None:
    masks = {f"class {number}": label_map == number for number in np.unique(label_map) if number}
    painted = masks_of([np.array(paint_of(masks, COLOURS, (9, 11)))], COLOURS, (9, 11))
    assert painted.keys() == masks.keys()
    for name, mask in masks.items():
        np.testing.assert_array_equal(painted[name], mask)


def test_colours_that_are_slightly_off_are_the_nearest_class_and_faint_edges_are_none() -> None:
    red, green, blue = colour_of(1)
    layer = np.array([[[red - 3, green + 2, blue + 4, 140], [red, green, blue, 40]]], np.uint8)
    assert masks_of([layer], COLOURS, (1, 2))["class 1"].tolist() == [[True, False]]


def test_the_upper_layer_wins() -> None:
    everywhere = np.ones((40, 60), bool)
    masks = masks_of([paint(colour_of(1), everywhere), paint(colour_of(2), left_half())], COLOURS, (40, 60))
    np.testing.assert_array_equal(masks["class 2"], left_half())
    np.testing.assert_array_equal(masks["class 1"], ~left_half())


def test_a_layer_of_another_size_is_brought_to_the_photo_s() -> None:
    large = np.array(Image.fromarray(paint(colour_of(1), left_half())).resize((120, 80), Image.Resampling.NEAREST))
    np.testing.assert_array_equal(masks_of([large], COLOURS, (40, 60))["class 1"], left_half())


def test_nothing_painted_is_no_mask() -> None:
    assert masks_of([], COLOURS, (4, 4)) == {}
    assert masks_of([np.zeros((4, 4, 4), np.uint8)], COLOURS, (4, 4)) == {}
