"""Shares: how much of one class or region another class covers, such as lesions of a leaf (severity).

In a label map every pixel has one class, so a lesion is cut out of its leaf. There, the leaf is its own pixels and
those of the lesions that are connected with it. A class that overlaps, or a region, is whole already and is taken as it
is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from emat.errors import EmatError
from emat.images import Pixels
from emat.measure.properties import Row, _skimage
from emat.measure.scene import ALL_AROUND, Labels, Mask, Scene, numbered

BORDER_SHARE = 0.5  # of the photo's border: what covers more of it is the ground


@dataclass(frozen=True)
class Within:
    """Ask how much of the class or region `outer` is covered by the class `inner`.

    >>> Within.read("lesion=leaf")
    Within(inner='lesion', outer='leaf')
    """

    inner: str
    outer: str

    @classmethod
    def read(cls, text: str) -> Within:
        """Read what --within says; EmatError if it is not two different classes."""
        inner, equals, outer = text.partition("=")
        if not equals or not inner or not outer or inner == outer:
            raise EmatError(
                "unclear-option", f"--within is {text!r}; give two classes, the inner one first, as in lesion=leaf"
            )
        return cls(inner, outer)


def add_shares(scene: Scene, shares: Sequence[Within], objects: Sequence[Row], photos: Sequence[Row]) -> None:
    """Add the shares to the rows of a scene.

    In the row of a photo and the inner class: the area of the outer class, the inner class's area inside of it, and the
    second in percent of the first. In the row of an object of the outer class: its percentage of the inner class. In
    the row of an object of the inner class: the number of the outer object that it lies in.

    Raises:
        EmatError: There is no such class.
    """
    for share in shares:
        whole = whole_objects(scene, share)
        covered = np.where(scene.mask(share.inner), whole, 0)
        areas = np.bincount(whole.ravel())
        parts = np.bincount(covered.ravel(), minlength=len(areas))
        outside, inside = int(areas[1:].sum()), int(parts[1:].sum())
        for row in photos:
            if row["class"] == share.inner:
                percent = 100 * inside / outside if outside else None  # of nothing there is no share
                row.update(within=share.outer, within_area=outside, area_within=inside, share_within=percent)
        inner = scene.objects[share.inner]
        for row in objects:
            number = int(row["id"] or 0)
            if row["class"] == share.outer:
                row[f"percent_{share.inner}"] = 100 * int(parts[number]) / int(areas[number])
            elif row["class"] == share.inner:
                home = np.bincount(covered[inner == number])
                home[0] = 0
                row[f"id_of_{share.outer}"] = int(home.argmax()) if home.any() else None


def joined(scene: Scene, shares: Sequence[Within]) -> Scene:
    """Return the scene in which a leaf that lies around its lesion is one object.

    In a label map, a lesion is a hole of its leaf, and objects that touch are split at necks: on both sides of the
    lesion there would be half a leaf.
    """
    objects = dict(scene.objects)
    for share in shares:
        outer = scene.check_class(share.outer)
        if outer in scene.overlapping:
            continue
        labels, inner = objects[outer], scene.mask(scene.check_class(share.inner))
        holes, count = ndimage.label(ndimage.binary_fill_holes(labels > 0) & (labels == 0), ALL_AROUND)
        numbers = np.arange(labels.max(initial=0) + 1)
        is_covered = np.asarray(ndimage.mean(inner, holes, np.arange(1, count + 1))) > 0.5
        for hole, window in enumerate(ndimage.find_objects(holes), start=1):
            if not is_covered[hole - 1]:
                continue
            around = tuple(slice(max(0, side.start - 1), side.stop + 1) for side in window)
            rim = ndimage.binary_dilation(holes[around] == hole, ALL_AROUND)
            touching = np.unique(numbers[labels[around][rim]])
            touching = touching[touching > 0]
            numbers[np.isin(numbers, touching)] = touching.min(initial=len(numbers))
        objects[outer] = numbers[labels].astype(np.int32)
    return replace(scene, objects=numbered(objects))


def whole_objects(scene: Scene, share: Within) -> Labels:
    """Return the objects of the outer class (H, W), with what lies on them."""
    labels = scene.objects[scene.check_class(share.outer)]
    inner = scene.mask(share.inner)
    if share.outer in scene.overlapping:
        return labels
    parts, count = ndimage.label((labels > 0) | inner, ALL_AROUND)
    has_outer = np.zeros(count + 1, bool)
    has_outer[np.unique(parts[labels > 0])] = True
    has_outer[0] = False
    if not has_outer.any():
        return labels
    rows, columns = ndimage.distance_transform_edt(labels == 0, return_distances=False, return_indices=True)
    lying_on = inner & has_outer[parts] & (labels == 0)
    return np.where(lying_on, labels[rows, columns], labels).astype(np.int32)


def otsu_region(photo: Pixels) -> Mask:
    """Return what stands out from the ground of a photo (H, W, 3) by Otsu's threshold.

    The channel is taken whose values fall best into two groups: red, green, blue, or the saturation. The group that
    covers less of the photo's border is the region; its holes belong to it.
    """
    filters = _skimage("filters")
    values = photo.astype(np.float32)
    highest, lowest = values.max(axis=2), values.min(axis=2)
    saturation = 255 * (highest - lowest) / np.maximum(highest, 1)
    best, best_apart = None, -1.0
    for channel in (saturation, *np.moveaxis(values, 2, 0)):
        if channel.max() - channel.min() < 1:
            continue
        above = channel > filters.threshold_otsu(channel)
        apart = _apart(channel, above)
        if apart > best_apart:
            best, best_apart = above, apart
    if best is None:
        return np.zeros(photo.shape[:2], bool)
    edge = np.concatenate([best[0], best[-1], best[:, 0], best[:, -1]])
    region = ~best if edge.mean() > BORDER_SHARE else best
    return np.asarray(ndimage.binary_fill_holes(region))


def _apart(values: NDArray[np.float32], above: Mask) -> float:
    """Return the share of the variance that two groups explain."""
    share = float(above.mean())
    if share in (0.0, 1.0):
        return -1.0
    gap = float(values[above].mean() - values[~above].mean())
    return share * (1 - share) * gap**2 / max(float(values.var()), 1e-9)
