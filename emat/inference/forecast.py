"""What to expect of a fitted segmenter, found by leaving its examples out in turn.

The IoU of a left-out example is that of the joint label map of all classes, with the shift that the other examples
chose. Their mean is a rough estimate: there are few of them, and each is judged by a segmenter with fewer examples than
the final one. So it is moved towards what is usual, the more the left-out examples differ from each other, and given as
a range. The constants were chosen by what seven to nine new photos reached with five examples, in 26 tasks: eight
classes of PASCAL's training list, with heads that never saw the class, and every second photo of nuclei and steel. The
IoU of photos of one class has a standard deviation of 0.17, so means over five and over eight photos differ by 0.08 on
average even if nothing else is wrong. `docs/own-photos.md` says by how much it missed on other tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from emat.errors import EmatError
from emat.pictures.html import table
from emat.pixel_learner.cross_validation import Learnt

HEADER = ("examples", "expected IoU", "presence right")

# What the words of a forecast mean.
WELL = 0.6  # IoU from which masks are usable as they are
POOR = 0.35  # IoU below which a class is hardly found
CONFUSED = 0.3  # share of a class's pixels that are called another class; from here on, the user is told

# An example probably has a wrong mask if its IoU is below both limits, and the class was found on its photo, elsewhere:
# where nothing is found, the photo is hard. With fewer examples, none is called wrong. Of 30 classes with right masks
# (20 of PASCAL's training list, five examples each, and ten tasks of steel and nuclei), six were accused without the
# last condition and three with it; of masks that were inverted or mirrored, 65 and 75 % were found without it, 61 and
# 69 % with it (by a script that was not kept).
OUTLIER = 0.4  # first limit: this share of the mean IoU of the other examples
FAR = 3.0  # second limit: this many of the others' standard deviations below their mean
FEWEST = 3  # examples
FOUND = 0.25  # of the area of the class's usual mask: a class of which less is found was not found

# The expected IoU is the mean over the left-out examples, drawn towards the usual IoU as if some more examples had
# reached that. The less the left-out examples differ, the less the usual IoU counts.
USUAL_IOU = 0.6  # mean over classes of which nothing is known
USUAL_WEIGHT = 2  # the usual IoU counts at most like this many examples
TYPICAL_SPREAD = 0.1  # standard deviation of the left-out examples from which it counts fully
GROWTH = 0.05  # IoU that is gained whenever the number of examples grows by a factor of e

# The range around the expected IoU.
UNSEEN = 0.05  # standard deviation of the mean IoU between sets of photos, beside that of chance
RANGE = 1.3  # standard deviations to either side, so that four of five new sets of photos fall within


@dataclass(frozen=True, repr=False)
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
    low: float | None = None  # the range that the mean IoU of new photos should fall into
    high: float | None = None
    auroc: float | None = None  # how often a photo with the class should score higher than one without
    called: Mapping[str, float] = field(default_factory=dict)  # the share of its left-out pixels called each class

    def __repr__(self) -> str:
        return f"Forecast({', '.join(f'{name} {value}' for name, value in zip(HEADER, self.cells(), strict=True))})"

    def cells(self) -> list[str]:
        """The forecast as the cells of a table; `HEADER` names them."""
        return [str(self.examples), _number(self.iou), _number(self.presence)]

    def sentence(self, name: str) -> str:
        """Say in words what this means for the user; empty if nothing needs to be said."""
        parts = []
        if self.iou is None and self.examples > 1:
            parts.append(f"strokes on {name} do not tell how well it will work; paint an example of it whole")
        elif self.iou is None:
            parts.append(f"one example of {name} does not tell how well it will work; add a second one")
        elif self.low is not None and self.high is not None and self.low < POOR:
            parts.append(
                f"with these examples {name} is found at {self.low:.1f} to {self.high:.1f} IoU; add examples, or try "
                "--size auto"
            )
        for other, share in self.called.items():
            if other != name and share >= CONFUSED:
                parts.append(f"of {name}, {share:.0%} is called {other}: show more of both, or a larger --size")
        if self.least_agreeing is not None and self.least_iou is not None:
            parts.append(f"{self.least_agreeing} agrees least with the others ({self.least_iou:.2f}); check its mask")
        if self.presence is not None and self.presence < WELL:
            parts.append(f"photos with and without {name} look alike, so whether it is present is a guess")
        return "; ".join(parts)


class Forecasts(dict[str, Forecast]):
    """The forecast of every class, by its name; a table in notebooks.

    >>> Forecasts(cat=Forecast(5, 0.72, None))
    cat: examples 5, expected IoU 0.72, presence right unknown
    """

    def __missing__(self, name: str) -> Forecast:
        if not self:
            raise EmatError(
                "no-forecast",
                "there is no forecast, because this segmenter does not learn from its examples; load it with "
                "learn=True (on the command line without --no-learn), or use emat.cross_validate(examples)",
            )
        raise EmatError("unknown-class", f"there is no class {name!r} here; the classes are {', '.join(self)}")

    def sentences(self) -> list[str]:
        """Say in words what they mean for the user, of classes on which something needs to be said."""
        advice = (forecast.sentence(name) for name, forecast in self.items())
        return [f"{text[0].upper()}{text[1:]}." for text in advice if text]

    def __repr__(self) -> str:
        lines = []
        for name, forecast in self.items():
            cells = ", ".join(f"{head} {cell}" for head, cell in zip(HEADER, forecast.cells(), strict=True))
            lines.append(f"{name}: {cells}{f' ({advice})' if (advice := forecast.sentence(name)) else ''}")
        return "\n".join(lines) or "no forecast"

    def _repr_html_(self) -> str:
        """A row for each class, which notebooks show."""
        rows = [[name, *forecast.cells(), forecast.sentence(name)] for name, forecast in self.items()]
        return table(["class", *HEADER, "advice"], rows)


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def forecasts(learnt: Learnt, classes: Sequence[str], examples: Sequence[tuple[str, Sequence[str]]]) -> Forecasts:
    """The forecast of every class.

    Args:
        learnt: What the examples taught.
        classes: The names of the classes, in its order.
        examples: The name of every example and the classes that it shows, in its order.
    """
    by_class = Forecasts()
    for number, name in enumerate(classes):
        reached = {
            index: value for index, value in enumerate(learnt.left_out_iou[:, number].tolist()) if not math.isnan(value)
        }
        areas = None if learnt.left_out_area is None else learnt.left_out_area[:, number].tolist()
        least, least_iou = _least(reached, areas)
        expected = expected_iou(list(reached.values()))
        reach = RANGE * math.sqrt(_variance(list(reached.values())) / len(reached) + UNSEEN**2) if reached else 0.0
        called = [] if learnt.confusion is None else learnt.confusion[number].tolist()
        by_class[name] = Forecast(
            examples=sum(name in shown for _, shown in examples),
            iou=expected,
            low=None if expected is None else max(0.0, expected - reach),
            high=None if expected is None else min(1.0, expected + reach),
            presence=_known(learnt.presence_right, number),
            auroc=_known(learnt.presence_auroc, number),
            called={other: share for other, share in zip(classes, called, strict=False) if not math.isnan(share)},
            least_agreeing=None if least is None else examples[least][0],
            least_iou=least_iou,
            left_out=reached,
        )
    return by_class


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
    weight = USUAL_WEIGHT * min(1.0, _variance(left_out) / TYPICAL_SPREAD**2)
    return min(1.0, (count * grown + weight * USUAL_IOU) / (count + weight))


def _variance(values: Sequence[float]) -> float:
    """With one more value at the typical spread, because a few values may be close to each other by chance."""
    mean = sum(values) / len(values)
    return (sum((value - mean) ** 2 for value in values) + TYPICAL_SPREAD**2) / len(values)


def _known(values: Tensor | None, number: int) -> float | None:
    """A value of a tensor (N,); None where it is not known."""
    return None if values is None or math.isnan(values[number]) else float(values[number])


def _least(reached: Mapping[int, float], areas: Sequence[float] | None) -> tuple[int | None, float | None]:
    """The index of the example that stands out below the others, and its IoU, from the IoU and area of each.

    Photos of a class differ, so the worst of a few is always lower: it stands out if the others hardly explain it.
    """
    if len(reached) < FEWEST:
        return None, None
    worst = min(reached, key=lambda index: reached[index])
    if areas is not None and areas[worst] < FOUND:
        return None, None
    others = [value for index, value in reached.items() if index != worst]
    mean = sum(others) / len(others)
    if reached[worst] > OUTLIER * mean or mean - reached[worst] < FAR * math.sqrt(_variance(others)):
        return None, None
    return worst, reached[worst]
