"""What to expect of a fitted segmenter, found by leaving its examples out in turn.

The mean IoU of left-out examples is a rough estimate: there are few of them, each is judged by a segmenter with fewer
examples than the final one, and the mixture of head and learner was chosen on them. So it is moved towards what is
usual. The constants were chosen by what three to five new photos reached, with five examples, on 15 classes of PASCAL's
training list (with heads that never saw the class) and on photos of nuclei and of steel: in 25 tasks it missed by 0.10
on average, the plain mean by 0.12.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from emat.methods.leave_out import Learnt

WELL = 0.6  # IoU from which masks are usable as they are
POOR = 0.35  # IoU below which a class is hardly found
OUTLIER = 0.4  # an example that reaches less than this share of the others' mean probably has a wrong mask,
GAP = 0.15  # if it is this far below them
FEWEST = 3  # examples from which one of them can stand out
USUAL = 0.5  # mean IoU of classes that one knows nothing about,
USUAL_WEIGHT = 2  # which counts like so many examples
GROWTH = 0.15  # IoU by which one expects more, for every time that there are e times as many examples


@dataclass(frozen=True)
class Forecast:
    """What to expect of one class on new photos like the examples."""

    examples: int  # that show the class
    iou: float | None  # expected intersection over union; None with a single example
    presence: float | None  # expected share of photos whose presence is right; None without photos that lack the class
    least_agreeing: str | None = None  # the example that agrees least with the others, if one stands out
    least_iou: float | None = None  # what was reached on it
    left_out: Mapping[int, float] = field(
        default_factory=dict
    )  # IoU on each example, by its index, when it was left out

    def sentence(self, name: str) -> str:
        """Say in words what this means for the user; empty if nothing needs to be said."""
        parts = []
        if self.iou is None:
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
    (0.7, 0.78, None)
    """
    count = len(left_out)
    if not count:
        return None
    grown = sum(left_out) / count + GROWTH * math.log(count / (count - 1) if count > 1 else 2)
    return min(1.0, (count * grown + USUAL_WEIGHT * USUAL) / (count + USUAL_WEIGHT))


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
