"""MobileSAM: a photo is encoded once, then answers any number of prompts with masks.

The network has three parts, the encoder of `backbone/tiny_vit` and the prompt encoder and decoder of `mask_decoder`.
Parameters carry the public names. The weights are `MOBILESAM` of the store of weights, `emat.weights`.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emat.backbone.mobilesam import ENCODER, find_mobilesam
from emat.backbone.tiny_vit import TinyViT, folded
from emat.errors import EmatError
from emat.images import Pixels, resize_photo
from emat.refine.mask_decoder import (
    BOTTOM_RIGHT,
    GRID,
    INSIDE,
    OUTSIDE,
    PADDING,
    SIDE,
    TOP_LEFT,
    Guidance,
    MaskDecoder,
    PromptEncoder,
)
from emat.weights import MOBILESAM, fetch_weights, is_offline, load_weights, say_once

MEAN = (123.675, 116.28, 103.53)  # of ImageNet, for pixels of 0 to 255
STD = (58.395, 57.12, 57.375)
KEPT_ENCODINGS = 8  # photos, of 4 MB each

Box = tuple[float, float, float, float]  # left, top, right, bottom in the photo's pixels


def inner_size(photo: tuple[int, int]) -> tuple[int, int]:
    """Height and width of the 1024 x 1024 square's part that a photo of (H, W) fills."""
    scale = SIDE / max(photo)
    return max(1, int(photo[0] * scale + 0.5)), max(1, int(photo[1] * scale + 0.5))


@dataclass(frozen=True)
class EncodedPhoto:
    """What MobileSAM keeps of a photo."""

    embedding: Tensor  # (1, 256, 64, 64)
    size: tuple[int, int]  # the photo's height and width

    @property
    def scale(self) -> float:
        """From the photo's pixels to those of the 1024 x 1024 square."""
        return SIDE / max(self.size)

    @property
    def inner(self) -> tuple[int, int]:
        """Height and width of the square's part that the photo fills."""
        return inner_size(self.size)


@dataclass(frozen=True)
class Prompt:
    """Points inside and outside the object, its box and a first mask, any of which may be missing.

    Coordinates are the photo's pixels as (x, y). The mask is logits (256, 256) on the padded square, as an
    earlier answer holds them. Guidance is what another photo tells of the object.
    """

    inside: Sequence[tuple[float, float]] = ()
    outside: Sequence[tuple[float, float]] = ()
    box: Box | None = None
    mask: Tensor | None = None
    guidance: Guidance | None = None

    def tokens(self, scale: float) -> tuple[list[tuple[float, float]], list[int]]:
        """The points in the square's pixels, and their labels."""
        points = [*self.inside, *self.outside]
        labels = [INSIDE] * len(self.inside) + [OUTSIDE] * len(self.outside)
        if self.box is not None:
            left, top, right, bottom = self.box
            points += [(left, top), (right, bottom)]
            labels += [TOP_LEFT, BOTTOM_RIGHT]
        scaled = [(x * scale, y * scale) for x, y in points]
        return (scaled, labels) if self.box is not None else ([*scaled, (0.0, 0.0)], [*labels, PADDING])


@dataclass(frozen=True)
class Answers:
    """Four masks for one prompt: the first answers alone, the others are the object at three scales."""

    logits: Tensor  # (4, 256, 256) on the padded square
    iou: Tensor  # (4,): how good the network expects each mask to be


