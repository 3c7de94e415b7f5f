"""What MobileSAM is asked: points, boxes and a first mask, and how they become embeddings."""

import math

import torch
from torch import Tensor, nn

from emat.refine.tiny_vit import OUT_FEATURES, MapNorm

SIDE = 1024  # pixels of the square that a photo is scaled and padded to
GRID = 64  # a side of the photo's embedding
MASK_SIDE = 256  # of mask prompts and mask logits

# Labels of points. A box is two points, its top left and bottom right corner; a prompt without a box has one PADDING.
PADDING, OUTSIDE, INSIDE, TOP_LEFT, BOTTOM_RIGHT = -1, 0, 1, 2, 3


class PromptEncoder(nn.Module):
    """Points (B, P, 2) with labels (B, P) become (B, P, 256), mask logits (B, 256, 256) become (B, 256, 64, 64)."""

    def __init__(self) -> None:
        super().__init__()
        self.pe_layer = FourierPositions()
        self.point_embeddings = nn.ModuleList(nn.Embedding(1, OUT_FEATURES) for _ in range(4))
        self.not_a_point_embed = nn.Embedding(1, OUT_FEATURES)
        self.mask_downscaling = nn.Sequential(
            nn.Conv2d(1, 4, 2, stride=2),
            MapNorm(4),
            nn.GELU(),
            nn.Conv2d(4, 16, 2, stride=2),
            MapNorm(16),
            nn.GELU(),
            nn.Conv2d(16, OUT_FEATURES, 1),
        )
        self.no_mask_embed = nn.Embedding(1, OUT_FEATURES)

    def points(self, points: Tensor, labels: Tensor) -> Tensor:
        """Points in pixels of the 1024 x 1024 square as (x, y), and their labels -> (B, P, 256)."""
        positions = self.pe_layer((points + 0.5) / SIDE)  # a pixel's centre is half a pixel further
        kinds = torch.cat([kind.weight for kind in (self.not_a_point_embed, *self.point_embeddings)])  # (5, 256)
        return positions * (labels != PADDING).unsqueeze(2) + kinds[labels + 1]

    def masks(self, masks: Tensor | None) -> Tensor:
        """Logits (B, 256, 256), or None for no mask -> (B or 1, 256, 64 or 1, 64 or 1)."""
        if masks is None:
            return self.no_mask_embed.weight.view(1, OUT_FEATURES, 1, 1)
        out: Tensor = self.mask_downscaling(masks.unsqueeze(1))
        return out

    def grid(self) -> Tensor:
        """Positions of the embedding's 64 x 64 cells, (4096, 256)."""
        centres = (torch.arange(GRID, device=self.no_mask_embed.weight.device) + 0.5) / GRID
        y, x = torch.meshgrid(centres, centres, indexing="ij")
        positions: Tensor = self.pe_layer(torch.stack((x, y), dim=2).view(-1, 2))
        return positions


class FourierPositions(nn.Module):
    """Sines and cosines of random directions that were drawn once, in training."""

    positional_encoding_gaussian_matrix: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positional_encoding_gaussian_matrix", torch.zeros(2, OUT_FEATURES // 2))

    def forward(self, points: Tensor) -> Tensor:
        """(..., 2) between 0 and 1 as (x, y) -> (..., 256)."""
        angles = 2 * math.pi * ((2 * points - 1) @ self.positional_encoding_gaussian_matrix)
        return torch.cat((angles.sin(), angles.cos()), dim=-1)
