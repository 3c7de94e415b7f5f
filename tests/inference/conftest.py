"""A tiny real head, so that tests of prediction take no time and depend on no head's quality."""

from pathlib import Path

import pytest
import torch

from emat.methods.trained_head import save_head
from emat.model import build


@pytest.fixture(scope="session")
def tiny_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("heads") / "tiny.safetensors"
    metadata = {"backbone": "efficientnet-lite2", "image_size": "64", "threshold": "0.4", "mask_threshold": "0.3"}
    save_head(path, build("emat", channels=42).state_dict(), metadata)
    return path
