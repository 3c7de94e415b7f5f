"""Objects through the frames of a stack or video: the same object keeps its number, by `emat.measure.tracks`."""

import threading
from dataclasses import dataclass, field

from emat.measure.tracks import Tracks
from emat.studio.masks import label_map, single_objects
from emat.studio.session import Session, StudioQuery

MOST_KEPT = 8  # sequences of frames whose numbers are kept

Numbers = dict[str, dict[int, int]]  # of each class: the track of each of its objects, by the object's own number


@dataclass(eq=False)
class _Linked:
    """How far the frames of one sequence are linked."""

    tracks: Tracks = field(default_factory=Tracks)
    states: list[object] = field(default_factory=list)  # of each frame, when it was linked
    numbers: list[Numbers] = field(default_factory=list)


_kept: dict[object, _Linked] = {}
_linking = threading.Lock()


def has_tracks(query: StudioQuery) -> bool:
    """Whether the objects of a photo are linked with those of other photos: it is a frame of a sequence in time."""
    return query.photo.frame is not None and query.photo.frame.t is not None


def frames_before(session: Session, query: StudioQuery) -> list[StudioQuery]:
    """The frames of a sequence that have masks, up to this one, which is the last."""
    frame = query.photo.frame
    if frame is None or frame.t is None:
        return [query]
    with session.lock:
        earlier = [
            (other.photo.frame.t, other)
            for other in session.queries.values()
            if other.photo.frame is not None
            and (other.photo.frame.stack, other.photo.frame.z) == (frame.stack, frame.z)
            and other.photo.frame.t is not None
            and other.photo.frame.t < frame.t
            and (other.scores is not None or other.corrected is not None)
        ]
    return [*(other for _, other in sorted(earlier, key=lambda dated: dated[0])), query]


def tracks_of(session: Session, query: StudioQuery, size: tuple[int, int]) -> Numbers:
    """Return the tracks of the single objects of a photo, at a size (H, W).

    Who asks about a frame waits for all frames before it that were not linked yet.

    Args:
        session: Whose photo it is.
        query: The photo, with masks.
        size: At which the objects were taken apart: `photo.working` or `photo.size`.
    """
    frames, frame = frames_before(session, query), query.photo.frame
    states = [
        (shown.key, shown.changes, shown.corrected, shown.whole, session.look_of(shown), tuple(session.numbers))
        for shown in frames
    ]
    key = (session.id, frame and (frame.stack, frame.z), size == query.photo.working)
    with _linking:
        linked = _kept.get(key)
        shared = 0 if linked is None else min(len(linked.states), len(states))
        if linked is None or linked.states[:shared] != states[:shared]:
            linked = _kept[key] = _Linked()
            while len(_kept) > MOST_KEPT:
                _kept.pop(next(iter(_kept)))
        for shown, state in list(zip(frames, states, strict=True))[len(linked.states) :]:
            linked.numbers.append(_link(session, session.snapshot(shown), size, linked.tracks))
            linked.states.append(state)
        return linked.numbers[len(frames) - 1]


def _link(session: Session, query: StudioQuery, size: tuple[int, int], tracks: Tracks) -> Numbers:
    labels = label_map(session, query, session.numbers, size)
    objects = {name: single_objects(session, query, name, labels == number) for name, number in session.numbers.items()}
    return tracks.link({name: instances.label_image for name, instances in objects.items()})
