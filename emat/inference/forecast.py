"""What to expect of a fitted segmenter, found by leaving its examples out in turn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emat.methods.leave_out import Learnt

WELL = 0.6  # IoU from which masks are usable as they are
POOR = 0.35  # IoU below which a class is hardly found
OUTLIER = 0.4  # an example that reaches less than this share of the others' mean probably has a wrong mask,
GAP = 0.15  # if it is this far below them
FEWEST = 3  # examples from which one of them can stand out


@dataclass(frozen=True)
class Forecast:
    """What to expect of one class on new photos like the examples."""

    examples: int  # that show the class
    iou: float | None  # expected intersection over union; None with a single example
    presence: float | None  # expected share of photos whose presence is right; None without photos that lack the class
    least_agreeing: str | None = None  # the example that agrees least with the others, if one stands out
    least_iou: float | None = None  # what was reached on it

    def sentence(self, name: str) -> str:
        """Say in words what this means for the user; empty if nothing needs to be said."""
        parts = []
        if self.iou is None:
            parts.append(f"one example of {name} does not tell how well it will work; add a second one")
        elif self.iou < POOR:
            parts.append(
                f"with these examples {name} is found at about {self.iou:.1f} IoU; add examples, or use --tiles"
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
            iou=sum(reached.values()) / len(reached) if reached else None,
            presence=None if math.isnan(right) else right,
            least_agreeing=None if least is None else examples[least][0],
            least_iou=least_iou,
        )
    return found


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
