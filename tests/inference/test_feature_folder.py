"""A folder of features that several processes fill: each has its own FeatureFolder, as here."""

import os
import time
from pathlib import Path

import pytest
import torch

from emat.inference.feature_folder import FeatureFolder
from emat.method import Features

ONE = Features((torch.zeros(2000),), (8, 8))  # 8000 bytes and a little more as a file
LIMIT = 10_000


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.safetensors"))


@pytest.mark.parametrize("limit", [LIMIT, 45_000, 200_000])
def test_the_limit_holds_for_all_of_them_together(limit: int, tmp_path: Path) -> None:
    folders = [FeatureFolder(tmp_path, limit) for _ in range(3)]
    for number in range(60):
        folders[number % 3].write(f"{number:02}-key", ONE)
        assert size(tmp_path) <= limit
    assert size(tmp_path) > limit / 2


def test_what_another_removed_at_once_is_no_error(tmp_path: Path) -> None:
    FeatureFolder(tmp_path, 5_000).write("aa-key", ONE)
    assert size(tmp_path) == 0


def test_what_a_killed_process_left_is_removed_and_what_another_writes_is_not(tmp_path: Path) -> None:
    FeatureFolder(tmp_path).write("aa-key", ONE)
    stale, fresh = tmp_path / "aa" / ".aa-key.safetensors.dead", tmp_path / "aa" / ".aa-other.safetensors.alive"
    for path in (stale, fresh):
        path.write_bytes(b"half of a file")
    os.utime(stale, (time.time() - 4000, time.time() - 4000))
    assert FeatureFolder(tmp_path).read("aa-key") is not None
    assert not stale.exists()
    assert fresh.exists()
