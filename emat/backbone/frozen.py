"""What every backbone is: a frozen extractor, from pixels to tokens, that cannot be trained by accident."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from emat.backbone.tokens import Grid, Tokens
from emat.errors import EmatError

if TYPE_CHECKING:
    from typing_extensions import Self

    from emat.backbone.registry import BackboneSpec


class Backbone(nn.Module, ABC):
    """Normalised pixels (B, 3, H, W) in, tokens (B, C, 1 + T, d) out; no gradients, always evaluation mode.

    The names of its parameters and buffers are the public names, so that public weights load as they are.
    """

    channels: int  # C
    width: int  # d
    spec: BackboneSpec | None = None  # the registry's entry it was built from, if it was

    @abstractmethod
    def grid(self, height: int, width: int) -> Grid:
        """Rows and columns of patch tokens of an image; EmatError if the size does not fit."""

    @abstractmethod
    def encode(self, pixels: Tensor) -> Tokens:
        """The tokens of checked pixels."""

    @torch.no_grad()
    def forward(self, pixels: Tensor) -> Tokens:
        """Tokens (B, C, 1 + T, d) of normalised pixels (B, 3, H, W)."""
        if pixels.ndim != 4 or pixels.shape[1] != 3:
            raise EmatError(f"a backbone takes pixels shaped (B, 3, H, W), not {tuple(pixels.shape)}")
        if not pixels.is_floating_point():
            raise EmatError(f"a backbone takes normalised float pixels, not {pixels.dtype}; scale and normalise first")
        self.grid(pixels.shape[2], pixels.shape[3])
        # A traced graph cannot branch on values; whoever exports a backbone checks its pixels outside.
        if not torch.compiler.is_compiling() and not bool(torch.isfinite(pixels).all()):
            raise EmatError(
                "the pixels given to the backbone hold NaN or infinite values; check the image they came from"
            )
        return self.encode(pixels)

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, whatever the network around it is asked to do."""
        return super().train(False)

    def load_public(self, tensors: Mapping[str, Tensor]) -> None:
        """Take weights under their public names; EmatError says what is missing or unknown."""
        wrong = misfits({name: tuple(value.shape) for name, value in tensors.items()}, self.shapes())
        if wrong:
            raise EmatError(f"these weights do not fit the backbone: {wrong}")
        self.load_state_dict({name: value for name, value in tensors.items() if not _unused(name)}, strict=False)
        self.freeze()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor that weights must bring."""
        return {name: tuple(value.shape) for name, value in self.state_dict().items() if not _unused(name)}

    def freeze(self) -> Self:
        """No parameter asks for a gradient, and evaluation mode; every constructor ends with this."""
        return self.requires_grad_(False).eval()


def misfits(given: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]) -> str:
    """What keeps tensors of `given` shapes from filling the `expected` ones, in words; empty if nothing does.

    >>> misfits({"a": (3,), "c": (1,)}, {"a": (4,), "b": (2,)})
    'missing b; unknown c; a is (3,) instead of (4,)'
    """
    missing = [name for name in expected if name not in given]
    unknown = [name for name in given if name not in expected and not _unused(name)]
    reshaped = [f"{n} is {given[n]} instead of {s}" for n, s in expected.items() if n in given and given[n] != s]
    parts = [("missing ", missing), ("unknown ", unknown), ("", reshaped)]
    return "; ".join(word + _some(names) for word, names in parts if names)


def _some(names: list[str], shown: int = 3) -> str:
    rest = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + rest


def _unused(name: str) -> bool:
    """What public files carry and no feature depends on: the mask token, poolers, heads, batch counters."""
    return name == "mask_token" or name.startswith(("pooler.", "head.", "fc.")) or name.endswith("num_batches_tracked")
