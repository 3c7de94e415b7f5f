"""Run lengths, plain and packed, against pycocotools."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocotools import mask as coco

from emat.formats.regions import trace_regions
from emat.formats.run_lengths import (
    counts_of_mask,
    counts_of_regions,
    mask_of_counts,
    mask_of_region,
    pack,
    unpack,
)
from tests.formats.label_maps import MASKS


@given(MASKS)
def test_packed_runs_are_those_of_pycocotools(mask: np.ndarray) -> None:
    expected = coco.encode(np.asfortranarray(mask, np.uint8))
    counts = counts_of_mask(mask)
    assert pack(counts).encode() == expected["counts"]
    assert np.array_equal(unpack(expected["counts"]), counts)
    assert np.array_equal(mask_of_counts(counts, mask.shape), mask)


@given(MASKS)
def test_a_regions_runs_come_from_its_outline(mask: np.ndarray) -> None:
    for region in trace_regions(mask):
        drawn = mask_of_counts(counts_of_regions([region], mask.shape), mask.shape)
        assert np.array_equal(counts_of_regions([region], mask.shape), counts_of_mask(drawn))
        left, top, width, height = region.box
        assert np.array_equal(mask_of_region(region), drawn[top : top + height, left : left + width])


@given(st.lists(st.integers(0, 2**40), min_size=1))
def test_runs_of_any_length_are_packed_and_unpacked(counts: list[int]) -> None:
    assert unpack(pack(counts)).tolist() == counts
    assert unpack(pack(counts).encode()).tolist() == counts


def test_large_runs_are_packed_as_pycocotools_packs_them() -> None:
    mask = np.zeros((3000, 4000), bool)
    mask[1000:2000, 7:3990] = True
    assert pack(counts_of_mask(mask)).encode() == coco.encode(np.asfortranarray(mask, np.uint8))["counts"]


@pytest.mark.parametrize(
    "counts",
    [[3], [-1, 5], [[4]], [5], [1.5, 2.5], ["4"], [True, 3], [float("nan")], [float("inf")], [None], [2**62] * 4 + [4]],
)
def test_runs_that_do_not_fill_the_photo_are_refused(counts: list[int]) -> None:
    with pytest.raises(ValueError, match="whole numbers that fill"):
        mask_of_counts(counts, (2, 2))


@pytest.mark.parametrize("runs", [[2**58] * 64 + [4], [2**59, -(2**59)] * 40 + [4]])
def test_packed_runs_whose_sum_wraps_around_are_refused(runs: list[int]) -> None:
    wrapped = pack(np.array(runs, np.int64))
    with pytest.raises(ValueError, match=r"too large|whole numbers that fill"):
        mask_of_counts(unpack(wrapped), (2, 2))


@pytest.mark.parametrize("text", ["/", "P", "61X1P", "~", "é", "PPPPPPPPPPPPPPPPPPPP0"])
def test_other_strings_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="packed run lengths"):
        unpack(text)
