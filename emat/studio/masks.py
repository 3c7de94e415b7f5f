"""The masks that the page shows and exports: those of a photo's `Prediction`, or what the user painted."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from emat.errors import EmatError
from emat.formats.drawing import LabelMap
from emat.images import VOID, Pixels, fitted_size, resize_map, resize_mask
from emat.inference.prediction import Prediction
from emat.pictures.overlay import as_jpeg, draw_numbers, draw_overlay
from emat.refine.objects import Instances, measure, separate
from emat.studio.photos import BACKGROUND_PAINT, SMALL_SIDE
from emat.studio.session import Session, StudioQuery
from emat.studio.uncertainty import doubt_map

BORDER = 255  # between single objects; no class is white
UNSURE = 0.5  # doubt from which a pixel is shown as unsure
STRIPE = 3  # pixels

Labelled = NDArray[np.int32]


def is_present(session: Session, query: StudioQuery, name: str) -> bool:
    """Say whether class `name` counts as present in the photo of `query`: it is likely, and some pixel shows it."""
    if query.is_painted:
        return name in (query.corrected or ())
    shares = query.shares.get(session.look_of(query))
    if shares is not None and query.scores is not None:
        return shares.get(name, 0) > 0
    if name in (query.corrected or ()):
        return True
    peaks = query.crisp_peaks if query.crisp_peaks is not None and session.is_crisp(query) else query.peaks
    score, thresholds = (query.scores or {}).get(name), session.thresholds_of(name)
    return score is not None and score >= thresholds.presence and peaks.get(name, 1.0) >= thresholds.mask


def prediction_at(session: Session, query: StudioQuery, size: tuple[int, int]) -> Prediction:
    """Return the prediction of a photo whose masks have `size` (H, W). Masks need the size of the photo alone."""
    return session.prediction(query, np.broadcast_to(np.uint8(0), (*size, 3)))


def label_map(session: Session, query: StudioQuery, numbers: Mapping[str, int], size: tuple[int, int]) -> LabelMap:
    """Return the label map of `query` at `size` (H, W): `numbers` gives the value of each class, 0 is the background.

    What the user touched in a correction is as they left it; what they left undecided is void.
    """
    labels = np.zeros(size, np.uint8)
    if query.scores is not None and not query.is_painted:
        prediction = prediction_at(session, query, size)
        values = np.array([0, *(numbers.get(name, 0) for name in prediction.classes)], np.uint8)
        labels = values[prediction.label_map]
    if query.corrected is not None:
        paint = resize_mask(session.paint(query.key, query.photo), size)
        painted = {session.numbers[name]: number for name, number in numbers.items() if name in session.numbers}
        for value, number in {**painted, BACKGROUND_PAINT: 0, VOID: VOID}.items():
            labels[paint == value] = number
    return labels


def note_drawn(session: Session, query: StudioQuery) -> None:
    """Note how much each class covers as the photo looks now. After a change, `is_present` judges by peaks."""
    labels = label_map(session, query, session.numbers, fitted_size(query.photo.working, SMALL_SIDE))
    shown = np.bincount(labels.ravel(), minlength=256)
    query.shares[session.look_of(query)] = {
        name: round(float(shown[number]) / labels.size, 6) for name, number in session.numbers.items()
    }


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
    labels = label_map(session, query, numbers, query.photo.size)
    measured = []
    for name, number in numbers.items():
        mask = labels == number
        apart = single_objects(session, query, name, mask) if objects else None
        measured.append(
            ClassResult(
                name,
                None if query.is_painted or query.scores is None else query.scores.get(name),
                bool(mask.any()),
                int(mask.sum()),
                float(mask.mean()),
                None if apart is None else tuple(float(row.area) for row in apart.rows),
            )
        )
    return measured


def single_objects(session: Session, query: StudioQuery, name: str, mask: NDArray[np.bool_]) -> Instances:
    """Return the single objects of a class in its mask (H, W), touching ones apart."""
    if query.corrected is not None or name not in (query.scores or {}):
        return measure(separate(mask), mask.astype(np.float32))
    return prediction_at(session, query, (mask.shape[0], mask.shape[1])).instances(name)


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
    return as_jpeg(_drawn(small, labels))


def large_picture(
    session: Session,
    query: StudioQuery,
    objects: bool,
    unsure: bool = False,
    tracks: Mapping[str, Mapping[int, int]] | None = None,
) -> bytes:
    """A photo with its masks at its working size, as JPEG.

    Args:
        session: Whose photo it is.
        query: The photo.
        objects: Whether with a line between single objects.
        unsure: Whether with a pattern where the prediction is unsure.
        tracks: Numbers to write on the single objects of each class, by the objects' own numbers.
    """
    labels = label_map(session, query, session.numbers, query.photo.working)
    picture = np.array(_drawn(query.photo.pixels, labels))
    if objects:
        apart = object_image(session, query, labels, session.numbers)
        picture[_borders(apart)] = BORDER
    if unsure and query.scores is not None:
        doubt = resize_map(doubt_map(prediction_at(session, query, query.photo.working)), query.photo.working)
        rows, columns = np.ogrid[: doubt.shape[0], : doubt.shape[1]]
        # Black and white stripes, because every colour may be that of a class.
        stripes = np.where((rows + columns) // STRIPE % 2 == 0, 255, 0).astype(np.uint8)
        picture[doubt >= UNSURE] = stripes[doubt >= UNSURE, None]
    image = Image.fromarray(picture)
    for name, numbers in (tracks or {}).items():
        instances = single_objects(session, query, name, labels == session.numbers[name])
        draw_numbers(image, {numbers[row.id]: row.centroid for row in instances.rows if row.id in numbers})
    return as_jpeg(image)


def example_picture(session: Session, index: int) -> bytes:
    """The small picture of an example with its masks, as JPEG."""
    examples = session.segmenter.examples_
    if not 0 <= index < len(examples):
        raise EmatError("unknown-example", "this example is gone; reload the page")
    small = examples[index].thumbnail
    if small is None:
        return as_jpeg(Image.new("RGB", (16, 16), "gray"))
    return as_jpeg(small.drawn(session.numbers))


def _drawn(photo: Pixels, labels: LabelMap) -> Image.Image:
    return draw_overlay(photo, labels, {}, legend=False)


def _borders(apart: Labelled) -> NDArray[np.bool_]:
    """The pixels of objects whose right or lower neighbour is not of the same object."""
    border = np.zeros(apart.shape, bool)
    border[:, :-1] |= apart[:, :-1] != apart[:, 1:]
    border[:-1] |= apart[:-1] != apart[1:]
    return border
