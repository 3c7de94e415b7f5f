"""Post-processing: the one way from the probability maps of a photo's classes to the answer.

`Segmenter`, the command line, the studio, the server, Ray, the annotation tools and `emat eval --as-fitted` all go this
way, in this order:

1. `refine`: the maps of likely classes are drawn again along the objects' outlines, each class as `fit` decided.
2. Classes compete: every pixel goes to the likeliest class whose threshold it reaches (`emat.methods.label_map`).
3. Fringes go to the object that they belong to (`emat.refine.objects`).
4. Objects smaller than the smallest one that counts go to the background; the largest object of a class stays, because
   a new photo may show the class from farther away than all examples.

Steps 2 to 4 are `make_labels`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from emat.formats.regions import TOUCHING
from emat.images import Pixels
from emat.methods.base import Thresholds
from emat.methods.label_map import make_label_map
from emat.refine.objects import absorb_fringes, find_remnants
from emat.refine.refiner import Refinement, refine_maps, shared_mobilesam

ProbabilityMap = NDArray[np.float32]
STEPS = 65535  # probabilities are kept in as many steps, so that a map read from a file is the map itself


@dataclass(frozen=True)
class ClassRules:
    """How the answer for one class is made from its probability map."""

    thresholds: Thresholds
    refine: Refinement | None = None  # None: not at all
    smallest: float = 0.0  # connected components that cover less than this share of the photo do not count
    lies_on: tuple[str, ...] = ()  # classes with which it does not compete: it lies on them, as a lesion on a leaf
    expected: float | None = None  # IoU that the forecast expects; None if nothing was left out


@dataclass(frozen=True)
class ClassMaps:
    """Probability maps of classes, and the single objects that MobileSAM drew if they were refined."""

    maps: Mapping[str, ProbabilityMap]  # (h, w)
    objects: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)  # (h, w), numbered from 1


def likely_classes(scores: Mapping[str, float], rules: Mapping[str, ClassRules]) -> list[str]:
    """Return the classes whose score reaches the presence threshold, in the order of `scores`."""
    return [name for name, score in scores.items() if score >= rules[name].thresholds.presence]


def refine(
    photo: Pixels, scores: Mapping[str, float], maps: Mapping[str, ProbabilityMap], rules: Mapping[str, ClassRules]
) -> ClassMaps:
    """Refine the maps of the classes that are likely present; the others stay as they are.

    Args:
        photo: (H, W, 3).
        scores: The score of each class.
        maps: The probability map (h, w) of each class.
        rules: Says for each class how it is refined.
    """
    lying = [name for name in scores if rules[name].lies_on]
    if lying and len(scores) > 1:  # each by itself: the others would take what lies on them
        groups = [[name for name in scores if name not in lying], *([name] for name in lying)]
        parts = [
            refine(
                photo,
                {name: scores[name] for name in group},
                {name: maps[name] for name in group},
                {name: rules[name] for name in group},
            )
            for group in groups
        ]
        return ClassMaps(
            {name: next(part.maps[name] for part in parts if name in part.maps) for name in maps},
            {name: objects for part in parts for name, objects in part.objects.items()},
        )
    # Only classes that are probably present are refined.
    names = likely_classes(scores, rules)
    how = {name: way for name in names if (way := rules[name].refine) is not None}
    if not how:
        return ClassMaps(dict(maps))
    networks = (shared_mobilesam(way) for way in dict.fromkeys(how.values()))
    sam = next((network for network in networks if network is not None), None)
    thresholds = {name: rules[name].thresholds.mask for name in names}
    answer = refine_maps(photo, {name: maps[name] for name in how}, thresholds, how, sam)
    # Crisp maps may win pixels that their classes had lost before, so the competition of the classes is settled again.
    refined = {**maps, **answer.maps}
    drawn = {name: refined[name] for name in names}
    if answer.objects:  # whole objects now compete, so what a class keeps of a region that it lost is not an object
        refined.update(_without_remnants(drawn, thresholds))
    else:  # edges of the photo tell an object from its surroundings, not one class from another
        refined.update(_same_winners(drawn, {name: maps[name] for name in names}, thresholds))
    return ClassMaps({name: in_steps(map_) for name, map_ in refined.items()}, answer.objects)


def in_steps(map_: ProbabilityMap) -> ProbabilityMap:
    """Round probabilities down to the steps in which they are kept; what is below a threshold stays below it."""
    return (np.floor(map_.astype(np.float64) * STEPS) / STEPS).astype(np.float32)


@dataclass(frozen=True)
class LabelLayers:
    """The label map (H, W) of a photo, and the one without the classes that lie on others: 0 is background."""

    labels: NDArray[np.uint8]
    below: NDArray[np.uint8]


def make_labels(
    size: tuple[int, int],
    scores: Mapping[str, float],
    probability: Callable[[str], ProbabilityMap],
    rules: Mapping[str, ClassRules],
) -> LabelLayers:
    """Make the label maps (H, W) of a photo: 0 is background, i is the i-th class of `scores`.

    Args:
        size: Height and width of the photo.
        scores: The score of each class.
        probability: Returns the probability map (H, W) of a class; called one at a time, since large photos have large
            maps.
        rules: Those of each class.
    """
    likely = likely_classes(scores, rules)
    names = {label: name for label, name in enumerate(scores, start=1) if name in likely}
    competing = {label: name for label, name in names.items() if not rules[name].lies_on}
    below = np.zeros(size, np.uint8)
    if competing:
        thresholds = [rules[name].thresholds.mask for name in competing.values()]
        below = make_label_map((probability(name) for name in competing.values()), _one_or_each(thresholds), competing)
        below = absorb_fringes(below, lambda label: probability(competing[label]))
        for label, name in competing.items():
            below = without_small(below, label, rules[name].smallest)
    labels = below
    # What lies on most classes is painted last.
    for label, name in sorted(names.items(), key=lambda item: len(rules[item[1]].lies_on)):
        rule = rules[name]
        if rule.lies_on:
            inside = (probability(name) >= rule.thresholds.mask).astype(np.uint8)
            free = np.isin(labels, [0, *(1 + list(scores).index(other) for other in rule.lies_on if other in scores)])
            labels = np.where(free & (without_small(inside, 1, rule.smallest) > 0), np.uint8(label), labels)
    return LabelLayers(labels, below)


def without_small(labels: NDArray[np.uint8], label: int, smallest: float) -> NDArray[np.uint8]:
    """Return a label map (H, W) without the connected components of one label that cover less than a share of it.

    The largest component of the label always stays.

    >>> labels = np.zeros((10, 10), np.uint8)
    >>> labels[1:5, 1:5], labels[8, 8] = 1, 1
    >>> [int(without_small(labels, 1, smallest).sum()) for smallest in (0.02, 0.5)]
    [16, 16]
    """
    if smallest <= 0:
        return labels
    parts, count = ndimage.label(labels == label, TOUCHING)
    areas = np.bincount(parts.ravel(), minlength=count + 1)
    areas[0] = 0
    small = areas < min(smallest * labels.size, int(areas.max()))
    small[0] = False
    return np.where(small[parts], 0, labels).astype(np.uint8) if small.any() else labels


def _one_or_each(thresholds: Sequence[float]) -> float | Sequence[float]:
    """One threshold if all classes have the same, which is quicker to apply."""
    return thresholds[0] if len(set(thresholds)) == 1 else list(thresholds)


def _without_remnants(maps: Mapping[str, ProbabilityMap], thresholds: Mapping[str, float]) -> dict[str, ProbabilityMap]:
    """Return the maps (h, w) without the regions that other classes have mostly taken."""
    labels = make_label_map(maps.values(), _one_or_each([thresholds[name] for name in maps]))
    whole = {}
    for label, (name, map_) in enumerate(maps.items(), start=1):
        below = np.nextafter(np.float32(thresholds[name]), np.float32(0))
        lost = find_remnants(map_ >= thresholds[name], labels == label)
        whole[name] = np.where(lost, np.minimum(map_, below), map_)
    return whole


def _same_winners(
    maps: Mapping[str, ProbabilityMap], before: Mapping[str, ProbabilityMap], thresholds: Mapping[str, float]
) -> dict[str, ProbabilityMap]:
    """Return refined maps (h, w) in which no class takes what another class had `before`, or appears newly."""
    unrefined = list(before.values())
    labels = make_label_map(unrefined, _one_or_each([thresholds[name] for name in maps]))
    winners = absorb_fringes(labels, lambda label: unrefined[label - 1])
    highest = np.maximum.reduce([np.where(winners == i, map_, 0) for i, map_ in enumerate(maps.values(), start=1)])
    same = {}
    for label, (name, map_) in enumerate(maps.items(), start=1):
        limit = np.where(
            (winners > 0) & (winners != label), highest, 1 if (winners == label).any() else thresholds[name]
        )
        same[name] = np.minimum(map_, np.nextafter(limit, 0, dtype=np.float32))
    return same
