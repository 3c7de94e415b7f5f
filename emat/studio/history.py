"""One step back: the examples as they were before the last change, and what the change did to the other photos.

Every change of the examples is remembered before it is made, with all that was learnt and found. So a step back takes
no time, and a correction can be judged by what it changed before it is kept.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from emat.errors import EmatError
from emat.inference.forecast import Forecast
from emat.outputs import whole_file
from emat.studio.session import Earlier, Session, StudioQuery

LEAST_CHANGE = 0.001  # of a photo's pixels: smaller changes are not worth a line
LEAST_LOSS = 0.02  # IoU on left-out examples: a smaller loss may be chance


@dataclass(frozen=True)
class Change:
    """What the last change did to a class on one photo: its share of the pixels before and after."""

    key: int
    photo: str
    name: str
    before: float
    after: float

    @property
    def size(self) -> float:
        """The share of the pixels that it gained or lost."""
        return abs(self.after - self.before)


def remember(session: Session, what: str, corrected: int | None = None) -> None:
    """Keep everything as it is now; what is done next can be taken back.

    Args:
        session: Whose state is kept.
        what: What is done next, in words: "b.png was corrected".
        corrected: The key of the photo that will be corrected.
    """
    with session.lock:
        paint = None if corrected is None else session.paint_file(corrected)
        is_current = session.forecast_version == session.version
        session.maps.keep_in(_folder(session))
        session.earlier = Earlier(
            what,
            corrected,
            session.segmenter.copy(),
            tuple(session.classes),
            dict(session.forecast) if is_current else {},
            is_current,
            # Of photos that were not looked at with these examples, nothing could be brought back.
            {
                key: replace(query, shares=dict(query.shares))
                for key, query in session.queries.items()
                if query.version == session.version
            },
            paint.read_bytes() if paint is not None and paint.is_file() else None,
        )


def step_back(session: Session) -> None:
    """Take back the last change of the examples.

    Raises:
        EmatError: There is nothing to take back.
    """
    with session.lock:
        earlier = session.earlier
        if earlier is None:
            raise EmatError("page-outdated", "there is nothing to take back; reload the page")
        session.earlier = None
        session.segmenter, session.classes = earlier.segmenter, list(earlier.classes)
        session.version += 1
        session.maps.bring_back(_folder(session))
        for key, before in earlier.queries.items():
            query = session.queries.get(key)
            if query is not None:
                changes, revision = query.changes + 1, query.revision
                vars(query).update(vars(before), version=session.version, changes=changes, revision=revision)
        if earlier.is_current:
            session.forecast, session.forecast_version = earlier.forecast, session.version
        _bring_back_paint(session, earlier)
        session.changed()
    shutil.rmtree(_folder(session), ignore_errors=True)


def keep(session: Session) -> None:
    """Note that the user has seen what the last change did, and keeps it; it can still be taken back."""
    with session.lock:
        if session.earlier is not None:
            session.earlier = replace(session.earlier, kept=True)
        session.changed_progress()


def changes(session: Session) -> list[Change]:
    """What the last change did to the other photos that have been looked at since, the largest changes first."""
    earlier = session.earlier
    if earlier is None:
        return []
    changed = []
    for key, before in earlier.queries.items():
        query = session.queries.get(key)
        if query is None or query.version != session.version or key == earlier.corrected or query.is_painted:
            continue
        for name in session.numbers:
            change = Change(key, query.photo.name, name, _share(session, before, name), _share(session, query, name))
            if change.size >= LEAST_CHANGE:
                changed.append(change)
    return sorted(changed, key=lambda change: -change.size)


def forecast_change(session: Session) -> tuple[float, float] | None:
    """The mean IoU on left-out examples before and after the last change, of the examples that were there both times.

    None as long as one of them is not known.
    """
    earlier = session.earlier
    if earlier is None or not earlier.forecast or session.forecast_version != session.version:
        return None
    # An example is known by its picture: the example itself is made anew where strokes are filled in.
    pictures = [id(example.thumbnail) for example in session.segmenter.examples_]
    same = {
        index: pictures.index(id(example.thumbnail))
        for index, example in enumerate(earlier.segmenter.examples_)
        if id(example.thumbnail) in pictures
    }
    before, after = _left_out(earlier.forecast), _left_out(session.forecast)
    both = [(name, index, same[index]) for name, index in before if (name, same.get(index, -1)) in after]
    if not both:
        return None
    count = len(both)
    return (
        sum(before[name, old] for name, old, _ in both) / count,
        sum(after[name, new] for name, _, new in both) / count,
    )


def is_worse(change: tuple[float, float] | None) -> bool:
    """Whether the left-out examples agree less than before by more than chance.

    >>> is_worse((0.6, 0.5)), is_worse((0.6, 0.59)), is_worse(None)
    (True, False, False)
    """
    return change is not None and change[0] - change[1] >= LEAST_LOSS


def _left_out(forecast: Mapping[str, Forecast]) -> dict[tuple[str, int], float]:
    return {(name, index): value for name, one in forecast.items() for index, value in one.left_out.items()}


def _share(session: Session, query: StudioQuery, name: str) -> float:
    """The share of a class as the photo looks now, or as it looked before it was refined."""
    shares = query.shares.get(session.look_of(query)) or next(iter(query.shares.values()), {})
    return shares.get(name, 0.0)


def _bring_back_paint(session: Session, earlier: Earlier) -> None:
    if earlier.corrected is None:
        return
    file = session.paint_file(earlier.corrected)
    if earlier.paint is None:
        file.unlink(missing_ok=True)
    else:
        with whole_file(file) as unfinished:
            unfinished.write_bytes(earlier.paint)


def _folder(session: Session) -> Path:
    return session.folder / "maps-before"
