"""Refinement of the masks of an evaluation's tasks, as `Segmenter` does it for photos."""

from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from emat.datasets.dataset import Dataset
from emat.methods.label_map import make_label_map
from emat.refine.refiner import Refinement, examples_suit, refine_maps, shared_mobilesam

# From ways, shots and probabilities (N, H, W) to the label map (H, W)
RefineTask: TypeAlias = Callable[[Sequence[int], Sequence[Sequence[str]], NDArray[np.float32]], NDArray[np.uint8]]


class RefinedTasks:
    """Refines the masks of tasks. Whether a class of a support photo suits MobileSAM is found out once.

    Args:
        dataset: The photos and masks.
        refine: How masks are refined.
        threshold: The probability from which a pixel belongs to a class.
    """

    def __init__(self, dataset: Dataset, refine: Refinement, threshold: float) -> None:
        self._dataset, self._refine, self._threshold = dataset, refine, threshold
        self._sam = shared_mobilesam(refine)
        self._suited: dict[tuple[str, int], bool] = {}
        self._lock = Lock()

    def of_query(self, query: str) -> RefineTask:
        """Return what refines the tasks of one query, which MobileSAM encodes at most once."""
        photo = self._dataset.image(query)
        sam = self._sam
        encode = None if sam is None else cache(lambda: sam.encode(photo))  # tasks without a mask never need it

        def refine(
            ways: Sequence[int], shots: Sequence[Sequence[str]], probabilities: NDArray[np.float32]
        ) -> NDArray[np.uint8]:
            maps = {str(way): map_ for way, map_ in zip(ways, probabilities, strict=True)}
            chosen = {str(way): maps[str(way)] for way, names in zip(ways, shots, strict=True) if self._may(way, names)}
            refined = refine_maps(photo, chosen, self._threshold, self._refine, sam, encode)
            return make_label_map([refined.maps.get(name, map_) for name, map_ in maps.items()], self._threshold)

        return refine

    def _may(self, way: int, names: Sequence[str]) -> bool:
        if self._refine != "auto":
            return True
        answers = [self._suits(name, way) for name in dict.fromkeys(names)]
        return sum(answers) > len(answers) / 2

    def _suits(self, name: str, way: int) -> bool:
        with self._lock:
            if (name, way) not in self._suited:
                self._suited[name, way] = examples_suit([self._dataset.mask(name) == way])
            return self._suited[name, way]
