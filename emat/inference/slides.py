"""Prediction of slides, which are too large for the memory: window by window, with regions joined across the seams.

Every window of a slide is predicted as a photo of its own, and the label map is given band by band. A window is larger
than the part that is kept of it, so that an object at the border of a part is seen whole.

Parts come from left to right and then from top to bottom. Regions that lie in several parts are joined (`SeamJoiner`).
A region is given as soon as a whole band lies below it, so that no more is in memory than the regions that reach into
the last band.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from emat.errors import EmatError
from emat.formats.regions import TOUCHING
from emat.formats.results import ObjectRow
from emat.images import MAX_PIXELS, Pixels, Reading
from emat.images.slides import Slide, StackSlide
from emat.inference.prediction import Prediction
from emat.inference.segmenter import Segmenter
from emat.inference.tiles import MOST_DETAIL, Tiles, View
from emat.refine.objects import measure, separate

MOST = 254  # steps in which probabilities are kept; 0 stands for pixels that do not belong to the class
WINDOW_MARGIN = 0.125  # share of a part's side that a window sees beyond it, on every side
LARGEST_WINDOW = 4096  # pixels a side


@dataclass
class SlidePrediction:
    """What is known of a slide when all its bands were given."""

    classes: tuple[str, ...]
    size: tuple[int, int]
    scores: dict[str, float] = field(default_factory=dict)  # the highest of all windows
    pixels: dict[str, int] = field(default_factory=dict)  # of each class

    def share(self, name: str) -> float:
        """The share of the slide that a class covers."""
        return self.pixels.get(name, 0) / (self.size[0] * self.size[1])


@dataclass(frozen=True, eq=False)
class SlidePart:
    """A part of a slide with its prediction, which was made from a larger window around it."""

    view: View  # where the part is on the slide
    inner: View  # where it is in the window
    prediction: Prediction  # of the window

    @property
    def photo(self) -> Pixels:
        """Its pixels (h, w, 3)."""
        return self.prediction.photo[self.inner.area]

    @property
    def labels(self) -> NDArray[np.uint8]:
        """Its label map (h, w)."""
        return self.prediction.label_map[self.inner.area]

    def mask(self, name: str) -> NDArray[np.bool_]:
        """Where a class is in it (h, w)."""
        return self.prediction.mask(name)[self.inner.area]

    def probability(self, name: str) -> NDArray[np.float32]:
        """The probability map (h, w) of a class."""
        return self.prediction.probability(name)[self.inner.area]


def predict_slide(
    segmenter: Segmenter,
    slide: Slide | StackSlide,
    tiles: Tiles,
    answer: SlidePrediction,
    watch: Callable[[SlidePart], None] = lambda _: None,
    all_objects: bool = False,
) -> Iterator[Pixels]:
    """Predict a slide.

    Args:
        segmenter: The segmenter.
        slide: The slide.
        tiles: The number of windows along the longer side; "auto" for windows of 1024 pixels.
        answer: Takes the scores and the areas.
        watch: Is shown every part, from left to right and then from top to bottom.
        all_objects: Whether objects count that are smaller than `fit` decided.

    Yields:
        The label map from top to bottom, in bands (h, W).
    """
    alone = segmenter.copy()
    alone.tiles = None
    alone.reading = Reading(segmenter.reading.stretch)  # the limit is the slide's, and windows have one of their own
    height, width = slide.size
    side = part_side(slide.size, tiles)
    margin = round(side * WINDOW_MARGIN)
    for top in range(0, height, side):
        band = np.zeros((min(side, height - top), width), np.uint8)
        for left in range(0, width, side):
            upper, before = max(0, top - margin), max(0, left - margin)
            lower, behind = min(height, top + side + margin), min(width, left + side + margin)
            prediction = alone.predict(slide.read(upper, before, lower - upper, behind - before))
            view = View(top, left, band.shape[0], min(side, width - left))
            inner = View(top - upper, left - before, view.height, view.width)
            part = SlidePart(view, inner, prediction.with_all_objects() if all_objects else prediction)
            watch(part)
            labels = band[:, left : left + side]
            labels[:] = part.labels
            for number, (name, score) in enumerate(prediction.scores.items(), start=1):
                answer.scores[name] = max(answer.scores.get(name, 0.0), score)
                answer.pixels[name] = answer.pixels.get(name, 0) + int(np.count_nonzero(labels == number))
            del prediction, part  # so that two windows are never in memory at a time
        yield band


def part_side(size: tuple[int, int], tiles: Tiles) -> int:
    """Return the side of the square parts that a slide of `size` (H, W) is cut into.

    >>> part_side((20_000, 18_000), 10), part_side((20_000, 18_000), "auto"), part_side((20_000, 18_000), 1)
    (2000, 1024, 4096)
    """
    side = MOST_DETAIL if tiles in (None, "auto") else -(-max(size) // int(tiles))
    return max(1, min(side, LARGEST_WINDOW))


# Seams


@dataclass(frozen=True, eq=False)
class SlideRegion:
    """Connected pixels of some classes on a slide.

    Attributes:
        view: Where it is on the slide, with a pixel around it unless the slide ends there.
        photo: The slide's pixels (h, w, 3), black outside of the region.
        marks: For each class (h, w): 0 outside of it, and inside 1 more than the probability in `MOST` steps.
    """

    view: View
    photo: Pixels
    marks: dict[str, NDArray[np.uint8]]

    def mask(self, name: str) -> NDArray[np.bool_]:
        """Where a class is in it (h, w)."""
        return self.marks[name] > 0

    def probability(self, name: str) -> NDArray[np.float32]:
        """The probability map (h, w) of a class, 0 outside of its mask."""
        return (np.maximum(self.marks[name], 1).astype(np.float32) - 1) / np.float32(MOST)


class SeamJoiner:
    """Joins the regions of one slide.

    Args:
        classes: Pixels of any of these belong to one region if they touch, also at a corner.
        size: Height and width of the slide.
    """

    def __init__(self, classes: Sequence[str], size: tuple[int, int]) -> None:
        self._classes, self._size = tuple(classes), size
        self._pieces: dict[int, list[SlideRegion]] = {}  # of each region that is not complete, by its number
        self._leader: dict[int, int] = {}  # from a piece's number to that of a piece that it is joined with
        self._next = 1
        # The numbers of the pieces in the last row above, in the last row of this band, and left of the part.
        self._above = np.zeros(size[1], np.int64)
        self._below = np.zeros(size[1], np.int64)
        self._beside = np.zeros(0, np.int64)

    def add(self, part: SlidePart) -> Iterator[SlideRegion]:
        """Take the next part, and give the regions that are complete."""
        view = part.view
        marks = {name: _marks(part, name) for name in self._classes if name in part.prediction.scores}
        inside = np.zeros((view.height, view.width), bool)
        for marked in marks.values():
            inside |= marked > 0
        numbers, count = ndimage.label(inside, TOUCHING)
        numbers = np.where(inside, numbers + (self._next - 1), 0)  # (h, w)
        for index, window in enumerate(ndimage.find_objects(np.where(inside, numbers - (self._next - 1), 0))):
            number = self._next + index
            own = numbers[window] == number
            rows, columns = window
            covered = View(view.top + rows.start, view.left + columns.start, own.shape[0], own.shape[1])
            photo = np.where(own[..., None], part.photo[window], 0).astype(np.uint8)
            cut = {name: np.where(own, marked[window], 0).astype(np.uint8) for name, marked in marks.items()}
            self._leader[number], self._pieces[number] = number, [SlideRegion(covered, photo, cut)]
        self._next += count
        self._join_above(numbers[0], view.left)
        if view.left:
            self._join(numbers[:, 0], self._beside)
        self._beside = numbers[:, -1].copy()
        self._below[view.left : view.left + view.width] = numbers[-1]
        if view.left + view.width == self._size[1]:
            yield from self._end_band(last=view.top + view.height == self._size[0])

    def _join_above(self, row: NDArray[np.int64], left: int) -> None:
        around = np.pad(self._above, 1)
        self._join_pairs((row, around[left + shift : left + shift + len(row)]) for shift in range(3))

    def _join(self, one: NDArray[np.int64], other: NDArray[np.int64]) -> None:
        around = np.pad(other, 1)
        self._join_pairs((one, around[shift : shift + len(one)]) for shift in range(3))

    def _join_pairs(self, lines: Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> None:
        for one, other in lines:
            both = (one > 0) & (other > 0)
            for first, second in np.unique(np.stack([one[both], other[both]], axis=1), axis=0).tolist():
                a, b = self._find(first), self._find(second)
                if a != b:
                    self._leader[b] = a
                    self._pieces[a] += self._pieces.pop(b)

    def _find(self, number: int) -> int:
        while (leader := self._leader[number]) != number:
            self._leader[number] = number = self._leader[leader]
        return number

    def _end_band(self, last: bool) -> Iterator[SlideRegion]:
        """Give the regions that end in this band, and forget what is no longer needed of them."""
        open_numbers = [] if last else np.unique(self._below[self._below > 0]).tolist()
        going_on = {number: self._find(number) for number in open_numbers}
        for number in [candidate for candidate in self._pieces if candidate not in set(going_on.values())]:
            yield self._whole(self._pieces.pop(number))
        self._leader = {**going_on, **{number: number for number in going_on.values()}}
        self._above, self._below = self._below, np.zeros_like(self._below)

    def _whole(self, pieces: Sequence[SlideRegion]) -> SlideRegion:
        height, width = self._size
        top, left = (min(getattr(piece.view, side) for piece in pieces) for side in ("top", "left"))
        bottom = max(piece.view.top + piece.view.height for piece in pieces)
        right = max(piece.view.left + piece.view.width for piece in pieces)
        top, left, bottom, right = max(0, top - 1), max(0, left - 1), min(height, bottom + 1), min(width, right + 1)
        view = View(top, left, bottom - top, right - left)
        if view.height * view.width > MAX_PIXELS:
            raise EmatError(
                "object-too-large",
                f"{' and '.join(self._classes)} cover a connected region of {view.width} x {view.height} pixels, which "
                "is too large to be measured as an object; measure a smaller copy of the slide",
            )
        photo = np.zeros((view.height, view.width, 3), np.uint8)
        marks = {name: np.zeros((view.height, view.width), np.uint8) for name in self._classes}
        for piece in pieces:
            area = View(piece.view.top - top, piece.view.left - left, piece.view.height, piece.view.width).area
            photo[area] |= piece.photo  # pieces of one part may have boxes that overlap
            for name, marked in piece.marks.items():
                marks[name][area] |= marked
        return SlideRegion(view, photo, marks)


def _marks(part: SlidePart, name: str) -> NDArray[np.uint8]:
    inside = part.mask(name)
    steps = (1 + np.rint(part.probability(name) * MOST)).astype(np.uint8)
    return np.where(inside, steps, 0).astype(np.uint8)


def slide_objects(region: SlideRegion, name: str) -> list[ObjectRow]:
    """Measure the single objects of a class in a region, touching ones apart; their places are those on the slide."""
    instances = measure(separate(region.mask(name)), region.probability(name))
    left, top = region.view.left, region.view.top
    rows = []
    for row in instances.rows:
        (x, y, width, height), (across, down) = row.box, row.centroid
        rows.append(replace(row, box=(left + x, top + y, width, height), centroid=(left + across, top + down)))
    return rows
