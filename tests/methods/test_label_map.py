"""The rule that decides the class of every pixel."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emat.methods.label_map import likeliest, make_label_map


@given(ways=st.integers(1, 5), seed=st.integers(0, 1000), threshold=st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_a_pixel_goes_to_the_first_of_the_likeliest_ways_if_that_reaches_the_threshold(
    ways: int, seed: int, threshold: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    tenths = torch.randint(0, 11, (ways, 4, 6), generator=generator) / 10  # so few values that many are equal
    found = likeliest(tenths, threshold)
    assert found.labels.dtype == torch.uint8
    for row in range(4):
        for column in range(6):
            values = tenths[:, row, column].tolist()
            expected = values.index(max(values)) + 1 if max(values) >= torch.tensor(threshold).item() else 0
            assert found.labels[row, column] == expected
            assert not expected or found.values[row, column].item() == max(values)


@given(ways=st.integers(1, 4), seed=st.integers(0, 1000))
def test_a_background_map_must_be_exceeded(ways: int, seed: int) -> None:
    scores = np.random.default_rng(seed).integers(0, 4, (1 + ways, 3, 5)).astype(np.float32)
    assert np.array_equal(make_label_map(scores[1:], scores[0]), scores.argmax(axis=0))


@given(seed=st.integers(0, 1000))
def test_a_class_below_its_own_threshold_leaves_the_pixel_to_the_others(seed: int) -> None:
    random = np.random.default_rng(seed)
    maps, own = random.integers(0, 11, (3, 4, 4)).astype(np.float32) / 10, random.integers(0, 11, 3) / 10
    passing = np.where(maps >= own.astype(np.float32)[:, None, None], maps, -1)
    expected = np.where(passing.max(axis=0) >= 0, np.array([7, 3, 5])[passing.argmax(axis=0)], 0)
    assert np.array_equal(make_label_map(maps, own.tolist(), labels=[7, 3, 5]), expected)


def test_maps_are_read_one_after_the_other() -> None:
    assert make_label_map((np.full((1, 2), value, np.float32) for value in (0.2, 0.9, 0.6)), 0.5).tolist() == [[2, 2]]


def test_no_class_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one class"):
        make_label_map([], 0.5)
