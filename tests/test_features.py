import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from emat.backbone import build_backbone
from emat.features import FeatureCache, FeatureFolder
from emat.images import Pixels, to_pixels
from emat.methods.base import Features, Method
from emat.methods.registry import build_method
from tests.raises import raises_code

SIZE = 64
PLENTY = 10**9


@pytest.fixture(scope="module")
def method() -> Method:
    return build_method("emat", image_size=SIZE, device="cpu")


def photo(seed: int, size: tuple[int, int] = (40, 50)) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def one_size(method: Method) -> int:
    """Bytes of one photo's features."""
    cache = FeatureCache(method, memory_bytes=PLENTY)
    cache.features(photo(0))
    return cache.counts.memory_bytes


def test_features_are_those_of_the_method_itself(method: Method) -> None:
    preparation = method.preparation
    pixels = torch.from_numpy(to_pixels(photo(1), (SIZE, SIZE), preparation.mean, preparation.std))
    found = FeatureCache(method, memory_bytes=PLENTY).features(photo(1))
    assert torch.equal(found.tensors[0], method.features(pixels[None])[0].tensors[0])
    assert found.size == (SIZE, SIZE)


def test_a_photo_is_encoded_once_whatever_array_brings_it(method: Method) -> None:
    cache = FeatureCache(method, memory_bytes=PLENTY)
    first = cache.features(photo(1))
    again = cache.features(np.asfortranarray(photo(1)))
    assert torch.equal(first.tensors[0], again.tensors[0])
    assert (cache.counts.misses, cache.counts.memory_hits) == (1, 1)
    assert cache.counts.hit_rate == 0.5


def test_equal_bytes_in_another_shape_are_another_photo(method: Method) -> None:
    cache = FeatureCache(method, memory_bytes=PLENTY)
    cache.features(photo(1, (40, 50)))
    cache.features(photo(1, (40, 50)).reshape(50, 40, 3))
    assert cache.counts.misses == 2


def test_a_name_spares_reading_the_photo(method: Method) -> None:
    cache = FeatureCache(method, memory_bytes=PLENTY)
    read: list[str] = []

    def reader(name: str) -> Pixels:
        read.append(name)
        return photo(int(name))

    cache.features_of("1", reader)
    cache.features_of("2", reader)
    assert torch.equal(cache.features_of("1", reader).tensors[0], cache.features(photo(1)).tensors[0])
    assert read == ["1", "2"]
    assert cache.counts.misses == 2


@example(asked=[0, 1, 0, 2, 0], room=2)
@settings(max_examples=8)
@given(st.lists(st.integers(0, 4), max_size=10), st.integers(0, 3))
def test_memory_keeps_what_was_used_last_within_its_limit(
    method: Method, one_size: int, asked: list[int], room: int
) -> None:
    cache = FeatureCache(method, memory_bytes=room * one_size + one_size // 2)
    kept: list[int] = []
    misses = 0
    for seed in asked:
        cache.features(photo(seed))
        misses += seed not in kept
        kept = [*(other for other in kept if other != seed), seed][-room:] if room else []
        assert cache.counts.memory_bytes == len(kept) * one_size
        assert cache.counts.misses == misses


def test_another_process_finds_on_disk_what_one_encoded(method: Method, tmp_path: Path) -> None:
    first = FeatureCache(method, memory_bytes=0, folder=tmp_path).features(photo(1))
    later = FeatureCache(method, memory_bytes=PLENTY, folder=tmp_path)
    assert torch.equal(later.features(photo(1)).tensors[0], first.tensors[0])
    later.features(photo(1))
    counts = later.counts
    assert (counts.disk_hits, counts.memory_hits, counts.misses) == (1, 1, 0)
    assert counts.disk_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors")) > 0


def test_float16_takes_half_and_gives_the_same_kept_or_not(method: Method, one_size: int, tmp_path: Path) -> None:
    cache = FeatureCache(method, memory_bytes=PLENTY, folder=tmp_path, dtype=torch.float16)
    fresh = cache.features(photo(0))
    kept = FeatureCache(method, memory_bytes=0, folder=tmp_path, dtype=torch.float16).features(photo(0))
    assert fresh.tensors[0].dtype is torch.float16
    assert torch.equal(fresh.tensors[0], kept.tensors[0])
    assert cache.counts.memory_bytes * 2 == one_size


@pytest.mark.parametrize("change", ["size", "dtype", "weights"])
def test_whatever_features_depend_on_parts_the_files(change: str, method: Method, tmp_path: Path) -> None:
    FeatureCache(method, memory_bytes=0, folder=tmp_path).features(photo(0))
    other: dict[str, Callable[[], FeatureCache]] = {
        "size": lambda: FeatureCache(build_method("emat", image_size=96), memory_bytes=0, folder=tmp_path),
        "dtype": lambda: FeatureCache(method, memory_bytes=0, folder=tmp_path, dtype=torch.float16),
        "weights": lambda: FeatureCache(_with_other_weights(), memory_bytes=0, folder=tmp_path),
    }
    cache = other[change]()
    cache.features(photo(0))
    assert cache.counts.disk_hits == 0


def _with_other_weights() -> Method:
    method = build_method("emat", image_size=SIZE)
    with torch.no_grad():
        next(method.backbone.parameters()).mul_(1.5)  # type: ignore[union-attr]
    return method


def test_the_head_in_training_does_not_part_the_files(method: Method, tmp_path: Path) -> None:
    FeatureCache(method, memory_bytes=0, folder=tmp_path).features(photo(0))
    cache = FeatureCache(build_method("cst", image_size=SIZE), memory_bytes=0, folder=tmp_path)
    cache.features(photo(0))
    assert cache.counts.disk_hits == 1


def test_the_folder_stays_below_its_limit_and_loses_what_was_used_longest_ago(method: Method, tmp_path: Path) -> None:
    FeatureCache(method, memory_bytes=0, folder=tmp_path).features(photo(0))
    (file,) = tmp_path.rglob("*.safetensors")
    limit = int(file.stat().st_size * 3.5)
    cache = FeatureCache(method, memory_bytes=0, folder=tmp_path, disk_bytes=limit)
    for seed in (1, 2, 0, 3):
        cache.features(photo(seed))
        time.sleep(0.02)  # times of use that any file system tells apart
        assert sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors")) <= limit
    misses = cache.counts.misses
    cache.features(photo(0))
    assert cache.counts.misses == misses
    cache.features(photo(1))
    assert cache.counts.misses == misses + 1


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_a_damaged_file_is_made_again(damage: bytes | None, method: Method, tmp_path: Path) -> None:
    right = FeatureCache(method, memory_bytes=0, folder=tmp_path).features(photo(0))
    (file,) = tmp_path.rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-10] if damage is None else damage)
    cache = FeatureCache(method, memory_bytes=0, folder=tmp_path)
    assert torch.equal(cache.features(photo(0)).tensors[0], right.tensors[0])
    assert cache.counts.misses == 1
    assert FeatureCache(method, memory_bytes=0, folder=tmp_path).features(photo(0)) is not None
    assert [path.name for path in tmp_path.rglob("*") if path.name.startswith(".") and path.name != ".lock"] == []


