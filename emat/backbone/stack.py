"""Several backbones as one: their channels side by side, on the finest of their grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emat.backbone.frozen import Backbone
from emat.backbone.tokens import Grid, Tokens, stack_tokens

if TYPE_CHECKING:
    from emat.backbone.registry import BackboneSpec


def lead_of(specs: Sequence[BackboneSpec]) -> BackboneSpec:
    """The part whose image size and normalisation the stack takes: the one that sees the largest images."""
    return max(specs, key=lambda spec: spec.image_size)


class Stack(Backbone):
    """Each part sees the image at its own usual scale: the lead part's pixels, resized and re-normalised.

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
        """Rows and columns of the finest grid among the parts."""
        grids = self._grids(height, width)
        return max(rows for rows, _ in grids), max(columns for _, columns in grids)

    def encode(self, pixels: Tensor) -> Tokens:
        """Tokens (B, sum of the parts' channels, 1 + T, the widest part's width)."""
        height, width = pixels.shape[2:]
        tokens = [part.encode(self._seen_by(spec, pixels)) for part, spec in zip(self.parts, self.specs, strict=True)]
        return stack_tokens(tokens, self._grids(height, width), self.grid(height, width))

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
        """The pixels at the scale and in the normalisation of one part."""
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
