"""The answer for one photo: which classes are there, and where."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from emat.errors import EmatError
from emat.formats.overlay import draw_overlay
from emat.images import Pixels
from emat.method import PAPER_THRESHOLDS, Thresholds

__all__ = ["Prediction", "Thresholds"]


@dataclass(frozen=True, eq=False)
class Prediction:
    """Scores and masks of every class of a segmenter on one photo.

    A class whose score is below the presence threshold is not there: its mask is empty, whatever the network drew.
    Every pixel goes to the likeliest class that is present, if its probability reaches the mask threshold.
    """

    photo: Pixels  # (H, W, 3), as a person sees it
    scores: Mapping[str, float]  # probability that the class is somewhere in the photo
    maps: Mapping[str, NDArray[np.float32]]  # (h, w): foreground probability, of a large photo at a smaller size
    thresholds: Thresholds = PAPER_THRESHOLDS

    @property
    def classes(self) -> tuple[str, ...]:
        """Class i of the label map is `classes[i - 1]`."""
        return tuple(self.scores)

    @property
    def present(self) -> set[str]:
        """The classes that are there; empty if none is."""
        return {name for name, score in self.scores.items() if score >= self.thresholds.presence}

    @cached_property
    def label_map(self) -> NDArray[np.uint8]:
        """(H, W): 0 = background, i = `classes[i - 1]`."""
        label_map = np.zeros(self.photo.shape[:2], np.uint8)
        best = np.full(label_map.shape, -1, np.float32)
        present = self.present
        for index, name in enumerate(self.classes, start=1):  # one map at a time: large photos have large maps
            if name in present:
                probability = self.probability(name)
                better = (probability >= self.thresholds.mask) & (probability > best)
                label_map[better] = index
                best[better] = probability[better]
        return label_map

    def mask(self, name: str) -> NDArray[np.bool_]:
        """(H, W): where the class is; nowhere if it is not present."""
        return self.label_map == 1 + self.classes.index(self._known(name))

    def probability(self, name: str) -> NDArray[np.float32]:
        """(H, W): how likely each pixel belongs to the class, whether or not the class counts as present."""
        map_ = self.maps[self._known(name)]
        height, width = self.photo.shape[:2]
        if map_.shape == (height, width):
            return map_
        return np.array(Image.fromarray(map_).resize((width, height), Image.Resampling.BILINEAR))

    def at(self, thresholds: Thresholds) -> "Prediction":
        """The same answer read with other thresholds; the network is not asked again."""
        return replace(self, thresholds=thresholds)

    def overlay(self) -> Image.Image:
        """The photo with every class in its colour, and a legend."""
        return draw_overlay(self.photo, self.label_map, dict(enumerate(self.classes, start=1)))

    def found(self) -> Iterator[tuple[str, float, float]]:
        """Each present class with its score and its share of the photo, for lists and tables."""
        for name in self.classes:
            if name in self.present:
                yield name, self.scores[name], float(self.mask(name).mean())

    def _known(self, name: str) -> str:
        if name not in self.scores:
            raise EmatError(f"there is no class {name!r} here; the classes are {', '.join(self.classes)}")
        return name
