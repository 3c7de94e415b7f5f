"""The vision transformer of DINO, DINOv2 and DINOv3, with tokens taken after every block."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emat.backbone.base import Backbone
from emat.backbone.tokens import Grid, Tokens, tokens_from_blocks
from emat.device import FAST_PRODUCTS
from emat.errors import EmatError

LAYER_NORM_EPS, ROTARY_LAYER_NORM_EPS = 1e-6, 1e-5  # up to DINOv2, and of DINOv3
DENSE_BLOCKS = 4  # number of blocks, evenly spaced up to the last, that give maps for classifiers of single pixels

# DINO and DINOv2 resize position embeddings by the scale factor (n + 0.1) / pos_grid and not to a target size. The
# sampled positions depend on it, and so does every feature.
SCALE_OFFSET = 0.1

MANY_QUERIES = 768  # from which PyTorch's attention on a CPU works with larger blocks

LONGEST_PERIOD = 100  # of DINOv3's rotations, in units of half a photo's side; the shortest is 1

Rotation = tuple[Tensor, Tensor]  # cosines and sines, each (T, width / heads)


class ViT(Backbone):
    """A ViT that gives one channel per attention head and block; every block's output passes the final LayerNorm.

    Args:
        width: Features of a token.
        depth: Number of blocks.
        heads: Number of attention heads.
        patch: Side of a patch in pixels.
        pos_grid: Side of the grid of position embeddings. None for rotary positions, as in DINOv3: queries and keys of
            patches are rotated by angles that follow from the patch's place in the photo.
        layer_scale: Whether blocks have trained factors, as in DINOv2.
        registers: Number of extra tokens after the class token, which are left out of the output. Networks with
            registers resize position embeddings, if they have any, to the target size with antialias.

    >>> ViT(width=96, depth=3, heads=6, patch=14, pos_grid=37)(torch.zeros(1, 3, 28, 42)).shape
    torch.Size([1, 18, 7, 16])
    """

    def __init__(
        self,
        width: int,
        depth: int,
        heads: int,
        patch: int,
        pos_grid: int | None,
        *,
        layer_scale: bool = True,
        registers: int = 0,
    ) -> None:
        super().__init__()
        self.channels, self.width = heads * depth, width // heads
        self.heads, self.patch = heads, patch
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = None if pos_grid is None else nn.Parameter(torch.zeros(1, 1 + pos_grid**2, width))
        self.register_tokens = nn.Parameter(torch.zeros(1, registers, width)) if registers else None
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, kernel_size=patch, stride=patch)})
        eps = LAYER_NORM_EPS if pos_grid is not None else ROTARY_LAYER_NORM_EPS
        self.blocks = nn.ModuleList(Block(width, heads, layer_scale, eps) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=eps)
        self.freeze()

    def grid(self, height: int, width: int) -> Grid:
        """Return rows and columns of patches; EmatError if a side is not a multiple of the patch."""
        if height % self.patch or width % self.patch or not height or not width:
            raise EmatError(
                "photo-size",
                f"an image of {height} x {width} pixels does not divide into patches of {self.patch}; "
                f"resize it to a multiple of {self.patch}, such as {50 * self.patch}",
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
        rotation = None
        if self.pos_embed is None:
            rotation = rotation_of(grid, self.width, x.device)
        else:
            x = x + self._positions(grid, self.pos_embed)  # (B, 1 + T, width)
        if self.register_tokens is not None:  # they have no position
            x = torch.cat([x[:, :1], self.register_tokens.expand(x.shape[0], -1, -1), x[:, 1:]], dim=1)
        outputs = []
        for block in self.blocks:
            x = block(x, rotation)
            outputs.append(self._without_registers(self.norm(x)))
        return tokens_from_blocks(torch.stack(outputs, dim=1), self.heads)

    def _without_registers(self, x: Tensor) -> Tensor:
        if self.register_tokens is None:
            return x
        return torch.cat([x[:, :1], x[:, 1 + self.register_tokens.shape[1] :]], dim=1)

    def _positions(self, grid: Grid, embeddings: Tensor) -> Tensor:
        """Resize position embeddings to a grid of patches: (1, 1 + T, width)."""
        side = math.isqrt(embeddings.shape[1] - 1)
        if grid == (side, side):
            return embeddings
        square = embeddings[:, 1:].view(1, side, side, -1).permute(0, 3, 1, 2).float()
        if self.register_tokens is not None:
            resized = F.interpolate(square, size=grid, mode="bicubic", antialias=True)
        else:
            scale = ((grid[0] + SCALE_OFFSET) / side, (grid[1] + SCALE_OFFSET) / side)
            resized = F.interpolate(square, scale_factor=scale, mode="bicubic")
        patches = resized.to(embeddings.dtype).flatten(2).transpose(1, 2)
        return torch.cat([embeddings[:, :1], patches], dim=1)


def rotation_of(grid: Grid, width: int, device: torch.device) -> Rotation:
    """Return the rotations of a grid's patches in row-major order, for attention heads of a `width`.

    A patch's centre has coordinates from -1 to 1 in each direction, whatever the photo's size. A quarter of the
    features turns with the row at periods from 1 to 100, the next quarter with the column; the other half forms pairs
    with them.

    >>> cosines, sines = rotation_of((3, 1), 8, torch.device("cpu"))
    >>> cosines.shape, bool((sines[1] == 0).all())  # the patch in the middle is not turned
    (torch.Size([3, 8]), True)
    """
    periods = LONGEST_PERIOD ** (torch.arange(width // 4, device=device, dtype=torch.float32) / (width // 4))
    axes = [(torch.arange(count, device=device, dtype=torch.float32) + 0.5) / count * 2 - 1 for count in grid]
    centres = torch.cartesian_prod(*axes)  # (T, 2)
    angles = (2 * math.pi * centres[:, :, None] / periods).flatten(1).repeat(1, 2)  # (T, width)
    return angles.cos(), angles.sin()


def rotated(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate the last tokens of (B, heads, N, width), which are the patches; those before them have no place."""
    cosines, sines = (values.to(x.dtype) for values in rotation)
    fixed, patches = x.split([x.shape[2] - len(cosines), len(cosines)], dim=2)
    first, second = patches.chunk(2, dim=-1)
    turned = patches * cosines + torch.cat([-second, first], dim=-1) * sines
    return torch.cat([fixed, turned], dim=2)


