"""The masks that the page shows and exports, measured and drawn.

They are predictions at the thresholds of each class, or what the user painted.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from emat.errors import EmatError
from emat.formats.drawing import LabelMap
from emat.images import Pixels, resize_map, resize_mask
from emat.methods.base import Thresholds
from emat.methods.label_map import make_label_map
from emat.pictures.overlay import draw_overlay
from emat.refine.objects import Instances, absorb_fringes, measure, separate
from emat.studio.photos import SMALL_SIDE, UNDECIDED
from emat.studio.session import Session, StudioQuery

QUALITY = 88
BORDER = 255  # between single objects; no class is white

Labelled = NDArray[np.int32]


def thresholds_of(session: Session, name: str) -> Thresholds:
    """Return the thresholds of class `name`: the segmenter's own, unless the user moved the slider."""
    usual = session.segmenter.thresholds
    moved = session.thresholds.get(name)
    return usual if moved is None else moved_thresholds(usual, moved)


def moved_thresholds(usual: Thresholds, mask: float) -> Thresholds:
    """Return both thresholds for a slider that sets the mask threshold; the presence threshold moves along with it.

    >>> moved_thresholds(Thresholds(0.5, 0.5), 0.3)
    Thresholds(presence=0.3, mask=0.3)
    """
    if mask <= usual.mask:
        presence = usual.presence * mask / usual.mask if usual.mask else 0.0
    else:
        presence = 1 - (1 - usual.presence) * (1 - mask) / (1 - usual.mask)
    return Thresholds(round(presence, 4), mask)


def is_present(session: Session, query: StudioQuery, name: str) -> bool:
    """Say whether class `name` counts as present in the photo of `query`: it is likely, and some pixel shows it."""
    if query.corrected is not None:
        return name in query.corrected
    drawn = query.drawn.get(session.look_of(query))
    if drawn is not None and query.scores is not None:
        return name in drawn
    peaks = query.crisp_peaks if query.crisp_peaks is not None and session.is_crisp(query) else query.peaks
    peak = peaks.get(name, 1.0)
    return is_likely(session, query, name) and peak >= thresholds_of(session, name).mask


def is_likely(session: Session, query: StudioQuery, name: str) -> bool:
    """Say whether the score of class `name` reaches its threshold."""
    score = (query.scores or {}).get(name)
    return score is not None and score >= thresholds_of(session, name).presence


def label_map(session: Session, query: StudioQuery, numbers: Mapping[str, int], size: tuple[int, int]) -> LabelMap:
    """Return the label map of `query` at `size` (H, W): `numbers` gives the value of each class, 0 is the background.

    As in `Prediction`, a pixel belongs to the likeliest class that is present and whose probability reaches its
    threshold. What the user left undecided in a correction is void.
    """
    labels = np.zeros(size, np.uint8)
    if query.corrected is not None:
        paint = resize_mask(session.paint(query.key, query.photo), size)
        values = {
            session.numbers[name]: number
            for name, number in numbers.items()
            if name in query.corrected and name in session.numbers
        }
        for painted, number in {**values, UNDECIDED: UNDECIDED}.items():
            labels[paint == painted] = number
        return labels
    if query.scores is None:
        return labels
    all_maps = session.maps_of(query).probabilities
    names = [name for name in all_maps if name in numbers and is_likely(session, query, name)]
    if not names:
        return labels
    maps = (resize_map(all_maps[name], size) for name in names)
    own = [thresholds_of(session, name).mask for name in names]
    return absorb_fringes(make_label_map(maps, own, [numbers[name] for name in names]))


def note_drawn(session: Session, query: StudioQuery) -> None:
    """Note which classes have a pixel as the photo looks now. After a change, `is_present` judges by peaks."""
    height, width = query.photo.working
    scale = min(1.0, SMALL_SIDE / max(height, width))
    labels = label_map(session, query, session.numbers, (max(1, round(height * scale)), max(1, round(width * scale))))
    shown = np.bincount(labels.ravel(), minlength=256)
    query.drawn[session.look_of(query)] = tuple(name for name, number in session.numbers.items() if shown[number])


