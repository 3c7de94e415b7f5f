"""What PANet, PFENet, HSNet and ASNet share: training, loading, shots and ways, and the backbone they need."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

from emat.backbone.registry import find_backbone
from emat.features import FeatureCache
from emat.methods.base import PAPER_THRESHOLDS, Decision, Features, LossWeights, TaskEvidence, Thresholds
from emat.methods.correlation import NetworkMethod
from emat.methods.hsnet import HSNet
from emat.methods.registry import METHODS, build_method
from emat.methods.resnet_base import ResNetMethod, decide_by_votes, merge_ways, segmentation_loss, winning_vote
from emat.methods.trained_head import load_head
from emat.model import build
from emat.tensor_files import write_tensors
from tests.methods.tiny import KINDS, tasks_for, tiny_method
from tests.raises import raises_code

every_method = pytest.mark.parametrize("name", KINDS)


def optimizer_of(method: ResNetMethod) -> torch.optim.Optimizer:
    recipe, parameters = method.recipe, [value for value in method.parameters() if value.requires_grad]
    if recipe.optimizer == "adam":
        return torch.optim.Adam(parameters, recipe.learning_rate)
    return torch.optim.SGD(parameters, recipe.learning_rate, recipe.momentum, weight_decay=recipe.weight_decay)


def decide(
    method: ResNetMethod,
    query: Features,
    ways: Sequence[Sequence[tuple[Features, Tensor]]],
    thresholds: Thresholds = PAPER_THRESHOLDS,
) -> Decision:
    encoded = method.encode_query(query)
    evidence: list[list[Any]] = [
        method.compare(encoded, [method.encode_support(*shot) for shot in shots]) for shots in ways
    ]
    return method.decide(TaskEvidence(evidence, (20, 30)), thresholds)


@every_method
def test_a_training_step_lowers_the_loss(name: str) -> None:
    method = tiny_method(name)
    tasks, optimizer = tasks_for(method), optimizer_of(method)
    before = tasks.loss(method, 0)
    before.backward()
    optimizer.step()
    assert tasks.loss(method, 0).item() < before.item()


@pytest.mark.parametrize("name", ["panet", "pfenet", "hsnet"])
@torch.no_grad()
def test_the_loss_of_two_tasks_is_the_mean_of_theirs(name: str) -> None:
    method = tiny_method(name)
    tasks = tasks_for(method)
    apart = (tasks.loss(method, 0) + tasks.loss(method, 1)) / 2
    torch.testing.assert_close(tasks.loss(method, 0, 1), apart)


@every_method
def test_training_reaches_what_is_trained_and_nothing_else(name: str) -> None:
    method = tiny_method(name).train()
    tasks_for(method).loss(method, 0).backward()
    reached = {key for key, value in method.named_parameters() if value.grad is not None}
    trained = {key for key in method.trained_weights() if "running_" not in key}
    assert reached == {key for key in trained if "inner_cls" not in key}
    assert not method.backbone.training


@every_method
def test_features_keep_no_gradient_and_do_not_depend_on_what_is_trained(name: str) -> None:
    method = tiny_method(name).train()
    pixels = torch.randn(1, 3, method.preparation.image_size, method.preparation.image_size)
    before = method.features(pixels)[0].tensors
    with torch.no_grad():
        for value in method.trained_weights().values():
            value.mul_(1.5)
    for old, new in zip(before, method.features(pixels)[0].tensors, strict=True):
        assert not old.requires_grad
        assert torch.equal(old, new)


def test_kept_features_of_one_method_are_not_taken_for_another_s() -> None:
    hsnet, pfenet = tiny_method("hsnet"), tiny_method("pfenet")
    pfenet.backbone.load_state_dict(hsnet.backbone.state_dict())
    assert not FeatureCache(hsnet, memory_bytes=0).serves(pfenet)
    tokens = NetworkMethod(hsnet.backbone, build("emat", hsnet.backbone.channels), image_size=64)
    assert not FeatureCache(hsnet, memory_bytes=0).serves(tokens)
    asnet = tiny_method("asnet")
    alike = HSNet(asnet.backbone, asnet.preparation.image_size)
    assert FeatureCache(alike, memory_bytes=0).serves(asnet)  # both keep every bottleneck's map


@every_method
def test_the_same_shot_twice_is_one_shot(name: str) -> None:
    method = tiny_method(name)
    tasks = tasks_for(method)
    shot = (tasks.supports[0], tasks.support_masks[0])
    once, twice = (decide(method, tasks.queries[0], [[shot] * count]) for count in (1, 2))
    np.testing.assert_allclose(once.probabilities, twice.probabilities, atol=1e-5)
    assert once.scores == pytest.approx(twice.scores, abs=1e-5)


@every_method
def test_ways_compete_for_every_pixel(name: str) -> None:
    method = tiny_method(name)
    tasks = tasks_for(method)
    ways = [[(support, mask)] for support, mask in zip(tasks.supports, tasks.support_masks, strict=True)]
    decision = decide(method, tasks.queries[0], ways)
    assert decision.probabilities.shape == (2, 20, 30)
    assert (decision.probabilities.sum(axis=0) < 1).all()
    assert decision.label_map.max() <= 2
    assert decision.scores is not None
    assert len(decision.scores) == 2


@every_method
def test_presence_has_a_threshold_and_pixels_have_none(name: str) -> None:
    method = tiny_method(name)
    tasks = tasks_for(method)
    ways = [[(tasks.supports[0], tasks.support_masks[0])]]
    usual, easy = (decide(method, tasks.queries[0], ways, Thresholds(presence, 0.9)) for presence in (1.0, 0.0))
    assert (usual.present, easy.present) == ((False,), (True,))
    assert np.array_equal(usual.label_map, decide(method, tasks.queries[0], ways).label_map)


@every_method
def test_an_empty_mask_has_a_defined_answer(name: str) -> None:
    method = tiny_method(name)
    tasks = tasks_for(method)
    decision = decide(method, tasks.queries[0], [[(tasks.supports[0], torch.zeros(9, 9))]])
    assert np.isfinite(decision.probabilities).all()


@every_method
def test_features_kept_in_half_precision_will_do(name: str) -> None:
    method = tiny_method(name)
    tasks = tasks_for(method)
    halves = [
        Features(tuple(one.half() for one in kept.tensors), kept.size) for kept in (tasks.queries[0], tasks.supports[0])
    ]
    shot = tasks.support_masks[0]
    exact = decide(method, tasks.queries[0], [[(tasks.supports[0], shot)]])
    rounded = decide(method, halves[0], [[(halves[1], shot)]])
    np.testing.assert_allclose(rounded.probabilities, exact.probabilities, atol=0.02)


@every_method
def test_a_published_checkpoint_loads_and_its_frozen_backbone_is_passed_over(name: str) -> None:
    method = tiny_method(name)
    published = {key: torch.randn_like(value) for key, value in method.trained_weights().items()}
    around = {"backbone.fc.weight": torch.ones(1000, 2048), "backbone.bn1.num_batches_tracked": torch.tensor(3)}
    frozen = {} if method.recipe.trains_backbone else {"backbone.conv1.weight": torch.ones(1)}
    method.load_trained_weights({**published, **around, **frozen})
    for key, value in method.trained_weights().items():
        assert torch.equal(value, published[key])


@every_method
def test_tensors_that_do_not_fit_are_named_and_none_is_loaded(name: str) -> None:
    method = tiny_method(name)
    before = {key: value.clone() for key, value in method.trained_weights().items()}
    first, *rest = before
    wrong = {key: torch.zeros_like(before[key]) for key in rest} | {"learner.other": torch.zeros(1)}
    with raises_code("weights-do-not-fit", name, first, "learner.other"):
        method.load_trained_weights(wrong)
    assert all(torch.equal(value, before[key]) for key, value in method.trained_weights().items())


@every_method
def test_a_backbone_of_another_kind_is_refused_in_a_sentence(name: str) -> None:
    with raises_code("wrong-backbone", name, "efficientnet-lite2"):
        build_method(name, backbone="efficientnet-lite2", device="cpu")


def test_a_head_for_other_channels_than_the_backbones_is_refused_in_a_sentence() -> None:
    backbone = find_backbone("resnet50").build()
    with raises_code("wrong-backbone", "emat", "72", "28"):
        NetworkMethod(backbone, build("emat", channels=72))


def test_emat_runs_on_a_resnet_too() -> None:
    backbone = find_backbone("resnet50").build()
    method = NetworkMethod(backbone, build("emat", backbone.channels), image_size=96)
    query, support = method.features(torch.randn(2, 3, 96, 96))
    evidence = method.compare(method.encode_query(query), [method.encode_support(support, torch.ones(96, 96))])
    assert method.decide(TaskEvidence([evidence], (30, 40))).label_map.shape == (30, 40)


def test_every_method_has_one_row_in_the_table() -> None:
    assert {"emat", "cst", *KINDS} <= set(METHODS)
    assert all(METHODS[name].default_backbone == "resnet50" for name in KINDS)


def test_recipes_are_the_published_ones() -> None:
    recipes = {name: kind.recipe for name, kind in KINDS.items()}
    assert recipes["hsnet"] == recipes["asnet"] == NetworkMethod.recipe
    assert (recipes["pfenet"].optimizer, recipes["pfenet"].learning_rate) == ("sgd", 0.0025)
    assert [recipes[name].weight_decay for name in ("panet", "pfenet")] == [5e-4, 1e-4]


def test_a_mask_that_is_no_map_is_refused() -> None:
    method = tiny_method("hsnet")
    with raises_code("mask-shape", "(1, 4, 4)"):
        method.encode_support(tasks_for(method).supports[0], torch.ones(1, 4, 4))


@pytest.mark.parametrize("name", ["pfenet", "hsnet"])
def test_a_trained_head_comes_back_from_its_file(name: str, tmp_path: Path) -> None:
    method = tiny_method(name)
    write_tensors(tmp_path / "head.safetensors", method.trained_weights(), {"method": name, "backbone": "resnet50"})
    head = load_head(tmp_path / "head.safetensors")
    other = tiny_method(name)
    with torch.no_grad():
        for value in other.trained_weights().values():
            value.zero_()
    other.load_trained_weights(head.tensors)
    assert all(torch.equal(value, method.trained_weights()[key]) for key, value in other.trained_weights().items())


def shot(*foreground: float) -> Tensor:
    """Log-probabilities (2, 1, n) of these foreground probabilities."""
    p = torch.tensor([foreground])
    return torch.stack([1 - p, p]).log()


def test_a_pixel_goes_to_the_best_of_the_mean_background_and_every_foreground() -> None:
    first, second = shot(0.6, 0.1, 0.30), shot(0.7, 0.2, 0.45)
    decision = decide_by_votes([first[None], second[None]], (1, 3), 0.5)
    assert decision.label_map.tolist() == [[2, 0, 0]]
    background = (math.log(0.4) + math.log(0.3)) / 2
    expected = torch.tensor([background, math.log(0.6), math.log(0.7)]).softmax(dim=0)
    np.testing.assert_allclose(decision.probabilities[:, 0, 0], expected[1:], rtol=1e-5)


def test_no_threshold_applies_to_pixels() -> None:
    ways = [shot(0.45)[None], shot(0.01)[None], shot(0.01)[None]]  # the mean background of three ways falls to 0.81
    assert decide_by_votes(ways, (1, 1), 0.5).label_map.item() == 0
    strong = [shot(0.45)[None], shot(0.44)[None], torch.tensor([-9.0, -9.0]).view(1, 2, 1, 1)]
    assert decide_by_votes(strong, (1, 1), 0.99).label_map.item() == 1


def test_a_way_is_present_where_its_foreground_reaches_one_half_anywhere() -> None:
    ways = [shot(0.1, 0.5)[None], shot(0.1, 0.499)[None]]
    decision = decide_by_votes(ways, (4, 4), 0.5)
    assert decision.present == (True, False)
    assert decision.scores == pytest.approx((0.5, 0.499))


def test_equal_logits_reach_one_half() -> None:
    even = torch.zeros(1, 2, 3, 3).log_softmax(dim=1)
    assert decide_by_votes([even], (3, 3), 0.5).present == (True,)


def test_shots_vote_on_presence_and_average_their_log_probabilities() -> None:
    shots = torch.stack([shot(0.9, 0.1), shot(0.4, 0.1), shot(0.4, 0.2)])
    decision = decide_by_votes([shots], (1, 2), 0.5)
    assert decision.present == (False,)  # one vote of three
    assert decide_by_votes([shots[:2]], (1, 2), 0.5).present == (True,)  # one of two
    foreground, background = 0.9 * 0.4 * 0.4, 0.1 * 0.6 * 0.6
    assert decision.label_map.tolist() == [[1 if foreground > background else 0, 0]]


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=7), st.floats(0, 1, width=32))
def test_the_winning_vote_passes_when_half_of_the_votes_do(votes: list[float], threshold: float) -> None:
    passed = np.mean([vote >= threshold for vote in votes]) >= 0.5
    assert bool(winning_vote(torch.tensor(votes)) >= threshold) == passed


def test_one_way_merges_to_itself() -> None:
    way = torch.randn(1, 2, 4, 5).log_softmax(dim=1)
    assert torch.equal(merge_ways(way), way[0])


def test_the_loss_is_the_negative_log_likelihood_at_the_masks_resolution() -> None:
    scores = shot(0.8, 0.3)[None]  # (1, 2, 1, 2)
    masks = torch.tensor([[[1.0, 0.0]]])
    losses = segmentation_loss(scores, masks, LossWeights())
    assert losses.presence is None
    assert losses.total.item() == pytest.approx(-(math.log(0.8) + math.log(0.7)) / 2)
    weighted = segmentation_loss(scores, masks, LossWeights(foreground=3)).total.item()
    assert weighted == pytest.approx(-(3 * math.log(0.8) + math.log(0.7)) / 4)
