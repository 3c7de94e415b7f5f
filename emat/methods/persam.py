"""PerSAM (arXiv 2305.03048): one object, shown once, found again by MobileSAM itself.

1. The mean of the object's patches, compared with every patch of the query, says where the object probably is. The best
   patch is a point inside, the worst a point outside.
2. The same map guides the attention of MobileSAM's decoder, and what the object looks like in MobileSAM's own features
   is added to its prompts.
3. Two more rounds: the mask of the first is prompted again, then together with its box.

The paper works on the features of SAM's ViT-H. Here the map is made on the tokens of any backbone; with `mobilesam`
these are the encoder's that also draws the masks, as in the paper. PerSAM-F, which trains two weights, is left out.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from emat.backbone.tiny_vit import OUT_FEATURES
from emat.methods.base import Features
from emat.methods.prompted import PromptedMethod, PromptedQuery, joined, photo_of
from emat.methods.training_free import PresenceRule, SupportPatches, coverage
from emat.refine.mask_decoder import GRID, SIDE, Guidance
from emat.refine.mobilesam import Answers, Prompt, inner_size, required_mobilesam


@dataclass(frozen=True)
class PerSAMSupport(SupportPatches):
    """A support's patches, and what the object looks like in MobileSAM's features."""

    target: Tensor  # (256,)


class PerSAM(PromptedMethod[PerSAMSupport]):
    """Location prior, guided attention and cascaded refinement."""

    name = "persam"
    support_type = PerSAMSupport
    presence_rule = PresenceRule(level=0.319, sharpness=16.4)

    def encode_support(self, features: Features, mask: Tensor) -> PerSAMSupport:
        """Encode the patches, and average MobileSAM's features of the object."""
        patches = self.support_patches(features, mask)
        embedding = required_mobilesam().encode(photo_of(features)).embedding[0]  # (256, 64, 64)
        cells = _filled_cells(photo_of(features).shape[:2])
        inside, _ = coverage(mask, cells)
        seen = embedding[:, : cells[0], : cells[1]].flatten(1)  # (256, cells)
        target = (seen * inside).sum(dim=1) / inside.sum().clamp(min=1e-6)
        return PerSAMSupport(patches.vectors, patches.inside, patches.outside, target)

    def support_lengths(self) -> dict[str, int]:
        """Return the number of patches, the width of their vectors, and of MobileSAM's features."""
        return {**super().support_lengths(), "g": OUT_FEATURES}

    def scores(self, query: PromptedQuery, support: PerSAMSupport) -> Tensor:
        """Compute the cosine of each patch with the object's mean: (T,)."""
        return query.vectors @ F.normalize(support.foreground.mean(dim=0), dim=0)

    def mask_logits(self, query: PromptedQuery, support: PerSAMSupport, scores: Tensor) -> Tensor:
        """Ask MobileSAM three times, each time with what it answered before."""
        inside, outside = [query.point(int(scores.argmax()))], [query.point(int(scores.argmin()))]
        guidance = Guidance(support.target, _likely(query, scores))
        (first,) = query.ask([Prompt(inside, outside, guidance=guidance)])
        (second,) = query.ask([Prompt(inside, outside, mask=first.logits[0])])
        mask = _best(second)
        (third,) = query.ask([Prompt(inside, outside, box=_box(query, mask), mask=mask)])
        return joined(query, query.drawn(_best(third))[None])


def _likely(query: PromptedQuery, scores: Tensor) -> Tensor:
    """The map of scores (h, w) on MobileSAM's cells (64, 64), standardised; cells beside the photo have the least."""
    rows, columns = _filled_cells(query.encoded.size)
    spread = (scores - scores.mean()) / scores.std().clamp(min=1e-6)
    resized = F.interpolate(spread[None, None], (rows, columns), mode="bilinear", align_corners=False)[0, 0]
    return F.pad(resized, (0, GRID - columns, 0, GRID - rows), value=float(resized.min()))


def _filled_cells(photo: tuple[int, ...]) -> tuple[int, int]:
    height, width = inner_size((photo[0], photo[1]))
    return max(1, round(height * GRID / SIDE)), max(1, round(width * GRID / SIDE))


def _best(answers: Answers) -> Tensor:
    """The mask (256, 256) that MobileSAM expects most of."""
    return answers.logits[int(answers.iou.argmax())]


def _box(query: PromptedQuery, mask: Tensor) -> tuple[float, float, float, float] | None:
    """The box around a mask (256, 256) in the photo's pixels; None if it is empty."""
    pixels = torch.nonzero(query.drawn(mask) > 0)
    if not len(pixels):
        return None
    scale = query.encoded.size[0] / query.sheet[0]
    (top, left), (bottom, right) = pixels.amin(dim=0).tolist(), pixels.amax(dim=0).tolist()
    return left * scale, top * scale, (right + 1) * scale, (bottom + 1) * scale
