"""What `fit` decides from the examples, once, so that `predict` only predicts.

The decisions are a part of the fitted file, `emat show` prints them, and options of the same names override them. Where
something is tried, it is tried on examples that were left out: the answer for an example comes from the examples
outside of its fold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from emat.formats.regions import TOUCHING
from emat.images import VOID, Pixels
from emat.inference.example_set import ExampleSet, with_name
from emat.inference.prediction import Prediction
from emat.inference.tiles import UNCUT, Tiles, check_tiles, tile_grid
from emat.pixel_learner.features import LARGEST_SIDE, SMALLEST_SIDE
from emat.refine.refiner import Refinement, can_draw, examples_suit, shared_mobilesam

if TYPE_CHECKING:  # the segmenter takes its decisions from here
    from emat.inference.segmenter import Segmenter

# To be raised when `fit` makes anything else of the same examples, so that no evaluation mixes old and new answers.
DECISION_VERSION = 2
WORTH_IT = 0.02  # IoU that a larger size or tiles must be better by
LARGER = 2  # the larger size, in multiples of the usual one; it takes about four times as long
FEWEST_GAINS = 2  # left-out examples without which nothing is known of a refinement
MOST_LEFT_OUT = 3  # examples of a class on which refinement and tiles are tried
WAYS: Mapping[Refinement | None, str] = {
    "auto": "outlined by MobileSAM",
    "mobilesam": "outlined by MobileSAM, always",
    "guided": "drawn along the edges of the photo",
    None: "not refined",
}
SMALLEST_SHARE = 0.1  # of the smallest object that the examples show: smaller ones do not count


@dataclass(frozen=True)
class ClassDecisions:
    """What was decided for one class."""

    refine: Refinement | None  # "auto": by MobileSAM where it suits the photo
    smallest: float = 0.0  # share of a photo that an object must cover to count


@dataclass(frozen=True)
class Decisions:
    """What was decided for a fitted segmenter; a default stands for what was never decided."""

    classes: Mapping[str, ClassDecisions] = field(default_factory=dict)
    tiles: Tiles = None
    overlap: tuple[str, ...] = ()  # classes of which each lies on those after it, such as lesion and leaf
    size: int | None = None  # the longest side at which the pixel learner sees photos; None if nothing is learnt

    def to_json(self) -> dict[str, Any]:
        """Return the decisions as JSON can hold them."""
        return asdict(self)

    def sentences(self) -> list[str]:
        """Say in words what was decided, leaving out what is usual."""
        by_way: dict[Refinement | None, list[str]] = {}
        for name, decided in self.classes.items():
            by_way.setdefault(decided.refine, []).append(name)
        sentences = []
        for way, names in by_way.items():
            listed = "all classes" if len(by_way) == 1 else ", ".join(names)
            sentences.append(f"Masks of {listed}: {WAYS[way]}.")
        if self.tiles is not None:
            how = "as many tiles as its size needs" if self.tiles == "auto" else f"{self.tiles} tiles a side"
            sentences.append(f"A large photo is cut into {how}.")
        return sentences

    def renamed(self, name: str, to: str) -> Decisions:
        """Return the same decisions, in which a class has another name."""
        classes = with_name(self.classes, name, to)
        return replace(self, classes=classes, overlap=tuple(to if other == name else other for other in self.overlap))

    @classmethod
    def from_json(cls, content: Any) -> Decisions:
        """Read what `to_json` returned; ValueError or TypeError if it is something else."""
        classes = {}
        for name, one in content["classes"].items():
            way, smallest = one["refine"], float(one["smallest"])
            if way is not None and way not in get_args(Refinement):
                raise ValueError(f"a refinement called {str(way)[:40]!r}")
            if not 0 <= smallest < 1:
                raise ValueError(f"a smallest object of {smallest} of a photo")
            classes[str(name)] = ClassDecisions(way, smallest)
        check_tiles(content["tiles"])
        size = content["size"]
        if size is not None and (type(size) is not int or not SMALLEST_SIDE <= size <= LARGEST_SIDE):
            raise ValueError(f"photos of {str(size)[:40]} pixels")
        overlap = tuple(str(name) for name in content.get("overlap", ()))
        if not set(overlap) <= set(classes):
            raise ValueError("classes that overlap and do not exist")
        return cls(classes, content["tiles"], overlap, size)


@dataclass(frozen=True)
class LeftOutExample:
    """An example whose whole mask of some classes is known, predicted from the examples outside of its fold."""

    index: int
    photo: Pixels
    masks: Mapping[str, NDArray[np.uint8]]  # (h, w): 1 = the class, 0 = not, 255 = unknown


# Predicts a left-out example in rows and columns of tiles, without refinement.
PredictLeftOut = Callable[[LeftOutExample, tuple[int, int]], Prediction]


def left_out_examples(examples: ExampleSet, name: str) -> list[LeftOutExample]:
    """The examples of a class on which something can be tried: there are others of the class, and photos were kept."""
    shown = whole_examples(examples, name)
    return shown[:MOST_LEFT_OUT] if len(shown) > 1 else []


def whole_examples(examples: ExampleSet, name: str) -> list[LeftOutExample]:
    """The examples whose whole mask of a class was kept."""
    return [
        LeftOutExample(index, example.working.photo, example.working.masks)
        for index, example in enumerate(examples.examples)
        if name in example.encodings and example.working is not None and not example.working.sparse
    ]


def decide_refinements(
    examples: ExampleSet, predict: PredictLeftOut, edges: bool = True
) -> dict[str, Refinement | None]:
    """Decide class by class whether MobileSAM refines it ("auto"), the photo's edges alone ("guided"), or nothing does.

    MobileSAM is asked about a class whose masks show few, large and thick objects. With two or more examples, a way of
    refinement must gain IoU on those that are left out, by more than chance. With one example, MobileSAM must be able
    to draw its mask.

    Args:
        examples: The examples.
        predict: Predicts those that are left out.
        edges: Whether to try the photo's edges as well, where MobileSAM is not asked.
    """
    sam = shared_mobilesam("auto")
    ways: dict[str, Refinement | None] = {}
    tried: dict[str, list[LeftOutExample]] = {}
    for name in examples.classes:
        # A sparse example's picture shows strokes, which say nothing about the object's shape.
        painted = [example for example in examples.examples if example.working is None or not example.working.sparse]
        thumbnails = [example.thumbnail for example in painted if example.thumbnail is not None]
        pictures = [thumbnail for thumbnail in thumbnails if name in thumbnail.masks]
        drawable = sam is not None and examples_suit([picture.masks[name] for picture in pictures])
        whole = whole_examples(examples, name)
        if sam is not None and drawable and len(whole) == 1:
            drawable = can_draw(sam, whole[0].photo[..., :3], whole[0].masks[name] == 1)
        ways[name] = "auto" if drawable else "guided"
        tried[name] = left_out_examples(examples, name) if drawable or edges else []
    gains = _gains(ways, tried, predict)
    again: dict[str, Refinement | None] = {name: "guided" for name, gain in gains.items() if gain and not _helps(gain)}
    failed = [name for name in again if ways[name] == "guided"]
    if any(name not in failed for name in again):  # MobileSAM did not help: perhaps the photo's edges do
        other = _gains(dict.fromkeys(again, "guided"), {name: tried[name] for name in again}, predict)
        failed = [name for name, gain in other.items() if not _helps(gain)]
    return ways | again | dict.fromkeys(failed)


def _gains(
    ways: Mapping[str, Refinement | None], tried: Mapping[str, Sequence[LeftOutExample]], predict: PredictLeftOut
) -> dict[str, list[float]]:
    """The IoU that refinement gains on the left-out examples of each class; each is predicted once for all classes."""
    gains: dict[str, list[float]] = {name: [] for name in tried}
    photos = {example.index: example for examples in tried.values() for example in examples}
    for example in photos.values():
        before = predict(example, UNCUT)
        rules = {name: replace(rule, refine=ways.get(name)) for name, rule in before.rules.items()}
        after = replace(before, rules=rules).refined()
        for name, examples in tried.items():
            if name in before.classes and any(one.index == example.index for one in examples):
                truth = example.masks[name]
                gains[name].append(iou(after.mask(name), truth) - iou(before.mask(name), truth))
    return gains


def _helps(gains: Sequence[float]) -> bool:
    """Whether a gain is more than chance: its mean is above half of its standard error."""
    if len(gains) < FEWEST_GAINS:
        return False
    return float(np.mean(gains)) > float(np.std(gains, ddof=1)) / math.sqrt(len(gains)) / 2


def decide_tiles(examples: ExampleSet, image_size: int, predict: PredictLeftOut) -> Tiles:
    """Decide whether photos are cut into tiles ("auto") or stay whole (None).

    Where nothing can be left out, the size of a photo alone decides, which is "auto".
    """
    gains = []
    for name in examples.classes:
        for example in left_out_examples(examples, name):
            grid = tile_grid(example.photo.shape[:2], image_size, "auto")
            if grid != UNCUT:
                predictions = (predict(example, tiling) for tiling in (UNCUT, grid))
                whole, tiled = (iou(prediction.mask(name), example.masks[name]) for prediction in predictions)
                gains.append(tiled - whole)
    return "auto" if not gains or float(np.mean(gains)) >= WORTH_IT else None


def decide_smallest(examples: ExampleSet, name: str) -> float:
    """The share of a photo that an object of a class must cover: a tenth of the smallest object that is shown."""
    shares = []
    for example in whole_examples(examples, name):
        parts, _ = ndimage.label(example.masks[name] == 1, TOUCHING)
        areas = np.bincount(parts.ravel())[1:]
        shares += (areas / parts.size).tolist()
    return SMALLEST_SHARE * min(shares, default=0.0)


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
    sides = [max(example.working.photo.shape[:2]) for example in usual.examples_ if example.working is not None]
    if before is None or max(sides, default=0) <= side:
        return usual, None
    larger = fitted(LARGER * side)
    after = _expected(larger)
    if after is None:
        return usual, None
    compared = f"IoU {before:.2f} is expected at {side} pixels and {after:.2f} at {LARGER * side}"
    if after < before + WORTH_IT:
        return usual, f"A larger size does not help: {compared}."
    return larger, f"The larger size helps: {compared}. Predictions take longer."


def _expected(segmenter: Segmenter) -> float | None:
    """The mean of what is expected of the classes."""
    values: Sequence[float] = [forecast.iou for forecast in segmenter.forecast_.values() if forecast.iou is not None]
    return sum(values) / len(values) if values else None


def iou(mask: NDArray[np.bool_], truth: NDArray[np.uint8]) -> float:
    """Intersection over union where `truth` (1 = the class, 0 = not, 255 = unknown) says anything."""
    decided, inside = truth != VOID, truth == 1
    return float((mask & inside).sum() / max(int(((mask & decided) | inside).sum()), 1))
