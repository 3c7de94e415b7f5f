"""What the backbone tests share: a home of their own and a tiny ViT."""

from functools import partial
from pathlib import Path

import pytest
import torch

from emat.backbone.registry import IMAGENET_MEAN, IMAGENET_STD, BackboneSpec
from emat.backbone.vit import ViT


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for name in ("EMAT_OFFLINE", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


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
