"""Proposals: the objects of a photo that look like what is painted on it and on the examples.

The pixel learner is trained on the examples and on what is painted so far, and says of every pixel how much it looks
like a class. Connected components of what does become proposals. Where MobileSAM is on this machine, each is drawn anew
by one click in its middle.

On a photo that is being painted, one does not know yet what is background: most of what is not painted will be, but the
objects that are looked for are not painted either. So at first only a ring around the painted objects counts as
background. Whatever then looks clearly unlike the class counts as background, too, and the learner is trained again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from emat.images import VOID, resize_map
from emat.inference.example import Mask
from emat.inference.segmenter import Segmenter
from emat.pixel_learner.learner import PixelLearner
from emat.pixel_learner.regression import LabelledPhoto
from emat.refine.click import Clicker
from emat.refine.objects import split_touching
from emat.studio.photos import Paint, Painted, StudioPhoto

SIDE = 640  # pixels of the longer side at which photos are compared; lesions of few pixels are lost at less
RIM = 0.005  # of the longer side: so far around a painted object, nobody knows what is there
RING = 0.04  # and so far, it is background
UNLIKE = -1.0  # logit below which a pixel clearly is no class
ALIKE = -0.8  # and from which it looks like one: of what is not painted, a part was taken for background
ODD = 4.0  # an object is so many times smaller or larger than all that were painted at most
FEWEST_PIXELS = 12
SAME_OBJECT = 0.6  # IoU of a component and MobileSAM's outline of it, below which that is something else
MOST = 250  # proposals: their numbers are bytes
MOST_OUTLINED = 60  # of them that MobileSAM draws, for each of which it takes a few hundredths of a second

Logits = NDArray[np.float32]  # (h, w)


@dataclass(frozen=True)
class Proposals:
    """Objects that a photo may show, the most alike first."""

    image: NDArray[np.uint8]  # (h, w): 0, or the number of the proposal, from 1
    names: tuple[str, ...]  # the class of each


def propose(
    segmenter: Segmenter,
    photo: StudioPhoto,
    paint: Paint,
    numbers: Mapping[str, int],
    taken: Mask,
    clicker: Clicker | None = None,
) -> Proposals:
    """Find the objects of a photo that look like what is painted on it and on the examples.

    Args:
        segmenter: Whose examples are compared.
        photo: The photo.
        paint: (h, w), what is painted on it.
        numbers: Those of the classes in the paint.
        taken: (h, w), where no object is looked for, because one is there.
        clicker: Answers clicks on the photo, to draw the objects; None to take them as they were found.
    """
    painted = Painted.of(paint, numbers)
    names = tuple(name for name in numbers if name in segmenter.classes_ or name in painted.masks)
    if not names:
        return Proposals(np.zeros(paint.shape, np.uint8), ())
    if segmenter.learner is None:
        likeness = _predicted(segmenter, photo, painted, names)
    else:
        likeness = _learnt(segmenter, segmenter.learner, photo, painted, names)
    candidates = []
    best = np.max([likeness[name] for name in names], axis=0)
    beside = ndimage.binary_dilation(taken, iterations=2) if taken.any() else taken
    for name in names:
        smallest, largest = _sizes(segmenter, painted, name)
        alike = (likeness[name] >= ALIKE) & (likeness[name] >= best) & ~taken
        parts = split_touching(alike)
        rims = set(np.unique(parts[beside]).tolist())  # what is left of an object that was painted too small
        for number, where in enumerate(ndimage.find_objects(parts), start=1):
            part = parts[where] == number
            if number not in rims and max(FEWEST_PIXELS, smallest * paint.size) <= part.sum() <= largest * paint.size:
                candidates.append((float(likeness[name][where][part].mean()), name, where, part))
    candidates.sort(key=lambda candidate: -candidate[0])
    image, accepted = np.zeros(paint.shape, np.uint8), []
    for rank, (_, name, where, part) in enumerate(candidates[:MOST]):
        mask = np.zeros(paint.shape, bool)
        mask[where] = part
        mask = _outlined(mask, clicker if rank < MOST_OUTLINED else None) & ~taken & (image == 0)
        if mask.sum() >= FEWEST_PIXELS:
            accepted.append(name)
            image[mask] = len(accepted)
    return Proposals(image, tuple(accepted))


def _outlined(part: Mask, clicker: Clicker | None) -> Mask:
    """The object (h, w) that a click in the middle of a component outlines, if that is the same object."""
    if clicker is None:
        return part
    row, column = np.unravel_index(int(ndimage.distance_transform_edt(part).argmax()), part.shape)
    outlined = clicker.mask([(float(column) + 0.5, float(row) + 0.5)])
    overlap = (outlined & part).sum() / max(int((outlined | part).sum()), 1)
    return outlined if overlap >= SAME_OBJECT else part


def _learnt(
    segmenter: Segmenter, learner: PixelLearner, photo: StudioPhoto, painted: Painted, names: Sequence[str]
) -> dict[str, Logits]:
    """How much each pixel (h, w) looks like each class, by a learner that knows what is painted so far."""
    pixels = photo.pixels
    side = min(SIDE, max(photo.working))
    shown = [one.working for one in segmenter.examples_ if one.working is not None]
    examples = [LabelledPhoto(learner.example_features(one.photo, side), one.pixel_labels(names)) for one in shown]
    features = learner.features(pixels, side)

    def logits(labels: "NDArray[np.uint8] | None") -> dict[str, Logits]:
        own = [] if labels is None else [LabelledPhoto(features, torch.from_numpy(labels))]
        maps = learner.logits([*examples, *own], features).cpu().numpy()  # (N, h, w)
        return {name: resize_map(map_, photo.working) for name, map_ in zip(names, maps, strict=True)}

    if not painted.masks:
        return logits(None)
    decided = np.logical_or.reduce([*painted.masks.values(), painted.background])
    distance = ndimage.distance_transform_edt(~np.logical_or.reduce(list(painted.masks.values())))
    unit = max(photo.working)
    far = (distance > max(2.0, RIM * unit)) & ~decided
    labels = np.full((len(names), *photo.working), VOID, np.uint8)
    labels[:, decided | (far & (distance <= RING * unit))] = 0
    for index, name in enumerate(names):
        if name in painted.masks:
            labels[index][painted.masks[name]] = 1
    first = logits(labels)
    unlike = far & (np.max([first[name] for name in names], axis=0) < UNLIKE)
    labels[:, unlike] = 0
    return logits(labels)


def _predicted(segmenter: Segmenter, photo: StudioPhoto, painted: Painted, names: Sequence[str]) -> dict[str, Logits]:
    """The same by a segmenter that does not learn: what it finds when it is shown what is painted."""
    shown = segmenter.copy()
    if painted.masks:
        shown.add(painted.example(photo, sparse=False))
    prediction = shown.predict_unrefined(photo.pixels)
    return {name: np.where(prediction.mask(name), prediction.probability(name), -np.inf) for name in names}


def _sizes(segmenter: Segmenter, painted: Painted, name: str) -> tuple[float, float]:
    """The smallest and the largest share of a photo that an object of a class may cover."""
    masks = [one.working.masks[name] == 1 for one in segmenter.examples_ if one.working and name in one.working.masks]
    if name in painted.masks:
        masks.append(painted.masks[name])
    shares = [area / mask.size for mask in masks for area in np.bincount(ndimage.label(mask)[0].ravel())[1:]]
    return (min(shares) / ODD, max(shares) * ODD) if shares else (0.0, 1.0)
