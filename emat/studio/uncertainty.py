"""How unsure a prediction is: as a number, on every pixel, and where a label would teach most."""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from emat.inference.prediction import Prediction

FAINT = 0.05  # pixels below this probability surely do not belong to the class
NEIGHBOURHOOD = 0.03  # of the longer side: the standard deviation of the surroundings of a pixel


def uncertainty(prediction: Prediction) -> float:
    """How unsure a prediction is, from 0 (sure) to 1: the less sure of presence and masks, for the worst class.

    A score on its threshold says nothing about presence; neither does a probability on its threshold about a pixel.
    Pixels are averaged where the class is conceivable at all, or a small object would never count.
    """
    worst = 0.0
    for name, score in prediction.scores.items():
        thresholds = prediction.rules[name].thresholds
        presence = _doubt(np.array(score), thresholds.presence)
        worst = max(worst, float(presence))
        conceivable = prediction.maps[name][prediction.maps[name] > FAINT]
        if score >= thresholds.presence and conceivable.size:
            worst = max(worst, float(_doubt(conceivable, thresholds.mask).mean()))
    return worst


def doubt_map(prediction: Prediction) -> NDArray[np.float32]:
    """How unsure each pixel (h, w) is, from 0 to 1: the less sure of the classes that are conceivable here."""
    doubts = [
        np.where(map_ > FAINT, _doubt(map_, prediction.rules[name].thresholds.mask), 0)
        for name, map_ in prediction.maps.items()
        if prediction.scores[name] >= FAINT
    ]
    shape = next(iter(prediction.maps.values())).shape if prediction.maps else (1, 1)
    return np.maximum.reduce(doubts).astype(np.float32) if doubts else np.zeros(shape, np.float32)


def unsure_place(prediction: Prediction) -> tuple[float, float] | None:
    """Where a label would teach most: the middle (x, y) of the least sure surroundings, in shares of the sides.

    Borders are always unsure, so it is the mean over a neighbourhood that counts. None if all is sure.
    """
    doubt = doubt_map(prediction)
    near = ndimage.gaussian_filter(doubt, max(1.0, NEIGHBOURHOOD * max(doubt.shape)))
    if near.max() < FAINT:
        return None
    row, column = np.unravel_index(int(near.argmax()), near.shape)
    return round((int(column) + 0.5) / doubt.shape[1], 4), round((int(row) + 0.5) / doubt.shape[0], 4)


def _doubt(probability: NDArray[np.floating], threshold: float) -> NDArray[np.floating]:
    """1 on the threshold, falling to 0 at probability 0 and 1."""
    below = probability / max(threshold, 1e-6)
    above = (1 - probability) / max(1 - threshold, 1e-6)
    return np.clip(np.minimum(below, above), 0, 1)
