"""Methods that compare patches find again what looks like the support's object, whatever their way of comparing is."""

import numpy as np
import pytest
import torch

from emat.methods.base import LossWeights, TaskEvidence, TrainingBatch
from emat.methods.registry import METHODS, build_method
from emat.methods.training_free import PlainPatchMethod, PresenceRule, best_patches, cluster, contrast, coverage
from tests.methods.coloured import BLUE, GREY, GRID, RED, features_of, picture, support_of
from tests.raises import raises_code

NAMES = ("promi", "whitened", "frost", "insid3")


@pytest.fixture(scope="module", params=NAMES)
def method(request: pytest.FixtureRequest) -> PlainPatchMethod:
    built = build_method(request.param, image_size=64, device="cpu")
    assert isinstance(built, PlainPatchMethod)
    return built


def test_the_object_is_found_where_it_is(method: PlainPatchMethod) -> None:
    support, query = picture(RED, slice(0, 2), slice(0, 2)), picture(RED, slice(2, 4), slice(3, 5))
    encoded = method.encode_support(features_of(support), torch.tensor(support[..., 0]))
    evidence = method.compare(method.encode_query(features_of(query)), [encoded])
    decision = method.decide(TaskEvidence([evidence], GRID))
    assert np.array_equal(decision.label_map, query[..., 0])
    assert decision.present == (True,)


def test_a_stranger_scores_less_than_the_object(method: PlainPatchMethod) -> None:
    support = picture(RED, slice(0, 2), slice(0, 2))
    encoded = method.encode_support(features_of(support), torch.tensor(support[..., 0]))
    scores = [
        method.compare(method.encode_query(features_of(picture(colour, slice(2, 4), slice(3, 5)))), [encoded])[0]
        for colour in (RED, BLUE, GREY)
    ]
    assert scores[0].presence > scores[1].presence >= scores[2].presence


@pytest.mark.parametrize("fill", [0.0, 1.0, -1.0])
def test_an_empty_a_full_and_an_undecided_mask_give_defined_answers(method: PlainPatchMethod, fill: float) -> None:
    features = features_of(picture(RED, slice(0, 2), slice(0, 2)))
    encoded = method.encode_support(features, torch.full((30, 20), fill))
    decision = method.decide(TaskEvidence([method.compare(method.encode_query(features), [encoded])], (8, 8)))
    assert np.isfinite(decision.probabilities).all()
    if fill <= 0:
        assert decision.present == (False,)
        assert not decision.label_map.any()


def test_there_is_nothing_to_train(method: PlainPatchMethod) -> None:
    assert not METHODS[method.name].needs_training
    assert not method.trained_weights()
    with raises_code("nothing-to-train", method.name):
        method.loss(TrainingBatch([], [], [], torch.zeros(0, 1, 1)), LossWeights())


def test_patches_are_unit_vectors_whose_product_is_the_mean_cosine_of_the_channels() -> None:
    method = build_method("frost", image_size=64, device="cpu")
    (features,) = method.features(torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)))
    vectors = method.encode_query(features).vectors
    first, second = features.tensors[0][:, 1], features.tensors[0][:, 2]  # (C, d)
    expected = torch.cosine_similarity(first, second, dim=1).mean()
    torch.testing.assert_close(vectors[0] @ vectors[1], expected)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(16))


def test_a_class_smaller_than_a_patch_is_the_patch_it_covers_most() -> None:
    mask = torch.zeros(40, 60)
    mask[12:15, 21:23] = 1
    inside, outside = coverage(mask, (4, 6))
    support = support_of(picture(RED, slice(1, 2), slice(2, 3)), inside.view(4, 6).double().numpy())
    assert support.foreground.tolist() == [list(RED)]
    assert len(support.background) == 23
    assert float(outside.min()) > 0.5


def test_undecided_pixels_are_neither_the_class_nor_background() -> None:
    mask = torch.zeros(8, 12)
    mask[:, :4], mask[:, 8:] = 1, -1
    inside, outside = coverage(mask, (4, 6))
    assert inside.view(4, 6)[0].tolist() == [1, 1, 0, 0, 0, 0]
    assert outside.view(4, 6)[0].tolist() == [0, 0, 1, 1, 0, 0]


def test_a_mask_of_another_shape_is_refused() -> None:
    with raises_code("mask-shape"):
        coverage(torch.zeros(1, 4, 4), (2, 2))


def test_without_background_resemblance_to_the_class_alone_counts() -> None:
    support = support_of(picture(RED, slice(0, 4), slice(0, 6)), np.ones(GRID))
    assert contrast(torch.tensor([RED, BLUE]), support).tolist() == [1, 0]


def test_presence_follows_the_best_patches() -> None:
    scores = torch.zeros(2, 10, 10)
    scores[0, 0, :5] = 2.0
    assert best_patches(scores).tolist() == [2, 0]
    rule = PresenceRule(level=2.0, sharpness=3.0)
    assert rule.probability(scores).tolist() == pytest.approx([0.5, 1 / (1 + np.exp(6.0))])


def test_clusters_of_equal_vectors_are_one() -> None:
    assert cluster(torch.ones(5, 2), 3).tolist() == [[1, 1]]
