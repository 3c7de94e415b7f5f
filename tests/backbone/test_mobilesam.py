import os
from pathlib import Path

import pytest
import torch

from emat.backbone.base import Stack
from emat.backbone.mobilesam import MobileSAMEncoder
from emat.backbone.registry import build_backbone, find_backbone
from emat.backbone.tiny_vit import TinyViT
from emat.weights import MOBILESAM
from tests.raises import raises_code

WEIGHTS = Path(os.environ.get("EMAT_MOBILESAM") or MOBILESAM.path)  # read before a test moves EMAT_HOME


@pytest.fixture
def mobilesam_here(home: Path) -> Path:
    """MobileSAM's weights in the home folder of the test."""
    if not WEIGHTS.is_file():
        pytest.skip("MobileSAM's weights are not here; name the file in EMAT_MOBILESAM")
    MOBILESAM.path.parent.mkdir(parents=True)
    MOBILESAM.path.symlink_to(WEIGHTS.resolve())
    return MOBILESAM.path


@pytest.fixture
def encoder() -> MobileSAMEncoder:
    torch.manual_seed(0)
    return MobileSAMEncoder()


def test_its_entry_is_true_of_its_network(encoder: MobileSAMEncoder) -> None:
    spec = find_backbone("mobilesam")
    assert (encoder.channels, encoder.width) == (spec.channels, spec.width) == (17, 64)
    assert encoder.grid(spec.image_size, spec.image_size) == spec.grid == (25, 25)


@pytest.mark.parametrize("size", [(64, 64), (70, 33), (1, 200)])
def test_photos_of_any_size_have_tokens(encoder: MobileSAMEncoder, size: tuple[int, int]) -> None:
    rows, columns = encoder.grid(*size)
    assert encoder(torch.randn(1, 3, *size)).shape == (1, 17, 1 + rows * columns, 64)


def test_channels_are_stages_two_to_four_and_the_neck(encoder: MobileSAMEncoder) -> None:
    pixels = torch.randn(1, 3, 64, 48)
    tokens = encoder(pixels)[0, :, 1:]  # (17, T, 64)
    with torch.no_grad():
        _, second, third, fourth, neck = (one[0].flatten(1).T for one in encoder.encoder.maps(pixels))  # (T, features)
    torch.testing.assert_close(tokens[0, :, :54], second[:, :54])  # 160 features in three groups: 54, 53, 53
    assert not tokens[0, :, 54:].any()
    torch.testing.assert_close(tokens[3:8].transpose(0, 1).flatten(1), third)
    torch.testing.assert_close(tokens[8:13].transpose(0, 1).flatten(1), fourth)
    torch.testing.assert_close(tokens[13:].transpose(0, 1).flatten(1), neck)


def test_the_maps_of_one_pass_end_with_what_the_network_gives() -> None:
    network, pixels = TinyViT().eval(), torch.randn(2, 3, 64, 64)
    maps = network.maps(pixels)
    assert [tuple(one.shape[1:]) for one in maps] == [(128, 8, 8), (160, 4, 4), (320, 4, 4), (320, 4, 4), (256, 4, 4)]
    torch.testing.assert_close(maps[-1], network(pixels))


def test_a_stack_makes_its_tokens_of_what_its_parts_keep(encoder: MobileSAMEncoder) -> None:
    torch.manual_seed(0)
    stack = find_backbone("efficientnet-lite2+mobilesam").build()
    assert isinstance(stack, Stack)
    assert (stack.channels, stack.width, stack.kept_maps) == (59, 64, 3)
    pixels = torch.randn(1, 3, 128, 128)
    maps = stack.maps(pixels)
    assert len(maps) == 3
    torch.testing.assert_close(stack.tokens_from(maps, (128, 128)), stack(pixels))
    twice = stack.mirror(stack.mirror(maps, (128, 128)), (128, 128))
    torch.testing.assert_close(twice, maps)
    assert not torch.equal(stack.mirror(maps, (128, 128))[2], maps[2])


def test_its_weights_are_the_file_that_refines_masks(mobilesam_here: Path) -> None:
    backbone = build_backbone("mobilesam")
    with torch.no_grad():
        tokens = backbone(torch.randn(1, 3, 64, 64))
    assert bool(tokens.isfinite().all())
    assert not any(parameter.requires_grad for parameter in backbone.parameters())


def test_a_damaged_file_is_refused(home: Path) -> None:
    MOBILESAM.path.parent.mkdir(parents=True)
    MOBILESAM.path.write_bytes(b"something else")
    with raises_code("wrong-checksum", "mobilesam"):
        build_backbone("mobilesam")


def test_without_weights_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAT_OFFLINE", "1")
    with raises_code("weights-missing", "what was fitted with it needs it"):
        build_backbone("efficientnet-lite2+mobilesam")
