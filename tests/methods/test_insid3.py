import numpy as np
import torch
import torch.nn.functional as F

from emat.methods.insid3 import Insid3, clusters_of, matches_inside
from emat.methods.registry import build_method
from emat.methods.training_free import Patches, SupportPatches
from tests.methods.coloured import BLUE, GREY, GRID, RED, picture, support_of


def test_a_patch_matches_if_the_supports_nearest_patch_is_inside_the_mask() -> None:
    image = picture(RED, slice(0, 2), slice(0, 2))
    support = support_of(image, image[..., 0])
    queries = F.normalize(torch.tensor([[1.0, 0.4, 0.0], [0.4, 1.0, 0.0]]), dim=1)
    assert matches_inside(queries, support).tolist() == [True, False]


def test_clusters_are_parts_that_resemble_each_other() -> None:
    labels = clusters_of(torch.tensor([RED, GREY, RED, BLUE, GREY]))
    assert labels[0] == labels[2]
    assert labels[1] == labels[4]
    assert len(set(labels.tolist())) == 3
    assert clusters_of(torch.ones(1, 3)).tolist() == [0]


def test_without_a_backward_match_nothing_is_found() -> None:
    method = build_method("insid3", image_size=64, device="cpu")
    assert isinstance(method, Insid3)
    # The query's patches are nearer to the class's mean than to the background's, but nearest to one background patch.
    vectors = F.normalize(torch.tensor([[1.0, 0.0, 0.0], [0.7, 0.7, 0.0], [-1.0, 0.3, 0.0], [-1.0, 0.0, 0.0]]), dim=1)
    support = SupportPatches(vectors, torch.tensor([1.0, 0, 0, 0]), torch.tensor([0, 1.0, 1.0, 1.0]))
    query = F.normalize(torch.tensor([[0.75, 0.65, 0.0]]).expand(4, 3), dim=1)
    assert not bool((method.scores(Patches(query, (2, 2)), support) > 0).any())


def test_a_part_that_matches_joins_the_seed() -> None:
    method = build_method("insid3", image_size=64, device="cpu")
    assert isinstance(method, Insid3)
    image = picture(RED, slice(0, 2), slice(0, 2))
    support = support_of(image, image[..., 0])
    query = picture(RED, slice(0, 2), slice(0, 3))
    query[2, 0:3] = np.array([0.95, 0.1, 0.3]) / np.linalg.norm([0.95, 0.1, 0.3])
    vectors = torch.tensor(query, dtype=torch.float32).reshape(-1, 3)
    found = method.scores(Patches(vectors, GRID), support).view(GRID) > 0
    assert found[:3, :3].all()
    assert int(found.sum()) == 9
