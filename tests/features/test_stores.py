"""Features on disk, shared by several processes that each have a FeatureFolder, and features in memory."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from emat.features.stores import FeatureFolder
from emat.methods.base import Features

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


def test_files_that_another_process_removed_are_not_an_error(tmp_path: Path) -> None:
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


psutil = pytest.importorskip("psutil")

PROGRAM = """
import gc, sys
import numpy as np, psutil, torch
from emat.features import FeatureCache
from emat.methods.base import LossWeights, TrainingBatch
from emat.methods.registry import build_method
from emat.model import Shape

torch.set_num_threads(1)
SIZE, LIMIT = 96, 8 * 2**20
method = build_method("emat", image_size=SIZE, device="cpu", shape=Shape(support_grid=4))
cache = FeatureCache(method, memory_bytes=LIMIT)
random = np.random.default_rng(0)
mask = torch.zeros(SIZE, SIZE)
mask[:40, :40] = 1

def train(tasks):
    for _ in range(tasks):
        query, support = (random.integers(0, 256, (SIZE, SIZE, 3), np.uint8) for _ in range(2))
        features = cache.features(query), cache.features(support)
        batch = TrainingBatch([features[0]], [features[1]], [mask], mask[None, ::4, ::4].long())
        method.loss(batch, LossWeights()).total.backward()

def resident():
    gc.collect()
    return psutil.Process().memory_info().rss

train(60)  # fills the cache and warms everything up
before = resident()
train(240)
print((resident() - before) / 2**20, cache.counts.memory_bytes, cache.counts.misses)
"""


def test_training_past_the_size_of_the_cache_keeps_its_memory() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=300)
    grown, kept, misses = ended.stdout.split()
    assert int(misses) == 600  # every photo was new: each of the 480 later ones took the memory of another
    assert int(kept) <= 8 * 2**20
    assert float(grown) < 40
