"""Crisp masks from coarse probability maps: by MobileSAM where a class shows whole objects, else along edges.

A refined map says the same as the map that it replaces - its threshold is the same, the classes stay comparable - but
its mask follows the object. Every region that MobileSAM is asked about keeps the best of its candidates by `score`; the
unrefined region is one of them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.images import Pixels
from emat.refine.candidates import Candidate, best_candidates, sheet_size
from emat.refine.guided import guided
from emat.refine.mobilesam import EncodedPhoto, MobileSAM, Prompt, find_mobilesam, load_mobilesam
from emat.refine.regions import Map, MapRegion, Mask, certainty, find_regions, resized

Refinement = Literal["auto", "mobilesam", "guided"]
Way = Literal["mobilesam", "guided", "none"]  # what became of it

RULES = 2  # goes up with every change of the rules below, so that no evaluation mixes masks of both

MOST_OBJECTS = 5  # for auto
SMALLEST_OBJECT = 0.01  # of the photo's area, for auto
THINNEST_OBJECT = 0.05  # of the photo's longer side, for auto
LEAST_COVERED = 0.7  # of a class's area that must lie in such objects, for auto
LEAST_REPRODUCED = 0.65  # IoU with which MobileSAM must draw the examples again, for auto
MOST_EXAMPLES = 3  # that are tried


@dataclass(frozen=True)
class RefinedMaps:
    """The maps of a photo after refinement."""

    maps: dict[str, Map]
    ways: dict[str, Way]  # how each class was refined
    objects: dict[str, NDArray[np.int32]] = field(default_factory=dict)  # MobileSAM's masks, numbered from 1


def check_refinement(refine: object) -> None:
    """EmatError unless `refine` is None or a way to refine."""
    if refine is not None and refine not in get_args(Refinement):
        raise EmatError(f"refine is {refine!r}; it must be {', '.join(get_args(Refinement))} or None")


def refine_maps(
    photo: Pixels,
    maps: Mapping[str, Map],
    threshold: float,
    refine: Refinement | Mapping[str, Refinement] = "auto",
    sam: MobileSAM | None = None,
    encoded: EncodedPhoto | None = None,
) -> RefinedMaps:
    """Refine the probability maps of a photo's classes.

    Args:
        photo: (H, W, 3).
        maps: For each class its probability map (h, w).
        threshold: The probability from which a pixel belongs to a class.
        refine: How: one way for all classes, or one for each.
        sam: MobileSAM; without it masks are refined along the photo's edges instead.
        encoded: The photo's encoding, if there is one already.

    Returns:
        The maps with the same names, sizes and threshold.
    """
    size = sheet_size(encoded or EncodedPhoto(torch.empty(0), (photo.shape[0], photo.shape[1])))
    sheets = {name: certainty(resized(map_, size), threshold) for name, map_ in maps.items()}
    out = RefinedMaps({}, {})
    for name, map_ in maps.items():
        regions = find_regions(sheets[name])
        out.ways[name] = _way(refine if isinstance(refine, str) else refine[name], regions, sheets[name], sam)
        if out.ways[name] == "guided":
            out.maps[name] = guided(map_, photo)
        elif out.ways[name] == "mobilesam" and sam is not None:
            encoded = encoded or sam.encode(photo)
            others = [sheet for other, sheet in sheets.items() if other != name]
            best = best_candidates(sam, encoded, photo, regions, sheets[name], others)
            out.maps[name], out.objects[name] = _drawn(map_, threshold, sheets[name], regions, best)
        else:
            out.maps[name] = map_
    return out


def _way(refine: Refinement, regions: Sequence[MapRegion], certain: Map, sam: MobileSAM | None) -> Way:
    """How one class is refined on one photo."""
    if not regions or (refine == "auto" and not suits(regions, certain)):
        return "none"
    return "guided" if refine == "guided" or sam is None else "mobilesam"


def suits(regions: Sequence[MapRegion], certain: Map) -> bool:
    """Whether a class shows what MobileSAM can tell apart: few, large and thick objects; not texture, cracks, cells."""
    least_area, least_thickness = SMALLEST_OBJECT * certain.size, THINNEST_OBJECT * max(certain.shape)
    large = [region for region in regions if region.area >= least_area and region.thickness >= least_thickness]
    covered = sum(region.area for region in large)
    return len(regions) <= MOST_OBJECTS and covered >= LEAST_COVERED * int((certain >= 0.5).sum())


def examples_suit(examples: Sequence[tuple[Pixels, Mask]], sam: MobileSAM | None = None) -> bool:
    """Whether the examples of a class, photos (H, W, 3) with masks (H, W), show what MobileSAM can draw.

    More than half must show few, large and thick objects, and with `sam` these must be reproduced.

    >>> square, dots = np.zeros((50, 50), bool), np.zeros((50, 50), bool)
    >>> square[10:40, 10:40], dots[::6, ::6] = True, True
    >>> photo = np.zeros((50, 50, 3), np.uint8)
    >>> examples_suit([(photo, square)]), examples_suit([(photo, square), (photo, dots)]), examples_suit([])
    (True, False, True)
    """
    shown = [(photo, mask) for photo, mask in examples[:MOST_EXAMPLES] if mask.any()]
    good = [(photo, mask) for photo, mask in shown if _shows_objects(mask)]
    if shown and len(good) <= len(shown) / 2:
        return False
    return sam is None or not good or float(np.mean([reproduced(sam, *one) for one in good])) >= LEAST_REPRODUCED


def _shows_objects(mask: Mask) -> bool:
    certain = mask.astype(np.float32)
    return suits(find_regions(certain), certain)


def reproduced(sam: MobileSAM, photo: Pixels, mask: Mask) -> float:
    """How well MobileSAM draws the objects of an example again when it is told their boxes: the IoU with `mask`.

    What it cannot draw from a perfect prompt - cracks, textures, cells - it cannot draw from a predicted one.
    """
    encoded = sam.encode(photo)
    size = sheet_size(encoded)
    true = resized(mask.astype(np.float32), size) >= 0.5
    drawn = np.zeros_like(true)
    factors = photo.shape[1] / size[1], photo.shape[0] / size[0]  # x, y
    for region in find_regions(true.astype(np.float32))[:MOST_OBJECTS]:
        left, top, right, bottom = (side * factors[index % 2] for index, side in enumerate(region.box))
        point = region.points[0][0] * factors[0], region.points[0][1] * factors[1]
        answers = sam.answer(encoded, [Prompt(inside=[point], box=(left, top, right, bottom))])[0]
        drawn |= answers.logits[0, : size[0], : size[1]].cpu().numpy() > 0
    return float((true & drawn).sum() / max(int((true | drawn).sum()), 1))


def _drawn(
    map_: Map, threshold: float, certain: Map, regions: Sequence[MapRegion], best: Sequence[Candidate]
) -> tuple[Map, NDArray[np.int32]]:
    """The map (h, w) whose mask is the candidates' union, and the number of each pixel's candidate."""
    size = (map_.shape[0], map_.shape[1])
    small = np.zeros_like(certain, bool)  # regions that were not asked about stay as they are
    for region in regions[len(best) :]:
        small |= region.mask
    soft = np.stack([1 / (1 + np.exp(-np.clip(resized(one.logits, size), -20, 20))) for one in best])  # (n, h, w)
    # Inside, a pixel is as sure as its object's evidence: so classes compete by what their maps say of whole objects.
    strength = np.array([float(certain[one.mask].mean()) if one.mask.any() else 0.0 for one in best], np.float32)
    winner = (soft * np.maximum(strength, 0.01)[:, None, None]).argmax(axis=0)
    value = np.take_along_axis(soft, winner[None], axis=0)[0]
    inside = threshold + (1 - threshold) * (2 * value - 1) * strength[winner]
    refined = np.where(value > 0.5, np.maximum(inside, threshold), np.minimum(2 * value, 0.999) * threshold)
    kept = (resized(small.astype(np.float32), size) >= 0.5) & (value <= 0.5)
    refined = np.where(
        kept,
        map_,
        np.where(value > 0.5, refined, np.minimum(refined, np.nextafter(np.float32(threshold), np.float32(0)))),
    )
    return refined.astype(np.float32), np.where(value > 0.5, winner + 1, 0).astype(np.int32)


_loaded: list[MobileSAM] = []
_loading = threading.Lock()


def shared_mobilesam(refine: Refinement) -> MobileSAM | None:
    """The one MobileSAM of this process; None where `refine` does without.

    "mobilesam" downloads the weights if they are not on this machine, "auto" never does.
    """
    if refine == "guided" or (refine == "auto" and not _loaded and find_mobilesam() is None):
        return None
    return required_mobilesam()


def refiner_of(refine: Refinement) -> str:
    """Name all that a refined mask depends on beside the photo and the map, such as "auto, rules 2, with MobileSAM".

    Masks that were refined under different names are not to be mixed in one evaluation.
    """
    weights = "with" if refine == "mobilesam" or (refine == "auto" and find_mobilesam() is not None) else "without"
    return f"{refine}, rules {RULES}, {weights} MobileSAM"


def required_mobilesam() -> MobileSAM:
    """The one MobileSAM of this process, whose weights are downloaded if they are not on this machine."""
    with _loading:
        if not _loaded:
            _loaded.append(load_mobilesam())
    return _loaded[0]