@dataclass(frozen=True)
class ClassResult:
    """What was found of one class on one photo. Areas are in pixels of the photo itself."""

    name: str
    score: float | None  # None where the user painted
    present: bool
    area: int
    share: float
    objects: tuple[float, ...] | None  # the area of each single object; None if they were not asked for


def results(session: Session, query: StudioQuery, objects: bool) -> list[ClassResult]:
    """Measure every class on one photo, with its single objects on demand."""
    numbers = session.numbers
    labels = label_map(session, query, numbers, query.photo.working)
    scale = query.photo.size[0] * query.photo.size[1] / labels.size
    found = []
    for name, number in numbers.items():
        mask = labels == number
        apart = single_objects(session, query, name, mask) if objects else None
        found.append(
            ClassResult(
                name,
                None if query.corrected is not None or query.scores is None else query.scores.get(name),
                bool(mask.any()),
                round(int(mask.sum()) * scale),
                float(mask.mean()),
                None if apart is None else tuple(row.area * scale for row in apart.rows),
            )
        )
    return found


def single_objects(session: Session, query: StudioQuery, name: str, mask: NDArray[np.bool_]) -> Instances:
    """Return the single objects of a class in its mask (H, W), touching ones apart."""
    kept = session.maps_of(query)
    if query.corrected is not None or name not in kept.probabilities:
        return measure(separate(mask), mask.astype(np.float32))
    known = kept.objects.get(name)
    if known is not None and known.shape != mask.shape:
        resized = Image.fromarray(known).resize((mask.shape[1], mask.shape[0]), Image.Resampling.NEAREST)
        known = np.array(resized, np.int32)
    return measure(separate(mask, known), resize_map(kept.probabilities[name], mask.shape))


def object_image(session: Session, query: StudioQuery, labels: LabelMap, numbers: Mapping[str, int]) -> Labelled:
    """Number the single objects of all classes (H, W) from 1 throughout; 0 is background."""
    image = np.zeros(labels.shape, np.int32)
    for name, number in numbers.items():
        mask = labels == number
        if mask.any():
            apart = single_objects(session, query, name, mask).label_image
            image = np.where(apart > 0, apart + image.max(), image)
    return image


def small_picture(session: Session, query: StudioQuery) -> bytes:
    """The small picture of a photo with its masks, as JPEG."""
    small = query.photo.small
    labels = label_map(session, query, session.numbers, (small.shape[0], small.shape[1]))
    return _jpeg(_drawn(small, labels))


def large_picture(session: Session, query: StudioQuery, objects: bool) -> bytes:
    """A photo with its masks at its working size, as JPEG; on demand with a line between single objects."""
    labels = label_map(session, query, session.numbers, query.photo.working)
    picture = np.array(_drawn(query.photo.pixels, labels))
    if objects:
        apart = object_image(session, query, labels, session.numbers)
        picture[_borders(apart)] = BORDER
    return _jpeg(Image.fromarray(picture))


def example_picture(session: Session, index: int) -> bytes:
    """The small picture of an example with its masks, as JPEG."""
    examples = session.segmenter.examples_
    if not 0 <= index < len(examples):
        raise EmatError("this example is gone; reload the page")
    small = examples[index].thumbnail
    if small is None:
        return _jpeg(Image.new("RGB", (16, 16), "gray"))
    labels = np.zeros(small.photo.shape[:2], np.uint8)
    for name, mask in small.masks.items():
        labels[mask] = session.numbers.get(name, 0)
    return _jpeg(_drawn(small.photo, labels))


def _drawn(photo: Pixels, labels: LabelMap) -> Image.Image:
    return draw_overlay(photo, labels, {}, legend=False)


def _borders(apart: Labelled) -> NDArray[np.bool_]:
    """The pixels of objects whose right or lower neighbour is not of the same object."""
    border = np.zeros(apart.shape, bool)
    border[:, :-1] |= apart[:, :-1] != apart[:, 1:]
    border[:-1] |= apart[:-1] != apart[1:]
    return border


def _jpeg(picture: Image.Image) -> bytes:
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=QUALITY)
    return data.getvalue()
