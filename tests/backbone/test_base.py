import pytest
import torch
import torch.nn.functional as F

from emat.backbone.base import Stack
from emat.backbone.registry import find_backbone
from emat.weights import load_weights
from tests.raises import raises_code


@pytest.fixture(scope="module")
def stack() -> Stack:
    built = find_backbone("efficientnet-lite2+dinov2-s").build()
    assert isinstance(built, Stack)
    # Untrained it gives next to nothing, whatever it is shown.
    built.parts[0].load_public(load_weights(find_backbone("efficientnet-lite2").weights))
    return built


def test_the_entry_of_a_stack_is_true_of_its_network(stack: Stack) -> None:
    spec = stack.spec
    assert spec is not None
    assert (stack.channels, stack.width) == (spec.channels, spec.width) == (42 + 72, 64)
    assert stack.grid(spec.image_size, spec.image_size) == spec.grid == (50, 50)
    assert (spec.mean, spec.multiple) == (find_backbone("dinov2-s").mean, 14)


def test_each_part_sees_the_image_at_its_own_scale_and_normalisation(stack: Stack) -> None:
    cnn, vit = stack.parts
    cnn_spec, vit_spec = find_backbone("efficientnet-lite2"), find_backbone("dinov2-s")
    photo = torch.rand(2, 3, 70, 98)

    def normalised(image: torch.Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> torch.Tensor:
        return (image - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)

    pixels = normalised(photo, vit_spec.mean, vit_spec.std)
    tokens = stack(pixels)
    assert tokens.shape == (2, 114, 1 + 5 * 7, 64)
    torch.testing.assert_close(tokens[:, 42:], vit(pixels))
    small = F.interpolate(photo, size=(40, 56), mode="bilinear", antialias=True)  # 400 / 700 of 70 x 98
    alone = cnn(normalised(small, cnn_spec.mean, cnn_spec.std))
    torch.testing.assert_close(tokens[:, :42, 0, :60], alone[:, :, 0], rtol=1e-4, atol=1e-4)


def test_the_lead_part_refuses_sizes_that_do_not_fit_it(stack: Stack) -> None:
    with raises_code("photo-size", "14"):
        stack(torch.zeros(1, 3, 400, 400))


def test_a_stack_is_frozen_too(stack: Stack) -> None:
    stack.train()
    assert not any(module.training for module in stack.modules())
    assert len(list(stack.parameters())) > 100
    assert not any(parameter.requires_grad for parameter in stack.parameters())
