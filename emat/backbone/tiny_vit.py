"""TinyViT-5M as MobileSAM uses it: a photo of any size becomes 256 features a cell of 16 x 16 pixels.

Maps are (B, h, w, C) in memory throughout, so that linear layers, layer norms and convolutions share them without
copies. Batch norms do not exist here: `folded` makes them part of the convolutions when weights are loaded.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = (64, 128, 160, 320)
DEPTHS = (2, 2, 6, 2)
HEADS = (2, 4, 5, 10)  # the first stage has no attention
WINDOWS = (7, 7, 14, 7)
OUT_FEATURES = 256
EXPANSION = 4
BATCH_NORM_EPS = 1e-5
MAP_NORM_EPS = 1e-6
STRIP = 32  # rows of the finest map that are computed together: four times its width stays near the processor


class TinyViT(nn.Module):
    """Normalised pixels (B, 3, H, W) in, features (B, 256, H / 16, W / 16) out.

    >>> TinyViT()(torch.zeros(1, 3, 64, 64)).shape
    torch.Size([1, 256, 4, 4])
    """

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.ModuleDict(
            {
                "seq": nn.Sequential(
                    _conv(3, WIDTHS[0] // 2, 3, stride=2), nn.GELU(), _conv(WIDTHS[0] // 2, WIDTHS[0], 3, 2)
                )
            }
        )
        self.layers = nn.ModuleList(Stage(number) for number in range(len(WIDTHS)))
        self.neck = nn.Sequential(
            Pointwise(WIDTHS[-1], OUT_FEATURES, 1, bias=False),
            MapNorm(OUT_FEATURES),
            nn.Conv2d(OUT_FEATURES, OUT_FEATURES, 3, padding=1, bias=False),
            MapNorm(OUT_FEATURES),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 256, H / 16, W / 16); a size that is not a multiple of 16 is rounded up."""
        return self.maps(pixels)[-1]

    def maps(self, pixels: Tensor) -> list[Tensor]:
        """Compute the output of every stage and of the neck, in one pass.

        Args:
            pixels: Normalised pixels (B, 3, H, W).

        Returns:
            (B, 128, H / 8, W / 8), then (B, 160), (B, 320), (B, 320) and, from the neck, (B, 256, H / 16, W / 16).
        """
        x = self.patch_embed["seq"](pixels.contiguous(memory_format=torch.channels_last))  # (B, 64, H / 4, W / 4)
        maps = []
        for stage in self.layers:
            x = stage(x)
            maps.append(x)
        return [*maps, self.neck(x)]


