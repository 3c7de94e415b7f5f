import torch
import torch.nn.functional as F

from emat.methods.promi import ProMi
from emat.methods.registry import build_method
from emat.methods.training_free import Patches, SupportPatches, contrast


def test_a_background_of_two_kinds_is_not_their_mean() -> None:
    """What looks like one of two opposite backgrounds is background, though their mean is like the class."""
    method = build_method("promi", image_size=64, device="cpu")
    assert isinstance(method, ProMi)
    vectors = F.normalize(torch.tensor([[1.0, 0.0], [0.2, 1.0], [0.2, -1.0]]), dim=1)
    support = SupportPatches(vectors, torch.tensor([1.0, 0, 0]), torch.tensor([0, 1.0, 1.0]))
    query = F.normalize(torch.tensor([[0.9, 0.1], [0.25, 1.0]]), dim=1)
    scores = method.scores(Patches(query, (1, 2)), support)
    assert float(scores[0]) > 0 > float(scores[1])
    # A single background prototype would have the class's own direction and tell nothing apart.
    assert contrast(query, support).abs().max() < 1e-6
