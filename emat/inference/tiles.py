"""Parts of a photo: the tiles of a large one, and the windows of a slide that is too large for the memory.

A tile of a photo shows everything larger than the photo does, so it is compared with tiles of the examples, which are
cut into as many.

Photos are resized to the square that the head was trained with, as in training and in benchmarks, whatever their
aspect. Keeping the aspect at the same number of pixels was measured beside it, with an early head on 240 tasks (1-way
1-shot) of voc2012-mini's val list at 192 px: mIoU 33.4 against 33.2 and an AUC of presence of 0.909 against 0.897,
which is within chance.

Every window of a slide is predicted as a photo of its own, and the label map is given band by band. A window is larger
than the part that is kept of it, so that an object at the border of a part is seen whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.images import Pixels, Reading
from emat.images.slides import Slide
from emat.images.sources import PHOTO_FORMATS, TIFF_SUFFIXES, open_image, split_page

if TYPE_CHECKING:  # the segmenter takes tiles from here
    from emat.inference.prediction import Prediction
    from emat.inference.segmenter import Segmenter

MOST_DETAIL = 1024  # side, in pixels, at which probabilities are kept; masks come from a far coarser grid
OVERLAP = 0.25  # share of a tile that its neighbour covers as well
FINEST_TILES = 64  # a side: each tile takes as long as a photo
MOST_TILES = 4  # a side for "auto": 16 tiles and the whole photo take 17 times as long
WINDOW_MARGIN = 0.125  # share of a part's side that a window sees beyond it, on every side
LARGEST_WINDOW = 4096  # pixels a side
UNCUT = (1, 1)  # rows and columns of tiles of a photo that is not cut

Tiles: TypeAlias = int | Literal["auto"] | None  # number of tiles in a row and in a column


def detail_size(size: tuple[int, int]) -> tuple[int, int]:
    """Return the size (h, w) at which the probabilities of a photo of `size` are kept: its own, or a smaller one.

    >>> detail_size((375, 500)), detail_size((3000, 4000))
    ((375, 500), (768, 1024))
    """
    scale = min(1.0, MOST_DETAIL / max(size))
    height, width = (max(1, round(side * scale)) for side in size)
    return height, width


@dataclass(frozen=True)
class View:
    """A rectangle of a photo in pixels."""

    top: int
    left: int
    height: int
    width: int

    @property
    def area(self) -> tuple[slice, slice]:
        """Its rows and columns."""
        return slice(self.top, self.top + self.height), slice(self.left, self.left + self.width)

    def shares(self, size: tuple[int, int]) -> tuple[float, float, float, float]:
        """Top, left, height and width as shares of a photo of `size` (H, W)."""
        height, width = size
        return self.top / height, self.left / width, self.height / height, self.width / width

    def scaled(self, size: tuple[int, int], to: tuple[int, int]) -> View:
        """Return the same part of a photo of `size` (H, W) after the photo is resized to another size."""
        (height, width), (new_height, new_width) = size, to
        top, bottom = (round(y * new_height / height) for y in (self.top, self.top + self.height))
        left, right = (round(x * new_width / width) for x in (self.left, self.left + self.width))
        return View(top, left, max(1, bottom - top), max(1, right - left))


def check_tiles(tiles: object) -> None:
    """Raise an EmatError unless `tiles` is None, "auto" or a number from 1 to 64."""
    if tiles is None or tiles == "auto":
        return
    if isinstance(tiles, int) and not isinstance(tiles, bool) and 1 <= tiles <= FINEST_TILES:
        return
    raise EmatError(
        "unknown-choice", f"tiles is None, 'auto' or a number of tiles a side from 1 to {FINEST_TILES}, not {tiles!r}"
    )


def tile_grid(size: tuple[int, int], image_size: int, tiles: Tiles) -> tuple[int, int]:
    """Return how many rows and columns of tiles a photo of `size` (H, W) is cut into; (1, 1) if it stays whole.

    "auto" takes as many tiles as are needed to see the photo at its own resolution, at most 4 a side, and none for
    photos that are hardly larger than `image_size`.

    >>> tile_grid((800, 800), 400, 2), tile_grid((500, 450), 400, "auto"), tile_grid((1600, 800), 400, "auto")
    ((2, 2), (1, 1), (4, 2))
    """
    if tiles == "auto":
        rows, columns = (max(1, min(MOST_TILES, round(side / image_size))) for side in size)
    else:
        rows, columns = (min(tiles or 1, side) for side in size)
    return rows, columns


def cut(size: tuple[int, int], grid: tuple[int, int]) -> list[View]:
    """Return the tiles of a photo of `size` (H, W), row by row.

    >>> len(cut((800, 800), (2, 3))), cut((8, 6), (1, 1))
    (6, [View(top=0, left=0, height=8, width=6)])
    """
    vertical, horizontal = (_spans(side, min(count, side)) for side, count in zip(size, grid, strict=True))
    return [View(top, left, h, w) for top, h in vertical for left, w in horizontal]


def _spans(length: int, count: int) -> list[tuple[int, int]]:
    """Start and length of `count` equal spans that overlap and together cover `length`.

    >>> _spans(100, 3)
    [(0, 40), (30, 40), (60, 40)]
    """
    if count == 1:
        return [(0, length)]
    span = min(length, -int(-length // (count - (count - 1) * OVERLAP)))
    return [(round(index * (length - span) / (count - 1)), span) for index in range(count)]


# Slides


def is_slide(path: Path, reading: Reading) -> bool:
    """Whether a file is a TIFF of more pixels than `reading` allows."""
    file, _ = split_page(path)
    if file.suffix.lower() not in TIFF_SUFFIXES:
        return False
    try:
        with open_image(path, PHOTO_FORMATS, 1 << 62, str(path)) as image:
            return image.format == "TIFF" and image.width * image.height > reading.max_pixels
    except EmatError:
        return False


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
    found: Prediction  # of the window

    @property
    def photo(self) -> Pixels:
        """Its pixels (h, w, 3)."""
        return self.found.photo[self.inner.area]

    @property
    def labels(self) -> NDArray[np.uint8]:
        """Its label map (h, w)."""
        return self.found.label_map[self.inner.area]

    def mask(self, name: str) -> NDArray[np.bool_]:
        """Where a class is in it (h, w)."""
        return self.found.mask(name)[self.inner.area]

    def probability(self, name: str) -> NDArray[np.float32]:
        """The probability map (h, w) of a class."""
        return self.found.probability(name)[self.inner.area]


def predict_slide(
    segmenter: Segmenter,
    slide: Slide,
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
