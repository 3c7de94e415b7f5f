"""What to expect of a fitted segmenter, found by leaving its examples out in turn.

The mean IoU of left-out examples is a rough estimate: there are few of them, each is judged by a segmenter with fewer
examples than the final one, and the mixture of head and learner was chosen on them. So it is moved towards what is
usual, the more the left-out examples differ from each other. The constants were chosen by what seven to nine new photos
reached with five examples, in 26 tasks: eight classes of PASCAL's training list, with heads that never saw the class,
and every second photo of nuclei and steel. There the forecast missed by 0.10 on average, the plain mean by 0.105. Most
of that is chance: the IoU of photos of one class has a standard deviation of 0.17, so means over five and over eight
photos differ by 0.08 on average even if nothing else is wrong. `docs/own-photos.md` says by how much it missed
on other tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from emat.images import VOID, Pixels
from emat.inference.known_examples import FittedExample, KnownExamples
from emat.inference.prediction import Prediction, refined
from emat.inference.tiles import WHOLE
from emat.methods.leave_out import Learnt
from emat.refine.refiner import can_draw, examples_suit, shared_mobilesam

if TYPE_CHECKING:  # the segmenter takes its forecast from here
    from emat.inference.segmenter import Segmenter

WELL = 0.6  # IoU from which masks are usable as they are
POOR = 0.35  # IoU below which a class is hardly found
OUTLIER = 0.4  # an example that reaches less than this share of the others' mean probably has a wrong mask,
GAP = 0.15  # if it is this far below them
FEWEST = 3  # examples from which one of them can stand out
USUAL = 0.6  # mean IoU of classes that one knows nothing about,
USUAL_WEIGHT = 2  # which counts like so many examples at most,
TYPICAL_SPREAD = 0.1  # and less if the left-out examples differ by less than this
GROWTH = 0.05  # IoU by which one expects more, for every time that there are e times as many examples

TIMES = 2  # the larger size, in multiples of the usual one; it takes about four times as long
WORTH_IT = 0.02  # IoU that a larger size or tiles must be better by

MOST_LEFT_OUT = 3  # examples of a class: each takes about as long as learning from the others and one refinement


@dataclass(frozen=True)
class Forecast:
    """What to expect of one class on new photos like the examples."""

    examples: int  # that show the class
    iou: float | None  # expected intersection over union; None with a single example, or with strokes alone
    presence: float | None  # expected share of photos whose presence is right; None without photos that lack the class
    least_agreeing: str | None = None  # the example that agrees least with the others, if one stands out
    least_iou: float | None = None  # what was reached on it
    left_out: Mapping[int, float] = field(
        default_factory=dict
    )  # IoU on each example, by its index, when it was left out

    def sentence(self, name: str) -> str:
        """Say in words what this means for the user; empty if nothing needs to be said."""
        parts = []
        if self.iou is None and self.examples > 1:
            parts.append(f"strokes on {name} do not tell how well it will work; paint an example of it whole")
        elif self.iou is None:
            parts.append(f"one example of {name} does not tell how well it will work; add a second one")
        elif self.iou < POOR:
            parts.append(
                f"with these examples {name} is found at about {self.iou:.1f} IoU; add examples, or try --size auto"
            )
        if self.least_agreeing is not None and self.least_iou is not None:
            parts.append(f"{self.least_agreeing} agrees least with the others ({self.least_iou:.2f}); check its mask")
        if self.presence is not None and self.presence < WELL:
            parts.append(f"photos with and without {name} look alike, so whether it is present is a guess")
        return "; ".join(parts)


def forecasts(
    learnt: Learnt, classes: Sequence[str], examples: Sequence[tuple[str, Sequence[str]]]
) -> dict[str, Forecast]:
    """The forecast of every class.

    Args:
        learnt: What the examples taught.
        classes: The names of the classes, in its order.
        examples: The name of every example and the classes that it shows, in its order.
    """
    found = {}
    for number, name in enumerate(classes):
        reached = {
            index: value for index, value in enumerate(learnt.left_out_iou[:, number].tolist()) if not math.isnan(value)
        }
        right = float(learnt.presence_right[number])
        least, least_iou = _least(reached)
        found[name] = Forecast(
            examples=sum(name in shown for _, shown in examples),
            iou=expected_iou(list(reached.values())),
            presence=None if math.isnan(right) else right,
            least_agreeing=None if least is None else examples[least][0],
            least_iou=least_iou,
            left_out=reached,
        )
    return found


def expected_iou(left_out: Sequence[float]) -> float | None:
    """The mean IoU to expect on new photos, from that of left-out examples; None if there is none.

    >>> round(expected_iou([0.9, 0.7]), 2), round(expected_iou([0.8] * 20), 2), expected_iou([])
    (0.72, 0.8, None)
    """
    count = len(left_out)
    if not count:
        return None
    mean = sum(left_out) / count
    grown = mean + GROWTH * math.log(count / (count - 1) if count > 1 else 2)
    # One more value at the typical spread, because a few values may be close to each other by chance.
    squared = (sum((value - mean) ** 2 for value in left_out) + TYPICAL_SPREAD**2) / count
    weight = USUAL_WEIGHT * min(1.0, squared / TYPICAL_SPREAD**2)
    return min(1.0, (count * grown + weight * USUAL) / (count + weight))


def _least(reached: Mapping[int, float]) -> tuple[int | None, float | None]:
    """The index of the example that stands out below the others, and its IoU."""
    if len(reached) < FEWEST:
        return None, None
    worst = min(reached, key=lambda each: reached[each])
    others = [value for each, value in reached.items() if each != worst]
    mean = sum(others) / len(others)
    if reached[worst] > OUTLIER * mean or mean - reached[worst] < GAP:
        return None, None
    return worst, reached[worst]


# Whether a larger working size helps


def best_size(fitted: Callable[[int | None], Segmenter]) -> tuple[Segmenter, str | None]:
    """Fit at the size that the examples choose and at twice that, and keep what promises better masks.

    At the larger size, examples and new photos are both seen closer, so that their scales match.

    Args:
        fitted: Returns a segmenter that was fitted with the examples at a working size; None for their own.

    Returns:
        The segmenter, and a sentence that says what was found; None if the photos are too small to tell, or too few.
    """
    usual = fitted(None)
    before, side = _expected(usual), usual.working_side
    seen = [max(example.working.photo.shape) for example in usual.examples_ if example.working is not None]
    if before is None or max(seen, default=0) <= side:
        return usual, None
    larger = fitted(TIMES * side)
    after = _expected(larger)
    if after is None:
        return usual, None
    found = f"IoU {before:.2f} is expected at {side} pixels and {after:.2f} at {TIMES * side}"
    if after < before + WORTH_IT:
        return usual, f"A larger size does not help: {found}."
    return larger, f"The larger size helps: {found}. Predictions take longer."


def _expected(segmenter: Segmenter) -> float | None:
    """The mean of what is expected of the classes."""
    known = [each.iou for each in segmenter.forecast_.values() if each.iou is not None]
    return sum(known) / len(known) if known else None


# Whether refinement helps


def suits_refinement(known: KnownExamples, name: str, predict: Callable[[Pixels, KnownExamples], Prediction]) -> bool:
    """Return whether "auto" refines a class; it is found out once for the same examples.

    The class's masks must show few, large and thick objects. With two or more examples, these are also left out in
    turn, predicted from the others and refined: refinement must not lose IoU on average. With one example, MobileSAM
    must be able to draw its mask.

    Args:
        known: The examples.
        name: The class.
        predict: Predicts a photo from other examples, without refinement.
    """
    if name not in known.refined:
        # A sparse example's picture shows strokes, which say nothing about the object's shape.
        painted = [one for one in known.examples if one.working is None or not one.working.sparse]
        pictures = [one.thumbnail for one in painted if one.thumbnail is not None and name in one.thumbnail.masks]
        known.refined[name] = examples_suit([picture.masks[name] for picture in pictures]) and _is_drawn(
            known, name, predict
        )
    return known.refined[name]


def _is_drawn(known: KnownExamples, name: str, predict: Callable[[Pixels, KnownExamples], Prediction]) -> bool:
    """Whether MobileSAM draws what the examples of a class show; True where it cannot be asked."""
    sam, shown = shared_mobilesam("auto"), _whole(known, name)
    if sam is not None and len(shown) == 1:
        ((_, photo, labels),) = shown
        return can_draw(sam, photo, labels == 1)
    return gain_of(known, name, predict) >= 0


def gain_of(known: KnownExamples, name: str, predict: Callable[[Pixels, KnownExamples], Prediction]) -> float:
    """Return how much IoU refinement adds to a class's left-out examples on average.

    0 if nothing can be said: there are fewer than two examples, their photos were not kept, or there are no weights.
    """
    shown = _whole(known, name)
    if len(shown) < 2 or shared_mobilesam("auto") is None:
        return 0.0
    gains = []
    for example, photo, labels in shown[:MOST_LEFT_OUT]:
        before = predict(photo, _without(known, example))
        after = refined(before, "auto", lambda other: other == name)
        gains.append(_iou(after.mask(name), labels) - _iou(before.mask(name), labels))
    return float(np.mean(gains))


# Whether tiles help


def tiles_help(
    known: KnownExamples,
    grid: tuple[int, int],
    predict: Callable[[Pixels, KnownExamples, None, tuple[int, int]], Prediction],
) -> bool:
    """Return whether "auto" cuts photos into tiles; it is found out once for the same examples and tiles.

    Examples are left out in turn and predicted from the others, whole and in tiles. Where nothing can be left out, the
    photo's size alone has decided, and tiles are cut.

    Args:
        known: The examples.
        grid: The rows and columns of tiles.
        predict: Predicts a photo from other examples in rows and columns of tiles, without refinement.
    """
    if grid not in known.tiled:
        gains = []
        for name in known.classes:
            shown = _whole(known, name)
            for example, photo, labels in shown[:MOST_LEFT_OUT] if len(shown) > 1 else ():
                others = _without(known, example)
                whole, tiled = (predict(photo, others, None, each).mask(name) for each in (WHOLE, grid))
                gains.append(_iou(tiled, labels) - _iou(whole, labels))
        known.tiled[grid] = not gains or float(np.mean(gains)) >= WORTH_IT
    return known.tiled[grid]


def _whole(known: KnownExamples, name: str) -> list[tuple[FittedExample, Pixels, NDArray[np.uint8]]]:
    """The examples whose whole mask of a class was kept, with their photos and what is known of the class."""
    return [
        (one, one.working.photo, one.working.masks[name])
        for one in known.examples
        if name in one.encodings and one.working is not None and not one.working.sparse
    ]


def _without(known: KnownExamples, example: FittedExample) -> KnownExamples:
    return KnownExamples(tuple(other for other in known.examples if other is not example))


def _iou(mask: NDArray[np.bool_], labels: NDArray[np.uint8]) -> float:
    """Intersection over union where `labels` (1 = the class, 0 = not, 255 = unknown) say anything."""
    known, truth = labels != VOID, labels == 1
    return float((mask & truth).sum() / max(int(((mask & known) | truth).sum()), 1))
