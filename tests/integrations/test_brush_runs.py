"""Label Studio's run lengths, against bytes that its own converter wrote."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emat.integrations.brush_runs import decode_brush, encode_brush

# mask2rle of label-studio-sdk 2.1.2 for a 4 x 5 mask whose pixels (1, 1) to (2, 3) are set
FROM_CONVERTER = [0, 0, 0, 80, 57, 27, 254, 23, 0, 183, 255, 56, 5, 191, 252, 46, 0]


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_a_mask_comes_back(height: int, width: int, seed: int) -> None:
    mask = np.random.default_rng(seed).random((height, width)) > 0.6
    assert np.array_equal(decode_brush(encode_brush(mask), (height, width)), mask)


def test_long_runs_and_values_one_by_one_come_back() -> None:
    mask = np.zeros((300, 400), bool)
    mask[100:280] = True
    assert np.array_equal(decode_brush(encode_brush(mask), mask.shape), mask)


def test_bytes_of_label_studios_own_converter_are_read_and_written() -> None:
    mask = np.zeros((4, 5), bool)
    mask[1:3, 1:4] = True
    assert np.array_equal(decode_brush(FROM_CONVERTER, (4, 5)), mask)
    assert decode_brush(encode_brush(mask), (4, 5)).tolist() == mask.tolist()


@pytest.mark.parametrize("change", ["shorter", "other size", "too large"])
def test_damaged_run_lengths_are_refused(change: str) -> None:
    runs = encode_brush(np.eye(8, dtype=bool))
    size = {"shorter": (8, 8), "other size": (8, 9), "too large": (2**20, 2**20)}[change]
    with pytest.raises(ValueError, match=r"early|not of an image|pixels"):
        decode_brush(runs[:-4] if change == "shorter" else runs, size)
