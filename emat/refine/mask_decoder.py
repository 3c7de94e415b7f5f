"""MobileSAM's decoder: from points, boxes and a first mask to four masks.

A prompt is embedded as tokens. Tokens and the photo's cells attend to each other, then the masks are drawn. There are
about ten tokens and 4096 cells. Cells are therefore never projected: what a projection would do to them is done to the
tokens instead, which gives the same numbers for half of the work.
"""

import itertools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emat.backbone.tiny_vit import MAP_NORM_EPS, OUT_FEATURES, MapNorm

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


HEADS = 8
DEPTH = 2
FEED_FORWARD = 2048
MASKS = 4  # the first answers alone, the other three are the object at three scales
MASK_FEATURES = OUT_FEATURES // 8


@dataclass(frozen=True)
class Guidance:
    """What is known of an object from another photo."""

    target: Tensor  # (256,): what its cells look like; it is added to every token
    likely: Tensor  # (64, 64): where it is; it is added to the logits with which tokens attend to cells


class MaskDecoder(nn.Module):
    """Four masks of 256 x 256 logits and how good each thinks it is."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = TwoWayTransformer()
        self.iou_token = nn.Embedding(1, OUT_FEATURES)
        self.mask_tokens = nn.Embedding(MASKS, OUT_FEATURES)
        self.output_upscaling = nn.Sequential(
            Doubling(OUT_FEATURES, OUT_FEATURES // 4),
            nn.LayerNorm(OUT_FEATURES // 4, eps=MAP_NORM_EPS),
            nn.GELU(),
            Doubling(OUT_FEATURES // 4, MASK_FEATURES),
            nn.GELU(),
        )
        self.output_hypernetworks_mlps = nn.ModuleList(Perceptron(MASK_FEATURES) for _ in range(MASKS))
        self.iou_prediction_head = Perceptron(MASKS)

    def forward(
        self, image: Tensor, positions: Tensor, prompts: Tensor, guidance: Guidance | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits (B, 4, 256, 256) and expected IoU (B, 4).

        Args:
            image: (B, 256, 64, 64), the photo's embedding plus the mask prompt's.
            positions: (4096, 256) of the embedding's cells.
            prompts: (B, P, 256), the points' embeddings.
            guidance: What is known of the object beside the prompts.
        """
        output_tokens = torch.cat((self.iou_token.weight, self.mask_tokens.weight)).expand(len(prompts), -1, -1)
        tokens = torch.cat((output_tokens, prompts), dim=1)  # (B, 5 + P, 256)
        if guidance is not None:
            tokens = tokens + guidance.target
        likely = None if guidance is None else guidance.likely.flatten()
        tokens, cells = self.transformer(tokens, image.flatten(2).transpose(1, 2).contiguous(), positions, likely)
        networks = enumerate(self.output_hypernetworks_mlps, start=1)
        kernels = torch.stack([network(tokens[:, i]) for i, network in networks], dim=1)  # (B, 4, 32)
        return self._draw(cells, kernels), self.iou_prediction_head(tokens[:, 0])

    def _draw(self, cells: Tensor, kernels: Tensor) -> Tensor:
        """Cells (B, 4096, 256) twice doubled in resolution, times kernels (B, 4, 32) -> (B, 4, 256, 256)."""
        pixels = self.output_upscaling(cells)  # (B, 4096 * 4 * 4, 32)
        drawn = (pixels @ kernels.transpose(1, 2)).view(-1, GRID, GRID, 2, 2, 2, 2, MASKS)  # y, x, (dy, dx) twice
        return drawn.permute(0, 7, 1, 3, 5, 2, 4, 6).reshape(-1, MASKS, 4 * GRID, 4 * GRID)


