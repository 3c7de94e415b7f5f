"""Paint comes as a PNG of numbers and becomes masks."""

import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.studio.paint import Painted, packed, paint_of, png_of, read_paint
from emat.studio.photos import StudioPhoto
from tests.studio.conftest import RED, left_half, png

NUMBERS = {f"class {number}": number for number in range(1, 13)}
PHOTO = StudioPhoto("a.png", (9, 11), (9, 11), Path("a.png"))


@given(arrays.arrays(np.uint8, (9, 11), elements=st.sampled_from([*range(13), 254, 255])))
def test_paint_comes_back_as_it_went(paint: NDArray[np.uint8]) -> None:
    np.testing.assert_array_equal(read_paint(png_of(paint), PHOTO), paint)
    assert zlib.decompress(packed(paint)) == paint.tobytes()
    painted = Painted.of(paint, NUMBERS)
    again = paint_of(painted.masks, NUMBERS, (9, 11))
    again[painted.background], again[painted.undecided] = 254, 255
    np.testing.assert_array_equal(again, paint)


@pytest.mark.parametrize("data", [b"", b"no", png_of(left_half())[:60], png_of(left_half()), png(RED, size=(9, 11))])
def test_what_is_not_the_paint_of_this_photo_is_refused(data: bytes) -> None:
    with pytest.raises(EmatError, match=r"a\.png"):
        read_paint(data, PHOTO)
