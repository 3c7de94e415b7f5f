"""The vision transformer of DINO and DINOv2, with tokens taken after every block."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emat.backbone.base import Backbone
from emat.backbone.tokens import Grid, Tokens, tokens_from_blocks
from emat.errors import EmatError

LAYER_NORM_EPS = 1e-6
DENSE_BLOCKS = 4  # number of blocks, evenly spaced up to the last, that give maps for classifiers of single pixels

# DINO and DINOv2 resize position embeddings by the scale factor (n + 0.1) / pos_grid and not to a target size. The
# sampled positions depend on it, and so does every feature.
SCALE_OFFSET = 0.1


class ViT(Backbone):
    """A ViT that gives one channel per attention head and block; every block's output passes the final LayerNorm.

    Args:
        width: Features of a token.
        depth: Number of blocks.
        heads: Number of attention heads.
        patch: Side of a patch in pixels.
        pos_grid: Side of the grid of position embeddings.
        layer_scale: Whether blocks have trained factors, as in DINOv2.
        registers: Number of extra tokens after the class token, which are left out of the output. Networks with
            registers resize position embeddings to the target size with antialias.

    >>> ViT(width=96, depth=3, heads=6, patch=14, pos_grid=37)(torch.zeros(1, 3, 28, 42)).shape
    torch.Size([1, 18, 7, 16])
    """

    def __init__(
        self,
        width: int,
        depth: int,
        heads: int,
        patch: int,
        pos_grid: int,
        *,
        layer_scale: bool = True,
        registers: int = 0,
    ) -> None:
        super().__init__()
        self.channels, self.width = heads * depth, width // heads
        self.heads, self.patch, self.pos_grid = heads, patch, pos_grid
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + pos_grid**2, width))
        self.register_tokens = nn.Parameter(torch.zeros(1, registers, width)) if registers else None
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, kernel_size=patch, stride=patch)})
        self.blocks = nn.ModuleList(Block(width, heads, layer_scale) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.freeze()

    def grid(self, height: int, width: int) -> Grid:
        """Return rows and columns of patches; EmatError if a side is not a multiple of the patch."""
        if height % self.patch or width % self.patch or not height or not width:
            raise EmatError(
                f"an image of {height} x {width} pixels does not divide into patches of {self.patch}; "
                f"resize it to a multiple of {self.patch}, such as {50 * self.patch}"
            )
        return height // self.patch, width // self.patch

    def dense_maps(self, pixels: Tensor) -> list[Tensor]:
        """Compute the outputs of a few blocks as maps, each (B, heads * width, h, w)."""
        rows, columns = self.grid(pixels.shape[2], pixels.shape[3])
        tokens = self(pixels)[:, :, 1:].unflatten(1, (self.heads, -1))  # (B, heads, depth, T, d)
        depth = tokens.shape[2]
        blocks = sorted({depth - 1 - number * depth // DENSE_BLOCKS for number in range(min(DENSE_BLOCKS, depth))})
        return [tokens[:, :, block].transpose(2, 3).flatten(1, 2).unflatten(2, (rows, columns)) for block in blocks]

    def encode(self, pixels: Tensor) -> Tokens:
        """Compute the tokens (B, heads * depth, 1 + T, width / heads)."""
        x = self.patch_embed["proj"](pixels)  # (B, width, h, w)
        grid = (x.shape[2], x.shape[3])
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x.flatten(2).transpose(1, 2)], dim=1)
        x = x + self._positions(grid)  # (B, 1 + T, width)
        if self.register_tokens is not None:  # they have no position
            x = torch.cat([x[:, :1], self.register_tokens.expand(x.shape[0], -1, -1), x[:, 1:]], dim=1)
        outputs = []
        for block in self.blocks:
            x = block(x)
            outputs.append(self._without_registers(self.norm(x)))
        return tokens_from_blocks(torch.stack(outputs, dim=1), self.heads)

    def _without_registers(self, x: Tensor) -> Tensor:
        if self.register_tokens is None:
            return x
        return torch.cat([x[:, :1], x[:, 1 + self.register_tokens.shape[1] :]], dim=1)

    def _positions(self, grid: Grid) -> Tensor:
        """Resize the position embeddings to a grid of patches: (1, 1 + T, width)."""
        side = self.pos_grid
        if grid == (side, side):
            return self.pos_embed
        square = self.pos_embed[:, 1:].view(1, side, side, -1).permute(0, 3, 1, 2).float()
        if self.register_tokens is not None:
            resized = F.interpolate(square, size=grid, mode="bicubic", antialias=True)
        else:
            scale = ((grid[0] + SCALE_OFFSET) / side, (grid[1] + SCALE_OFFSET) / side)
            resized = F.interpolate(square, scale_factor=scale, mode="bicubic")
        patches = resized.to(self.pos_embed.dtype).flatten(2).transpose(1, 2)
        return torch.cat([self.pos_embed[:, :1], patches], dim=1)


class Block(nn.Module):
    """Self-attention, then a feed-forward network; each normalises its input and is added to it."""

    def __init__(self, width: int, heads: int, layer_scale: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.attn = SelfAttention(width, heads)
        self.ls1 = LayerScale(width) if layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.mlp = TokenFeedForward(width)
        self.ls2 = LayerScale(width) if layer_scale else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, N, width) to (B, N, width)."""
        x = x + self.ls1(self.attn(self.norm1(x)))
        out: Tensor = x + self.ls2(self.mlp(self.norm2(x)))
        return out


class SelfAttention(nn.Module):
    """Self-attention of all tokens."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, N, width) to (B, N, width)."""
        batch, count, width = x.shape
        qkv = self.qkv(x).view(batch, count, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each (B, heads, N, width / heads)
        attended = F.scaled_dot_product_attention(query, key, value)
        mixed: Tensor = self.proj(attended.transpose(1, 2).reshape(batch, count, width))
        return mixed


class TokenFeedForward(nn.Module):
    """Two linear layers with a GELU between them; the inner width is four times the outer one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, N, width) to (B, N, width)."""
        out: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return out


class LayerScale(nn.Module):
    """A trained factor for each feature."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, N, width) to (B, N, width)."""
        return x * self.gamma
