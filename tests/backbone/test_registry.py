import pytest
import torch

from emat.backbone.registry import BACKBONES, DEFAULT_BACKBONE, BackboneSpec, find_backbone
from emat.errors import EmatError


@pytest.mark.parametrize("spec", BACKBONES.values(), ids=BACKBONES)
def test_an_entry_says_of_its_network_what_is_true(spec: BackboneSpec) -> None:
    with torch.device("meta"):
        network = spec.build()
    assert (network.channels, network.width) == (spec.channels, spec.width)
    assert network.grid(spec.image_size, spec.image_size) == spec.grid
    assert network.spec is spec
    assert spec.sources
    assert spec.licence


def test_the_names_are_those_promised() -> None:
    names = {"dinov2-s", "dinov2-b", "dinov2-l", "dino-s8", "efficientnet-lite2", "resnet50", "resnet101"}
    assert set(BACKBONES) == names | {f"dinov2-{size}-reg" for size in "sbl"}
    assert find_backbone("dinov2-l").channels == 384
    assert BACKBONES[DEFAULT_BACKBONE].package is not None


def test_the_papers_setting_is_50_by_50_tokens_for_both_methods() -> None:
    assert find_backbone("dinov2-s").grid == find_backbone("dino-s8").grid == (50, 50)


def test_an_unknown_name_is_answered_with_those_that_exist() -> None:
    with pytest.raises(EmatError, match=r"no backbone 'resnet18'; there are efficientnet-lite2, dinov2-s, "):
        find_backbone("efficientnet-lite2+resnet18")


def test_a_stack_names_each_backbone_once() -> None:
    with pytest.raises(EmatError, match="twice"):
        find_backbone("dinov2-s+dinov2-s")
