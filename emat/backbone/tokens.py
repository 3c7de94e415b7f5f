"""Tokens, which are the output of backbones and the input of methods, and the functions that make them.

Tokens are a tensor (B, C, 1 + T, d). Each of the C correlation channels has a class token first, then the T = h * w
patch tokens of an h x w grid in row-major order. A token is a vector of width d; two tokens are compared by their
cosine.

- A ViT gives one channel for each attention head and block: ``channel = head * depth + block``.
- A CNN gives one channel for each group of features of each block; the mean of the map is the class token.
- Two backbones are stacked by putting their channels one after the other.

Widths and grids that differ are made equal: narrower channels are padded with zeros, which does not change a cosine,
and other grids are resized bilinearly.
"""

from collections.abc import Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from emat.errors import EmatError

Tokens: TypeAlias = Tensor  # (B, C, 1 + T, d)
Grid: TypeAlias = tuple[int, int]  # (h, w), T = h * w


def strided_grid(height: int, width: int, stride: int) -> Grid:
    """Return rows and columns of a CNN's map of this stride, for pixels of any size.

    Raises:
        EmatError: If there are no pixels.
    """
    if not height or not width:
        raise EmatError("photo-size", f"an image of {height} x {width} pixels is empty; give at least one pixel")
    return -(-height // stride), -(-width // stride)


def tokens_from_blocks(outputs: Tensor, heads: int) -> Tokens:
    """Turn a ViT's block outputs (B, depth, 1 + T, width) into one channel per attention head and block.

    >>> tokens_from_blocks(torch.zeros(2, 12, 101, 384), heads=6).shape
    torch.Size([2, 72, 101, 64])
    """
    batch, depth, count, width = outputs.shape
    by_head = outputs.view(batch, depth, count, heads, width // heads).permute(0, 3, 1, 2, 4)
    return by_head.reshape(batch, heads * depth, count, width // heads)  # (B, heads * depth, 1 + T, width / heads)


def tokens_from_maps(maps: Sequence[Tensor], groups: Sequence[int], grid: Grid) -> Tokens:
    """Turn a CNN's maps, each (B, features, h, w), into `groups[i]` channels of map i on one `grid`.

    Groups are as equal as the number of features allows (352 in 6: 59, 59, 59, 59, 58, 58).

    >>> tokens_from_maps([torch.zeros(2, 10, 8, 8), torch.zeros(2, 9, 4, 4)], [2, 2], grid=(8, 8)).shape
    torch.Size([2, 4, 65, 5])
    """
    parts = [part for one, count in zip(maps, groups, strict=True) for part in _split(one, count, grid)]
    width = max(part.shape[2] for part in parts)
    tokens = parts[0].new_zeros(parts[0].shape[0], len(parts), parts[0].shape[1], width)
    for channel, part in enumerate(parts):
        tokens[:, channel, :, : part.shape[2]] = part
    return tokens


def stack_tokens(tokens: Sequence[Tokens], grids: Sequence[Grid], grid: Grid) -> Tokens:
    """Join the tokens that several backbones give for the same photos: channels concatenated, on one grid and width.

    >>> stack_tokens([torch.ones(1, 2, 5, 4), torch.ones(1, 3, 2, 6)], [(2, 2), (1, 1)], grid=(2, 2)).shape
    torch.Size([1, 5, 5, 6])
    """
    width = max(one.shape[3] for one in tokens)
    return torch.cat([_pad(_regrid(one, old, grid), width) for one, old in zip(tokens, grids, strict=True)], dim=1)


def _split(features: Tensor, count: int, grid: Grid) -> list[Tensor]:
    """Split one map (B, features, h, w) into `count` channels (B, 1 + T, features / count)."""
    patches = _resize(features, grid).flatten(2).transpose(1, 2)  # (B, T, features)
    class_token = features.mean(dim=(2, 3))[:, None]  # of the map as it was, before any resizing
    return list(torch.cat([class_token, patches], dim=1).tensor_split(count, dim=2))


def _regrid(tokens: Tokens, old: Grid, new: Grid) -> Tokens:
    if old == new:
        return tokens
    batch, channels, _, width = tokens.shape
    patches = tokens[:, :, 1:].transpose(2, 3).reshape(batch, channels * width, *old)
    resized = _resize(patches, new).view(batch, channels, width, -1).transpose(2, 3)  # (B, C, T, d)
    return torch.cat([tokens[:, :, :1], resized], dim=2)


def _resize(maps: Tensor, grid: Grid) -> Tensor:
    if maps.shape[2:] == grid:
        return maps
    return F.interpolate(maps, size=grid, mode="bilinear", align_corners=False)


def _pad(tokens: Tensor, width: int) -> Tensor:
    return F.pad(tokens, (0, width - tokens.shape[-1]))
