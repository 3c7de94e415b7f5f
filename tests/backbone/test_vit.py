import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from emat.backbone import ViT, vit
from emat.backbone.tokens import tokens_from_blocks
from emat.backbone.vit import rotation_of
from emat.backbone.weights import to_public
from emat.tensor_files import read_tensors
from tests.raises import raises_code

TOLERANCE = 1e-4  # of the golden data, in float32


def tiny() -> ViT:
    return ViT(width=96, depth=3, heads=6, patch=14, pos_grid=37)


def by_the_rule(name: str, shape: tuple[int, ...]) -> Tensor:
    """Weights as tests/parity/small.json defines them."""
    values = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if name == "pos_embed":
        values = 0.3 * values
    elif len(shape) > 1:
        values = values / np.sqrt(np.prod(shape[1:]))
    else:
        values = 0.5 + 0.3 * values
    return torch.from_numpy(values.astype(np.float32))


def filled(vit: ViT) -> ViT:
    vit.load_public({name: by_the_rule(name, shape) for name, shape in vit.shapes().items()})
    return vit


def test_it_reproduces_the_golden_tokens_of_dinov2(shared: Path) -> None:
    golden = read_tensors(shared / "parity" / "dinov2_tiny_seed5.safetensors")
    vit = tiny()
    prefix = "backbone."
    vit.load_public({name.removeprefix(prefix): t for name, t in golden.items() if name.startswith(prefix)})
    expected = tokens_from_blocks(golden["out.tokens"], heads=6)
    torch.testing.assert_close(vit(golden["in.image"]), expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_it_reproduces_the_golden_tokens_given_by_rule() -> None:
    case = json.loads((Path(__file__).parents[1] / "parity" / "small.json").read_text())["vit"]
    image = torch.from_numpy(np.random.RandomState(3).standard_normal((1, 3, 140, 140)).astype(np.float32))
    tokens = filled(tiny())(image)  # (1, 18, 101, 16)
    blocks = tokens.view(1, 6, 3, 101, 16).permute(0, 2, 3, 1, 4).reshape(case["tokens_shape"])
    expected = torch.tensor(case["every_37th"])
    torch.testing.assert_close(blocks.flatten()[::37], expected, rtol=TOLERANCE, atol=TOLERANCE)


def dinov3() -> ViT:
    return ViT(width=24, depth=3, heads=2, patch=16, pos_grid=None, registers=4)


def test_it_reproduces_the_golden_tokens_of_dinov3() -> None:
    """Made with transformers by tests/parity/dinov3.py, from weights that follow a rule."""
    case = json.loads((Path(__file__).parents[1] / "parity" / "dinov3.json").read_text())
    vit = dinov3()
    vit.load_public(to_public({name: by_the_rule(name, tuple(shape)) for name, shape in case["shapes"].items()}))
    image = torch.from_numpy(np.random.RandomState(3).standard_normal((2, 3, 48, 80)).astype(np.float32))
    tokens = vit(image)  # (2, 6, 16, 12)
    blocks = tokens.view(2, 2, 3, 16, 12).permute(0, 2, 3, 1, 4).reshape(case["tokens_shape"])
    expected = torch.tensor(case["every_7th"])
    torch.testing.assert_close(blocks.flatten()[::7], expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_the_golden_tokens_of_dinov3_are_what_transformers_gives_today() -> None:
    pytest.importorskip("transformers", reason="compares with the DINOv3 of transformers, which is not installed")
    from tests.parity.dinov3 import golden

    case = json.loads((Path(__file__).parents[1] / "parity" / "dinov3.json").read_text())
    torch.testing.assert_close(torch.tensor(golden()["every_7th"]), torch.tensor(case["every_7th"]), rtol=0, atol=1e-4)


def test_rotary_positions_tell_patches_apart_but_not_photos_of_other_sizes() -> None:
    vit = filled(dinov3())
    grey = torch.ones(1, 3, 32, 48)
    tokens = vit(grey)
    assert not torch.allclose(tokens[:, :, 1], tokens[:, :, 2], atol=1e-3), "equal patches at two places"
    cosines, _ = rotation_of((2, 3), 12, torch.device("cpu"))
    middle = rotation_of((2, 9), 12, torch.device("cpu"))[0].view(2, 9, 12)[:, 1::3].reshape(6, 12)
    torch.testing.assert_close(cosines, middle)


def test_at_its_own_grid_the_position_embeddings_are_used_as_they_are() -> None:
    vit = filled(ViT(width=24, depth=1, heads=2, patch=2, pos_grid=5))
    assert vit.pos_embed is not None
    assert torch.equal(vit._positions((5, 5), vit.pos_embed), vit.pos_embed)
    assert vit._positions((5, 4), vit.pos_embed).shape == (1, 21, 24)


def test_a_batch_equals_its_images_one_by_one_at_a_size_that_is_not_square() -> None:
    vit, pixels = filled(tiny()), torch.randn(3, 3, 28, 70)
    tokens = vit(pixels)
    assert vit.grid(28, 70) == (2, 5)
    assert tokens.shape == (3, vit.channels, 1 + 2 * 5, vit.width)
    torch.testing.assert_close(tokens, torch.cat([vit(one[None]) for one in pixels]), rtol=1e-5, atol=1e-5)


def test_registers_take_part_but_are_not_in_the_output() -> None:
    vit = filled(ViT(width=24, depth=2, heads=2, patch=14, pos_grid=5, registers=4))
    pixels = torch.randn(1, 3, 42, 28)
    before = vit(pixels)
    assert before.shape == (1, 4, 1 + 6, 12)
    assert vit.register_tokens is not None
    vit.register_tokens.neg_()
    assert not torch.allclose(vit(pixels), before)


def test_a_vit_without_layer_scale_has_no_such_tensors() -> None:
    assert not any("ls1" in name for name in ViT(24, 1, 2, patch=8, pos_grid=4, layer_scale=False).shapes())


def test_it_stays_frozen_whatever_the_network_around_it_does() -> None:
    vit = tiny()
    torch.nn.Sequential(vit).train()
    assert not any(module.training for module in vit.modules())
    assert not any(parameter.requires_grad for parameter in vit.parameters())
    pixels = torch.randn(1, 3, 14, 14, requires_grad=True)
    assert not vit(pixels).requires_grad


@pytest.mark.parametrize(
    ("pixels", "code"),
    [
        (torch.zeros(1, 3, 30, 28), "photo-size"),
        (torch.zeros(1, 4, 28, 28), "tensor-shape"),
        (torch.zeros(3, 28, 28), "tensor-shape"),
        (torch.full((1, 3, 28, 28), torch.nan), "not-finite"),
        (torch.zeros(1, 3, 28, 28, dtype=torch.uint8), "tensor-type"),
        (torch.zeros(1, 3, 0, 28), "photo-size"),
    ],
)
def test_pixels_it_cannot_encode_are_one_clear_error(pixels: Tensor, code: str) -> None:
    with raises_code(code):
        tiny()(pixels)


def test_weights_that_do_not_fit_are_named() -> None:
    vit = ViT(width=24, depth=1, heads=2, patch=14, pos_grid=5)
    tensors = {name: torch.zeros(shape) for name, shape in vit.shapes().items()}
    tensors["surprise"] = tensors.pop("cls_token")
    tensors["pos_embed"] = torch.zeros(1, 17, 24)
    with raises_code("weights-do-not-fit"):
        vit.load_public(tensors)


@pytest.mark.parametrize("count", [20, 626])
def test_attention_is_the_same_whether_queries_are_padded_or_not(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = torch.randn(3, 2, 3, count, 8)
    expected = (query @ key.transpose(2, 3) / 8**0.5).softmax(dim=3) @ value
    for fast in (False, True):
        monkeypatch.setattr(vit, "FAST_PRODUCTS", fast)
        attended = vit.attend(query, key, value)
        assert attended.shape == expected.shape
        assert torch.allclose(attended, expected, atol=1e-5)
