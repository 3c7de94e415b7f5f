"""The prototype finds again what looks like the support's object, says so, and trains nothing."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from emat.backbone import Backbone
from emat.backbone.efficientnet import EfficientNetLite2
from emat.methods.base import Features, LossWeights, TaskEvidence, TrainingBatch
from emat.methods.prototype import Prototype, make_prototypes
from emat.methods.registry import METHODS, build_method
from tests.raises import raises_code

GRID = (4, 6)
RED, GREY, BLUE = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)


@pytest.fixture(scope="module")
def method() -> Prototype:
    built = build_method("prototype", image_size=64, device="cpu")
    assert isinstance(built, Prototype)
    return built


@pytest.fixture
def of_colours(method: Prototype) -> Callable[[np.ndarray], Features]:
    """Features whose patch vectors are colours, so that every similarity is known."""

    def made(picture: np.ndarray) -> Features:
        patches = torch.tensor(picture, dtype=torch.float32).reshape(1, -1, 3)
        tokens = torch.cat([torch.zeros(1, 1, 3), patches], dim=1).expand(2, -1, -1)
        return Features((tokens,), (16 * picture.shape[0], 16 * picture.shape[1]))

    return made


def picture(object_colour: tuple[float, ...], rows: slice, columns: slice) -> np.ndarray:
    image = np.tile(np.array(GREY), (*GRID, 1))
    image[rows, columns] = object_colour
    return image


def test_the_object_is_found_where_it_is(method: Prototype, of_colours: Callable[[np.ndarray], Features]) -> None:
    support = picture(RED, slice(0, 2), slice(0, 2))
    query = picture(RED, slice(2, 4), slice(3, 5))
    mask = torch.tensor(support[..., 0])
    evidence = method.compare(
        method.encode_query(of_colours(query)), [method.encode_support(of_colours(support), mask)]
    )
    decision = method.decide(TaskEvidence([evidence], GRID))
    assert np.array_equal(decision.label_map, query[..., 0])
    assert decision.present == (True,)


def test_a_stranger_is_not_present(method: Prototype, of_colours: Callable[[np.ndarray], Features]) -> None:
    support, query = picture(RED, slice(0, 2), slice(0, 2)), picture(BLUE, slice(2, 4), slice(3, 5))
    encoded = method.encode_support(of_colours(support), torch.tensor(support[..., 0]))
    decision = method.decide(TaskEvidence([method.compare(method.encode_query(of_colours(query)), [encoded])], GRID))
    assert decision.present == (False,)
    assert not decision.label_map.any()


def test_a_pixel_goes_to_the_nearer_of_two_ways(
    method: Prototype, of_colours: Callable[[np.ndarray], Features]
) -> None:
    query = picture(RED, slice(0, 2), slice(0, 2))
    query[3, 3:5] = BLUE
    ways = []
    for colour, channel in ((RED, 0), (BLUE, 2)):
        support = picture(colour, slice(1, 3), slice(1, 3))
        encoded = method.encode_support(of_colours(support), torch.tensor(support[..., channel]))
        ways.append(method.compare(method.encode_query(of_colours(query)), [encoded]))
    label_map = method.decide(TaskEvidence(ways, GRID)).label_map
    assert np.array_equal(label_map, query[..., 0] + 2 * query[..., 2])


@pytest.mark.parametrize("fill", [0.0, 1.0])
def test_an_empty_or_a_full_mask_gives_a_defined_answer(
    method: Prototype, of_colours: Callable[[np.ndarray], Features], fill: float
) -> None:
    features = of_colours(picture(RED, slice(0, 2), slice(0, 2)))
    encoded = method.encode_support(features, torch.full((30, 20), fill))
    decision = method.decide(TaskEvidence([method.compare(method.encode_query(features), [encoded])], (8, 8)))
    assert np.isfinite(decision.probabilities).all()
    assert decision.present == (bool(fill),)


def test_an_answer_does_not_depend_on_the_company(
    method: Prototype, of_colours: Callable[[np.ndarray], Features]
) -> None:
    query = method.encode_query(of_colours(picture(RED, slice(0, 2), slice(0, 2))))
    pictures = [picture(RED, slice(0, 1), slice(0, 3)), picture(BLUE, slice(1, 3), slice(2, 4))]
    supports = [method.encode_support(of_colours(each), torch.tensor(1 - each[..., 1])) for each in pictures]
    together = method.compare(query, supports)
    for support, evidence in zip(supports, together, strict=True):
        (own,) = method.compare(query, [support])
        assert own.presence == evidence.presence
        assert torch.equal(own.logits, evidence.logits)


def test_real_photos_go_through_the_default_backbone(method: Prototype) -> None:
    (features,) = method.features(torch.rand(1, 3, 64, 64))
    assert features.tensors[0].shape[0] == 14  # blocks 18 to 20
    support = method.encode_support(features, torch.ones(50, 40))
    decision = method.decide(TaskEvidence([method.compare(method.encode_query(features), [support])], (50, 40)))
    assert decision.label_map.shape == (50, 40)


def test_there_is_nothing_to_train(method: Prototype) -> None:
    assert not METHODS["prototype"].needs_training
    assert not method.trained_weights()
    with raises_code("nothing-to-train"):
        method.loss(TrainingBatch([], [], [], torch.zeros(0, 1, 1)), LossWeights())


def test_another_backbone_gives_all_its_channels() -> None:
    backbone: Backbone = EfficientNetLite2()
    with raises_code("wrong-backbone"):
        Prototype(backbone)
    known = build_method("prototype", image_size=64, device="cpu")
    assert isinstance(known, Prototype)
    assert known.backbone.spec is not None
    backbone.spec = replace(known.backbone.spec, name="another")
    assert Prototype(backbone).features(torch.rand(1, 3, 32, 32))[0].tensors[0].shape[0] == backbone.channels


def test_undecided_pixels_are_neither_foreground_nor_background() -> None:
    tokens = torch.randn(2, 1 + 16, 3, generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(8, 8)
    mask[:4, :4] = 1
    mask[4:] = -1  # the lower half
    found = make_prototypes(tokens, mask, (4, 4))
    changed = tokens.clone()
    changed[:, 1 + 8 :] = 9
    again = make_prototypes(changed, mask, (4, 4))
    assert found.foreground is not None
    assert found.background is not None
    assert again.foreground is not None
    assert again.background is not None
    assert torch.equal(found.foreground, again.foreground)
    assert torch.equal(found.background, again.background)
