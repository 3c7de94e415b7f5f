"""EfficientNet-Lite2: a small convolutional network whose ImageNet weights are installed with emat."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from emat.backbone.base import Backbone
from emat.backbone.tokens import Grid, Tokens, strided_grid, tokens_from_maps
from emat.errors import EmatError

BATCH_NORM_EPS = 1e-3
STEM_FEATURES = 32
STEM_STRIDE = 2
HEAD_FEATURES = 1280
CLASSES = 1000  # of ImageNet


@dataclass(frozen=True)
class EfficientNetStage:
    """Blocks of the same width; the first one has the stride."""

    features: int
    repeats: int
    kernel: int
    stride: int
    expansion: int = 6
    groups: int = 0  # channels that each of its blocks gives as tokens


# Groups are about 60 features wide. Earlier blocks respond to edges and textures rather than classes and give none.
STAGES = (
    EfficientNetStage(16, repeats=1, kernel=3, stride=1, expansion=1),
    EfficientNetStage(24, repeats=3, kernel=3, stride=2),
    EfficientNetStage(48, repeats=3, kernel=5, stride=2),
    EfficientNetStage(88, repeats=4, kernel=3, stride=2, groups=2),
    EfficientNetStage(120, repeats=4, kernel=5, stride=1, groups=2),
    EfficientNetStage(208, repeats=5, kernel=5, stride=2, groups=4),
    EfficientNetStage(352, repeats=1, kernel=3, stride=1, groups=6),
)
DENSE_BLOCKS = (0, 3, 6, 10, 14, 18, 20)  # one of each stage: they give maps for classifiers of single pixels
TOKEN_STRIDE = 16  # of the finest stage that gives tokens; coarser maps are resized to its grid


class EfficientNetLite2(Backbone):
    """Blocks 7 to 20 give 42 channels of at most 60 features, on a grid of one token per 16 x 16 pixels.

    >>> EfficientNetLite2()(torch.zeros(1, 3, 64, 90)).shape
    torch.Size([1, 42, 25, 60])
    """

    kept_maps = 2

    def __init__(self) -> None:
        super().__init__()
        self.channels = sum(stage.groups * stage.repeats for stage in STAGES)
        self.width = max(-(-stage.features // stage.groups) for stage in STAGES if stage.groups)
        self._conv_stem = SameConv2d(3, STEM_FEATURES, kernel=3, stride=STEM_STRIDE)
        self._bn0 = nn.BatchNorm2d(STEM_FEATURES, eps=BATCH_NORM_EPS)
        self._blocks = nn.ModuleList()
        self.groups: list[int] = []  # of each block
        self._features: list[int] = []
        self._strides: list[int] = []  # pixels of the photo that one position of the block's map stands for
        features, total = STEM_FEATURES, STEM_STRIDE
        for stage in STAGES:
            for repeat in range(stage.repeats):
                stride = 1 if repeat else stage.stride
                self._blocks.append(InvertedBottleneck(features, stage, stride))
                features, total = stage.features, total * stride
                self.groups.append(stage.groups)
                self._features.append(features)
                self._strides.append(total)
        self._conv_head = nn.Conv2d(features, HEAD_FEATURES, 1, bias=False)
        self._bn1 = nn.BatchNorm2d(HEAD_FEATURES, eps=BATCH_NORM_EPS)
        self._fc = nn.Linear(HEAD_FEATURES, CLASSES)
        self.freeze()

    def load_public(self, tensors: Mapping[str, Tensor]) -> None:
        """Load weights under their public names, once; batch norms are then folded into the convolutions."""
        if not isinstance(self._bn0, nn.BatchNorm2d):
            raise EmatError(
                "weights-are-set",
                "this EfficientNet-Lite2 has its weights already; build another one for other weights",
            )
        super().load_public(tensors)
        # Folded, laid out channels last and rectified in place it takes about 0.6 of the time.
        _fold(self, ("_conv_stem", "_bn0"), ("_conv_head", "_bn1"))
        for block in self._blocks:
            _fold(block, ("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2"))
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.freeze()

    def grid(self, height: int, width: int) -> Grid:
        """Return rows and columns of the maps of stride 16; every size is accepted."""
        return strided_grid(height, width, TOKEN_STRIDE)

    def encode(self, pixels: Tensor) -> Tokens:
        """Compute the tokens (B, 42, 1 + T, 60)."""
        return self.tokens_from(self.encode_maps(pixels), (pixels.shape[2], pixels.shape[3]))

    def encode_maps(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Compute what tokens are made from: maps (B, 832, h, w) of stride 16 and (B, 1392, h / 2, w / 2) of stride 32.

        The tokens would take twice the memory, since they repeat the coarser maps on the finer grid and pad narrow
        channels with zeros.
        """
        outputs = self._outputs(pixels)
        return tuple(torch.cat([outputs[index] for index in blocks], dim=1) for blocks in self._token_blocks())

    def tokens_from(self, maps: Sequence[Tensor], size: tuple[int, int]) -> Tokens:
        """Make the tokens (B, 42, 1 + T, 60) from these maps."""
        split: list[Tensor] = []
        groups: list[int] = []
        for joined, blocks in zip(maps, self._token_blocks(), strict=True):
            split += joined.split([self._features[index] for index in blocks], dim=1)
            groups += [self.groups[index] for index in blocks]
        return tokens_from_maps(split, groups, self.grid(*size))

    def mirror(self, maps: Sequence[Tensor], size: tuple[int, int]) -> tuple[Tensor, ...]:
        """Mirror maps from left to right."""
        return tuple(map_.flip(3) for map_ in maps)

    def _token_blocks(self) -> list[list[int]]:
        """Return the indices of the blocks that give tokens, grouped by stride."""
        by_stride: dict[int, list[int]] = {}
        for index, (stride, groups) in enumerate(zip(self._strides, self.groups, strict=True)):
            if groups:
                by_stride.setdefault(stride, []).append(index)
        return list(by_stride.values())

    @torch.no_grad()
    def dense_maps(self, pixels: Tensor) -> list[Tensor]:
        """Compute the map after one block of each stage, from half the photo's resolution to a thirty-second."""
        outputs = self._outputs(pixels)
        return [outputs[block] for block in DENSE_BLOCKS]

    def classify(self, pixels: Tensor) -> Tensor:
        """Compute ImageNet logits (B, 1000), which tests use to check the weights."""
        x = F.relu6(self._bn1(self._conv_head(self._outputs(pixels)[-1])), inplace=True)
        logits: Tensor = self._fc(x.mean(dim=(2, 3)))
        return logits

    def _outputs(self, pixels: Tensor) -> list[Tensor]:
        """Compute the map (B, features, h, w) after each block."""
        x = F.relu6(self._bn0(self._conv_stem(pixels)), inplace=True)
        outputs = []
        for block in self._blocks:
            x = block(x)
            outputs.append(x)
        return outputs


