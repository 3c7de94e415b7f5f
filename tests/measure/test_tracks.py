"""Objects keep their number from frame to frame."""

import numpy as np

from emat.measure.properties import Row
from emat.measure.tracks import Tracks, with_tracks


def boxes(*lefts: int) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    labels = np.zeros((30, 100), np.int32)
    for number, left in enumerate(lefts, start=1):
        labels[10:20, left : left + 10] = number
    return labels


def test_moving_objects_keep_their_tracks_whatever_their_numbers() -> None:
    tracks = Tracks()
    assert tracks.link({"cell": boxes(5, 40)}) == {"cell": {1: 1, 2: 2}}
    assert tracks.link({"cell": boxes(43, 8)}) == {"cell": {1: 2, 2: 1}}
    assert tracks.link({"cell": boxes(11, 70, 46)}) == {"cell": {1: 1, 2: 3, 3: 2}}, "one is new"
    assert tracks.link({"cell": boxes()}) == {"cell": {}}
    assert tracks.link({"cell": boxes(11)}) == {"cell": {1: 4}}, "what was gone is another object"


def test_each_object_has_one_track_and_the_larger_overlap_wins() -> None:
    tracks = Tracks()
    tracks.link({"cell": boxes(20)})
    assert tracks.link({"cell": boxes(13, 21)}) == {"cell": {1: 2, 2: 1}}


def test_classes_are_linked_by_themselves() -> None:
    tracks = Tracks()
    tracks.link({"cell": boxes(20), "dirt": boxes(60)})
    assert tracks.link({"cell": boxes(60), "dirt": boxes(20)}) == {"cell": {1: 3}, "dirt": {1: 4}}


def test_a_track_stands_beside_the_number() -> None:
    rows: list[Row] = [{"class": "cell", "id": 3, "area": 5}, {"class": "dirt", "id": 3, "area": 6}]
    cell, dirt = with_tracks(rows, {"cell": {3: 7}, "dirt": {3: 8}})
    assert list(cell) == ["class", "id", "track", "area"]
    assert (cell["track"], dirt["track"]) == (7, 8)
