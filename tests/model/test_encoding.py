"""Which support cells a mask keeps, averages by position inside a cell, and the order of cells for the second layer."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from emat.model.encoding import Window, kept_cells, position_order, support_mask
from tests.raises import raises_code

MASKS = json.loads((Path(__file__).parents[1] / "parity" / "support_masks.json").read_text())["cases"]


def mask_by_rule(case: dict[str, Any]) -> torch.Tensor:
    """The mask (H, W) of a case of tests/parity/support_masks.json, whose `rule` this is."""
    height, width, k = case["height"], case["width"], case["k"]
    y, x = np.mgrid[:height, :width]
    kinds = {
        "disc": (y - 0.37 * height) ** 2 + (x - 0.61 * width) ** 2 <= (0.07 * k * min(height, width)) ** 2,
        "bar": abs(x - 0.3 * width - 0.21 * y) <= k,
        "checks": ((x // (7 + k) + y // (5 + k)) % 5 == 0) & (y > 0.2 * height) & (x > 0.1 * width),
    }
    return torch.from_numpy(kinds[case["kind"]])


@pytest.mark.parametrize("case", MASKS, ids=lambda case: "-".join(str(v) for v in list(case.values())[:4]))
def test_a_mask_keeps_the_cells_of_the_published_code(case: dict[str, Any]) -> None:
    mask = mask_by_rule(case)
    for sides, (count, digest) in case["kept"].items():
        side, grid = map(int, sides.split("/"))
        kept = torch.zeros(grid * grid, dtype=torch.bool)
        kept[kept_cells(support_mask(mask, side), grid)] = True
        assert int(kept.sum()) == count
        assert hashlib.sha256(np.packbits(kept.numpy()).tobytes()).hexdigest()[:16] == digest


def test_undecided_pixels_of_a_mask_stay_undecided() -> None:
    mask = torch.tensor([[1.0, -1.0], [0.0, -1.0]])
    assert support_mask(mask, 4).tolist() == mask.repeat_interleave(2, 0).repeat_interleave(2, 1).tolist()


def test_a_mask_without_pixels_is_refused() -> None:
    with raises_code("mask-shape"):
        support_mask(torch.zeros(0, 3), 4)


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
