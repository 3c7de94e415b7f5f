"""Candidate masks of one region, from MobileSAM's answers and the map itself, and which of them is best.

MobileSAM is asked with points and with a box, never with the map as a mask: given a coarse mask it draws the same mask
again and is sure of it, which a score cannot tell from a good answer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from emat.images import Pixels, resize_mask, resize_photo
from emat.refine.mask_decoder import MASK_SIDE, SIDE
from emat.refine.mobilesam import Answers, EncodedPhoto, MobileSAM, Prompt, inner_size
from emat.refine.regions import Map, MapRegion, Mask, Point, find_regions, points_against, undecided_reach

MOST_REGIONS = 5  # of a class that MobileSAM is asked about; more are texture, or too small for it
LEAST_EVIDENCE = 0.3  # mean probability of a mask's pixels: MobileSAM then drew something that the map does not mean
STABILITY_OFFSET = 1.0  # a stable mask hardly changes when its logits are cut this much higher or lower
NEAR = 8  # pixels around a region within which the photo's changes are typical
STRONGEST_EDGE = 4.0
BOX_MARGIN = 0.05  # of a region's sides, since a coarse region often misses the object's rim
# The IoU that is assumed for an unrefined region; MobileSAM states one for each of its own masks. A map that is decided
# close to its borders, such as the learner's, follows the photo already.
COARSE_MAP_IOU, SHARP_MAP_IOU = 0.6, 0.9
SHARP_REACH = 0.03  # of the longer side, within which a sharp map is undecided


@dataclass(frozen=True)
class Weights:
    """What a candidate's score is made of, beside its agreement with the map."""

    iou: float = 1.0
    stability: float = 0.2
    edge: float = 0.05


WEIGHTS = Weights()


@dataclass(frozen=True)
class Candidate:
    """A mask that a region might have."""

    logits: Map  # (h, w): positive inside
    agreement: float  # the IoU that the map expects of it, 0 to 1
    evidence: float  # mean probability of its pixels, by the map
    iou: float  # what MobileSAM expects of it
    stability: float
    edge: float  # how much more the photo changes along its outline than elsewhere
    is_region: bool = False  # whether it is the region as the map draws it

    @property
    def mask(self) -> Mask:
        """(h, w)."""
        return self.logits > 0

    def score(self, weights: Weights = WEIGHTS) -> float:
        """How good it is; only differences matter."""
        return (
            self.agreement
            + weights.iou * min(self.iou, 1.0)
            + weights.stability * self.stability
            + weights.edge * self.edge
        )


def sheet_size(photo: tuple[int, int]) -> tuple[int, int]:
    """Height and width of the part of MobileSAM's 256 x 256 masks that a photo of (H, W) fills; work is done there.

    >>> sheet_size((300, 400))
    (192, 256)
    """
    height, width = inner_size(photo)
    return max(1, round(height * MASK_SIDE / SIDE)), max(1, round(width * MASK_SIDE / SIDE))


def best_candidates(
    sam: MobileSAM,
    encoded: EncodedPhoto,
    photo: Pixels,
    regions: Sequence[MapRegion],
    belief: Map,
    others: Sequence[Map] = (),
) -> list[Candidate]:
    """The best candidate of each of the largest regions, in their order.

    Args:
        sam: MobileSAM.
        encoded: Its encoding of the photo.
        photo: (H, W, 3).
        regions: What the map shows of a class, the largest first.
        belief: (h, w), the probability of the class with the threshold at 0.5.
        others: (h, w) each, the certainties of the other classes.
    """
    best = []
    for unrefined, drawn in _candidates(sam, encoded, photo, regions, belief, others):
        chosen = max((unrefined, *drawn), key=Candidate.score)
        best.append(chosen if chosen.evidence >= LEAST_EVIDENCE else unrefined)
    return best


def drawing_iou(sam: MobileSAM, encoded: EncodedPhoto, photo: Pixels, mask: Mask) -> float:
    """How well MobileSAM draws a mask that is known: the IoU of what it draws of the mask's regions with them.

    MobileSAM is asked as it is about a map, and the region itself is not a candidate. The result is 0 if nothing of the
    mask is large enough to be asked about.

    Args:
        sam: MobileSAM.
        encoded: Its encoding of the photo.
        photo: (H, W, 3).
        mask: (H, W).
    """
    size = sheet_size(encoded.size)
    target = (resize_mask(mask.astype(np.uint8), size) > 0).astype(np.float32)
    regions = find_regions(target)[:MOST_REGIONS]
    shown, drawn = np.zeros(size, bool), np.zeros(size, bool)
    for region, (_, answers) in zip(regions, _candidates(sam, encoded, photo, regions, target), strict=True):
        shown |= region.mask
        drawn |= max(answers, key=Candidate.score).mask
    return float((shown & drawn).sum() / max(int((shown | drawn).sum()), 1))