class Doubling(nn.ConvTranspose2d):
    """A transposed convolution of kernel and stride 2, which makes four pixels of each one by itself.

    Pixels can therefore stay one below another in a column, each followed by its four, until there is nothing left
    but four masks to be laid out.
    """

    def __init__(self, features: int, out: int) -> None:
        super().__init__(features, out, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """(B, pixels, features) -> (B, pixels * 4, out), the four by (dy, dx)."""
        by_place = self.weight.permute(2, 3, 1, 0).flatten(0, 2)  # (2 * 2 * out, features)
        bias = None if self.bias is None else self.bias.repeat(4)
        return F.linear(x, by_place, bias).view(len(x), -1, self.out_channels)


class TwoWayTransformer(nn.Module):
    """Two layers in which tokens look at the photo's cells and cells at the tokens, then a last look of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TwoWayLayer(first=number == 0) for number in range(DEPTH))
        self.final_attn_token_to_image = TokensToCells(OUT_FEATURES // 2)
        self.norm_final_attn = nn.LayerNorm(OUT_FEATURES)

    def forward(
        self, prompts: Tensor, cells: Tensor, positions: Tensor, likely: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Tokens (B, T, 256) and cells (B, 4096, 256), both changed; tokens look more at cells that are `likely`."""
        tokens = prompts
        for layer in self.layers:
            tokens, cells = layer(tokens, cells, prompts, positions, likely)
        seen = self.final_attn_token_to_image(tokens + prompts, cells + positions, cells, likely)
        return self.norm_final_attn(tokens + seen), cells


class TwoWayLayer(nn.Module):
    """Tokens among themselves, tokens to cells, a feed-forward of the tokens, cells to tokens."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.first = first
        self.self_attn = Attention(OUT_FEATURES)
        self.norm1 = nn.LayerNorm(OUT_FEATURES)
        self.cross_attn_token_to_image = TokensToCells(OUT_FEATURES // 2)
        self.norm2 = nn.LayerNorm(OUT_FEATURES)
        self.mlp = nn.ModuleDict(
            {"lin1": nn.Linear(OUT_FEATURES, FEED_FORWARD), "lin2": nn.Linear(FEED_FORWARD, OUT_FEATURES)}
        )
        self.norm3 = nn.LayerNorm(OUT_FEATURES)
        self.cross_attn_image_to_token = CellsToTokens(OUT_FEATURES // 2)
        self.norm4 = nn.LayerNorm(OUT_FEATURES)

    def forward(
        self, tokens: Tensor, cells: Tensor, prompts: Tensor, positions: Tensor, likely: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`prompts` (B, T, 256) and `positions` (4096, 256) are added wherever tokens and cells are compared."""
        if self.first:  # the tokens still are the prompts: nothing to add to
            tokens = self.self_attn(tokens, tokens, tokens)
        else:
            tokens = tokens + self.self_attn(tokens + prompts, tokens + prompts, tokens)
        tokens = self.norm1(tokens)
        placed = cells + positions
        tokens = self.norm2(tokens + self.cross_attn_token_to_image(tokens + prompts, placed, cells, likely))
        tokens = self.norm3(tokens + self.mlp["lin2"](F.relu(self.mlp["lin1"](tokens))))
        cells = self.norm4(self.cross_attn_image_to_token.added(cells, placed, tokens + prompts, tokens))
        return tokens, cells


class Attention(nn.Module):
    """Attention of 8 heads whose inner width may be narrower than 256."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(OUT_FEATURES, inner)
        self.k_proj = nn.Linear(OUT_FEATURES, inner)
        self.v_proj = nn.Linear(OUT_FEATURES, inner)
        self.out_proj = nn.Linear(inner, OUT_FEATURES)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(B, Q, 256), (B, K, 256), (B, K, 256) -> (B, Q, 256)."""
        query, key, value = _split(self.q_proj(query)), _split(self.k_proj(key)), _split(self.v_proj(value))
        out: Tensor = self.out_proj(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return out


class TokensToCells(Attention):
    """The same for few queries and many keys, which are not projected."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, likely: Tensor | None = None) -> Tensor:
        """(B, T, 256), (B, cells, 256), (B, cells, 256) -> (B, T, 256); `likely` (cells,) is added to the logits."""
        projected = _scaled(_split(self.q_proj(query)))  # (B, 8, T, 16)
        by_key = (projected @ _by_head(self.k_proj.weight)).flatten(1, 2)  # (B, 8 T, 256)
        # The keys' bias adds the same to all logits of a query, which the softmax takes away again.
        logits = by_key @ key.transpose(1, 2)  # (B, 8 T, cells)
        weights = (logits if likely is None else logits + likely).softmax(dim=2)
        seen = (weights @ value).unflatten(1, (HEADS, -1))  # (B, 8, T, 256)
        values = (seen @ _by_head(self.v_proj.weight).transpose(1, 2)).transpose(1, 2).flatten(2)  # (B, T, 128)
        out: Tensor = self.out_proj(values + self.v_proj.bias)
        return out


class CellsToTokens(Attention):
    """The same for many queries, which are not projected, and few keys."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(B, cells, 256), (B, T, 256), (B, T, 256) -> (B, cells, 256)."""
        return self.added(torch.zeros_like(query), query, key, value)

    def added(self, residual: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """What attention gives, added to `residual` (B, cells, 256) in the last product."""
        projected = _scaled(_split(self.k_proj(key)))  # (B, 8, T, 16)
        by_query = (projected @ _by_head(self.q_proj.weight)).flatten(1, 2)  # (B, 8 T, 256)
        constant = (projected @ self.q_proj.bias.view(HEADS, -1, 1)).flatten(1, 2)  # (B, 8 T, 1)
        # Cells come last, since a softmax over a short last axis takes several times as long.
        logits = torch.baddbmm(constant, by_query, query.transpose(1, 2))  # (B, 8 T, cells)
        weights = logits.unflatten(1, (HEADS, -1)).softmax(dim=2).flatten(1, 2)
        out_weight = self.out_proj.weight.unflatten(1, (HEADS, -1)).permute(1, 2, 0)  # (8, 16, 256)
        # The weights of a head add up to 1, so each head can bring its share of the bias along.
        values = (_split(self.v_proj(value)) @ out_weight + self.out_proj.bias / HEADS).flatten(1, 2)  # (B, 8 T, 256)
        return torch.baddbmm(residual, weights.transpose(1, 2), values)


class Perceptron(nn.Module):
    """Three linear layers with ReLU between them."""

    def __init__(self, out: int) -> None:
        super().__init__()
        widths = (OUT_FEATURES, OUT_FEATURES, OUT_FEATURES, out)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        """(B, 256) -> (B, out)."""
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        out: Tensor = self.layers[-1](x)
        return out


def _split(x: Tensor) -> Tensor:
    """(B, T, inner) -> (B, 8, T, inner / 8)."""
    return x.unflatten(2, (HEADS, -1)).transpose(1, 2)


def _scaled(x: Tensor) -> Tensor:
    """Queries or keys (B, 8, T, width), scaled as attention scales its logits."""
    return x * x.shape[3] ** -0.5


def _by_head(weight: Tensor) -> Tensor:
    """A projection's weight (inner, 256) -> (8, inner / 8, 256)."""
    return weight.unflatten(0, (HEADS, -1))
