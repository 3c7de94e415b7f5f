import torch

from emat.methods.pfenet import PFENet, _bins, prior
from tests.methods.tiny import tasks_for, tiny_method


def test_the_prior_is_the_best_cosine_stretched_from_0_to_1() -> None:
    support = torch.tensor([[1.0, 0.0], [0.0, 0.0]]).view(2, 1, 2)  # one feature, one position off the mask
    query = torch.tensor([[2.0, 4.0, 3.0], [0.0, 3.0, 4.0]]).view(2, 1, 3)  # cosines 1, 0.8, 0.6
    torch.testing.assert_close(prior(query, support), torch.tensor([[1.0, 0.5, 0.0]]))


def test_the_prior_of_an_empty_mask_is_nowhere() -> None:
    assert torch.equal(prior(torch.rand(4, 3, 3), torch.zeros(4, 3, 3)), torch.zeros(3, 3))


def test_resolutions_are_the_published_ones_at_400_pixels() -> None:
    assert _bins((50, 50)) == [(50, 50), (25, 25), (13, 13), (7, 7)]
    assert _bins((3, 8)) == [(3, 8), (2, 4), (1, 2), (1, 1)]


def test_all_maps_have_an_eighth_of_the_photos_resolution() -> None:
    method = tiny_method("pfenet")
    features = tasks_for(method).queries[0]
    assert [tuple(maps.shape) for maps in features.tensors] == [(512, 8, 8), (1024, 8, 8)]
    assert method.encode_query(features).high.shape == (2048, 8, 8)


def test_features_are_dropped_in_training_only() -> None:
    method = tiny_method("pfenet")
    assert isinstance(method, PFENet)
    tasks = tasks_for(method)
    assert tasks.loss(method, 0) == tasks.loss(method, 0)
    method.train()
    assert tasks.loss(method, 0) != tasks.loss(method, 0)
