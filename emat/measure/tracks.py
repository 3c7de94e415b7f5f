"""Objects through time: the same object keeps its number from frame to frame.

Objects of two frames that follow each other are the same if they overlap. Of several that overlap, those pairs are
taken that have most overlap together (intersection over union), each object in one pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from emat.measure.properties import Row

LEAST_OVERLAP = 0.1  # intersection over union; what overlaps less is another object


def with_tracks(rows: Iterable[Row], tracks: Mapping[str, Mapping[int, int]]) -> list[Row]:
    """Return the rows of objects, each with its track, which `Tracks.link` returned, beside its number."""
    linked: list[Row] = []
    for row in rows:
        linked.append({})
        for key, value in row.items():
            linked[-1][key] = value
            if key == "id":
                linked[-1]["track"] = tracks[str(row["class"])][int(value or 0)]
    return linked


class Tracks:
    """Numbers objects through the frames of one video or stack; numbers begin with 1.

    >>> tracks = Tracks()
    >>> frames = [np.array([[1, 1, 0, 2, 2]]), np.array([[2, 2, 0, 0, 0]]), np.array([[1, 1, 0, 2, 2]])]
    >>> [tracks.link({"cell": frame}) for frame in frames]
    [{'cell': {1: 1, 2: 2}}, {'cell': {2: 1}}, {'cell': {1: 1, 2: 3}}]
    """

    def __init__(self) -> None:
        self._before: dict[str, NDArray[np.int32]] = {}  # of each class: the tracks (H, W) of the frame before
        self._count = 0

    def link(self, objects: Mapping[str, NDArray[np.integer]]) -> dict[str, dict[int, int]]:
        """Take the objects of the next frame.

        Args:
            objects: The label image (H, W) of each class.

        Returns:
            The tracks of each class's objects, by their numbers. A track belongs to one class.
        """
        by_class: dict[str, dict[int, int]] = {}
        for name, labels in objects.items():
            tracks = by_class[name] = {}
            numbers = np.unique(labels[labels > 0])
            matches = self._matches(numbers, labels, self._before.get(name))
            for number in numbers.tolist():
                if number not in matches:
                    self._count += 1
                tracks[number] = matches.get(number, self._count)
            table = np.zeros(int(labels.max(initial=0)) + 1, np.int32)
            table[numbers] = [tracks[number] for number in numbers.tolist()]
            self._before[name] = table[labels]
        return by_class

    def _matches(
        self, numbers: NDArray[np.integer], labels: NDArray[np.integer], before: NDArray[np.int32] | None
    ) -> dict[int, int]:
        """The tracks of the objects that were there in the frame before."""
        from scipy.optimize import linear_sum_assignment  # takes a while to import, and few photos need it

        if before is None or before.shape != labels.shape or not len(numbers) or not before.any():
            return {}
        earlier = np.unique(before[before > 0])
        rows, columns = np.searchsorted(numbers, labels), np.searchsorted(earlier, before)
        both = (labels > 0) & (before > 0)
        shared = np.zeros((len(numbers), len(earlier)))
        np.add.at(shared, (rows[both], columns[both]), 1)
        areas = np.bincount(rows[labels > 0], minlength=len(numbers))[:, None]
        areas_before = np.bincount(columns[before > 0], minlength=len(earlier))[None]
        overlap = shared / (areas + areas_before - shared)
        pairs = zip(*linear_sum_assignment(-overlap), strict=True)
        return {int(numbers[i]): int(earlier[j]) for i, j in pairs if overlap[i, j] >= LEAST_OVERLAP}
