from typing import TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from emat.backbone.tiny_vit import STRIP, MBConv, Merging, TinyViT, WindowAttention, WindowBlock, folded

Module = TypeVar("Module", bound=nn.Module)


def randomised(module: Module) -> Module:
    torch.manual_seed(1)
    for value in [*module.parameters(), *module.buffers()]:
        if value.is_floating_point():
            value.data.normal_(0, 0.3)
    module.eval().requires_grad_(False)
    return module


def test_strips_of_rows_give_what_the_whole_map_gives() -> None:
    block = randomised(MBConv(8))
    x = torch.randn(2, 8, 2 * STRIP + 5, 7)
    inner = F.gelu(block.conv2(F.gelu(block.conv1(x))))
    torch.testing.assert_close(block(x), F.gelu(block.conv3(inner) + x))


def test_a_folded_batch_norm_is_the_convolution_and_the_norm() -> None:
    convolution, norm = nn.Conv2d(3, 4, 3, bias=False), randomised(nn.BatchNorm2d(4))
    assert norm.running_var is not None
    norm.running_var.abs_()
    public = {f"a.c.{name}": value for name, value in convolution.state_dict().items()}
    public |= {f"a.bn.{name}": value for name, value in norm.state_dict().items()}
    own = folded(public)
    x = torch.randn(1, 3, 8, 8)
    assert set(own) == {"a.weight", "a.bias"}
    torch.testing.assert_close(F.conv2d(x, own["a.weight"], own["a.bias"]), norm(convolution(x)))


def test_the_classifier_is_left_out() -> None:
    assert set(
        folded({"head.weight": torch.zeros(1), "norm_head.bias": torch.zeros(1), "neck.1.bias": torch.ones(1)})
    ) == {"neck.1.bias"}


def test_biases_go_by_vertical_then_horizontal_distance() -> None:
    biases = torch.arange(9.0).view(1, 9)  # window of 3: |dy| * 3 + |dx|
    bias = folded({"attn.attention_biases": biases})["attn.bias"]
    assert bias.shape == (1, 1, 9, 9)
    assert bias[0, 0, 0].tolist() == list(range(9))
    assert bias[0, 0, 8].tolist() == list(range(8, -1, -1))
    assert bias[0, 0, 1, 6] == 2 * 3 + 1


def test_attention_adds_the_bias_to_scaled_logits() -> None:
    attention = randomised(WindowAttention(8, heads=2, window=2))
    x = torch.randn(3, 4, 8)
    qkv = attention.qkv(attention.norm(x)).view(3, 4, 2, 12)  # for each head query, key and value, 4 of each
    query, key, value = qkv.split(4, dim=3)
    logits = torch.einsum("wqhc,wkhc->whqk", query, key) / 2 + attention.bias
    attended = torch.einsum("whqk,wkhc->wqhc", logits.softmax(dim=3), value)
    torch.testing.assert_close(attention(x), attention.proj(attended.reshape(3, 4, 8)))


def test_zeros_fill_the_last_windows_before_the_norm() -> None:
    block = randomised(WindowBlock(8, heads=2, window=3))
    x = torch.randn(1, 8, 5, 4)
    roomy = F.pad(x, (0, 2, 0, 1)).permute(0, 2, 3, 1)  # (1, 6, 6, 8)
    attended = torch.zeros_like(roomy)
    for top in (0, 3):
        for left in (0, 3):
            window = roomy[:, top : top + 3, left : left + 3]
            attended[:, top : top + 3, left : left + 3] = block.attn(window.reshape(1, 9, 8)).view(1, 3, 3, 8)
    after = x + attended[:, :5, :4].permute(0, 3, 1, 2)
    after = block.local_conv(after).permute(0, 2, 3, 1)
    torch.testing.assert_close(block(x), (after + block.mlp(after)).permute(0, 3, 1, 2))


@pytest.mark.parametrize(("stride", "side"), [(1, 6), (2, 3)])
def test_merging_changes_the_width_and_perhaps_the_side(stride: int, side: int) -> None:
    assert Merging(4, 8, stride)(torch.zeros(1, 4, 6, 6)).shape == (1, 8, side, side)


def test_it_has_as_many_values_as_tinyvit_5m_and_sams_neck() -> None:
    assert sum(value.numel() for value in TinyViT().parameters()) == pytest.approx(5.73e6, rel=0.01)
