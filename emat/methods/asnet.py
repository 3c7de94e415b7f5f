"""ASNet: attention reduces the support axes of hyper-correlations, from coarse layers to fine ones."""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emat.backbone.base import Backbone
from emat.errors import EmatError
from emat.methods.resnet_base import HyperCorrelationMethod, HyperFeatures, correlate, in_chunks, mask_at
from emat.model.attention import ATTENTION_HEADS, attend
from emat.model.group_norm import NORM_GROUPS
from emat.model.layers import mask_branch, mask_branch_stages
from emat.model.post_attention import PostAttentionWeights, post_attention_

NARROW, WIDTH = 32, 128
POOLED_FROM = 50  # support maps with this side or a larger one are average-pooled
SMALLEST_IMAGE = 257  # pixels; with fewer, less than 2 x 2 support positions reach the layer with a 2 x 2 kernel


class ASNet(HyperCorrelationMethod):
    """ASNet (Kang and Cho, CVPR 2022). Attention sees the support positions that its mask covers."""

    name = "asnet"

    def __init__(self, backbone: Backbone, image_size: int | None = None) -> None:
        super().__init__(backbone, image_size)
        if self.preparation.image_size < SMALLEST_IMAGE:
            raise EmatError(
                "photo-size",
                f"asnet needs photos of at least {SMALLEST_IMAGE} pixels a side, not {self.preparation.image_size}; "
                "it was published for 400",
            )
        self.learner = ASNetNetwork(self.backbone.blocks[1:])

    def seen_of_support(self, maps: Tensor, mask: Tensor) -> Tensor:
        """Return large maps at half their resolution, small ones as they are."""
        if min(maps.shape[2:]) < POOLED_FROM:
            return maps
        return F.avg_pool2d(maps, 3, stride=2, padding=1)


class ASNetNetwork(nn.Module):
    """The trained part of ASNet. Attributes have the names of public checkpoints."""

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
        self.decoder1, self.decoder2 = mask_branch_stages(WIDTH)

    def forward(self, query: HyperFeatures, support: HyperFeatures) -> Tensor:
        """Compute the logits (1, 2, 2h, 2w) of one pair."""
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
        return mask_branch((self.decoder1, self.decoder2), x.unflatten(1, sizes[0])[None])


def _squeeze(encoder: nn.ModuleList, query: Tensor, support: Tensor, mask: Tensor) -> Tensor:
    """One layer's unit features (bottlenecks, features, h, w) -> (128, Q, 2, 2)."""
    first, second = (cast(SqueezeLayer, layer) for layer in encoder)
    return cast(Tensor, second(first.from_features(query, support, mask), mask))


def _mix(layers: nn.ModuleList, x: Tensor, mask: Tensor) -> Tensor:
    """(128, Q, 2, 2) -> (128, Q). Larger photos leave several support positions, which are averaged."""
    for layer in layers:
        x = layer(x, mask)
    return x.mean(dim=(2, 3))


def _resize(x: Tensor, size: tuple[int, int], to: tuple[int, int]) -> Tensor:
    """Resize query positions (C, h * w) bilinearly to another grid: (C, h' * w')."""
    return F.interpolate(x.unflatten(1, size)[None], to, mode="bilinear", align_corners=True)[0].flatten(1)