class Block(nn.Module):
    """Self-attention, then a feed-forward network; each normalises its input and is added to it."""

    def __init__(self, width: int, heads: int, layer_scale: bool, eps: float = LAYER_NORM_EPS) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.attn = SelfAttention(width, heads)
        self.ls1 = LayerScale(width) if layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = TokenFeedForward(width)
        self.ls2 = LayerScale(width) if layer_scale else nn.Identity()

    def forward(self, x: Tensor, rotation: Rotation | None = None) -> Tensor:
        """Map (B, N, width) to (B, N, width)."""
        x = x + self.ls1(self.attn(self.norm1(x), rotation))
        out: Tensor = x + self.ls2(self.mlp(self.norm2(x)))
        return out


class SelfAttention(nn.Module):
    """Self-attention of all tokens."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, rotation: Rotation | None = None) -> Tensor:
        """Map (B, N, width) to (B, N, width)."""
        batch, count, width = x.shape
        qkv = self.qkv(x).view(batch, count, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each (B, heads, N, width / heads)
        if rotation is not None:
            query, key = rotated(query, rotation), rotated(key, rotation)
        mixed: Tensor = self.proj(attend(query, key, value).transpose(1, 2).reshape(batch, count, width))
        return mixed


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute softmax(query key^T / sqrt(d)) value; all tensors are (B, heads, N, d).

    On a CPU, PyTorch takes four times as many queries at once from 768 on. A few queries of zeros to reach that number
    cost less than the products gain if these are fast.
    """
    count = query.shape[2]
    on_cpu = query.device.type == "cpu" and not torch.compiler.is_compiling()
    if FAST_PRODUCTS and on_cpu and 2 / 3 * MANY_QUERIES < count < MANY_QUERIES:
        query = F.pad(query, (0, 0, 0, MANY_QUERIES - count))
    return F.scaled_dot_product_attention(query, key, value)[:, :, :count]


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
