"""ResNet-50 and -101 under torchvision's names: the backbone of PANet, PFENet, HSNet and ASNet."""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emat.backbone.base import Backbone
from emat.backbone.tokens import Grid, Tokens, strided_grid, tokens_from_maps

STEM_FEATURES = 64
EXPANSION = 4  # a bottleneck's output has this many times the features of its 3 x 3
TOKEN_WIDTH = 512  # features of layer2; bottlenecks of the wider layers give several channels
TOKEN_STRIDE = 16  # of layer3; maps of the other layers are resized to its grid
BLOCKS_50, BLOCKS_101 = (3, 4, 6, 3), (3, 4, 23, 3)


class ResNet(Backbone):
    """Four layers of bottlenecks without the classifier.

    As tokens, each bottleneck of layer2, layer3 and layer4 gives channels of 512 features, with one token per
    16 x 16 pixels.

    Args:
        blocks: The number of bottlenecks of each layer.
        stride_on_first: Where the stride of a layer is: on the first 1 x 1 convolution of its first bottleneck, as in
            the original ResNet (v1) and Keras, or on the 3 x 3 convolution, as in torchvision. Tensors have the same
            names and shapes either way, so weights must be used with the form that they were trained in.

    >>> network = ResNet(BLOCKS_50)
    >>> network(torch.zeros(1, 3, 64, 90)).shape
    torch.Size([1, 28, 25, 512])
    >>> [tuple(layer[-1].shape[1:]) for layer in network.bottlenecks(torch.zeros(1, 3, 64, 64))]
    [(256, 16, 16), (512, 8, 8), (1024, 4, 4), (2048, 2, 2)]
    """

    def __init__(self, blocks: Sequence[int] = BLOCKS_50, *, stride_on_first: bool = False) -> None:
        super().__init__()
        self.blocks = tuple(blocks)  # bottlenecks of each layer
        self.conv1 = nn.Conv2d(3, STEM_FEATURES, 7, stride=2, padding=3, bias=False)
        self.bn1 = _norm(STEM_FEATURES)
        self.layer1 = _layer(STEM_FEATURES, 64, blocks[0], stride=1, stride_on_first=stride_on_first)
        self.layer2 = _layer(256, 128, blocks[1], stride=2, stride_on_first=stride_on_first)
        self.layer3 = _layer(512, 256, blocks[2], stride=2, stride_on_first=stride_on_first)
        self.layer4 = _layer(1024, 512, blocks[3], stride=2, stride_on_first=stride_on_first)
        self.groups = [1] * blocks[1] + [2] * blocks[2] + [4] * blocks[3]  # channels of each bottleneck
        self.channels, self.width = sum(self.groups), TOKEN_WIDTH
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # 0.9 of the time on a CPU
        self.freeze()

    def grid(self, height: int, width: int) -> Grid:
        """Return rows and columns of layer3's maps; every size is accepted."""
        return strided_grid(height, width, TOKEN_STRIDE)

    def encode(self, pixels: Tensor) -> Tokens:
        """Compute the tokens (B, C, 1 + T, 512)."""
        _, *layers = self.bottlenecks(pixels)
        maps = [one for layer in layers for one in layer]
        return tokens_from_maps(maps, self.groups, self.grid(pixels.shape[2], pixels.shape[3]))

    @torch.no_grad()
    def dense_maps(self, pixels: Tensor) -> list[Tensor]:
        """Compute the maps of layers 1 to 3, from a quarter of the photo's resolution to a sixteenth."""
        return [F.relu(layer[-1]) for layer in self.bottlenecks(pixels)[:3]]

    def stem(self, pixels: Tensor) -> Tensor:
        """Run the layers before the first bottleneck: (B, 3, H, W) -> (B, 64, H / 4, W / 4)."""
        return F.max_pool2d(F.relu(self.bn1(self.conv1(pixels))), 3, stride=2, padding=1)

    def bottlenecks(self, pixels: Tensor) -> list[list[Tensor]]:
        """Compute the map (B, features, h, w) of every bottleneck before its last ReLU, by layer.

        Unlike `forward`, this passes gradients to parameters that require them.
        """
        x, layers = self.stem(pixels), []
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            maps = []
            for block in layer:
                maps.append(block(x))
                x = F.relu(maps[-1])
            layers.append(maps)
        return layers


class Bottleneck(nn.Module):
    """Convolutions of 1 x 1, 3 x 3 and 1 x 1, added to the input, which is projected where the shapes differ."""

    def __init__(self, features: int, inner: int, stride: int, stride_on_first: bool = False) -> None:
        super().__init__()
        out = EXPANSION * inner
        first, second = (stride, 1) if stride_on_first else (1, stride)
        self.conv1 = nn.Conv2d(features, inner, 1, first, bias=False)
        self.bn1 = _norm(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, second, padding=1, bias=False)
        self.bn2 = _norm(inner)
        self.conv3 = nn.Conv2d(inner, out, 1, bias=False)
        self.bn3 = _norm(out)
        self.downsample = None
        if stride > 1 or features != out:
            self.downsample = nn.Sequential(nn.Conv2d(features, out, 1, stride, bias=False), _norm(out))

    def forward(self, x: Tensor, dilation: int | None = None) -> Tensor:
        """Map (B, features, h, w) to (B, out, h / stride, w / stride), before the ReLU.

        A `dilation` of the 3 x 3 replaces the stride, so that the size stays.
        """
        inner = F.relu(self.bn1(_convolve(self.conv1, x, dilation)))
        inner = F.relu(self.bn2(_convolve(self.conv2, inner, dilation)))
        branch: Tensor = self.bn3(self.conv3(inner))
        if self.downsample is None:
            return branch + x
        projection, norm = self.downsample
        return branch + norm(_convolve(cast(nn.Conv2d, projection), x, dilation))


def run_layer(layer: nn.Sequential, x: Tensor, dilation: int | None = None) -> Tensor:
    """Run all bottlenecks of a layer: (B, features, h, w) -> (B, out, h, w), after the last ReLU."""
    for block in layer:
        x = F.relu(block(x, dilation))
    return x


def _convolve(convolution: nn.Conv2d, x: Tensor, dilation: int | None) -> Tensor:
    if dilation is None:
        return convolution(x)
    padding = dilation * (convolution.kernel_size[0] // 2)
    return F.conv2d(x, convolution.weight, None, 1, padding, dilation)


def _norm(features: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(features)
    norm.num_batches_tracked = None  # public files may lack it, and nothing here reads it
    return norm


def _layer(features: int, inner: int, count: int, stride: int, stride_on_first: bool) -> nn.Sequential:
    rest = (Bottleneck(EXPANSION * inner, inner, 1) for _ in range(count - 1))
    return nn.Sequential(Bottleneck(features, inner, stride, stride_on_first), *rest)
