from pathlib import Path

import torch
import torch.nn.functional as F

from emat.backbone.registry import find_backbone, recognise
from emat.backbone.resnet import BLOCKS_50, BLOCKS_101, Bottleneck, ResNet, run_layer
from emat.weights import load_weights
from tests.raises import raises_code

TINY = (1, 1, 1, 1)


def test_names_and_shapes_are_torchvisions() -> None:
    with torch.device("meta"):
        small, large = ResNet(BLOCKS_50), ResNet(BLOCKS_101)
    shapes = small.shapes()
    assert shapes["conv1.weight"] == (64, 3, 7, 7)
    assert shapes["layer1.0.downsample.0.weight"] == (256, 64, 1, 1)
    assert shapes["layer2.0.downsample.1.running_var"] == (512,)
    assert shapes["layer3.5.conv2.weight"] == (256, 256, 3, 3)
    assert "layer3.1.downsample.0.weight" not in shapes
    assert len(shapes) == 265  # 53 convolutions and as many batch-norms of four tensors
    # torchvision counts 25,557,032 and 44,549,160 with a classifier of 2,049,000
    assert [sum(p.numel() for p in net.parameters()) for net in (small, large)] == [23_508_032, 42_500_160]


def test_the_stride_is_on_the_3_by_3() -> None:
    block = Bottleneck(8, 4, stride=2)
    assert (block.conv1.stride, block.conv2.stride, block.conv3.stride) == ((1, 1), (2, 2), (1, 1))


def test_the_original_form_has_the_stride_on_the_first_1_by_1() -> None:
    block = Bottleneck(8, 4, stride=2, stride_on_first=True)
    assert (block.conv1.stride, block.conv2.stride, block.conv3.stride) == ((2, 2), (1, 1), (1, 1))
    network, usual = ResNet(TINY, stride_on_first=True), ResNet(TINY)
    usual.load_state_dict(network.state_dict())
    x = torch.randn(1, 3, 64, 64)
    for layer, other in zip(network.bottlenecks(x), usual.bottlenecks(x), strict=True):
        assert layer[-1].shape == other[-1].shape
    assert not torch.allclose(layer[-1], other[-1])
    assert run_layer(network.layer2, torch.randn(1, 256, 9, 7), dilation=2).shape == (1, 512, 9, 7)


def test_a_bottleneck_gives_the_sum_before_its_relu() -> None:
    network = ResNet(TINY)
    x = torch.randn(1, 3, 48, 64)
    layers = network.bottlenecks(x)
    assert all(bool((layer[-1] < 0).any()) for layer in layers)
    torch.testing.assert_close(F.relu(layers[0][-1]), run_layer(network.layer1, network.stem(x)))


def test_a_dilation_takes_the_strides_place() -> None:
    layer = ResNet((1, 2, 1, 1)).layer2
    x = torch.randn(1, 256, 9, 7)
    assert run_layer(layer, x).shape == (1, 512, 5, 4)
    assert run_layer(layer, x, dilation=2).shape == (1, 512, 9, 7)
    # With a dilation of 1 only the stride goes: every second position of the first block is the strided block's.
    first = layer[0]
    torch.testing.assert_close(first(x, 1)[:, :, ::2, ::2], first(x))


@torch.no_grad()
def test_a_dilated_3_by_3_looks_two_positions_away() -> None:
    block = Bottleneck(16, 4, stride=1).eval()
    for value in block.parameters():
        value.abs_()  # so that no ReLU hides anything
    x = torch.rand(1, 16, 7, 7)
    changed = x.clone()
    changed[:, :, 3, 3] += 1
    moved = (block(changed, 2) - block(x, 2)).abs().amax(dim=(0, 1)) > 0
    assert moved.nonzero().tolist() == [[row, column] for row in (1, 3, 5) for column in (1, 3, 5)]


def test_it_is_frozen_and_stays_in_evaluation_mode() -> None:
    network = ResNet(TINY).train()
    assert not any(module.training for module in network.modules())
    assert not any(value.requires_grad for value in network.parameters())
    assert not network(torch.randn(1, 3, 32, 32)).requires_grad


def test_any_size_has_a_grid_of_layer3() -> None:
    network = ResNet(TINY)
    for size in ((400, 400), (33, 70), (1, 1)):
        assert network.grid(*size) == tuple(network.bottlenecks(torch.zeros(1, 3, *size))[2][-1].shape[2:])
    with raises_code("photo-size"):
        network.grid(0, 5)


def test_a_public_file_with_classifier_and_batch_counters_fills_it(tmp_path: Path) -> None:
    spec = find_backbone("resnet50")
    tensors = spec.make().state_dict()
    public = {**tensors, "fc.weight": torch.zeros(1000, 2048), "bn1.num_batches_tracked": torch.tensor(0)}
    torch.save(public, tmp_path / "resnet50.pth")
    loaded = load_weights(spec.weights, tmp_path / "resnet50.pth")
    network = spec.build()
    network.load_public(loaded)
    assert all(torch.equal(value, tensors[name]) for name, value in network.state_dict().items())
    assert recognise(loaded, tmp_path).name == "resnet50"
