"""A stack of backbones: their channels are concatenated on the finest of their grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emat.backbone.base import Backbone
from emat.backbone.tokens import Grid, Tokens, stack_tokens

if TYPE_CHECKING:
    from emat.backbone.registry import BackboneSpec


def lead_of(specs: Sequence[BackboneSpec]) -> BackboneSpec:
    """Return the part whose image size and normalisation the stack uses: the one with the largest image size."""
    return max(specs, key=lambda spec: spec.image_size)


class Stack(Backbone):
    """Several backbones as one. Each part gets the pixels resized and normalised as it was trained with.

    Parts come from the registry (`spec.build()`), which knows their scale and normalisation.
    """

    def __init__(self, parts: Sequence[Backbone]) -> None:
        super().__init__()
        self.parts = parts
        self.networks = nn.ModuleList(parts)  # what moves them between devices
        self.specs = [part.spec for part in parts if part.spec is not None]
        self.lead = lead_of(self.specs)
        self.channels = sum(part.channels for part in parts)
        self.width = max(part.width for part in parts)
        self.freeze()

    def grid(self, height: int, width: int) -> Grid:
        """Return rows and columns of the finest grid among the parts."""
        grids = self._grids(height, width)
        return max(rows for rows, _ in grids), max(columns for _, columns in grids)

    def encode(self, pixels: Tensor) -> Tokens:
        """Compute the tokens (B, sum of the parts' channels, 1 + T, width of the widest part)."""
        height, width = pixels.shape[2:]
        tokens = [part.encode(self._seen_by(spec, pixels)) for part, spec in zip(self.parts, self.specs, strict=True)]
        return stack_tokens(tokens, self._grids(height, width), self.grid(height, width))

    def dense_maps(self, pixels: Tensor) -> list[Tensor]:
        """The maps of all parts."""
        seen = [self._seen_by(spec, pixels) for spec in self.specs]
        return [one for part, own in zip(self.parts, seen, strict=True) for one in part.dense_maps(own)]

    def _grids(self, height: int, width: int) -> list[Grid]:
        return [
            part.grid(*self._size_for(spec, height, width)) for part, spec in zip(self.parts, self.specs, strict=True)
        ]

    def _size_for(self, spec: BackboneSpec, height: int, width: int) -> tuple[int, int]:
        if spec is self.lead:
            return height, width  # as given, so that the lead part itself refuses what does not fit it
        scale = spec.image_size / self.lead.image_size / spec.multiple
        rows, columns = (max(round(side * scale), 1) * spec.multiple for side in (height, width))
        return rows, columns

    def _seen_by(self, spec: BackboneSpec, pixels: Tensor) -> Tensor:
        """Resize and normalise the pixels for one part."""
        size = self._size_for(spec, *pixels.shape[2:])
        if size != tuple(pixels.shape[2:]):
            pixels = F.interpolate(pixels, size=size, mode="bilinear", align_corners=False, antialias=True)
        if (spec.mean, spec.std) == (self.lead.mean, self.lead.std):
            return pixels
        mean, std, lead_mean, lead_std = (
            torch.tensor(values, dtype=pixels.dtype, device=pixels.device).view(3, 1, 1)
            for values in (spec.mean, spec.std, self.lead.mean, self.lead.std)
        )
        return (pixels * lead_std + lead_mean - mean) / std
