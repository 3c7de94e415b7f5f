"""Predicting a slide that is too large for the memory: window by window, with the label map given band by band.

Every window is predicted as a photo of its own. It is larger than the part that is kept of it, so that an object at the
border of a part is seen whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from emat.errors import EmatError
from emat.images import Pixels, Reading
from emat.images.slides import Slide
from emat.images.sources import PHOTO_FORMATS, TIFF_SUFFIXES, open_image, split_page
from emat.inference.photos import MOST_DETAIL, Tiles
from emat.inference.segmenter import Segmenter

MARGIN = 0.125  # share of a part's side that a window sees beyond it, on every side
LARGEST_WINDOW = 4096  # pixels a side


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


def predict_slide(segmenter: Segmenter, slide: Slide, tiles: Tiles, answer: SlidePrediction) -> Iterator[Pixels]:
    """Predict a slide.

    Args:
        segmenter: The segmenter.
        slide: The slide.
        tiles: The number of windows along the longer side; "auto" for windows of 1024 pixels.
        answer: Takes the scores and the areas.

    Yields:
        The label map from top to bottom, in bands (h, W).
    """
    alone = segmenter.copy()
    alone.tiles = None
    alone.reading = Reading(segmenter.reading.stretch)  # the limit is the slide's, and windows have one of their own
    height, width = slide.size
    side = part_side(slide.size, tiles)
    margin = round(side * MARGIN)
    for top in range(0, height, side):
        band = np.zeros((min(side, height - top), width), np.uint8)
        for left in range(0, width, side):
            upper, before = max(0, top - margin), max(0, left - margin)
            lower, behind = min(height, top + side + margin), min(width, left + side + margin)
            found = alone.predict(slide.read(upper, before, lower - upper, behind - before))
            inner = found.label_map[top - upper :, left - before :]
            part = band[:, left : left + side]
            part[:] = inner[: part.shape[0], : part.shape[1]]
            for name, score in found.scores.items():
                answer.scores[name] = max(answer.scores.get(name, 0.0), score)
        counts = np.bincount(band.ravel(), minlength=len(answer.classes) + 1)
        for number, name in enumerate(answer.classes, start=1):
            answer.pixels[name] = answer.pixels.get(name, 0) + int(counts[number])
        yield band


def part_side(size: tuple[int, int], tiles: Tiles) -> int:
    """Return the side of the square parts that a slide of `size` (H, W) is cut into.

    >>> part_side((20_000, 18_000), 10), part_side((20_000, 18_000), "auto"), part_side((20_000, 18_000), 1)
    (2000, 1024, 4096)
    """
    side = MOST_DETAIL if tiles in (None, "auto") else -(-max(size) // int(tiles))
    return max(1, min(side, LARGEST_WINDOW))
