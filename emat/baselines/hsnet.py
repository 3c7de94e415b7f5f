"""HSNet: 4D convolutions squeeze the support's axes of the hyper-correlations, coarse layers first."""

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn

from emat.backbone.frozen import Backbone
from emat.baselines.center_pivot import CenterPivotConv, resize_query_axes, squeeze_block
from emat.baselines.hyper_correlation import HyperCorrelationMethod, HyperFeatures
from emat.baselines.resnet_method import mask_at
from emat.model.heads import mask_head, mask_logits

WIDTHS = (16, 64, 128)


class HSNet(HyperCorrelationMethod):
    """Support features count as much as the mask covers them."""

    name = "hsnet"

    def __init__(self, backbone: Backbone, image_size: int | None = None) -> None:
        super().__init__(backbone, image_size)
        self.learner = HSNetLearner(self.backbone.blocks[1:])

    def seen_of_support(self, maps: Tensor, mask: Tensor) -> Tensor:
        """Nothing off the mask."""
        return maps * mask_at(mask, maps)


class HSNetLearner(nn.Module):
    """Attributes are called as in published checkpoints."""

    def __init__(self, bottlenecks: Sequence[int]) -> None:
        super().__init__()
        second, third, fourth = bottlenecks
        self.encoder_layer4 = squeeze_block(fourth, WIDTHS, kernels=(3, 3, 3), strides=(2, 2, 2))
        self.encoder_layer3 = squeeze_block(third, WIDTHS, kernels=(5, 3, 3), strides=(4, 2, 2))
        self.encoder_layer2 = squeeze_block(second, WIDTHS, kernels=(5, 5, 3), strides=(4, 4, 2))
        width = WIDTHS[-1]
        self.encoder_layer4to3 = squeeze_block(width, (width,) * 3, kernels=(3, 3, 3), strides=(1, 1, 1))
        self.encoder_layer3to2 = squeeze_block(width, (width,) * 3, kernels=(3, 3, 3), strides=(1, 1, 1))
        self.decoder1, self.decoder2 = mask_head(width)

    def forward(self, query: HyperFeatures, support: HyperFeatures) -> Tensor:
        """One pair -> logits (1, 2, 2h, 2w)."""
        encoders = (self.encoder_layer2, self.encoder_layer3, self.encoder_layer4)
        second, third, fourth = (
            _squeeze(encoder, q, s) for encoder, q, s in zip(encoders, query.layers, support.layers, strict=True)
        )
        x = self.encoder_layer4to3(third + resize_query_axes(fourth, _query_size(third)))
        x = self.encoder_layer3to2(second + resize_query_axes(x, _query_size(second)))
        return mask_logits((self.decoder1, self.decoder2), x.mean(dim=(4, 5)))


def _squeeze(encoder: nn.Sequential, query: Tensor, support: Tensor) -> Tensor:
    """One layer's unit features (bottlenecks, features, h, w) -> (1, 128, hq, wq, hs', ws')."""
    first = cast(CenterPivotConv, encoder[0])
    return cast(Tensor, encoder[1:](first.from_features(query, support)))


def _query_size(x: Tensor) -> tuple[int, int]:
    return x.shape[2], x.shape[3]
