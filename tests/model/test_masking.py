"""Which support cells a mask keeps."""

import torch

from emat.model.masking import kept_cells


def test_a_full_mask_keeps_every_cell_and_an_empty_one_none() -> None:
    assert kept_cells(torch.ones(70, 50), 20).tolist() == list(range(400))
    assert len(kept_cells(torch.zeros(70, 50), 20)) == 0


def test_an_object_between_sampling_points_vanishes() -> None:
    mask = torch.zeros(700, 700)
    mask[10:12, 10:12] = 1
    assert len(kept_cells(mask, 20)) == 0


def test_any_touched_pixel_next_to_a_sampling_point_counts() -> None:
    mask = torch.zeros(20, 20)
    mask[19, 19] = 1
    assert kept_cells(mask, 20).tolist() == [399]
    assert kept_cells(mask, 10).tolist() == [99]
