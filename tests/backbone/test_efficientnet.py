from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from emat.backbone import build_backbone
from emat.backbone.efficientnet import EfficientNetLite2, SameConv2d
from emat.backbone.registry import find_backbone
from emat.weights import load_weights
from tests.raises import raises_code

# VOC class: the ImageNet classes that are one.
IMAGENET_OF = {
    1: [404, 895, 908],  # aeroplane
    3: [*range(7, 25), *range(80, 101), *range(127, 147)],  # bird
    7: [407, 436, 468, 511, 609, 627, 656, 661, 751, 817],  # car
    8: [*range(281, 288)],  # cat
    12: [*range(151, 269)],  # dog
    17: [348, 349, 350],  # sheep
    19: [466, 547, 705, 820, 829],  # train
}
PHOTOS = 24

UNTRAINED = EfficientNetLite2()


@pytest.fixture(scope="module")
def network() -> EfficientNetLite2:
    built = build_backbone("efficientnet-lite2", device="cpu")
    assert isinstance(built, EfficientNetLite2)
    return built


@settings(max_examples=15)
@given(height=st.integers(1, 130), width=st.integers(1, 130))
def test_any_size_gives_a_token_per_16_pixels(height: int, width: int) -> None:
    rows, columns = UNTRAINED.grid(height, width)
    assert (rows, columns) == (-(-height // 16), -(-width // 16))
    assert UNTRAINED(torch.zeros(1, 3, height, width)).shape == (1, 42, 1 + rows * columns, 60)


@given(size=st.integers(1, 20), kernel=st.sampled_from([3, 5]), stride=st.sampled_from([1, 2]))
def test_padding_is_tensorflows_with_the_odd_pixel_at_the_end(size: int, kernel: int, stride: int) -> None:
    convolution = SameConv2d(1, 1, kernel, stride)
    x = torch.randn(1, 1, size, size)
    out = -(-size // stride)
    # Output i starts at i * stride - before, the pixels before being the smaller half of all that is missing.
    before = max((out - 1) * stride + kernel - size, 0) // 2
    roomy = F.pad(x, (before, kernel + stride, before, kernel + stride))
    expected = F.conv2d(roomy, convolution.weight, stride=stride)[:, :, :out, :out]
    torch.testing.assert_close(convolution(x), expected)


def test_folding_the_batch_norms_changes_nothing(network: EfficientNetLite2) -> None:
    plain = EfficientNetLite2()
    plain.load_state_dict(load_weights(find_backbone("efficientnet-lite2").weights))
    pixels = torch.randn(1, 3, 150, 200)
    folded, expected = network(pixels), plain.encode(pixels)
    norms = expected.norm(dim=3)
    assert ((folded - expected).norm(dim=3) / norms.clamp_min(1e-3)).max() < 1e-5


def test_channels_are_the_groups_of_blocks_7_to_20_and_coarse_ones_are_resized(
    network: EfficientNetLite2,
) -> None:
    pixels = torch.randn(1, 3, 96, 64)
    tokens, outputs = network(pixels), network._outputs(pixels)
    assert torch.equal(tokens[0, 0, 1:, :44], outputs[7][0, :44].flatten(1).T)
    assert torch.equal(tokens[0, 15, 1:], outputs[14][0, 60:].flatten(1).T)
    torch.testing.assert_close(tokens[0, 41, 0, :58], outputs[20][0, -58:].mean(dim=(1, 2)))
    assert outputs[20].shape[2:] == (3, 2)


def test_weights_load_once_because_they_are_folded(network: EfficientNetLite2) -> None:
    with raises_code("weights-are-set"):
        network.load_public({})


def test_an_empty_image_is_refused(network: EfficientNetLite2) -> None:
    with raises_code("photo-size", "32"):
        network(torch.zeros(1, 3, 0, 32))


def test_it_names_the_object_in_clear_photos(network: EfficientNetLite2, shared: Path) -> None:
    spec, folder = find_backbone("efficientnet-lite2"), shared / "data" / "voc2012-mini"
    photos, classes = [], []
    for path in sorted((folder / "SegmentationClass").glob("*.png")):
        mask = np.array(Image.open(path))
        objects = set(np.unique(mask)) - {0, 255}
        if len(objects) != 1 or min(objects) not in IMAGENET_OF or (mask == min(objects)).mean() < 0.25:
            continue
        photo = Image.open(folder / "JPEGImages" / f"{path.stem}.jpg").convert("RGB").resize((260, 260))
        photos.append(torch.from_numpy(np.array(photo)).permute(2, 0, 1) / 255)
        classes.append(int(min(objects)))
        if len(photos) == PHOTOS:
            break
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (spec.mean, spec.std))
    named = network.classify((torch.stack(photos) - mean) / std).argmax(dim=1)
    right = sum(int(answer) in IMAGENET_OF[truth] for answer, truth in zip(named, classes, strict=True))
    assert len(photos) == PHOTOS
    assert right >= 0.8 * PHOTOS, f"{right} of {PHOTOS}"
