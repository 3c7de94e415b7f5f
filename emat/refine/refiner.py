"""Crisp masks from coarse probability maps: by MobileSAM where a class shows whole objects, else along edges.

A refined map has the same threshold and the same meaning as the map that it replaces, so that classes can still be
compared, but its mask follows the outline of the object. For every region, MobileSAM proposes masks. The unrefined
region is a candidate too, and the candidate with the highest `score` is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from emat.backbone.mobilesam import find_mobilesam
from emat.errors import EmatError
from emat.images import Pixels, resize_map, resize_mask, resize_photo
from emat.refine.candidates import Candidate, best_candidates, drawing_iou, sheet_size
from emat.refine.mobilesam import EncodedPhoto, MobileSAM, available_mobilesam, required_mobilesam
from emat.refine.regions import Map, MapRegion, Mask, belief, certainty, find_regions, undecided_reach

Refinement = Literal["auto", "mobilesam", "guided"]
Way = Literal["mobilesam", "guided", "none"]  # how a class was refined in the end

RULES = 5  # goes up with every change of the rules below, so that no evaluation mixes masks of both

# "auto" asks MobileSAM about classes with few, large and thick objects, whose examples it draws well.
MOST_OBJECTS = 8
SMALLEST_OBJECT = 0.003  # share of the photo's area
THINNEST_OBJECT = 0.03  # share of the photo's longer side
LEAST_DRAWN = 0.7  # IoU of the mask that MobileSAM draws of an example with the example's own mask
EXAMPLE_SIDE = 160  # pixels at which the masks of examples are looked at
LEAST_COVERED = 0.5  # share of a class's area that must lie in such objects

# The guided filter.
LARGEST_RADIUS = 0.04  # of its windows, as a share of the longer side
SMALLEST_RADIUS = 1.5  # pixels at which the filter works: a map that is sharper than this stays as it is
EDGE = 0.02  # the difference of colours (0 to 1) from which a border in the photo counts as an edge
LONGEST_SIDE = 640  # pixels at which it works; its result is smooth enough to be enlarged


@dataclass(frozen=True)
class RefinedMaps:
    """The maps of a photo after refinement."""

    maps: dict[str, Map]
    ways: dict[str, Way]  # how each class was refined
    objects: dict[str, NDArray[np.int32]] = field(default_factory=dict)  # MobileSAM's masks, numbered from 1


def check_refinement(refine: object) -> None:
    """EmatError unless `refine` is None or a way to refine."""
    if refine is not None and refine not in get_args(Refinement):
        raise EmatError("unknown-choice", f"refine is {refine!r}; it must be {', '.join(get_args(Refinement))} or None")


def refine_maps(
    photo: Pixels,
    maps: Mapping[str, Map],
    thresholds: float | Mapping[str, float],
    refine: Refinement | Mapping[str, Refinement] = "auto",
    sam: MobileSAM | None = None,
    encode: Callable[[], EncodedPhoto] | None = None,
) -> RefinedMaps:
    """Refine the probability maps of a photo's classes.

    Args:
        photo: (H, W, 3).
        maps: For each class its probability map (h, w).
        thresholds: The probability from which a pixel belongs to a class: one for all classes, or one for each.
        refine: How: one way for all classes, or one for each.
        sam: MobileSAM; without it masks are refined along the photo's edges instead.
        encode: Gives MobileSAM's encoding of the photo, if someone keeps it; called only where MobileSAM is asked.

    Returns:
        The maps with the same names, sizes and threshold.
    """
    size = sheet_size((photo.shape[0], photo.shape[1]))
    encoded: EncodedPhoto | None = None
    small = {name: resize_map(map_, size) for name, map_ in maps.items()}
    threshold_of = {name: thresholds if isinstance(thresholds, (int, float)) else thresholds[name] for name in maps}
    sheets = {name: certainty(map_, threshold_of[name]) for name, map_ in small.items()}
    out = RefinedMaps({}, {})
    for name, map_ in maps.items():
        threshold = threshold_of[name]
        regions = find_regions(sheets[name])
        out.ways[name] = _way(refine if isinstance(refine, str) else refine[name], regions, sheets[name], sam)
        if out.ways[name] == "guided":
            out.maps[name] = guided(map_, photo, threshold)
        elif out.ways[name] == "mobilesam" and sam is not None:
            encoded = encoded or (sam.encode(photo) if encode is None else encode())
            others = [sheet for other, sheet in sheets.items() if other != name]
            best = best_candidates(sam, encoded, photo, regions, belief(small[name], threshold), others)
            out.maps[name], out.objects[name] = _drawn(map_, threshold, regions, best)
        else:
            out.maps[name] = map_
    return out


def _way(refine: Refinement, regions: Sequence[MapRegion], certain: Map, sam: MobileSAM | None) -> Way:
    """How one class is refined on one photo."""
    if not (certain >= 0.5).any():
        return "none"
    asked = refine == "mobilesam" or (refine == "auto" and suits(regions, certain))
    return "mobilesam" if asked and regions and sam is not None else "guided"


def suits(regions: Sequence[MapRegion], certain: Map) -> bool:
    """Whether a class shows what MobileSAM can tell apart: few, large and thick objects; not texture, cracks, cells."""
    least_area, least_thickness = SMALLEST_OBJECT * certain.size, THINNEST_OBJECT * max(certain.shape)
    large = [region for region in regions if region.area >= least_area and region.thickness >= least_thickness]
    covered = sum(region.area for region in large)
    return len(regions) <= MOST_OBJECTS and covered >= LEAST_COVERED * int((certain >= 0.5).sum())


def examples_suit(masks: Sequence[Mask]) -> bool:
    """Whether more than half of the masks (H, W) of a class's examples show few, large and thick objects.

    >>> square, dots = np.zeros((50, 50), bool), np.zeros((50, 50), bool)
    >>> square[10:40, 10:40], dots[::6, ::6] = True, True
    >>> examples_suit([square]), examples_suit([square, dots]), examples_suit([])
    (True, False, True)
    """
    shown = [_small(mask).astype(np.float32) for mask in masks if mask.any()]
    return not shown or sum(suits(find_regions(mask), mask) for mask in shown) > len(shown) / 2


def can_draw(sam: MobileSAM, photo: Pixels, mask: Mask, encoded: EncodedPhoto | None = None) -> bool:
    """Whether MobileSAM draws the mask (H, W) of an example well, if it is asked about it as about a map.

    It draws things with an outline. Where a class is a texture, or has holes that count as the class's background, it
    does not even find the mask that is known, and would spoil masks that are not.
    """
    return drawing_iou(sam, encoded or sam.encode(photo), photo, mask) >= LEAST_DRAWN


def _small(mask: Mask) -> Mask:
    """A mask at the size at which examples are looked at."""
    scale = min(1.0, EXAMPLE_SIDE / max(mask.shape))
    size = max(1, round(mask.shape[0] * scale)), max(1, round(mask.shape[1] * scale))
    return resize_mask(mask.astype(np.uint8), size) > 0


def guided(probability: Map, photo: Pixels, threshold: float = 0.5, radius: float | None = None) -> Map:
    """Draw a probability map (h, w) again along the edges of a photo (H, W, 3).

    In every small window the map is explained as a linear function of the photo's colours (the guided filter of He, Sun
    and Tang), so that it changes where the colours change and is smooth where they are.

    Args:
        probability: How likely each pixel belongs to a class; of any size.
        photo: The photo that it is about.
        threshold: The probability from which a pixel belongs to the class.
        radius: Of the windows, as a share of the longer side; by default as far as the map is undecided around its
            borders, so that a coarse map changes and a sharp one stays.

    >>> photo = np.zeros((40, 60, 3), np.uint8)
    >>> photo[:, 33:] = 255
    >>> blurred = np.clip((np.arange(60, dtype=np.float32) - 20) / 20, 0, 1)[None].repeat(40, axis=0)
    >>> sharp = guided(blurred, photo, radius=0.1)
    >>> blurred[20, [31, 34]].astype(float).round(2).tolist(), sharp[20, [31, 34]].astype(float).round(2).tolist()
    ([0.55, 0.7], [0.42, 0.81])
    """
    height, width = probability.shape
    shrink = min(1.0, LONGEST_SIDE / max(height, width))
    size = max(1, round(height * shrink)), max(1, round(width * shrink))
    if radius is None:
        radius = min(LARGEST_RADIUS, undecided_reach(probability, threshold) / max(height, width))
    if radius * max(size) < SMALLEST_RADIUS:
        return probability
    guide = resize_photo(photo, size).astype(np.float32) / np.float32(255)  # (h', w', 3)
    drawn = _filtered(resize_map(probability, size), guide, max(1, round(radius * max(size))), EDGE**2)
    return np.clip(resize_map(drawn, (height, width)), 0, 1)


def _filtered(values: Map, guide: Map, radius: int, smoothness: float) -> Map:
    """The guided filter with a colour guide (h, w, 3)."""

    def mean(x: Map) -> Map:
        return np.asarray(
            ndimage.uniform_filter(x, (2 * radius + 1, 2 * radius + 1, *[0] * (x.ndim - 2)), mode="nearest")
        )

    centre, level = mean(guide), mean(values)  # (h, w, 3), (h, w)
    products = guide[..., :, None] * guide[..., None, :]  # (h, w, 3, 3)
    covariance = mean(products) - centre[..., :, None] * centre[..., None, :] + smoothness * np.eye(3, dtype=np.float32)
    together = mean(guide * values[..., None]) - centre * level[..., None]  # (h, w, 3)
    slope = np.linalg.solve(covariance, together[..., None])[..., 0]
    offset = level - (slope * centre).sum(axis=2)
    return np.asarray((mean(slope) * guide).sum(axis=2) + mean(offset), np.float32)


def _drawn(
    map_: Map, threshold: float, regions: Sequence[MapRegion], best: Sequence[Candidate]
) -> tuple[Map, NDArray[np.int32]]:
    """The map (h, w) whose mask is the candidates' union, and the number of each pixel's candidate."""
    size = map_.shape[0], map_.shape[1]
    drawn = [candidate for candidate in best if not candidate.is_region]
    if not drawn:
        return map_, np.zeros(size, np.int32)
    soft = np.stack([1 / (1 + np.exp(-np.clip(resize_map(mask.logits, size), -20, 20))) for mask in drawn])  # (n, h, w)
    # Inside an object, a pixel has the evidence of the whole object, so classes compete as objects, not as pixels.
    evidence = np.array([candidate.evidence for candidate in drawn], np.float32)
    winner = (soft * evidence[:, None, None]).argmax(axis=0)
    value = np.take_along_axis(soft, winner[None], axis=0)[0]
    inside = value > 0.5
    # Spread the values inside over [threshold, 1] and those outside over [0, threshold).
    within = threshold + (1 - threshold) * (2 * value - 1) * evidence[winner]
    below = np.minimum(2 * value * threshold, np.nextafter(np.float32(threshold), np.float32(0)))
    # Regions without a better candidate keep the values of the map.
    kept = resize_map(_kept(regions, best).astype(np.float32), size) >= 0.5
    refined = np.where(inside, np.maximum(within, threshold), np.where(kept, map_, below))
    return refined.astype(np.float32), np.where(inside, winner + 1, 0).astype(np.int32)


def _kept(regions: Sequence[MapRegion], best: Sequence[Candidate]) -> Mask:
    """Where the regions are that stay as the map draws them."""
    kept = np.zeros_like(regions[0].mask)
    for index, region in enumerate(regions):
        if index >= len(best) or best[index].is_region:
            kept |= region.mask
    return kept


def shared_mobilesam(refine: Refinement) -> MobileSAM | None:
    """The one MobileSAM of this process; None where `refine` does without.

    "mobilesam" downloads the weights if they are not on this machine, "auto" never does.
    """
    if refine == "guided":
        return None
    return available_mobilesam() if refine == "auto" else required_mobilesam()


def refiner_of(refine: Refinement) -> str:
    """Name all that a refined mask depends on beside the photo and the map, such as "auto, rules 2, with MobileSAM".

    Masks that were refined under different names are not to be mixed in one evaluation.
    """
    weights = "with" if refine == "mobilesam" or (refine == "auto" and find_mobilesam() is not None) else "without"
    return f"{refine}, rules {RULES}, {weights} MobileSAM"
