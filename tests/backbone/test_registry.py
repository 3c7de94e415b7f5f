import re
from pathlib import Path

import pytest
import torch

from emat.backbone.registry import (
    BACKBONES,
    DEFAULT_BACKBONE,
    BackboneSpec,
    backbone_names,
    find_backbone,
    recognise,
)
from emat.backbone.weights import expected_shapes
from emat.tensor_files import write_tensors
from tests.plugin_package import install_package
from tests.raises import raises_code


@pytest.mark.parametrize("spec", BACKBONES.values(), ids=BACKBONES)
def test_an_entry_says_of_its_network_what_is_true(spec: BackboneSpec) -> None:
    with torch.device("meta"):
        network = spec.build()
    assert (network.channels, network.width) == (spec.channels, spec.width)
    assert network.grid(spec.image_size, spec.image_size) == spec.grid
    assert network.spec is spec
    imported = ("resnet50-v1", "dinov3-s", "dinov3-b")  # converted, or given out to those who accept a licence
    assert spec.weights.sources or spec.name in imported
    assert spec.licence


def test_checksums_that_are_published_are_pinned() -> None:
    pins = {spec.name: [len(pin) for pin in spec.weights.pins] for spec in BACKBONES.values() if spec.weights.pins}
    assert pins == {
        "efficientnet-lite2": [64],
        "dinov2-s": [64, 64],
        "dinov2-b": [64],
        "dinov2-l": [64, 64],
        "resnet50": [64],
        "resnet101": [64],
        "mobilesam": [64],
    }
    named = (re.search(r"-([0-9a-f]{8})\.pth#sha256=(.*)", url) for spec in BACKBONES.values() for url in spec.urls)
    pytorch = [found for found in named if found]
    assert len(pytorch) == 2
    assert all(found[2].startswith(found[1]) for found in pytorch)  # PyTorch's names begin with the checksum


def test_the_names_are_those_promised() -> None:
    names = {
        "dinov2-s",
        "dinov2-b",
        "dinov2-l",
        "dino-s8",
        "dinov3-s",
        "dinov3-b",
        "efficientnet-lite2",
        "resnet50",
        "resnet101",
        "resnet50-v1",
        "mobilesam",
    }
    assert set(BACKBONES) == names | {f"dinov2-{size}-reg" for size in "sbl"}
    assert find_backbone("dinov2-l").channels == 384
    assert BACKBONES[DEFAULT_BACKBONE].package is not None


def test_the_papers_setting_is_50_by_50_tokens_for_both_methods() -> None:
    assert find_backbone("dinov2-s").grid == find_backbone("dino-s8").grid == (50, 50)


def test_an_unknown_name_is_answered_with_those_that_exist() -> None:
    with raises_code("unknown-backbone", "'resnet18'", "efficientnet-lite2, dinov2-s, "):
        find_backbone("efficientnet-lite2+resnet18")


def test_a_stack_names_each_backbone_once() -> None:
    with raises_code("given-twice"):
        find_backbone("dinov2-s+dinov2-s")


PLUGIN = """
from dataclasses import replace
from emat.backbone.registry import find_backbone

mine = replace(find_backbone("dino-s8"), name="mine", urls=())
misnamed = mine
nonsense = "text"
"""


def test_a_package_adds_a_backbone_by_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"mine": "mine", "other": "misnamed", "odd": "nonsense", "gone": "nothing"}
    install_package(tmp_path, monkeypatch, "emat-mine", "emat_mine_backbones", PLUGIN, {"emat.backbones": points})
    assert backbone_names()[-4:] == ["gone", "mine", "odd", "other"]
    assert find_backbone("mine+efficientnet-lite2").channels == 72 + 42
    with raises_code("broken-plugin"):
        find_backbone("odd")
    with raises_code("broken-plugin", "emat-mine", "'gone'", "emat_mine_backbones:nothing"):
        find_backbone("gone")
    with raises_code("broken-plugin", "'other'", "'mine'"):
        find_backbone("other")


def test_weights_that_fit_two_backbones_are_told_apart_by_the_file_or_the_user(tmp_path: Path) -> None:
    tensors = {name: torch.zeros(shape) for name, shape in expected_shapes(find_backbone("resnet50")).items()}
    path = tmp_path / "weights.safetensors"
    write_tensors(path, tensors, {})
    assert recognise(tensors, path).name == "resnet50"
    assert recognise(tensors, path, "resnet50-v1").name == "resnet50-v1"
    write_tensors(path, tensors, {"backbone": "resnet50-v1"})
    assert recognise(tensors, path).name == "resnet50-v1"
    with raises_code("weights-do-not-fit", "resnet50-v1", "resnet50"):
        recognise(tensors, path, "resnet50")
