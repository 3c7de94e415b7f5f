"""EfficientNet-Lite2: a small convolutional network whose ImageNet weights install with pip."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from emat.backbone.frozen import Backbone
from emat.backbone.tokens import Grid, Tokens, tokens_from_maps
from emat.errors import EmatError

BATCH_NORM_EPS = 1e-3
STEM_FEATURES = 32
HEAD_FEATURES = 1280
CLASSES = 1000  # of ImageNet


@dataclass(frozen=True)
class Stage:
    """Blocks of one width; the first of them has the stride."""

    features: int
    repeats: int
    kernel: int
    stride: int
    expansion: int = 6
    groups: int = 0  # channels that each of its blocks gives as tokens


# Groups are about 60 features wide. Earlier blocks see edges and textures, not classes: they give none.
STAGES = (
    Stage(16, repeats=1, kernel=3, stride=1, expansion=1),
    Stage(24, repeats=3, kernel=3, stride=2),
    Stage(48, repeats=3, kernel=5, stride=2),
    Stage(88, repeats=4, kernel=3, stride=2, groups=2),
    Stage(120, repeats=4, kernel=5, stride=1, groups=2),
    Stage(208, repeats=5, kernel=5, stride=2, groups=4),
    Stage(352, repeats=1, kernel=3, stride=1, groups=6),
)
TOKEN_STRIDE = 16  # of the finest stage that gives tokens; coarser maps are resized to its grid


class EfficientNetLite2(Backbone):
    """Blocks 7 to 20 give 42 channels of at most 60 features, on a grid of one token per 16 x 16 pixels.

    >>> EfficientNetLite2()(torch.zeros(1, 3, 64, 90)).shape
    torch.Size([1, 42, 25, 60])
    """

    def __init__(self) -> None:
        super().__init__()
        self.channels = sum(stage.groups * stage.repeats for stage in STAGES)
        self.width = max(-(-stage.features // stage.groups) for stage in STAGES if stage.groups)
        self._conv_stem = SameConv2d(3, STEM_FEATURES, kernel=3, stride=2)
        self._bn0 = nn.BatchNorm2d(STEM_FEATURES, eps=BATCH_NORM_EPS)
        self._blocks = nn.ModuleList()
        self.groups: list[int] = []  # of each block
        features = STEM_FEATURES
        for stage in STAGES:
            for repeat in range(stage.repeats):
                self._blocks.append(InvertedBottleneck(features, stage, stride=1 if repeat else stage.stride))
                self.groups.append(stage.groups)
                features = stage.features
        self._conv_head = nn.Conv2d(features, HEAD_FEATURES, 1, bias=False)
        self._bn1 = nn.BatchNorm2d(HEAD_FEATURES, eps=BATCH_NORM_EPS)
        self._fc = nn.Linear(HEAD_FEATURES, CLASSES)
        self.freeze()

    def load_public(self, tensors: Mapping[str, Tensor]) -> None:
        """Take weights under their public names, once: batch-norms then dissolve into the convolutions."""
        if not isinstance(self._bn0, nn.BatchNorm2d):
            raise EmatError("this EfficientNet-Lite2 has its weights already; build another one for other weights")
        super().load_public(tensors)
        # Folded, laid out channels last and rectified in place it takes about 0.6 of the time.
        _fold(self, ("_conv_stem", "_bn0"), ("_conv_head", "_bn1"))
        for block in self._blocks:
            _fold(block, ("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2"))
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.freeze()

    def grid(self, height: int, width: int) -> Grid:
        """Rows and columns of the stride-16 maps; any size will do."""
        if not height or not width:
            raise EmatError(f"an image of {height} x {width} pixels has nothing in it")
        return -(-height // TOKEN_STRIDE), -(-width // TOKEN_STRIDE)

    def encode(self, pixels: Tensor) -> Tokens:
        """Tokens (B, 42, 1 + T, 60)."""
        maps, groups = [], []
        for output, count in zip(self._outputs(pixels), self.groups, strict=True):
            if count:
                maps.append(output)
                groups.append(count)
        return tokens_from_maps(maps, groups, self.grid(pixels.shape[2], pixels.shape[3]))

    def classify(self, pixels: Tensor) -> Tensor:
        """ImageNet logits (B, 1000): what the weights were trained for, so a check of their use."""
        x = F.relu6(self._bn1(self._conv_head(self._outputs(pixels)[-1])), inplace=True)
        logits: Tensor = self._fc(x.mean(dim=(2, 3)))
        return logits

    def _outputs(self, pixels: Tensor) -> list[Tensor]:
        """The map (B, features, h, w) after each block."""
        x = F.relu6(self._bn0(self._conv_stem(pixels)), inplace=True)
        outputs = []
        for block in self._blocks:
            x = block(x)
            outputs.append(x)
        return outputs


class InvertedBottleneck(nn.Module):
    """Expand by 1 x 1, filter each feature alone, project by 1 x 1; added to the input where shapes allow."""

    def __init__(self, features: int, stage: Stage, stride: int) -> None:
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
        """(B, features, h, w) in, (B, stage features, h / stride, w / stride) out."""
        inner = F.relu6(self._bn0(self._expand_conv(x)), inplace=True) if self.expands else x
        inner = F.relu6(self._bn1(self._depthwise_conv(inner)), inplace=True)
        out: Tensor = self._bn2(self._project_conv(inner))
        return x + out if self.skips else out


class SameConv2d(nn.Conv2d):
    """A convolution padded as TensorFlow does: ceil(size / stride) out, odd pixel at the right and bottom."""

    def __init__(self, features: int, out: int, kernel: int, stride: int, groups: int = 1) -> None:
        super().__init__(features, out, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, features, h, w) in, (B, out, ceil(h / stride), ceil(w / stride)) out."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        if stride == 1:
            return F.conv2d(x, self.weight, self.bias, padding=kernel // 2, groups=self.groups)
        height, width = (max(-(-n // stride) * stride - stride + kernel - n, 0) for n in x.shape[2:])
        x = F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
        return F.conv2d(x, self.weight, self.bias, stride=stride, groups=self.groups)


def _fold(module: nn.Module, *pairs: tuple[str, str]) -> None:
    """Make one convolution of each (convolution, batch-norm) of `module`, by name, that it has."""
    for convolution, norm in pairs:
        if hasattr(module, convolution):
            setattr(module, convolution, fuse_conv_bn_eval(getattr(module, convolution), getattr(module, norm)))
            setattr(module, norm, nn.Identity())
