"""The interface of all backbones, which are frozen networks from pixels to tokens, and stacks of several backbones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emat.backbone.tokens import Grid, Tokens, stack_tokens
from emat.errors import EmatError
from emat.tensor_files import misfits, shapes_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from emat.backbone.registry import BackboneSpec


class Backbone(nn.Module, ABC):
    """Turns normalised pixels (B, 3, H, W) into tokens (B, C, 1 + T, d), without gradients.

    It always stays in evaluation mode, so that training a method around it does not change it.

    The names of its parameters and buffers are the public names, so that public weights load as they are.
    """

    channels: int  # C
    width: int  # d
    kept_maps: int = 1  # how many tensors `encode_maps` returns
    spec: BackboneSpec | None = None  # the registry's entry it was built from, if it was

    @abstractmethod
    def grid(self, height: int, width: int) -> Grid:
        """Return rows and columns of patch tokens for pixels of this size; EmatError if the size does not fit."""

    @abstractmethod
    def encode(self, pixels: Tensor) -> Tokens:
        """Compute the tokens of pixels that were checked."""

    def dense_maps(self, pixels: Tensor) -> list[Tensor]:
        """Compute maps of several depths for classifiers of single pixels, each (B, features, h, w) at its resolution.

        By default these are the patch tokens of all channels. A backbone that has finer or fewer maps overrides this.
        """
        rows, columns = self.grid(pixels.shape[2], pixels.shape[3])
        tokens = self(pixels)[:, :, 1:]  # (B, C, T, d)
        return [tokens.transpose(2, 3).reshape(tokens.shape[0], -1, rows, columns)]

    def encode_maps(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Compute what a cache keeps of a photo, from pixels that were checked: by default its tokens.

        A network whose tokens are larger than the maps that they are made from overrides this together with
        `tokens_from` and `mirror`. The first axis of every tensor is the batch.
        """
        return (self.encode(pixels),)

    def tokens_from(self, maps: Sequence[Tensor], size: tuple[int, int]) -> Tokens:
        """Make tokens (B, C, 1 + T, d) of what `maps` returned for photos of `size` (H, W) pixels."""
        return maps[0]

    def mirror(self, maps: Sequence[Tensor], size: tuple[int, int]) -> tuple[Tensor, ...]:
        """Mirror what `maps` returned from left to right.

        The result is nearly what `maps` returns for the mirrored photo. It differs a little if the network's padding is
        asymmetric, but takes hardly any time.
        """
        tokens = maps[0]
        patches = tokens[:, :, 1:].unflatten(2, self.grid(*size)).flip(3).flatten(2, 3)  # (B, C, T, d)
        return (torch.cat([tokens[:, :, :1], patches], dim=2),)

    @torch.no_grad()
    def maps(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Compute what a cache keeps of photos; `tokens_from` makes their tokens of it.

        Args:
            pixels: Normalised pixels (B, 3, H, W).

        Raises:
            EmatError: If the pixels have another shape or type, do not fit the backbone, or are not finite.
        """
        self._check(pixels)
        return self.encode_maps(pixels)

    @torch.no_grad()
    def forward(self, pixels: Tensor) -> Tokens:
        """Compute tokens.

        Args:
            pixels: Normalised pixels (B, 3, H, W).

        Returns:
            Tokens (B, C, 1 + T, d).

        Raises:
            EmatError: If the pixels have another shape or type, an unsuitable size, or values that are not finite.
        """
        self._check(pixels)
        return self.encode(pixels)

    def _check(self, pixels: Tensor) -> None:
        if pixels.ndim != 4 or pixels.shape[1] != 3:
            raise EmatError("tensor-shape", f"a backbone takes pixels shaped (B, 3, H, W), not {tuple(pixels.shape)}")
        if not pixels.is_floating_point():
            raise EmatError(
                "tensor-type",
                f"a backbone takes normalised float pixels, not {pixels.dtype}; scale and normalise first",
            )
        self.grid(pixels.shape[2], pixels.shape[3])
        # A traced graph cannot branch on values, so an exported backbone does not check them.
        if not torch.compiler.is_compiling() and not bool(torch.isfinite(pixels).all()):
            raise EmatError(
                "not-finite",
                "the pixels given to the backbone hold NaN or infinite values; check the image they came from",
            )

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, even if the method around it is trained."""
        return super().train(False)

    def load_public(self, tensors: Mapping[str, Tensor]) -> None:
        """Load weights under their public names; EmatError says what is missing or unknown."""
        used = used_tensors(tensors)
        if wrong := misfits(shapes_of(used), self.shapes()):
            raise EmatError("weights-do-not-fit", f"these weights do not fit the backbone: {wrong}")
        self.load_state_dict(used, strict=False)
        self.freeze()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape of every tensor that weights must hold."""
        return shapes_of(used_tensors(self.state_dict()))

    def freeze(self) -> Self:
        """Turn gradients off and evaluation mode on; every constructor ends with this."""
        return self.requires_grad_(False).eval()


def used_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that features depend on, without the mask token, pooler, classifier and batch counters."""
    return {name: value for name, value in tensors.items() if not _is_unused(name)}


def _is_unused(name: str) -> bool:
    return name == "mask_token" or name.startswith(("pooler.", "head.", "fc.")) or name.endswith("num_batches_tracked")


def lead_of(specs: Sequence[BackboneSpec]) -> BackboneSpec:
    """Return the part with the largest image size, whose size and normalisation a stack uses."""
    return max(specs, key=lambda spec: spec.image_size)


class Stack(Backbone):
    """Several backbones as one. Each part gets the pixels resized and normalised as it was trained with.

    Parts come from the registry (`spec.build()`), which knows their scale and normalisation.
    """

    def __init__(self, parts: Sequence[Backbone]) -> None:
        super().__init__()
        self.parts = parts
        self.networks = nn.ModuleList(parts)  # so that they move between devices with the stack
        self.specs = [part.spec for part in parts if part.spec is not None]
        self.lead = lead_of(self.specs)
        self.channels = sum(part.channels for part in parts)
        self.kept_maps = sum(part.kept_maps for part in parts)
        self.width = max(part.width for part in parts)
        self.freeze()

    def grid(self, height: int, width: int) -> Grid:
        """Return rows and columns of the finest grid among the parts."""
        grids = self._grids(height, width)
        return max(rows for rows, _ in grids), max(columns for _, columns in grids)

    def encode(self, pixels: Tensor) -> Tokens:
        """Compute the tokens (B, sum of the parts' channels, 1 + T, width of the widest part)."""
        return self.tokens_from(self.encode_maps(pixels), (pixels.shape[2], pixels.shape[3]))

    def encode_maps(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Compute what each part keeps, one part after the other."""
        seen = [self._seen_by(spec, pixels) for spec in self.specs]
        return tuple(kept for part, own in zip(self.parts, seen, strict=True) for kept in part.encode_maps(own))

    def tokens_from(self, maps: Sequence[Tensor], size: tuple[int, int]) -> Tokens:
        """Make the parts' tokens and stack them."""
        tokens = [part.tokens_from(own, own_size) for part, own, own_size in self._by_part(maps, size)]
        return stack_tokens(tokens, self._grids(*size), self.grid(*size))

    def mirror(self, maps: Sequence[Tensor], size: tuple[int, int]) -> tuple[Tensor, ...]:
        """Mirror what each part keeps."""
        return tuple(
            mirrored for part, own, own_size in self._by_part(maps, size) for mirrored in part.mirror(own, own_size)
        )

    def _by_part(
        self, maps: Sequence[Tensor], size: tuple[int, int]
    ) -> Iterator[tuple[Backbone, Sequence[Tensor], tuple[int, int]]]:
        """Give each part with the maps that it keeps and the size of the pixels that it sees."""
        first = 0
        for part, spec in zip(self.parts, self.specs, strict=True):
            yield part, maps[first : first + part.kept_maps], self._size_for(spec, *size)
            first += part.kept_maps

    def dense_maps(self, pixels: Tensor) -> list[Tensor]:
        """Compute the maps of all parts."""
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
