"""The four published networks, weights and images by the rule of tests/parity/baselines.json."""

import pytest
import torch
from torch import Tensor

from emat.backbone.registry import find_backbone
from emat.methods.panet import PANet, prototype_scores
from emat.methods.pfenet import PFENet
from emat.methods.resnet_base import HyperCorrelationMethod, ResNetMethod
from tests.methods.rule import CASES, pair, trained
from tests.methods.tiny import KINDS


def small_scores(method: ResNetMethod) -> Tensor:
    """The log-probabilities (2, h, w) of the rule's pair, before ways are merged."""
    images = pair()
    (query,), (support,) = method.features(images.query), method.features(images.support)
    (evidence,) = method.compare(method.encode_query(query), [method.encode_support(support, images.mask)])
    if isinstance(method, HyperCorrelationMethod):
        return evidence
    if isinstance(method, PFENet):
        return method.way_scores([evidence])
    assert isinstance(method, PANet)
    return prototype_scores(evidence.query, [[evidence.support]])


@pytest.mark.parametrize("name", KINDS)
def test_the_published_output_is_reproduced(name: str) -> None:
    method = trained(KINDS[name])
    with torch.no_grad():
        scores = small_scores(method)
    assert list(scores.shape) == CASES[name]["shape"][-3:]
    torch.testing.assert_close(scores.flatten()[::11], torch.tensor(CASES[name]["every_11th"]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_trained_tensors_have_the_published_names_shapes_and_number(name: str) -> None:
    with torch.device("meta"):
        method = KINDS[name](find_backbone("resnet50").build())
    head = {key: list(value.shape) for key, value in method.trained_weights().items() if key[:8] != "backbone"}
    assert head == CASES[name]["names"]
    trainable = sum(value.numel() for value in method.parameters() if value.requires_grad)
    backbone = 23_508_032 if name == "panet" else 0
    assert trainable == CASES[name]["learner_parameters"] + backbone
