"""Which support cells a mask keeps, averages by position inside a cell, and the order of cells for the second layer."""

import pytest
import torch
import torch.nn.functional as F

from emat.model.encoding import Window, kept_cells, position_order


@pytest.mark.parametrize(("stride", "pool"), [(2, 1), (2, 2), (2, 3), (1, 3), (1, 12)])
def test_gather_then_product_equals_convolution_then_pooling(stride: int, pool: int) -> None:
    window, side = Window(stride, pool), 12
    image = torch.randn(3, side * side, 5)  # (C, side², d); d stands for any axis that is not mixed
    weight = torch.randn(4, 3, stride, stride)
    cells = window.gather(image, side)  # (P, C, cells, d)
    assert cells.shape == (window.positions, 3, (side // window.side) ** 2, 5)
    product = torch.einsum("opc,pcnd->ond", weight.permute(0, 2, 3, 1).flatten(1, 2), cells)
    maps = image.permute(2, 0, 1).reshape(5, 3, side, side)
    expected = F.avg_pool2d(F.conv2d(maps, weight, stride=stride), pool).flatten(2).permute(1, 2, 0)
    torch.testing.assert_close(product, expected)


def test_position_order_is_a_permutation_with_contiguous_positions() -> None:
    order = position_order(10, Window(2, 5))
    assert sorted(order.tolist()) == list(range(100))
    rows, columns = order.view(4, 25) // 10, order.view(4, 25) % 10
    for position in range(4):
        assert (rows[position] % 2 == position // 2).all()
        assert (columns[position] % 2 == position % 2).all()


def test_a_plain_projection_keeps_row_major_order() -> None:
    assert position_order(3, Window(1, 3)).tolist() == list(range(9))


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
