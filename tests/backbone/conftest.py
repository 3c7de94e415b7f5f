"""What the backbone tests share: a home of their own and a tiny ViT."""

from functools import partial
from pathlib import Path

import pytest
import torch

from emat.backbone.registry import IMAGENET_MEAN, IMAGENET_STD, BackboneSpec
from emat.backbone.vit import ViT


@pytest.fixture(autouse=True)
def home(online_home: Path) -> Path:
    return online_home


@pytest.fixture
def tiny_spec() -> BackboneSpec:
    return BackboneSpec(
        name="tiny",
        make=partial(ViT, width=24, depth=2, heads=2, patch=14, pos_grid=5),
        channels=4,
        width=12,
        stride=14,
        multiple=14,
        image_size=70,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        licence="Apache-2.0",
    )


@pytest.fixture
def tiny_tensors(tiny_spec: BackboneSpec) -> dict[str, torch.Tensor]:
    """Random weights under the public names, as public files have them: with a mask token."""
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.randn(value.shape, generator=generator) / 4 for name, value in tiny_spec.make().state_dict().items()
    }
    return tensors | {"mask_token": torch.zeros(1, 24)}
