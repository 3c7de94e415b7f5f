from pathlib import Path

import pytest
import torch

from emat.evaluation.metrics import compute, count_outcome, judge_task, no_counts
from emat.features import FeatureCache
from emat.methods.base import Method, TaskEvidence
from emat.methods.registry import build_method
from emat.training.data import ValidationTasks, open_run_data
from emat.training.options import TrainingOptions
from emat.training.validation import ValidationScores, as_row, from_row, validate


@pytest.fixture
def method() -> Method:
    torch.manual_seed(0)
    return build_method("emat", image_size=64, device="cpu")


@pytest.fixture
def validation(tiny: Path) -> ValidationTasks:
    data = open_run_data(TrainingOptions(data=(tiny,), fold=0, val_tasks=10))
    assert data.validation is not None
    return data.validation


@torch.no_grad()
def test_validation_counts_what_each_task_by_itself_gives(method: Method, validation: ValidationTasks) -> None:
    dataset, class_ids = validation.dataset, validation.sampler.class_ids
    cache = FeatureCache(method, memory_bytes=10**8)
    counts = no_counts(class_ids)
    for task in validation.sampler:
        (way,), ((shot,),), mask = task.ways, task.shots, dataset.mask(task.query)
        shown = torch.from_numpy((dataset.mask(shot) == way).astype("float32"))
        support = method.encode_support(cache.features(dataset.image(shot)), shown)
        evidence = method.compare(method.encode_query(cache.features(dataset.image(task.query))), [support])
        decision = method.decide(TaskEvidence([evidence], (mask.shape[0], mask.shape[1])))
        counts = counts + count_outcome(judge_task(task.ways, decision.present, decision.label_map, mask), class_ids)
    torch.testing.assert_close(as_row(validate(method, cache, validation)), as_row(counts))


def test_processes_add_up_to_one(method: Method, validation: ValidationTasks) -> None:
    cache = FeatureCache(method, memory_bytes=10**8)
    whole = validate(method, cache, validation)
    shares = [validate(method, cache, validation, rank, 3) for rank in range(3)]
    summed = from_row(torch.stack([as_row(share) for share in shares]).sum(0), whole.class_ids)
    torch.testing.assert_close(as_row(summed), as_row(whole))
    assert compute(summed).classes == compute(whole).classes
    assert ValidationScores.of(summed).miou == ValidationScores.of(whole).miou


def test_masks_on_queries_that_lack_the_class_are_counted(method: Method, validation: ValidationTasks) -> None:
    cache = FeatureCache(method, memory_bytes=10**8)
    lacking = [task for task in validation.sampler if not task.present(validation.dataset.mask(task.query)).any()]
    for bias, expected in ((-50.0, 0.0), (50.0, 1.0)):
        found = validate(_always(method, bias), cache, validation)
        assert found.absent == len(lacking) > 0
        assert ValidationScores.of(found).false_mask_rate == expected


def _always(method: Method, bias: float) -> Method:
    """The same method with a mask branch that says background, or foreground, everywhere."""
    branch = method.network.decoder2_seg  # type: ignore[union-attr]
    last = [module for module in branch.modules() if isinstance(module, torch.nn.Conv2d)][-1]  # type: ignore[union-attr]
    with torch.no_grad():
        last.weight.zero_()
        assert last.bias is not None
        last.bias.copy_(torch.tensor([-bias, bias]))
    return method