class SqueezeLayer(nn.Module):
    """Attention among the support positions of each query position: (C, Q, hs, ws) -> (E, Q, hs', ws').

    It is CST's layer, except that its projections are convolutions over the support axes.

    >>> layer = SqueezeLayer(3, 32, kernel=5, stride=4)
    >>> layer(torch.zeros(3, 10, 13, 13), mask=torch.ones(400, 400)).shape
    torch.Size([32, 10, 4, 4])
    """

    def __init__(self, channels: int, width: int, kernel: int, stride: int, *, pooled_keys: bool = False) -> None:
        super().__init__()
        self.attn = _SupportAttention(channels, width, kernel, stride, pooled_keys)
        self.ff = _SqueezeFeedForward(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Process a whole map; `mask` (H, W) is the support's. Without gradients, x may be overwritten."""
        projected = self.attn(x, mask)
        if self.attn.short_cut is None:
            projected = torch.cat([projected, x.flatten(2)])
        return self._finish(projected, self.attn.cells(x))

    def from_features(self, query: Tensor, support: Tensor, mask: Tensor) -> Tensor:
        """Process the correlation of unit features (C, features, h, w), computing it in chunks."""
        s, grid = support.flatten(2), support.shape[2:]

        def attended(chunk: Tensor) -> Tensor:
            return cast(Tensor, self.attn(correlate(chunk, s).unflatten(2, grid), mask))

        projected = in_chunks(attended, query.flatten(2), self.attn.numbers(support))
        return self._finish(projected, self.attn.cells(support))

    def _finish(self, projected: Tensor, cells: tuple[int, int]) -> Tensor:
        """Compute what follows attention, from attended values and residual (H + E, Q, t_d), as (E, Q, hs', ws')."""
        attn, ff = self.attn, self.ff
        attended, residual = projected.split([attn.hidden, 2 * attn.hidden])
        shortcut_norm = None if attn.short_cut is None else attn.short_cut[1]
        weights = PostAttentionWeights.from_modules(attn.agg, shortcut_norm, attn.out_norm, ff)
        finished = post_attention_(attended[None], residual[None], weights)[0]
        return finished.unflatten(2, cells)


class _SupportAttention(nn.Module):
    """Attention whose query and residual convolutions have the layer's kernel and stride.

    Keys and values have them too if they are pooled, otherwise their convolutions are 1 x 1. Attributes have the
    names of public checkpoints.
    """

    def __init__(self, channels: int, width: int, kernel: int, stride: int, pooled_keys: bool) -> None:
        super().__init__()
        self.hidden = width // 2
        key_kernel, key_stride = (kernel, stride) if pooled_keys else (1, 1)
        self.short_cut = None  # the residual is the input itself where width and size stay
        if channels != width or kernel > 1:
            residual = _convolution(channels, width, kernel, stride, bias=False)
            self.short_cut = nn.Sequential(residual, nn.GroupNorm(NORM_GROUPS, width), nn.ReLU())
        self.qhead = _convolution(channels, self.hidden, kernel, stride)
        self.khead = _convolution(channels, self.hidden, key_kernel, key_stride)
        self.vhead = _convolution(channels, self.hidden, key_kernel, key_stride)
        self.agg = nn.Sequential(
            nn.GroupNorm(NORM_GROUPS, self.hidden),
            nn.ReLU(),
            nn.Conv3d(self.hidden, width, 1, bias=False),
            nn.GroupNorm(NORM_GROUPS, width),
            nn.ReLU(),
        )
        self.out_norm = nn.GroupNorm(NORM_GROUPS, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(C, n, hs, ws) -> attended values (H, n, t_d), then the projected residual (E, n, t_d) if there is one."""
        q, k, v, residual = self._project(x)
        kept = mask_at(mask, k).flatten().nonzero().squeeze(1)
        q, k, v = q.flatten(2), k.flatten(2), v.flatten(2)
        # Where the mask leaves no position, public code sets every logit to the same number: all positions count alike.
        everywhere = v.mean(dim=2, keepdim=True).expand_as(q)
        attended = attend(q, k[:, :, kept], v[:, :, kept]) if len(kept) else everywhere
        return attended if residual is None else torch.cat([attended, residual.flatten(2)])

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """(C, n, hs, ws) -> queries, keys, values (H, n, ., .), and the residual (E, n, hs', ws') if it is projected.

        Convolutions with the same window are computed as one, which reads their input once instead of up to four times.
        """
        with_window, with_key_window = [self.qhead], [self.khead, self.vhead]
        if self.short_cut is not None:
            with_window.append(cast(nn.Conv3d, self.short_cut[0]))
        if self.khead.kernel_size == self.qhead.kernel_size:
            q, *residual, k, v = _convolve_together([*with_window, *with_key_window], x)
        else:
            q, *residual = _convolve_together(with_window, x)
            k, v = _convolve_together(with_key_window, x)
        return q, k, v, residual[0] if residual else None

    def cells(self, x: Tensor) -> tuple[int, int]:
        """Return the support grid (hs', ws') that a support grid (..., hs, ws) becomes."""
        _, kernel, _ = self.qhead.kernel_size
        _, stride, _ = self.qhead.stride
        rows, columns = ((side + 2 * _padding(kernel) - kernel) // stride + 1 for side in x.shape[-2:])
        return rows, columns

    def numbers(self, support: Tensor) -> int:
        """Count the numbers that one query position needs: its correlation, projections, logits and weights."""
        cells = support.shape[2] * support.shape[3]
        rows, columns = self.cells(support)
        t_d = rows * columns
        keys = t_d if self.khead.kernel_size == self.qhead.kernel_size else cells
        return len(support) * cells + self.hidden * (6 * t_d + 4 * keys) + 2 * ATTENTION_HEADS * t_d * keys


class _SqueezeFeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ff = nn.Sequential(
            nn.Conv3d(width, width // 2, 1, bias=False),
            nn.GroupNorm(NORM_GROUPS, width // 2),
            nn.ReLU(),
            nn.Conv3d(width // 2, width, 1, bias=False),
        )
        self.out_norm = nn.GroupNorm(NORM_GROUPS, width)


def _convolution(channels: int, out: int, kernel: int, stride: int, *, bias: bool = True) -> nn.Conv3d:
    """A convolution over the support axes only; the first axis holds the query positions."""
    padding = (0, _padding(kernel), _padding(kernel))
    return nn.Conv3d(channels, out, (1, kernel, kernel), (1, stride, stride), padding, bias=bias)


def _convolve_together(convolutions: Sequence[nn.Conv3d], x: Tensor) -> tuple[Tensor, ...]:
    """Apply convolutions that have one kernel size, stride and padding to (C, n, hs, ws)."""
    weight = torch.cat([convolution.weight for convolution in convolutions])
    bias = torch.cat(
        [
            weight.new_zeros(convolution.out_channels) if convolution.bias is None else convolution.bias
            for convolution in convolutions
        ]
    )
    first = convolutions[0]
    together = F.conv3d(x[None], weight, bias, first.stride, cast("tuple[int, int, int]", first.padding))[0]
    return together.split([convolution.out_channels for convolution in convolutions])


def _padding(kernel: int) -> int:
    return kernel // 2 if kernel > 2 else 0
