"""Label maps of questions: predictions read at the thresholds of each class, or what the user painted."""

from collections.abc import Mapping

import numpy as np
from PIL import Image

from emat.formats.drawing import LabelMap
from emat.images import resize_mask
from emat.inference.prediction import Thresholds
from emat.studio.session import Question, Session


def thresholds_of(session: Session, name: str) -> Thresholds:
    """What counts as class `name`: the segmenter's own thresholds unless the slider was moved."""
    usual = session.segmenter.thresholds
    moved = session.thresholds.get(name)
    return usual if moved is None else moved_thresholds(usual, moved)


def moved_thresholds(usual: Thresholds, mask: float) -> Thresholds:
    """Both thresholds for a slider that moves the one of pixels: presence goes along, from 0 to 1 with it.

    >>> moved_thresholds(Thresholds(0.5, 0.5), 0.3)
    Thresholds(presence=0.3, mask=0.3)
    """
    if mask <= usual.mask:
        presence = usual.presence * mask / usual.mask if usual.mask else 0.0
    else:
        presence = 1 - (1 - usual.presence) * (1 - mask) / (1 - usual.mask)
    return Thresholds(round(presence, 4), mask)


def is_present(session: Session, question: Question, name: str) -> bool:
    """Whether the class counts as being in the photo."""
    if question.corrected is not None:
        return name in question.corrected
    if question.prediction is None or name not in question.prediction.scores:
        return False
    return question.prediction.scores[name] >= thresholds_of(session, name).presence


def label_map(session: Session, question: Question, numbers: Mapping[str, int], size: tuple[int, int]) -> LabelMap:
    """(H, W) of `size`: the number of the class at each pixel, 0 where there is none.

    As in `Prediction`, a pixel goes to the likeliest class that is present and reaches its threshold.
    """
    labels = np.zeros(size, np.uint8)
    if question.corrected is not None:
        for name, mask in question.corrected.items():
            if name in numbers:
                labels[resize_mask(mask.astype(np.uint8), size) > 0] = numbers[name]
        return labels
    if question.prediction is None:
        return labels
    best = np.full(size, -1, np.float32)
    for name, map_ in question.prediction.maps.items():
        if name in numbers and is_present(session, question, name):
            probability = np.asarray(Image.fromarray(map_).resize((size[1], size[0]), Image.Resampling.BILINEAR))
            better = (probability >= thresholds_of(session, name).mask) & (probability > best)
            labels[better] = numbers[name]
            best[better] = probability[better]
    return labels