class InvertedBottleneck(nn.Module):
    """A 1 x 1, a depthwise and another 1 x 1 convolution, added to the input where the shapes are equal."""

    def __init__(self, features: int, stage: EfficientNetStage, stride: int) -> None:
        super().__init__()
        inner = features * stage.expansion
        self.skips = stride == 1 and features == stage.features
        self.expands = stage.expansion > 1
        if self.expands:
            self._expand_conv = nn.Conv2d(features, inner, 1, bias=False)
            self._bn0 = nn.BatchNorm2d(inner, eps=BATCH_NORM_EPS)
        self._depthwise_conv = SameConv2d(inner, inner, stage.kernel, stride, groups=inner)
        self._bn1 = nn.BatchNorm2d(inner, eps=BATCH_NORM_EPS)
        self._project_conv = nn.Conv2d(inner, stage.features, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(stage.features, eps=BATCH_NORM_EPS)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, features, h, w) to (B, stage features, h / stride, w / stride)."""
        inner = F.relu6(self._bn0(self._expand_conv(x)), inplace=True) if self.expands else x
        inner = F.relu6(self._bn1(self._depthwise_conv(inner)), inplace=True)
        out: Tensor = self._bn2(self._project_conv(inner))
        return x + out if self.skips else out


class SameConv2d(nn.Conv2d):
    """A convolution padded as in TensorFlow, which puts an odd pixel of padding at the right and bottom."""

    def __init__(self, features: int, out: int, kernel: int, stride: int, groups: int = 1) -> None:
        super().__init__(features, out, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, features, h, w) to (B, out, ceil(h / stride), ceil(w / stride))."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        if stride == 1:
            return F.conv2d(x, self.weight, self.bias, padding=kernel // 2, groups=self.groups)
        height, width = (max(-(-n // stride) * stride - stride + kernel - n, 0) for n in x.shape[2:])
        x = F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
        return F.conv2d(x, self.weight, self.bias, stride=stride, groups=self.groups)


def _fold(module: nn.Module, *pairs: tuple[str, str]) -> None:
    """Fold every named (convolution, batch norm) pair that `module` has into one convolution."""
    for convolution, norm in pairs:
        if hasattr(module, convolution):
            setattr(module, convolution, fuse_conv_bn_eval(getattr(module, convolution), getattr(module, norm)))
            setattr(module, norm, nn.Identity())
