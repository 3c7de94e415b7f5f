"""One step of training equals the published one: the loss, its gradients and the weights after Adam."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from emat.datasets import open_dataset
from emat.features import FeatureCache
from emat.methods.base import LossWeights
from emat.methods.correlation import NetworkMethod
from emat.model.plain import plain_forward
from emat.tasks.training_tasks import SourcePhoto, TrainingList, TrainingSource, TrainingTask
from emat.training.data import TaskTensors
from tests.parity.end_to_end import SIDE, entries, mask_of, names, photo_of, plain_method, write_data
from tests.parity.plain_evaluation import plain_tokens
from tests.parity.test_end_to_end import method as evaluated

RATE, LAMBDA, PUBLISHED_SIDE = 1e-3, 0.1, 700
# Query, support and class; the third query does not show its class.
TASKS = ((0, 10, 1), (3, 8, 4), (1, 15, 5))


def nearest(mask: np.ndarray, side: int) -> Tensor:
    return F.interpolate(torch.from_numpy(mask)[None, None].float(), (side, side), mode="nearest")[0, 0]


def plain_loss(weights: dict[str, Tensor], side: int) -> Tensor:
    """The published loss: classification and segmentation as negative log-likelihoods over two classes."""
    plain = replace(plain_method("emat"), side=side)
    queries, supports = (
        torch.cat([plain_tokens(plain, photo_of("pascal", task[role])) for task in TASKS]) for role in (0, 1)
    )
    support_masks = torch.stack([nearest(mask_of("pascal", task[1]) == task[2], side) for task in TASKS])
    query_masks = torch.stack([nearest(mask_of("pascal", task[0]) == task[2], side) for task in TASKS]).long()
    presence, masks = plain_forward(plain.form, weights, queries, supports, support_masks)
    assert presence is not None
    full = F.interpolate(masks, (side, side), mode="bilinear", align_corners=True)
    there = torch.tensor([(mask_of("pascal", task[0]) == task[2]).any() for task in TASKS]).long()
    assert there.tolist() == [1, 1, 0]
    return LAMBDA * F.nll_loss(presence.log_softmax(1), there) + F.nll_loss(full.log_softmax(1), query_masks)


@pytest.mark.parametrize("side", [SIDE, pytest.param(PUBLISHED_SIDE, marks=pytest.mark.slow)])
def test_loss_gradients_and_an_adam_step_equal_the_published_ones(side: int, tmp_path: Path) -> None:
    plain = {name: value.clone().requires_grad_() for name, value in plain_method("emat").learner.items()}
    expected = plain_loss(plain, side)
    expected.backward()

    built = evaluated("emat", side).method
    assert isinstance(built, NetworkMethod)
    built.network.requires_grad_(True)
    before = {name: value.clone() for name, value in built.network.state_dict().items()}
    dataset = open_dataset(write_data(tmp_path, "pascal")[0])
    drawn_from = TrainingList([TrainingSource(dataset, tuple(entries("pascal")))])
    photos = [SourcePhoto(0, name) for name in names("pascal")]
    way = {value: number for number, values in enumerate(drawn_from.mask_values) for value in values.values()}
    tasks = [TrainingTask(photos[query], 0, photos[support], way[c]) for query, support, c in TASKS]
    batch = TaskTensors(built, drawn_from, FeatureCache(built, memory_bytes=10**9), side).batch(tasks)
    try:
        loss = built.loss(batch, LossWeights(LAMBDA)).total
        loss.backward()
        assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-6)
        ours = dict(built.network.named_parameters())
        largest = max(float(value.grad.abs().max()) for value in plain.values() if value.grad is not None)
        for name, value in plain.items():
            torch.testing.assert_close(ours[name].grad, value.grad, atol=1e-5 * largest, rtol=1e-3, msg=name)
        for parameters in (ours.values(), plain.values()):
            torch.optim.Adam(parameters, lr=RATE).step()
        for name, value in plain.items():
            # Adam's first step is the rate times the sign of a gradient, so only clear signs can be compared.
            assert value.grad is not None
            clear = value.grad.abs() > 1e-3 * largest
            torch.testing.assert_close(ours[name][clear], value[clear], atol=1e-3 * RATE, rtol=0, msg=name)
            assert not torch.equal(value.detach(), before[name])
    finally:
        with torch.no_grad():
            built.network.load_state_dict(before)
        built.network.requires_grad_(False)