class Stage(nn.Module):
    """Blocks of one width, then a merging to the next stage's width."""

    def __init__(self, number: int) -> None:
        super().__init__()
        width, depth = WIDTHS[number], DEPTHS[number]
        if number == 0:
            self.blocks = nn.Sequential(*(MBConv(width) for _ in range(depth)))
        else:
            self.blocks = nn.Sequential(*(WindowBlock(width, HEADS[number], WINDOWS[number]) for _ in range(depth)))
        last = number == len(WIDTHS) - 1
        # The merging before the last stage widens without shrinking, which keeps the final stride at 16.
        self.downsample = None if last else Merging(width, WIDTHS[number + 1], 1 if number == len(WIDTHS) - 2 else 2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, width, h, w) -> (B, next width, h / stride, w / stride)."""
        x = self.blocks(x)
        return x if self.downsample is None else self.downsample(x)


class MBConv(nn.Module):
    """Expand by 1 x 1, filter each feature alone, project by 1 x 1; the input is added before the last GELU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = width * EXPANSION
        self.conv1 = _conv(width, inner, 1)
        self.conv2 = _conv(inner, inner, 3, groups=inner)
        self.conv3 = _conv(inner, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, width, h, w) -> the same shape."""
        height = x.shape[2]
        rows = [x[:, :, max(0, top - 1) : top + STRIP + 1] for top in range(0, height, STRIP)]
        out = [self._strip(strip, after=n > 0, before=n < len(rows) - 1) for n, strip in enumerate(rows)]
        return torch.cat(out, dim=2)

    def _strip(self, x: Tensor, after: bool, before: bool) -> Tensor:
        """Some rows with one more above (if `after` others) and below (if `before` others), given without these."""
        inner = F.gelu(self.conv2(F.gelu(self.conv1(x))))
        own = slice(int(after), -1 if before else None)
        return F.gelu(self.conv3(inner[:, :, own]) + x[:, :, own])


class Merging(nn.Module):
    """To another width and, with stride 2, to half the sides."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(width, out, 1)
        self.conv2 = _conv(out, out, 3, stride, groups=out)
        self.conv3 = _conv(out, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, width, h, w) -> (B, out, h / stride, w / stride)."""
        out: Tensor = self.conv3(F.gelu(self.conv2(F.gelu(self.conv1(x)))))
        return out


class WindowBlock(nn.Module):
    """Attention within windows, a depthwise convolution that joins them, and a feed-forward."""

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.attn = WindowAttention(width, heads, window)
        self.local_conv = _conv(width, width, 3, groups=width)
        self.mlp = FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, width, h, w) -> the same shape."""
        tokens = x.permute(0, 2, 3, 1)  # (B, h, w, width)
        tokens = tokens + self._attended(tokens)
        tokens = self.local_conv(tokens.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        tokens = tokens + self.mlp(tokens)
        return tokens.permute(0, 3, 1, 2)

    def _attended(self, tokens: Tensor) -> Tensor:
        batch, height, width, features = tokens.shape
        side = self.window
        rows, columns = -(-height // side), -(-width // side)
        # Zeros fill the last windows up *before* the layer norm, and take part in the attention as they are there.
        padded = F.pad(tokens, (0, 0, 0, columns * side - width, 0, rows * side - height))
        windows = padded.view(batch, rows, side, columns, side, features).transpose(2, 3)
        attended = self.attn(windows.reshape(-1, side * side, features))
        attended = attended.view(batch, rows, columns, side, side, features).transpose(2, 3)
        return attended.reshape(padded.shape)[:, :height, :width]


class WindowAttention(nn.Module):
    """Attention among the tokens of a window, with a learnt bias for each distance |dy|, |dx| and head."""

    bias: Tensor

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.register_buffer("bias", torch.zeros(1, heads, window**2, window**2))

    def forward(self, x: Tensor) -> Tensor:
        """(windows, tokens, width) -> the same shape."""
        count, tokens, width = x.shape
        qkv = self.qkv(self.norm(x)).view(count, tokens, self.heads, 3, width // self.heads)
        query, key, value = qkv.permute(3, 0, 2, 1, 4)  # each (windows, heads, tokens, width / heads)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=self.bias)
        out: Tensor = self.proj(attended.transpose(1, 2).reshape(count, tokens, width))
        return out


class FeedForward(nn.Module):
    """Layer norm, then two linear layers with a GELU between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, width * EXPANSION)
        self.fc2 = nn.Linear(width * EXPANSION, width)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> the same shape."""
        out: Tensor = self.fc2(F.gelu(self.fc1(self.norm(x))))
        return out


class MapNorm(nn.LayerNorm):
    """Layer norm over the features of every position of a map (B, features, h, w)."""

    def __init__(self, features: int) -> None:
        super().__init__(features, eps=MAP_NORM_EPS)

    def forward(self, x: Tensor) -> Tensor:
        """(B, features, h, w) -> the same shape."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Pointwise(nn.Conv2d):
    """A 1 x 1 convolution as a matrix product: on maps that lie (B, h, w, C) it needs no copies."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, features, h, w) -> (B, out, h, w)."""
        return F.linear(x.permute(0, 2, 3, 1), self.weight[:, :, 0, 0], self.bias).permute(0, 3, 1, 2)


def folded(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The public tensors as the modules here name them.

    A convolution `name.c` with its batch norm `name.bn` becomes one convolution `name` with a bias; the biases by
    distance of `attention_biases` are laid out for every pair of a window's tokens; the classifier, which
    segmentation has no use for, is left out.
    """
    out: dict[str, Tensor] = {}
    for name, value in tensors.items():
        stem = name.rsplit(".", 2)[0]
        if name.endswith(".c.weight"):
            scale = tensors[f"{stem}.bn.weight"] / (tensors[f"{stem}.bn.running_var"] + BATCH_NORM_EPS).sqrt()
            out[f"{stem}.weight"] = value * scale.view(-1, 1, 1, 1)
            out[f"{stem}.bias"] = tensors[f"{stem}.bn.bias"] - tensors[f"{stem}.bn.running_mean"] * scale
        elif name.endswith(".attention_biases"):
            out[name.replace("attention_biases", "bias")] = value[None, :, _distances(round(value.shape[1] ** 0.5))]
        elif ".bn." not in name and not name.startswith(("norm_head.", "head.")):
            out[name] = value
    return out


def _distances(window: int) -> Tensor:
    """(tokens, tokens): which bias each pair of a window's tokens has, |dy| * window + |dx|."""
    rows, columns = torch.arange(window**2) // window, torch.arange(window**2) % window
    dy, dx = (rows[:, None] - rows).abs(), (columns[:, None] - columns).abs()
    return dy * window + dx


def _conv(features: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    kind = Pointwise if kernel == 1 else nn.Conv2d
    return kind(features, out, kernel, stride, padding=kernel // 2, groups=groups)