class MobileSAM(nn.Module):
    """The network: it encodes photos and answers prompts with masks. Its weights are frozen.

    >>> import numpy as np
    >>> sam = MobileSAM()
    >>> photo = sam.encode(np.zeros((30, 40, 3), np.uint8))
    >>> sam.answer(photo, [Prompt(inside=[(20, 15)])])[0].logits.shape
    torch.Size([4, 256, 256])
    """

    positions: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.image_encoder = TinyViT()
        self.prompt_encoder = PromptEncoder()
        self.mask_decoder = MaskDecoder()
        self.register_buffer("positions", torch.zeros(0), persistent=False)
        self._encodings: dict[tuple[tuple[int, ...], bytes], EncodedPhoto] = {}  # by the photo's shape and hash
        self._freeze()

    def load_public(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the weights of `mobile_sam.pt` under their public names."""
        encoder = {name[len(ENCODER) :]: value for name, value in tensors.items() if name.startswith(ENCODER)}
        try:
            weights = {ENCODER + name: value for name, value in folded(encoder).items()}
            weights |= {name: value for name, value in tensors.items() if not name.startswith(ENCODER)}
            self.load_state_dict(weights)
        except (KeyError, RuntimeError) as error:
            raise EmatError(
                "weights-do-not-fit", f"these are not the weights of MobileSAM: {str(error)[:200]}"
            ) from None
        self._freeze()

    def _freeze(self) -> None:
        self.eval().requires_grad_(False)
        self.image_encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.positions = self.prompt_encoder.grid()
        self._encodings.clear()  # they are of other weights

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.positions.device

    def encode(self, photo: Pixels) -> EncodedPhoto:
        """Scale and pad a photo (H, W, 3) to the square of 1024 x 1024 pixels, and encode it.

        The encodings of the last few photos are kept, because examples and the tasks of an evaluation ask again.
        """
        key = photo.shape, hashlib.blake2b(np.ascontiguousarray(photo).data).digest()
        encoded = self._encodings.get(key)
        if encoded is None:
            encoded = self._encodings[key] = self._encoded(photo)
            for oldest in list(self._encodings)[:-KEPT_ENCODINGS]:
                self._encodings.pop(oldest, None)
        return encoded

    @torch.inference_mode()
    def _encoded(self, photo: Pixels) -> EncodedPhoto:
        encoded = EncodedPhoto(self.positions, (photo.shape[0], photo.shape[1]))
        height, width = encoded.inner
        pixels = torch.from_numpy(resize_photo(photo, encoded.inner)).to(self.device).float()  # (h, w, 3)
        pixels = (pixels - pixels.new_tensor(MEAN)) / pixels.new_tensor(STD)
        square = F.pad(pixels, (0, 0, 0, SIDE - width, 0, SIDE - height)).permute(2, 0, 1)
        return EncodedPhoto(self.image_encoder(square.unsqueeze(0)), encoded.size)

    @torch.inference_mode()
    def answer(self, photo: EncodedPhoto, prompts: Sequence[Prompt]) -> list[Answers]:
        """The decoder's answers to each prompt; one prompt never changes another's.

        Prompts are answered one after the other: what the decoder computes for one fits into a processor's cache.
        """
        embedding = photo.embedding.to(self.device)
        answers = []
        for prompt in prompts:
            points, labels = (torch.tensor([part], device=self.device) for part in prompt.tokens(photo.scale))
            tokens = self.prompt_encoder.points(points, labels)  # (1, P, 256)
            logits, iou = self.mask_decoder(embedding + self._mask(prompt), self.positions, tokens, prompt.guidance)
            answers.append(Answers(logits[0], iou[0]))
        return answers

    def _mask(self, prompt: Prompt) -> Tensor:
        """A prompt's mask as the decoder adds it to the photo's embedding, (1, 256, 64, 64)."""
        mask = None if prompt.mask is None else prompt.mask.to(self.device).unsqueeze(0)
        return self.prompt_encoder.masks(mask).expand(1, -1, GRID, GRID)


def at_photo_size(logits: Tensor, photo: EncodedPhoto) -> Tensor:
    """Logits (n, 256, 256) on the padded square -> (n, H, W) on the photo."""
    height, width = photo.inner
    square = F.interpolate(logits.unsqueeze(0), size=(SIDE, SIDE), mode="bilinear")[:, :, :height, :width]
    return F.interpolate(square, size=photo.size, mode="bilinear")[0]


def load_mobilesam(given: str | Path | None = None) -> MobileSAM:
    """Load MobileSAM with verified weights, from a file that is `given` or from the first source that has them."""
    sam = MobileSAM()
    sam.load_public(load_weights(MOBILESAM, given))
    return sam


_loaded: list[MobileSAM] = []
RETRY_SECONDS = 24 * 3600  # after which weights that could not be fetched are asked for again
_unavailable: list[str] = []  # why the weights could not be fetched; they are not asked for again in this process
_loading = threading.Lock()


def required_mobilesam() -> MobileSAM:
    """The one MobileSAM of this process, whose weights are downloaded if they are not on this machine."""
    with _loading:
        if not _loaded:
            _loaded.append(load_mobilesam())
    return _loaded[0]


def available_mobilesam(fetch: bool = False) -> MobileSAM | None:
    """Return the one MobileSAM of this process; None if its weights are not on this machine.

    Args:
        fetch: Whether to download them if they are not here, once in a process and never when the network is
            forbidden. That they are downloaded, or that masks are made without them, is said once, in one line.

    Raises:
        EmatError: If the weights on this machine are damaged.
    """
    if not _loaded and find_mobilesam() is None and not (fetch and fetch_mobilesam()):
        return None
    return required_mobilesam()


def fetch_mobilesam() -> bool:
    """Download the weights if they are not here, unless that failed within a day; say why if they cannot be had."""
    with _loading:
        if find_mobilesam() is not None:
            return True
        failed = MOBILESAM.path.with_name("mobilesam.failed")
        if not _unavailable and not is_offline() and _is_recent(failed):
            _unavailable.append("fetching it failed less than a day ago; `emat weights fetch mobilesam` tries again")
        if not _unavailable:
            try:
                if not is_offline():
                    say_once("fetching MobileSAM (41 MB) for better masks; this happens once")
                fetch_weights(MOBILESAM)
                return True
            except EmatError as error:
                _unavailable.append(str(error))
                if not is_offline():
                    with suppress(OSError):  # a note for other processes, which may be lost
                        failed.touch()
    say_once(f"masks are made without MobileSAM and are less crisp: {_unavailable[0]}")
    return False


def _is_recent(file: Path) -> bool:
    try:
        return time.time() - file.stat().st_mtime < RETRY_SECONDS
    except OSError:
        return False
