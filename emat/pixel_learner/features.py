"""Dense features of a photo, for classifiers of single pixels.

Several sources are joined. Classical filters know colour, edges, blobs and texture at the photo's own resolution:
colour, and at the scales 1, 2, 4 and 8 pixels the smoothed colour, the gradient's magnitude, the Laplacian and the two
eigenvalues of the Hessian matrix. The backbone's maps of several depths describe what each part of a photo shows. Where
MobileSAM's weights are on the machine, two maps of its encoder join them: the first stage, which knows outlines, and
the neck, which knows objects.

Maps keep the resolution they are computed at. A pixel's features are read from all maps by bilinear interpolation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from emat.backbone import Backbone
from emat.errors import EmatError
from emat.images import Pixels, resize_photo

WORKING_SIDE = 400  # pixels of a photo's longest side, unless a user asks for another
SMALLEST_SIDE, LARGEST_SIDE = 64, 2000
THIN = 5.0  # pixels of the working size: where the masks of examples are thinner, the working side is larger
MOST_TIMES = 2  # the largest factor by which it is larger, also than the photo's own side
SCALES = (1.0, 2.0, 4.0, 8.0)  # standard deviations of the Gaussian filters, in pixels of the working size
REACH = 3.0  # standard deviations at which a filter is cut off
STRIDE = 2  # pixels of the working size from one position of the classical features to the next
GREY = (0.299, 0.587, 0.114)
ENCODER_SIDE = 512  # pixels of the longest side at which MobileSAM's encoder sees a photo: half of its usual
ENCODER_MAPS = (0, -1)  # of its first stage and of its neck
LEAST_SPREAD = 1e-4  # added to a feature's spread within a photo, so that the noise of a flat photo is not enlarged


@dataclass(frozen=True)
class PixelFeatures:
    """The maps of one photo. All cover the whole photo, each at its own resolution."""

    maps: tuple[Tensor, ...]  # each (features, h, w)
    encoded: int = 0  # how many of them, at the end, are of MobileSAM's encoder

    @property
    def encoder_features(self) -> int:
        """The number of features that are of MobileSAM's encoder."""
        return sum(len(one) for one in self.maps[len(self.maps) - self.encoded :])

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the finest map."""
        return self.maps[0].shape[1], self.maps[0].shape[2]

    @property
    def batch(self) -> list[Tensor]:
        """The maps as those of a batch of one photo, each (1, features, h, w)."""
        return [one[None] for one in self.maps]

    def at(self, points: Tensor) -> Tensor:
        """The features at points of the photo.

        Args:
            points: (n, 2), x and y of each point as shares of the photo's width and height.

        Returns:
            (n, features): all maps side by side, interpolated bilinearly.
        """
        where = (2 * points - 1)[None, :, None]  # (1, n, 1, 2)
        read = [
            F.grid_sample(one[None].float(), where.to(one.device), align_corners=False, padding_mode="border")
            for one in self.maps
        ]
        return torch.cat([one[0, :, :, 0] for one in read]).T


def working_size(size: tuple[int, int], longest: int = WORKING_SIDE) -> tuple[int, int]:
    """The size (h, w) that a photo of `size` is brought to: longest side `longest`, aspect kept.

    >>> working_size((200, 200)), working_size((1500, 3000))
    ((400, 400), (200, 400))
    """
    scale = longest / max(size)
    height, width = (max(2 * STRIDE, round(side * scale)) for side in size)
    return height, width


def side_for(masks: Sequence[Sequence[NDArray[np.bool_]]]) -> int:
    """The working side that suits classes: larger than usual where their masks are thin.

    At the usual side, thin things such as cracks and vessels are narrower than the features are apart. On made cracks
    and vessels 2 to 5 pixels wide, in photos of 500 pixels, the learner of five examples reached an IoU of 57 and 66 at
    400 pixels, of 62 and 72 at 560, and of 63 and 75 at 800.

    Args:
        masks: For each class the masks (H, W) of its examples, as large as their photos are kept.
    """
    classes = [[mask for mask in shown if mask.any()] for shown in masks]
    widths = [[thickness(mask) * WORKING_SIDE / max(mask.shape) for mask in shown] for shown in classes]
    thinnest = min((float(np.median(shown)) for shown in widths if shown), default=THIN)
    largest = max((max(mask.shape) for shown in classes for mask in shown), default=WORKING_SIDE)
    times = min(MOST_TIMES, THIN / thinnest, MOST_TIMES * largest / WORKING_SIDE)
    return round(max(1.0, times) * WORKING_SIDE)


def thickness(mask: NDArray[np.bool_]) -> float:
    """How thick the parts of a mask (H, W) are on average: the width of a line, the radius of a disc.

    >>> strip = np.zeros((20, 30), bool)
    >>> strip[8:12] = True
    >>> round(thickness(strip), 1)
    4.0
    """
    around = np.pad(mask, 1, mode="edge")
    inner = mask & around[:-2, 1:-1] & around[2:, 1:-1] & around[1:-1, :-2] & around[1:-1, 2:]
    return 2 * int(mask.sum()) / max(1, int((mask & ~inner).sum()))


@torch.no_grad()
def pixel_features(
    photo: Pixels, backbone: Backbone, longest: int = WORKING_SIDE, encoder: Backbone | None = None
) -> PixelFeatures:
    """The maps of a photo (H, W, 3): classical features first, then the backbone's, then those of MobileSAM's encoder.

    Of a photo with further channels (H, W, 3 + C), networks see the colours, and every channel has classical features.

    Every map of a network is divided by its root mean square, so that no depth outweighs the others.
    """
    size = working_size((photo.shape[0], photo.shape[1]), longest)
    device = next(backbone.parameters()).device
    pixels = torch.from_numpy(resize_photo(photo, size)).to(device).permute(2, 0, 1) / 255  # (3 or more, h, w)
    maps = tuple(one[0].contiguous() for one in pixel_maps(pixels[None], backbone, encoder))
    return PixelFeatures(maps, 0 if encoder is None else len(ENCODER_MAPS))


def pixel_maps(pixels: Tensor, backbone: Backbone, encoder: Backbone | None = None) -> list[Tensor]:
    """The maps of B photos of one size, each (B, features, h, w), from pixels (B, 3, H, W) in [0, 1].

    Further channels may follow the three colours.
    """
    pixels, further = pixels[:, :3], pixels[:, 3:]
    classical = classical_features(pixels)
    if further.shape[1]:
        classical = torch.cat([classical, channel_features(further)], dim=1)
    maps = [classical, _within_photo(classical)]
    deep = _backbone_maps(pixels, backbone)
    if encoder is not None:
        scale = ENCODER_SIDE / max(pixels.shape[2:])
        size = (max(1, round(scale * pixels.shape[2])), max(1, round(scale * pixels.shape[3])))
        seen = F.interpolate(pixels, size, mode="bilinear", align_corners=False, antialias=scale < 1)
        encoded = _backbone_maps(seen, encoder)
        deep = [*deep, *(encoded[index] for index in ENCODER_MAPS)]
    for one in deep:
        maps.append(one / one.square().mean(dim=(1, 2, 3), keepdim=True).sqrt().clamp_min(1e-6))
    return maps


def _backbone_maps(pixels: Tensor, backbone: Backbone) -> list[Tensor]:
    spec = backbone.spec
    if spec is None:
        raise EmatError(
            "wrong-backbone",
            "pixel features need a backbone from the registry, which knows how photos are prepared for it",
        )
    multiple = spec.multiple
    height, width = (max(1, round(side / multiple)) * multiple for side in pixels.shape[2:])
    prepared = pixels
    if (height, width) != tuple(pixels.shape[2:]):
        prepared = F.interpolate(prepared, (height, width), mode="bilinear", align_corners=False, antialias=True)
    mean, std = (pixels.new_tensor(values).view(3, 1, 1) for values in (spec.mean, spec.std))
    return backbone.dense_maps((prepared - mean) / std)


def classical_features(pixels: Tensor) -> Tensor:
    """Compute colour, edges and blobs at several scales.

    Args:
        pixels: (..., 3, H, W) in [0, 1].

    Returns:
        (..., 31, H / 2, W / 2): colour, then for each scale the smoothed colour (3), the gradient's magnitude, the
        Laplacian, the larger and the smaller eigenvalue of the Hessian matrix. Derivatives are of the grey photo
        and multiplied by their scale once per order, which makes them comparable across scales.
    """
    height, width = pixels.shape[-2:]
    grey = pixels.new_tensor(GREY).view(3, 1, 1)
    features = [F.avg_pool2d(pixels, STRIDE, ceil_mode=True)]
    for scale in SCALES:
        down, across = _filters(height, scale, pixels.device), _filters(width, scale, pixels.device)
        smooth = down[0] @ pixels  # (..., 3, H / 2, W)
        flat = (pixels * grey).sum(dim=-3)
        sloped, curved = down[1] @ flat, down[2] @ flat  # each (..., H / 2, W)
        level = (smooth * grey).sum(dim=-3)
        features.append(smooth @ across[0].T)
        dx, dxx = level @ across[1].T, level @ across[2].T
        dy, dxy, dyy = sloped @ across[0].T, sloped @ across[1].T, curved @ across[0].T
        middle, half = (dxx + dyy) / 2, (((dxx - dyy) / 2).square() + dxy.square()).sqrt()
        edges = [(dx.square() + dy.square()).sqrt(), dxx + dyy, middle + half, middle - half]
        features.append(torch.stack(edges, dim=-3))
    return torch.cat(features, dim=-3)


def channel_features(channels: Tensor) -> Tensor:
    """Compute the value, edges and blobs of every channel (B, C, H, W) at several scales: (B, 21 C, H / 2, W / 2)."""
    grey = channels.flatten(0, 1)[:, None].expand(-1, 3, -1, -1)  # (B C, 3, H, W)
    features = classical_features(grey)  # (B C, 31, h, w), in which every colour is there three times
    scales = range(3, features.shape[1], 7)
    chosen = [0, *(first + offset for first in scales for offset in (0, 3, 4, 5, 6))]
    return features[:, chosen].unflatten(0, tuple(channels.shape[:2])).flatten(1, 2)


@lru_cache(maxsize=64)
def _filters(length: int, scale: float, device: torch.device) -> Tensor:
    """Gaussian filters as matrices (3, length / 2, length): smoothing, first and second derivative.

    A row gives the value between two pixels, the middle of a stride of 2. Beyond the edge the outermost pixel is
    repeated. A product with such a matrix takes a third of the time of a convolution with one channel.
    """
    reach = int(REACH * scale + 0.5) + 1
    x = torch.arange(-reach, reach, dtype=torch.float64) + 0.5
    gauss = torch.exp(-x.square() / (2 * scale**2))
    gauss = gauss / gauss.sum()
    slope = x * gauss
    slope = slope / (slope * x).sum() * scale  # exact for a ramp, although the kernel is cut off
    curve = (x.square() / scale**2 - 1) * gauss
    curve = curve - curve.sum() * gauss  # a flat photo has no curvature
    curve = curve / (curve * x.square() / 2).sum() * scale**2
    kernels = torch.stack([gauss, slope, curve])  # (3, taps)
    rows = -(-length // STRIDE)
    taps = STRIDE * torch.arange(rows)[:, None] + torch.arange(-reach, reach) + 1  # (rows, taps)
    indices = taps.clamp(0, length - 1).expand(3, -1, -1)
    matrix = torch.zeros(3, rows, length, dtype=torch.float64)
    matrix.scatter_add_(2, indices, kernels[:, None].expand(-1, rows, -1))
    return matrix.to(device, torch.float32)


def _within_photo(features: Tensor) -> Tensor:
    """The same features relative to the photo's own mean and spread, which light and exposure do not change."""
    values = features.flatten(-2)
    mean, spread = (statistic[..., None, None] for statistic in (values.mean(dim=-1), values.std(dim=-1)))
    return (features - mean) / (spread + LEAST_SPREAD)
