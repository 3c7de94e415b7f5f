"""What the methods that prompt MobileSAM share: the photo in the features, points from patches, and masks on a sheet.

Features hold the photo beside the tokens, as MobileSAM sees it: scaled and padded to a square, so that photos of all
sizes take the same space in a cache. It is encoded when it becomes a query, once. Points are the centres of patches.
All masks of a photo are logits on its sheet, the part of MobileSAM's 256 x 256 answer that the photo fills.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from emat.backbone.tokens import Grid
from emat.images import Pixels, resize_photo
from emat.methods.base import Features, in_precision
from emat.methods.training_free import CERTAIN_LOGIT, Patches, PatchMethod, SupportPatches, SupportPatchesT
from emat.refine.candidates import sheet_size
from emat.refine.mask_decoder import SIDE
from emat.refine.mobilesam import Answers, EncodedPhoto, Prompt, inner_size, required_mobilesam
from emat.refine.regions import Point

LARGEST_LOGIT = 8.0  # of a mask; MobileSAM's own reach far beyond


@dataclass(frozen=True)
class PromptedQuery(Patches):
    """A query's patches, and the photo that MobileSAM is asked about."""

    photo: Pixels  # (h, w, 3), the part of MobileSAM's square that the photo fills

    @cached_property
    def encoded(self) -> EncodedPhoto:
        """MobileSAM's encoding of the photo."""
        return required_mobilesam().encode(self.photo)

    @property
    def sheet(self) -> tuple[int, int]:
        """Rows and columns of masks."""
        return sheet_size(self.encoded.size)

    def ask(self, prompts: Sequence[Prompt]) -> list[Answers]:
        """Return MobileSAM's answer to each prompt."""
        return required_mobilesam().answer(self.encoded, prompts)

    def drawn(self, logits: Tensor) -> Tensor:
        """Cut masks (..., 256, 256) to the sheet."""
        rows, columns = self.sheet
        return logits[..., :rows, :columns]

    def point(self, index: int) -> Point:
        """Return the centre of a patch as (x, y) in the photo."""
        row, column = divmod(index, self.grid[1])
        height, width = self.encoded.size
        return (column + 0.5) * width / self.grid[1], (row + 0.5) * height / self.grid[0]

    def covered(self, masks: Tensor) -> Tensor:
        """Return which patches' centres are inside of each mask (n, rows, columns) on the sheet: (n, T)."""
        rows, columns = (
            ((torch.arange(count) + 0.5) * side / count).long()
            for count, side in zip(self.grid, self.sheet, strict=True)
        )
        return masks[:, rows][:, :, columns].flatten(1)


class PromptedMethod(PatchMethod[PromptedQuery, SupportPatchesT]):
    """A method that scores patches, and draws its masks with MobileSAM, prompted at points among them."""

    def features(self, pixels: Tensor) -> list[Features]:
        """Compute the tokens of each photo, and keep what the pixels show of it beside them."""
        mean, std = (
            pixels.new_tensor(values).view(3, 1, 1) for values in (self.preparation.mean, self.preparation.std)
        )
        photos = ((pixels * std + mean).clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
        with_photos = zip(super().features(pixels), photos, strict=True)
        return [Features((*features.tensors, *_kept(photo)), features.size) for features, photo in with_photos]

    @torch.no_grad()
    def photo_features(self, photo: Pixels) -> Features:
        """Compute the tokens of a photo (H, W, 3), and keep the photo itself beside them, at its own proportions."""
        (features,) = in_precision(self.precision, super().features, self.prepare(photo))
        return Features((*features.tensors, *_kept(photo)), features.size)

    def features_together(self, photos: Sequence[Pixels]) -> list[Features]:
        """Compute what `photo_features` returns for each photo."""
        return [self.photo_features(photo) for photo in photos]

    def feature_weights(self) -> Mapping[str, Tensor]:
        """Return the backbone's weights, named so that a cache tells these features from those without the photo."""
        return {f"with photo.{name}": value for name, value in self.backbone.state_dict().items()}

    def encode_query(self, features: Features) -> PromptedQuery:
        """Join the channels of each patch to one unit vector, and unpack the photo."""
        patches = self.patches(features)
        return PromptedQuery(patches.vectors, patches.grid, photo_of(features))


class PlainPromptedMethod(PromptedMethod[SupportPatches]):
    """A prompted method that takes nothing but the patches of a support."""

    def encode_support(self, features: Features, mask: Tensor) -> SupportPatches:
        """Join the channels of each patch to one unit vector, and find out how much of each patch is the class."""
        return self.support_patches(features, mask)


def photo_of(features: Features) -> Pixels:
    """Return the photo that features of a `PromptedMethod` hold, (h, w, 3) with a longest side of 1024."""
    _, square, size = features.tensors
    height, width = (int(side) for side in size)
    return square[:height, :width].cpu().numpy()


def _kept(photo: Pixels) -> tuple[Tensor, Tensor]:
    """The photo on MobileSAM's square (1024, 1024, 3), and the height and width that it fills there."""
    height, width = inner_size((photo.shape[0], photo.shape[1]))
    filled = torch.from_numpy(resize_photo(photo, (height, width)))
    return F.pad(filled, (0, 0, 0, SIDE - width, 0, SIDE - height)), torch.tensor([height, width])


def best_answers(query: PromptedQuery, answers: Sequence[Answers]) -> Tensor:
    """Return of each answer the one of its three scales that MobileSAM thinks best of: (n, rows, columns) logits."""
    chosen = [answer.logits[1 + int(answer.iou[1:].argmax())] for answer in answers]
    return query.drawn(torch.stack(chosen))


def joined(query: PromptedQuery, masks: Tensor) -> Tensor:
    """Return the union of masks (n, rows, columns) as logits (rows, columns); without masks nothing is inside."""
    if not len(masks):
        return torch.full(query.sheet, -CERTAIN_LOGIT)
    return masks.amax(dim=0).clamp(-LARGEST_LOGIT, LARGEST_LOGIT)


def spread(indices: Tensor, scores: Tensor, grid: Grid, most: int) -> list[int]:
    """Return at most `most` of the patches `indices`, by their scores (T,), no two of them neighbours if that suffices.

    >>> spread(torch.tensor([0, 1, 4]), torch.tensor([3.0, 2.0, 0.0, 0.0, 1.0]), (1, 5), most=2)
    [0, 4]
    """
    ordered = indices[scores[indices].argsort(descending=True, stable=True)].tolist()
    cells = np.array([divmod(index, grid[1]) for index in ordered]).reshape(-1, 2)
    free = np.ones(len(ordered), bool)
    chosen: list[int] = []
    for number, index in enumerate(ordered):
        if free[number] and len(chosen) < most:
            chosen.append(index)
            free &= np.abs(cells - cells[number]).max(axis=1) > 1
    return chosen
