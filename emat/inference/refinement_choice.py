"""Which classes refinement "auto" draws again: the examples decide."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from emat.images import VOID, Pixels
from emat.inference.fitted_file import FittedExample
from emat.inference.known_examples import KnownExamples
from emat.inference.prediction import Prediction, refined
from emat.refine.refiner import examples_suit, shared_mobilesam

MOST_LEFT_OUT = 3  # examples of a class: each takes about as long as learning from the others and one refinement


def suits_refinement(known: KnownExamples, name: str, predict: Callable[[Pixels, KnownExamples], Prediction]) -> bool:
    """Return whether "auto" refines a class; it is found out once for the same examples.

    The class's masks must show few, large and thick objects. With two or more examples, these are also left out in
    turn, predicted from the others and refined: refinement must not lose IoU on average.

    Args:
        known: The examples.
        name: The class.
        predict: Predicts a photo from other examples, without refinement.
    """
    if name not in known.refined:
        # A sparse example's picture shows strokes, which say nothing about the object's shape.
        painted = [one for one in known.examples if one.working is None or not one.working.sparse]
        pictures = [one.thumbnail for one in painted if one.thumbnail is not None and name in one.thumbnail.masks]
        known.refined[name] = (
            examples_suit([picture.masks[name] for picture in pictures]) and gain_of(known, name, predict) >= 0
        )
    return known.refined[name]


def gain_of(known: KnownExamples, name: str, predict: Callable[[Pixels, KnownExamples], Prediction]) -> float:
    """Return how much IoU refinement adds to a class's left-out examples on average.

    0 if nothing can be said: there are fewer than two examples, their photos were not kept, or there are no weights.
    """
    shown = [one for one in known.examples if name in one.encodings and _is_whole(one)]
    if len(shown) < 2 or shared_mobilesam("auto") is None:
        return 0.0
    gains = []
    for example in shown[:MOST_LEFT_OUT]:
        others = KnownExamples(tuple(other for other in known.examples if other is not example))
        assert example.working is not None
        before = predict(example.working.photo, others)
        after = refined(before, "auto", lambda other: other == name)
        labels = example.working.masks[name]
        gains.append(_iou(after.mask(name), labels) - _iou(before.mask(name), labels))
    return float(np.mean(gains))


def _is_whole(example: FittedExample) -> bool:
    return example.working is not None and not example.working.sparse


def _iou(mask: NDArray[np.bool_], labels: NDArray[np.uint8]) -> float:
    """Intersection over union where `labels` (1 = the class, 0 = not, 255 = unknown) say anything."""
    known, truth = labels != VOID, labels == 1
    return float((mask & truth).sum() / max(int(((mask & known) | truth).sum()), 1))
