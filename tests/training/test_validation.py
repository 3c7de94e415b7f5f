from pathlib import Path

import pytest
import torch

from emat.evaluation.metrics import compute, count_task, no_counts
from emat.inference.feature_cache import FeatureCache
from emat.inference.methods import build_method
from emat.method import Method
from emat.training.data import Validation, open_run_data
from emat.training.settings import Settings
from emat.training.validation import Check, as_row, check, from_row


@pytest.fixture
def method() -> Method:
    torch.manual_seed(0)
    return build_method("emat", image_size=64, device="cpu")


@pytest.fixture
def validation(tiny: Path) -> Validation:
    data = open_run_data(Settings(data=(tiny,), fold=0, val_tasks=10))
    assert data.validation is not None
    return data.validation


@torch.no_grad()
def test_a_check_counts_what_each_task_by_itself_gives(method: Method, validation: Validation) -> None:
    dataset, class_ids = validation.dataset, validation.sampler.class_ids
    cache = FeatureCache(method, memory_bytes=10**8)
    counts = no_counts(class_ids)
    for task in validation.sampler:
        (way,), ((shot,),), mask = task.ways, task.shots, dataset.mask(task.query)
        shown = torch.from_numpy((dataset.mask(shot) == way).astype("float32"))
        support = method.encode_support(cache.features(dataset.image(shot)), shown)
        evidence = method.compare(method.encode_query(cache.features(dataset.image(task.query))), [support])
        decision = method.decide([evidence], (mask.shape[0], mask.shape[1]))
        counts = counts + count_task(class_ids, task.ways, decision.present, decision.label_map, mask)
    torch.testing.assert_close(as_row(check(method, cache, validation)), as_row(counts))


def test_processes_add_up_to_one(method: Method, validation: Validation) -> None:
    cache = FeatureCache(method, memory_bytes=10**8)
    whole = check(method, cache, validation)
    shares = [check(method, cache, validation, rank, 3) for rank in range(3)]
    summed = from_row(torch.stack([as_row(share) for share in shares]).sum(0), whole.class_ids)
    torch.testing.assert_close(as_row(summed), as_row(whole))
    assert compute(summed).classes == compute(whole).classes
    assert Check.of(summed).miou == Check.of(whole).miou


def test_masks_on_queries_that_lack_the_class_are_counted(method: Method, validation: Validation) -> None:
    cache = FeatureCache(method, memory_bytes=10**8)
    lacking = [task for task in validation.sampler if not task.present(validation.dataset.mask(task.query)).any()]
    for bias, expected in ((-50.0, 0.0), (50.0, 1.0)):
        found = check(_always(method, bias), cache, validation)
        assert found.absent == len(lacking) > 0
        assert Check.of(found).false_mask_rate == expected


def _always(method: Method, bias: float) -> Method:
    """The same method with a mask head that says background, or foreground, everywhere."""
    head = method.network.decoder2_seg  # type: ignore[union-attr]
    last = [module for module in head.modules() if isinstance(module, torch.nn.Conv2d)][-1]  # type: ignore[union-attr]
    with torch.no_grad():
        last.weight.zero_()
        assert last.bias is not None
        last.bias.copy_(torch.tensor([-bias, bias]))
    return method
