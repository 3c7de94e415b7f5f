"""A head with random weights, so that tests of heads do not depend on the quality of a trained one."""

from pathlib import Path

import pytest
import torch

from emat.methods.trained_head import save_head
from emat.model import build


@pytest.fixture(scope="session")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("heads") / "tiny.safetensors"
    save_head(path, build("emat", channels=42).state_dict(), {"backbone": "efficientnet-lite2", "image_size": "64"})
    return path
