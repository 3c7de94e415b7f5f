"""MobileSAM's image encoder as a backbone. Its file of weights, `MOBILESAM` of the store, also refines masks."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from emat.backbone.base import Backbone
from emat.backbone.tiny_vit import OUT_FEATURES, WIDTHS, TinyViT
from emat.backbone.tokens import Grid, Tokens, strided_grid, tokens_from_maps
from emat.errors import EmatError
from emat.tensor_files import misfits, shapes_of
from emat.weights import MOBILESAM, find_weights

ENCODER = "image_encoder."

STRIDE = 16  # of stages 2 to 4 and of the neck, which give tokens; the first stage responds to edges
FEATURES = (*WIDTHS[2:], WIDTHS[-1], OUT_FEATURES)  # of each of these maps
TOKEN_WIDTH = 64
GROUPS = tuple(-(-features // TOKEN_WIDTH) for features in FEATURES)  # channels that each of them gives


class MobileSAMEncoder(Backbone):
    """Stages 2 to 4 and the neck give 17 channels of at most 64 features, one token per 16 x 16 pixels.

    MobileSAM was trained on photos of 1024 pixels, but convolutions and windows work at any size.

    >>> MobileSAMEncoder()(torch.zeros(1, 3, 64, 90)).shape
    torch.Size([1, 17, 25, 64])
    """

    def __init__(self) -> None:
        super().__init__()
        self.channels, self.width = sum(GROUPS), TOKEN_WIDTH
        self.encoder = TinyViT()
        self.freeze()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape of every tensor that weights must hold, as `folded` names them."""
        return shapes_of(self.encoder.state_dict())

    def load_public(self, tensors: Mapping[str, Tensor]) -> None:
        """Load weights that `folded` returned; EmatError says what is missing or unknown."""
        if wrong := misfits(shapes_of(tensors), self.shapes()):
            raise EmatError("weights-do-not-fit", f"these weights do not fit the backbone: {wrong}")
        self.encoder.load_state_dict(dict(tensors))
        self.encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.freeze()

    def grid(self, height: int, width: int) -> Grid:
        """Return rows and columns of the maps of stride 16; every size is accepted."""
        return strided_grid(height, width, STRIDE)

    def encode(self, pixels: Tensor) -> Tokens:
        """Compute the tokens (B, 17, 1 + T, 64)."""
        return self.tokens_from(self.encode_maps(pixels), (pixels.shape[2], pixels.shape[3]))

    def encode_maps(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Compute what tokens are made from: one map (B, 1056, h, w)."""
        return (torch.cat(self.encoder.maps(pixels)[1:], dim=1),)

    def tokens_from(self, maps: Sequence[Tensor], size: tuple[int, int]) -> Tokens:
        """Make the tokens (B, 17, 1 + T, 64) from this map."""
        return tokens_from_maps(maps[0].split(FEATURES, dim=1), GROUPS, self.grid(*size))

    def mirror(self, maps: Sequence[Tensor], size: tuple[int, int]) -> tuple[Tensor, ...]:
        """Mirror the map from left to right."""
        return (maps[0].flip(3),)

    @torch.no_grad()
    def dense_maps(self, pixels: Tensor) -> list[Tensor]:
        """Compute the maps of the four stages and the neck, from an eighth of the photo's resolution to a sixteenth."""
        return self.encoder.maps(pixels)


def find_mobilesam() -> Path | None:
    """Return the file of the weights, without reading it; None if it is not on this machine."""
    return MOBILESAM.path if find_weights(MOBILESAM) else None