def test_a_folder_that_cannot_be_written_is_named(method: Method, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file where the folder should be")
    with raises_code("not-a-folder", "taken"):
        FeatureCache(method, memory_bytes=0, folder=taken).features(photo(0))


def test_what_is_no_photo_is_refused(method: Method) -> None:
    with raises_code("photo-array"):
        FeatureCache(method, memory_bytes=0).features(np.zeros((4, 4), np.uint8))


def _fill(folder: Path, disk_bytes: int) -> None:
    torch.set_num_threads(1)
    cache = FeatureCache(build_method("emat", image_size=SIZE), memory_bytes=0, folder=folder, disk_bytes=disk_bytes)
    for seed in (0, 1, 2, 3, 0, 1):
        cache.features(photo(seed))


def test_processes_share_a_folder_that_is_too_small_for_them(method: Method, one_size: int, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    limit = 3 * one_size
    others = [context.Process(target=_fill, args=(tmp_path, limit)) for _ in range(2)]
    for process in others:
        process.start()
    for process in others:
        process.join(60)
    assert [process.exitcode for process in others] == [0, 0]
    cache = FeatureCache(method, memory_bytes=0, folder=tmp_path)
    fresh = FeatureCache(method, memory_bytes=0)
    for seed in range(4):
        assert torch.allclose(cache.features(photo(seed)).tensors[0], fresh.features(photo(seed)).tensors[0], atol=1e-4)


def test_weights_of_the_backbone_alone_name_the_features(method: Method) -> None:
    assert set(method.feature_weights()) == set(build_backbone("efficientnet-lite2").state_dict())


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


KILLED = """
import os, signal, sys
from pathlib import Path
from emat.outputs import whole_file
with whole_file(Path(sys.argv[1])) as unfinished:
    unfinished.write_bytes(b"half of a file")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_when_the_next_file_is_written(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "aa" / "aa-key.safetensors")], check=False)
    assert len(list((tmp_path / "aa").iterdir())) == 1
    FeatureFolder(tmp_path).write("aa-key", ONE)
    assert [path.name for path in (tmp_path / "aa").iterdir()] == ["aa-key.safetensors"]


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


@pytest.mark.slow
def test_training_past_the_size_of_the_cache_keeps_its_memory() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=300)
    grown, kept, misses = ended.stdout.split()
    assert int(misses) == 600  # every photo was new: each of the 480 later ones took the memory of another
    assert int(kept) <= 8 * 2**20
    assert float(grown) < 40
