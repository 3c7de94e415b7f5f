from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from emat.datasets import open_dataset
from emat.features import FeatureCache
from emat.images import Pixels
from emat.methods.base import Method
from emat.methods.registry import build_method
from emat.tasks.training_tasks import SourcePhoto, TrainingList, TrainingSource, TrainingTask
from emat.training.task_tensors import TaskTensors, shrink


@pytest.fixture(scope="module")
def method() -> Method:
    return build_method("emat", image_size=64, device="cpu")


@pytest.fixture
def drawn_from(tiny: Path) -> TrainingList:
    dataset = open_dataset(tiny)
    return TrainingList([TrainingSource(dataset, tuple((n, c) for n, cs in _entries(tiny) for c in cs))])


def _entries(tiny: Path) -> list[tuple[str, tuple[int, ...]]]:
    return [(entry.name, entry.classes) for entry in open_dataset(tiny).entries]


def test_masks_are_the_ways_own_pixels(method: Method, drawn_from: TrainingList) -> None:
    tensors = TaskTensors(method, drawn_from, FeatureCache(method, memory_bytes=10**8), mask_size=32)
    ant, elk = SourcePhoto(0, "ant0"), SourcePhoto(0, "elk0")
    batch = tensors.batch([TrainingTask(ant, 0, SourcePhoto(0, "ant1"), 0), TrainingTask(ant, 0, elk, 4)])
    assert batch.query_masks.shape == (2, 32, 32)
    assert [bool(mask.any()) for mask in batch.query_masks] == [True, False]
    assert all(mask.shape == (64, 64) and mask.any() for mask in batch.support_masks)
    assert set(batch.query_masks.unique().tolist()) == {0, 1}
    rows, columns = np.nonzero(batch.query_masks[0].numpy())
    assert columns.max() < 16
    assert rows.min() >= 4


def test_a_mirrored_photo_has_its_mask_mirrored(method: Method, drawn_from: TrainingList) -> None:
    tensors = TaskTensors(method, drawn_from, FeatureCache(method, memory_bytes=10**8), mask_size=32)
    ant, bee = SourcePhoto(0, "ant0"), SourcePhoto(0, "ant1")
    plain = tensors.batch([TrainingTask(ant, 0, bee, 0)])
    mirrored = tensors.batch([TrainingTask(ant, 0, bee, 0, flip_query=True, flip_support=True)])
    assert torch.equal(mirrored.query_masks, plain.query_masks.flip(2))
    assert torch.equal(mirrored.support_masks[0], plain.support_masks[0].flip(1))
    assert not torch.equal(mirrored.queries[0].tensors[0], plain.queries[0].tensors[0])


def test_photos_are_read_once(method: Method, drawn_from: TrainingList) -> None:
    cache = FeatureCache(method, memory_bytes=10**8)
    tensors = TaskTensors(method, drawn_from, cache, mask_size=32)
    task = TrainingTask(SourcePhoto(0, "ant0"), 0, SourcePhoto(0, "ant1"), 0)
    first = tensors.batch([task])
    second = tensors.batch([task])
    assert cache.counts.misses == 2
    assert torch.equal(first.query_masks, second.query_masks)


def test_without_a_cache_features_are_the_same(method: Method, drawn_from: TrainingList) -> None:
    task = TrainingTask(SourcePhoto(0, "ant0"), 0, SourcePhoto(0, "ant1"), 0)
    kept = TaskTensors(method, drawn_from, FeatureCache(method, memory_bytes=10**8), 32).batch([task])
    anew = TaskTensors(method, drawn_from, None, 32).batch([task])
    torch.testing.assert_close(anew.queries[0].tensors[0], kept.queries[0].tensors[0], atol=0.3, rtol=0.1)


def test_a_mirrored_photo_has_the_mirrored_features_and_is_encoded_once(
    method: Method, drawn_from: TrainingList
) -> None:
    tasks = [
        TrainingTask(SourcePhoto(0, "ant0"), 0, SourcePhoto(0, "ant1"), 0, flip_query=flip) for flip in (False, True)
    ]
    cache = FeatureCache(method, memory_bytes=10**8)
    batch = TaskTensors(method, drawn_from, cache, 32).batch(tasks)
    plain, mirrored = (query.tensors for query in batch.queries)
    assert all(torch.equal(one.flip(2), other) for one, other in zip(plain, mirrored, strict=True))
    assert torch.equal(batch.query_masks[0].flip(1), batch.query_masks[1])
    assert cache.counts.misses == 2


def test_a_class_that_is_kept_takes_no_other_class_s_last_pixel() -> None:
    mask = np.zeros((90, 90), np.uint8)
    mask[45, 45], mask[40, 40], mask[40, 41] = 1, 2, 3  # all in the middle of nine cells, where 1 is seen
    assert np.unique(shrink(mask, 3)).tolist() == [0, 1]
    mask[31, 61] = 2
    assert shrink(mask, 3).tolist() == [[0, 0, 0], [0, 1, 2], [0, 0, 0]]


@settings(max_examples=60)
@given(arrays(np.uint8, st.tuples(st.integers(1, 20), st.integers(1, 20)), elements=st.sampled_from([0, 1, 255])))
def test_no_class_appears_and_none_is_lost_where_there_is_room(mask: Pixels) -> None:
    small = shrink(mask, 8)
    assert small.shape == (8, 8)
    assert set(np.unique(small)) <= set(np.unique(mask))
    assert (1 in small) == (1 in mask)
