"""The two task heads: is the class in the query image, and where."""

from torch import Tensor, nn


def presence_head(width: int) -> tuple[nn.Sequential, nn.Sequential]:
    """Two stages around an average pooling; the second one's output (B, 2, h, w) is averaged over the image."""
    half = width // 2
    first = nn.Sequential(nn.Conv2d(width, width, 1), nn.ReLU(), nn.Conv2d(width, half, 1), nn.ReLU())
    second = nn.Sequential(nn.Conv2d(half, half, 1), nn.ReLU(), nn.Conv2d(half, 2, 1))
    return first, second


def mask_head(width: int) -> tuple[nn.Sequential, nn.Sequential]:
    """Two stages around a doubling of the resolution; the second one's output is the mask logits (B, 2, 2h, 2w)."""
    half = width // 2
    first = nn.Sequential(conv3x3(width, width), nn.ReLU(), conv3x3(width, half), nn.ReLU())
    second = nn.Sequential(conv3x3(half, half), nn.ReLU(), conv3x3(half, 2))
    return first, second


def conv3x3(channels: int, out: int) -> nn.Conv2d:
    """A 3 x 3 convolution that keeps the size."""
    return nn.Conv2d(channels, out, 3, padding=1)


def presence_logits(stages: tuple[nn.Module, nn.Module], x: Tensor) -> Tensor:
    """(B, E, h, w) -> (B, 2): absent, present."""
    first, second = stages
    return second(nn.functional.avg_pool2d(first(x), 3, stride=2, padding=1)).mean(dim=(2, 3))


def mask_logits(stages: tuple[nn.Module, nn.Module], x: Tensor) -> Tensor:
    """(B, E, h, w) -> (B, 2, 2h, 2w): background, foreground."""
    first, second = stages
    return second(nn.functional.interpolate(first(x), scale_factor=2, mode="bilinear", align_corners=True))