def _candidates(
    sam: MobileSAM,
    encoded: EncodedPhoto,
    photo: Pixels,
    regions: Sequence[MapRegion],
    belief: Map,
    others: Sequence[Map] = (),
) -> Iterator[tuple[Candidate, list[Candidate]]]:
    """For each of the largest regions the region itself, and what MobileSAM drew; arguments as above."""
    size = belief.shape[0], belief.shape[1]
    asked = regions[:MOST_REGIONS]
    if not asked:
        return
    gradient = gradient_of(resize_photo(photo, size))
    answers = ask(sam, encoded, asked, [points_against(region, others) for region in asked], size)
    is_sharp = undecided_reach(belief, 0.5) <= SHARP_REACH * max(size)
    map_iou = SHARP_MAP_IOU if is_sharp else COARSE_MAP_IOU
    for region, answered in zip(asked, answers, strict=True):
        judge = Judge(region, np.where(_elsewhere(region, regions), 0, belief), gradient, map_iou)
        yield judge.unrefined(), [candidate for answer in answered for candidate in judge.answered(answer)]


def ask(
    sam: MobileSAM,
    photo: EncodedPhoto,
    regions: Sequence[MapRegion],
    against: Sequence[Sequence[Point]],
    size: tuple[int, int],
) -> list[list[Answers]]:
    """MobileSAM's answers about each region: to its points, and to its box.

    Regions and the points `against` each of them, which other classes are sure of, are on the sheet of `size`.
    """
    y, x = photo.size[0] / size[0], photo.size[1] / size[1]
    prompts = []
    for region, outside in zip(regions, against, strict=True):
        left, top, right, bottom = enlarged(region, size)
        on, off = ([(column * x, row * y) for column, row in points] for points in (region.points, outside))
        prompts += [Prompt(on, off), Prompt(box=(left * x, top * y, right * x, bottom * y))]
    answers = sam.answer(photo, prompts)
    return [answers[index : index + 2] for index in range(0, len(answers), 2)]


class Judge:
    """Turns logits into candidates of one region.

    Args:
        region: The region.
        belief: (h, w), the probability of the class with the threshold at 0.5; 0 where other regions are.
        gradient: (h, w), how much the photo changes.
        map_iou: What is assumed of the region itself.
    """

    def __init__(self, region: MapRegion, belief: Map, gradient: Map, map_iou: float = COARSE_MAP_IOU) -> None:
        self._region, self._belief, self._gradient, self._map_iou = region, belief, gradient, map_iou
        near = ndimage.binary_dilation(region.mask, iterations=NEAR)
        self._level = max(float(gradient[near].mean()), 1e-6)

    def unrefined(self) -> Candidate:
        """The region as the map draws it."""
        drawn = self._candidate(np.where(self._region.mask, 1, -1).astype(np.float32), self._map_iou, 1.0)
        return replace(drawn, is_region=True)

    def answered(self, answers: Answers) -> list[Candidate]:
        """The four masks of MobileSAM's answers to one prompt."""
        height, width = self._belief.shape
        return [
            self._candidate(logits[:height, :width].cpu().numpy(), float(iou), _stability(logits))
            for logits, iou in zip(answers.logits, answers.iou, strict=True)
        ]

    def _candidate(self, logits: Map, iou: float, stability: float) -> Candidate:
        mask = logits > 0
        inside, area = float(self._belief[mask].sum()), int(mask.sum())
        agreement = inside / max(area + float(self._belief.sum()) - inside, 1e-6)
        outline = mask & ~ndimage.binary_erosion(mask, border_value=1)
        edge = float(self._gradient[outline].mean()) / self._level if outline.any() else 0.0
        return Candidate(logits, agreement, inside / max(area, 1), iou, stability, min(edge, STRONGEST_EDGE))


def gradient_of(photo: NDArray[np.uint8]) -> Map:
    """How much the photo (h, w, 3) changes at each pixel."""
    smooth = ndimage.gaussian_filter(photo.astype(np.float32) / 255, (1, 1, 0))
    return np.asarray(sum(np.hypot(*np.gradient(smooth[..., channel])) for channel in range(3)), np.float32)


def enlarged(region: MapRegion, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """The region's box with a margin, within a sheet of `size`."""
    left, top, right, bottom = region.box
    dx, dy = BOX_MARGIN * (right - left), BOX_MARGIN * (bottom - top)
    return max(0, left - dx), max(0, top - dy), min(size[1], right + dx), min(size[0], bottom + dy)


def _elsewhere(region: MapRegion, regions: Sequence[MapRegion]) -> Mask:
    """Where the other regions are."""
    other = np.zeros_like(region.mask)
    for rival in regions:
        if rival is not region:
            other |= rival.mask
    return other


def _stability(logits: torch.Tensor) -> float:
    wide = (logits > -STABILITY_OFFSET).sum()
    return float((logits > STABILITY_OFFSET).sum() / wide) if wide else 0.0
