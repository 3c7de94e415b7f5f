"""ASNet: attention squeezes the support's axes of the hyper-correlations, coarse layers first."""

from collections.abc import Sequence
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from emat.backbone.frozen import Backbone
from emat.baselines.hyper_correlation import HyperCorrelationMethod, HyperFeatures
from emat.baselines.squeeze_attention import SqueezeLayer
from emat.errors import EmatError
from emat.model.heads import mask_head, mask_logits

NARROW, WIDTH = 32, 128
LARGEST_SIDE = 50  # support maps of this side or larger are pooled
SMALLEST_IMAGE = 257  # pixels; of a smaller one less than 2 x 2 support cells reach the layer with a 2 x 2 kernel


class ASNet(HyperCorrelationMethod):
    """The support is seen whole; its mask says which cells attention may look at."""

    name = "asnet"

    def __init__(self, backbone: Backbone, image_size: int | None = None) -> None:
        super().__init__(backbone, image_size)
        if self.preparation.image_size < SMALLEST_IMAGE:
            raise EmatError(
                f"asnet needs photos of at least {SMALLEST_IMAGE} pixels a side, not {self.preparation.image_size}; "
                "it was published for 400"
            )
        self.learner = ASNetLearner(self.backbone.blocks[1:])

    def seen_of_support(self, maps: Tensor, mask: Tensor) -> Tensor:
        """Large maps at half their resolution."""
        if min(maps.shape[2:]) < LARGEST_SIDE:
            return maps
        return F.avg_pool2d(maps, 3, stride=2, padding=1)


class ASNetLearner(nn.Module):
    """Attributes are called as in published checkpoints."""

    def __init__(self, bottlenecks: Sequence[int]) -> None:
        super().__init__()
        second, third, fourth = bottlenecks
        self.encoder_layer4 = nn.ModuleList([SqueezeLayer(fourth, NARROW, 5, 4), SqueezeLayer(NARROW, WIDTH, 3, 2)])
        self.encoder_layer3, self.encoder_layer2 = (
            nn.ModuleList(
                [
                    SqueezeLayer(bottlenecks, NARROW, 5, 4, pooled_keys=True),
                    SqueezeLayer(NARROW, WIDTH, 5, 4, pooled_keys=True),
                ]
            )
            for bottlenecks in (third, second)
        )
        self.encoder_layer4to3, self.encoder_layer3to2 = (
            nn.ModuleList([SqueezeLayer(WIDTH, WIDTH, 1, 1), SqueezeLayer(WIDTH, WIDTH, 2, 1)]) for _ in range(2)
        )
        self.decoder1, self.decoder2 = mask_head(WIDTH)

    def forward(self, query: HyperFeatures, support: HyperFeatures) -> Tensor:
        """One pair -> logits (1, 2, 2h, 2w)."""
        mask = support.mask
        assert mask is not None
        encoders = (self.encoder_layer2, self.encoder_layer3, self.encoder_layer4)
        sizes = [cast("tuple[int, int]", tuple(maps.shape[2:])) for maps in query.layers]
        second, third, fourth = (
            _squeeze(encoder, q, s, mask) for encoder, q, s in zip(encoders, query.layers, support.layers, strict=True)
        )
        coarse = _resize(fourth.mean(dim=(2, 3)), sizes[2], sizes[1])
        x = _mix(self.encoder_layer4to3, third + coarse[:, :, None, None], mask)
        x = _mix(self.encoder_layer3to2, second + _resize(x, sizes[1], sizes[0])[:, :, None, None], mask)
        return mask_logits((self.decoder1, self.decoder2), x.unflatten(1, sizes[0])[None])


def _squeeze(encoder: nn.ModuleList, query: Tensor, support: Tensor, mask: Tensor) -> Tensor:
    """One layer's unit features (bottlenecks, features, h, w) -> (128, Q, 2, 2)."""
    first, second = (cast(SqueezeLayer, layer) for layer in encoder)
    return cast(Tensor, second(first.from_features(query, support, mask), mask))


def _mix(layers: nn.ModuleList, x: Tensor, mask: Tensor) -> Tensor:
    """(128, Q, 2, 2) -> (128, Q); of a larger photo more than one support cell is left, and they are averaged."""
    for layer in layers:
        x = layer(x, mask)
    return x.mean(dim=(2, 3))


def _resize(x: Tensor, size: tuple[int, int], to: tuple[int, int]) -> Tensor:
    """Query positions (C, h * w) of one grid resized bilinearly to another (C, h' * w')."""
    return F.interpolate(x.unflatten(1, size)[None], to, mode="bilinear", align_corners=True)[0].flatten(1)
