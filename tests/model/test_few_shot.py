"""How a correlation method joins shots and ways to one answer."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from emat.model.few_shot import _likeliest


@given(ways=st.integers(1, 5), seed=st.integers(0, 1000), threshold=st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_a_pixel_goes_to_the_first_of_the_likeliest_ways_if_that_is_likely_enough(
    ways: int, seed: int, threshold: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    tenths = torch.randint(0, 11, (ways, 4, 6), generator=generator) / 10  # so few values that many are equal
    label_map = _likeliest(tenths, threshold)
    assert label_map.dtype == torch.uint8
    for row in range(4):
        for column in range(6):
            values = tenths[:, row, column].tolist()
            expected = values.index(max(values)) + 1 if max(values) >= torch.tensor(threshold).item() else 0
            assert label_map[row, column] == expected
