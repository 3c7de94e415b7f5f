import pytest
import torch
import torch.nn.functional as F
from torch import nn

from emat.refine.mask_decoder import Attention, CellsToTokens, MaskDecoder, TokensToCells


def scattered(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(
    ("kind", "queries", "keys"), [(TokensToCells, 7, 300), (CellsToTokens, 300, 7)], ids=["tokens", "cells"]
)
def test_cells_that_are_not_projected_give_the_same(kind: type[Attention], queries: int, keys: int) -> None:
    plain, quick = Attention(128), kind(128)
    quick.load_state_dict(plain.state_dict())
    query, key, value = scattered((2, queries, 256)), scattered((2, keys, 256)), scattered((2, keys, 256)) + 1
    torch.testing.assert_close(quick(query, key, value), plain(query, key, value), atol=1e-5, rtol=1e-4)


def test_masks_are_drawn_by_two_transposed_convolutions() -> None:
    decoder = MaskDecoder()
    cells, kernels = scattered((2, 4096, 256)), scattered((2, 4, 32))
    first, norm, _, second, _ = decoder.output_upscaling
    plain_first, plain_second = nn.ConvTranspose2d(256, 64, 2, stride=2), nn.ConvTranspose2d(64, 32, 2, stride=2)
    plain_first.load_state_dict(first.state_dict())
    plain_second.load_state_dict(second.state_dict())
    x = plain_first(cells.transpose(1, 2).view(2, 256, 64, 64))
    x = plain_second(F.gelu(norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)))
    expected = torch.einsum("bmc,bchw->bmhw", kernels, F.gelu(x))
    torch.testing.assert_close(decoder._draw(cells, kernels), expected, atol=1e-5, rtol=1e-4)


def test_there_are_four_masks_and_four_expectations() -> None:
    logits, iou = MaskDecoder()(scattered((1, 256, 64, 64)), scattered((4096, 256)), scattered((1, 3, 256)))
    assert logits.shape == (1, 4, 256, 256)
    assert iou.shape == (1, 4)
