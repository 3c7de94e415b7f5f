"""Candidate masks of one region, from MobileSAM's answers and the map itself, and which of them is best."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from emat.images import Pixels, resize_photo
from emat.refine.mask_decoder import MASK_SIDE
from emat.refine.mobilesam import EncodedPhoto, MobileSAM, Prompt
from emat.refine.regions import Map, MapRegion, Mask, Point, points_against

MASK_PROMPT_LOGIT = 6.0  # MobileSAM's own mask logits are of this size
MOST_REGIONS = 8  # of a class that MobileSAM is asked about; more are texture, or too small for it
MAP_IOU = 0.6  # what a coarse region is worth where MobileSAM's answers bring the IoU that they expect of themselves
STABILITY_OFFSET = 1.0  # a stable mask hardly changes when its logits are cut this much higher or lower


@dataclass(frozen=True)
class Candidate:
    """A mask that a region might have."""

    logits: Map  # (h, w): positive inside
    agreement: float  # with the certainty map, 0 to 1
    iou: float  # what MobileSAM expects of it
    stability: float
    edge: float  # how much more the photo changes along its outline than elsewhere
    origin: str  # "map" for the unrefined region, else the prompt it answers

    @property
    def mask(self) -> Mask:
        """(h, w)."""
        return self.logits > 0


@dataclass(frozen=True)
class Weights:
    """What a candidate's score is made of, beside its agreement with the map."""

    iou: float = 1.0
    stability: float = 0.2
    edge: float = 0.1


WEIGHTS = Weights()


def best_candidates(
    sam: MobileSAM,
    encoded: EncodedPhoto,
    photo: Pixels,
    regions: Sequence[MapRegion],
    certain: Map,
    others: Sequence[Map] = (),
) -> list[Candidate]:
    """The best candidate of each of the largest regions, in their order."""
    gradient = gradient_of(resize_photo(photo, (certain.shape[0], certain.shape[1])))
    best = []
    for region in regions[:MOST_REGIONS]:
        own = np.where(_elsewhere(region, regions), 0, certain)
        candidates = [unrefined(region, own, gradient)]
        for answer in ask(sam, encoded, region, own, points_against(region, others)):
            candidates.append(judge(*answer, region, own, gradient))
        best.append(max(candidates, key=score))
    return best


def unrefined(region: MapRegion, certain: Map, gradient: Map) -> Candidate:
    """The region as the map draws it, as a candidate."""
    logits = np.where(region.mask, 1, -1).astype(np.float32)
    return judge("map", logits, MAP_IOU, 1.0, region, certain, gradient)


def score(candidate: Candidate, weights: Weights = WEIGHTS) -> float:
    """How good a candidate is; only differences matter."""
    return (
        candidate.agreement
        + weights.iou * min(candidate.iou, 1.0)
        + weights.stability * candidate.stability
        + weights.edge * candidate.edge
    )


def sheet_size(photo: EncodedPhoto) -> tuple[int, int]:
    """Height and width of the part of MobileSAM's 256 x 256 masks that the photo fills; all work is done there."""
    height, width = photo.inner
    return max(1, round(height * MASK_SIDE / 1024)), max(1, round(width * MASK_SIDE / 1024))


def ask(
    sam: MobileSAM, photo: EncodedPhoto, region: MapRegion, certain: Map, against: Sequence[Point] = ()
) -> list[tuple[str, Map, float, float]]:
    """MobileSAM's answers about a region: origin, logits (h, w), expected IoU, stability.

    `certain` (h, w) and the region are on the sheet; so is `against`, points that other classes are sure of.
    """
    box = _enlarged(region, certain.shape)
    mask = _mask_prompt(np.where(_around(region, certain.shape), certain, 0))
    factor_y, factor_x = (photo.size[axis] / certain.shape[axis] for axis in (0, 1))

    def scaled(points: Sequence[Point]) -> list[Point]:
        return [(x * factor_x, y * factor_y) for x, y in points]

    photo_box = (box[0] * factor_x, box[1] * factor_y, box[2] * factor_x, box[3] * factor_y)
    inside, outside = scaled(region.points), scaled(against)
    prompts = {
        "box and mask": Prompt(inside[:1], outside, photo_box, mask),
        "points and mask": Prompt(inside, outside, mask=mask),
        "points": Prompt(inside, outside),
    }
    answers = sam.answer(photo, list(prompts.values()))
    height, width = certain.shape
    return [
        (origin, logits[:height, :width].numpy(), float(iou), _stability(logits))
        for origin, answer in zip(prompts, answers, strict=True)
        for logits, iou in zip(answer.logits, answer.iou, strict=True)
    ]


def judge(
    origin: str, logits: Map, iou: float, stability: float, region: MapRegion, certain: Map, gradient: Map
) -> Candidate:
    """A candidate with all that its score is made of; `certain` is 0 where other regions are."""
    mask = logits > 0
    union = float(np.maximum(certain, mask).sum())
    agreement = float(np.minimum(certain, mask).sum()) / union if union else 0.0
    outline = mask & ~ndimage.binary_erosion(mask, border_value=1)
    near = ndimage.binary_dilation(region.mask, iterations=8)
    level = float(gradient[near].mean()) if near.any() else 0.0
    edge = float(gradient[outline].mean()) / max(level, 1e-6) if outline.any() else 0.0
    return Candidate(logits, agreement, iou, stability, min(edge, 4.0), origin)


def gradient_of(photo: NDArray[np.uint8]) -> Map:
    """How much the photo (h, w, 3) changes at each pixel."""
    smooth = ndimage.gaussian_filter(photo.astype(np.float32) / 255, (1, 1, 0))
    return np.asarray(sum(np.hypot(*np.gradient(smooth[..., channel])) for channel in range(3)), np.float32)


def _stability(logits: torch.Tensor) -> float:
    wide = (logits > -STABILITY_OFFSET).sum()
    return float((logits > STABILITY_OFFSET).sum() / wide) if wide else 0.0


def _mask_prompt(certain: Map) -> torch.Tensor:
    square = torch.full((MASK_SIDE, MASK_SIDE), -MASK_PROMPT_LOGIT)
    square[: certain.shape[0], : certain.shape[1]] = torch.from_numpy((2 * certain - 1) * MASK_PROMPT_LOGIT)
    return square


def _enlarged(region: MapRegion, size: tuple[int, ...], share: float = 0.05) -> tuple[float, float, float, float]:
    left, top, right, bottom = region.box
    dx, dy = share * (right - left), share * (bottom - top)
    return max(0, left - dx), max(0, top - dy), min(size[1], right + dx), min(size[0], bottom + dy)


def _around(region: MapRegion, size: tuple[int, ...]) -> Mask:
    """The region's own surroundings, so that its mask prompt does not show other regions."""
    left, top, right, bottom = (round(side) for side in _enlarged(region, size, share=0.15))
    around = np.zeros(size, bool)
    around[top:bottom, left:right] = True
    return around


def _elsewhere(region: MapRegion, regions: Sequence[MapRegion]) -> Mask:
    """Where the other regions are."""
    other = np.zeros_like(region.mask)
    for one in regions:
        if one is not region:
            other |= one.mask
    return other
