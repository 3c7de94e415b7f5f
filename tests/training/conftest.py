from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.training.tiny import tiny_dataset


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dataset(tmp_path_factory.mktemp("data") / "tiny")


@pytest.fixture(autouse=True)
def one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sums in one order, here and in the processes that tests start, so that weights can be equal bit for bit."""
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
