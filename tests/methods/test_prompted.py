"""What prompted methods share, on a MobileSAM with random weights where its answers do not matter."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from emat.methods.prompted import PromptedMethod, PromptedQuery, best_answers, joined, photo_of, spread
from emat.methods.registry import build_method
from emat.refine import mobilesam
from emat.refine.mobilesam import Answers, MobileSAM


@pytest.fixture(scope="module")
def random_mobilesam() -> Iterator[MobileSAM]:
    """MobileSAM with random weights in place of the one of this process."""
    torch.manual_seed(0)
    kept, mobilesam._loaded[:] = list(mobilesam._loaded), [MobileSAM()]
    yield mobilesam._loaded[0]
    mobilesam._loaded[:] = kept


@pytest.fixture(scope="module")
def query(random_mobilesam: MobileSAM) -> PromptedQuery:
    photo = np.zeros((512, 1024, 3), np.uint8)
    return PromptedQuery(torch.zeros(8, 3), (2, 4), photo)


def test_features_hold_the_photo_at_mobilesams_scale() -> None:
    method = build_method("matcher", image_size=64, device="cpu")
    photo = np.random.default_rng(0).integers(0, 255, (30, 40, 3), dtype=np.uint8)
    features = method.photo_features(photo)
    assert features.tensors[1].shape == (1024, 1024, 3)
    assert photo_of(features).shape == (768, 1024, 3)
    assert abs(float(photo_of(features).mean()) - float(photo.mean())) < 2
    assert not features.tensors[1][768:].any()
    tall = method.photo_features(photo.transpose(1, 0, 2))
    assert [tensor.shape for tensor in tall.tensors] == [tensor.shape for tensor in features.tensors]


def test_prepared_pixels_are_a_photo_again() -> None:
    method = build_method("matcher", image_size=64, device="cpu")
    photo = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    (features,) = method.features(method.prepare(photo))
    assert np.array_equal(photo_of(features), photo_of(method.photo_features(photo)))


def test_a_cache_tells_the_features_from_those_without_the_photo() -> None:
    method, other = (build_method(name, image_size=64, device="cpu") for name in ("matcher", "frost"))
    assert isinstance(method, PromptedMethod)
    assert not set(method.feature_weights()) & set(other.feature_weights())


def test_points_are_the_centres_of_patches(query: PromptedQuery) -> None:
    assert query.point(0) == (128, 128)
    assert query.point(7) == (896, 384)


def test_patches_are_covered_where_their_centres_are(query: PromptedQuery) -> None:
    assert query.sheet == (128, 256)
    mask = torch.zeros(1, 128, 256, dtype=torch.bool)
    mask[0, :64, :128] = True
    assert query.covered(mask).view(2, 4).tolist() == [[True, True, False, False], [False, False, False, False]]


def test_the_scale_that_mobilesam_thinks_best_of_is_taken(query: PromptedQuery) -> None:
    logits = torch.arange(4.0).view(4, 1, 1).expand(4, 256, 256)
    chosen = best_answers(query, [Answers(logits, torch.tensor([0.9, 0.1, 0.5, 0.2]))])
    assert chosen.shape == (1, 128, 256)
    assert float(chosen[0, 0, 0]) == 2  # the first of the four is not one of the scales


def test_masks_are_joined_and_none_is_empty(query: PromptedQuery) -> None:
    masks = torch.stack([torch.full((128, 256), -3.0), torch.full((128, 256), 99.0)])
    assert float(joined(query, masks)[0, 0]) == 8
    assert bool((joined(query, masks[:0]) < 0).all())


def test_points_keep_a_distance_and_the_best_come_first() -> None:
    scores = torch.arange(16.0)
    assert spread(torch.arange(16), scores, (4, 4), most=8) == [15, 13, 7, 5]
    assert spread(torch.arange(16), scores, (4, 4), most=1) == [15]
    assert spread(torch.arange(0), scores, (4, 4), most=3) == []
