"""An evaluation in plain steps, from photo to score, for tests and for comparisons of time and memory.

`emat.evaluation.evaluator` computes the same and is faster. This is how the published code works: one task after the
other, and every photo of a task encoded anew. Apart from reading files it shares no code with the other way: Pillow
resizes, the vision transformer is written out with its full attention, and `emat.model.plain` is the network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from emat.model.plain import PlainForm, plain_forward

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HEAD_WIDTH = 64  # of DINOv2's attention heads
POSITION_OFFSET = 0.1  # by which DINOv2 enlarges the scale of its position embeddings


@dataclass(frozen=True)
class PlainMethod:
    """EMAT or CST with a DINOv2 backbone, as tensors by their public names."""

    form: PlainForm
    backbone: Mapping[str, Tensor]
    learner: Mapping[str, Tensor]
    side: int  # of the square that photos are resized to


@dataclass(frozen=True)
class Shot:
    """A support photo and where it shows its way."""

    photo: NDArray[np.uint8]  # (H, W, 3)
    mask: NDArray[np.bool_]  # (H, W)


@dataclass(frozen=True)
class PlainAnswer:
    """The answer to one task, and how it compares with the query's mask."""

    presence: tuple[float, ...] | None  # the probability of each way; None for a method that only segments
    intersections: tuple[int, ...]  # of each way, in pixels of the query
    unions: tuple[int, ...]


@torch.no_grad()
def plain_answer(
    method: PlainMethod, query: NDArray[np.uint8], ways: Sequence[Sequence[Shot]], truth: Sequence[NDArray[np.bool_]]
) -> PlainAnswer:
    """Answer one task.

    Args:
        method: The method.
        query: The query photo (H, W, 3).
        ways: The shots of each way.
        truth: Where (H, W) the query shows each way.
    """
    query_tokens = plain_tokens(method, query)
    presences, maps = [], []
    for shots in ways:
        answers = [_compare(method, query_tokens, shot, query.shape[:2]) for shot in shots]
        presences.append([presence for presence, _ in answers])
        maps.append(torch.stack([probability for _, probability in answers]).mean(dim=0))
    label_map = _label_map(torch.stack(maps))
    predicted = [label_map == index for index in range(1, len(ways) + 1)]
    both = list(zip(predicted, truth, strict=True))
    return PlainAnswer(
        tuple(float(np.mean(shots)) for shots in presences) if method.form.class_token else None,
        tuple(int((mask & true).sum()) for mask, true in both),
        tuple(int((mask | true).sum()) for mask, true in both),
    )


def plain_tokens(method: PlainMethod, photo: NDArray[np.uint8]) -> Tensor:
    """Prepare a photo and encode it: tokens (1, heads * blocks, 1 + T, head width), the blocks of a head together."""
    resized = np.asarray(Image.fromarray(photo).resize((method.side, method.side), Image.Resampling.BILINEAR))
    pixels = ((torch.from_numpy(resized.copy()) / 255 - torch.tensor(MEAN)) / torch.tensor(STD)).permute(2, 0, 1)
    blocks = torch.stack(plain_vit(method.backbone, pixels[None]), dim=1)  # (1, blocks, 1 + T, width)
    return blocks.unflatten(3, (-1, HEAD_WIDTH)).permute(0, 3, 1, 2, 4).flatten(1, 2)


def plain_vit(tensors: Mapping[str, Tensor], pixels: Tensor) -> list[Tensor]:
    """Compute DINOv2's tokens (B, 1 + T, width) after every block, each with the final LayerNorm."""

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], tensors[f"{name}.weight"], tensors[f"{name}.bias"], eps=1e-6)

    patch = tensors["patch_embed.proj.weight"]
    x = F.conv2d(pixels, patch, tensors["patch_embed.proj.bias"], stride=patch.shape[-1])
    grid, width = x.shape[2:], x.shape[1]
    x = torch.cat([tensors["cls_token"].expand(len(x), 1, width), x.flatten(2).transpose(1, 2)], dim=1)
    x = x + _positions(tensors["pos_embed"], (grid[0], grid[1]))
    outputs: list[Tensor] = []
    while f"blocks.{len(outputs)}.norm1.weight" in tensors:
        block = f"blocks.{len(outputs)}"
        qkv = linear(f"{block}.attn.qkv", norm(f"{block}.norm1", x))
        q, k, v = qkv.unflatten(2, (3, -1, HEAD_WIDTH)).permute(2, 0, 3, 1, 4)  # each (B, heads, 1 + T, head width)
        weights = (q * HEAD_WIDTH**-0.5 @ k.transpose(2, 3)).softmax(dim=-1)
        attended = linear(f"{block}.attn.proj", (weights @ v).transpose(1, 2).flatten(2))
        x = x + tensors[f"{block}.ls1.gamma"] * attended
        inner = F.gelu(linear(f"{block}.mlp.fc1", norm(f"{block}.norm2", x)))
        x = x + tensors[f"{block}.ls2.gamma"] * linear(f"{block}.mlp.fc2", inner)
        outputs.append(norm("norm", x))
    return outputs


def _positions(embedding: Tensor, grid: tuple[int, int]) -> Tensor:
    side = round((embedding.shape[1] - 1) ** 0.5)
    if grid == (side, side):
        return embedding
    square = embedding[:, 1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
    scale = ((grid[0] + POSITION_OFFSET) / side, (grid[1] + POSITION_OFFSET) / side)
    resized = F.interpolate(square, scale_factor=scale, mode="bicubic")
    return torch.cat([embedding[:, :1], resized.flatten(2).transpose(1, 2)], dim=1)


def _compare(method: PlainMethod, query: Tensor, shot: Shot, size: tuple[int, ...]) -> tuple[float, Tensor]:
    """Return the probability of presence and the foreground's probability (H, W) at the query's size."""
    support = plain_tokens(method, shot.photo)
    # First to the photo's side by nearest neighbour; the network then resizes it to its grids.
    mask = F.interpolate(torch.from_numpy(shot.mask)[None, None].float(), (method.side,) * 2, mode="nearest")[0]
    presence, masks = plain_forward(method.form, method.learner, query, support, mask)
    full = F.interpolate(masks, size, mode="bilinear", align_corners=True).softmax(dim=1)[0, 1]
    return float("nan") if presence is None else float(presence.softmax(dim=1)[0, 1]), full


def _label_map(probabilities: Tensor) -> NDArray[np.int64]:
    """The most probable way of every pixel, counted from 1, where its probability (N, H, W) is at least 0.5."""
    highest, way = probabilities.max(dim=0)
    return torch.where(highest >= 0.5, 1 + way, 0).numpy()
