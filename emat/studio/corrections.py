"""Thresholds and corrections: what the third step of the page does to a session."""

from emat.errors import EmatError
from emat.inference.example import Example
from emat.studio.examples import learn
from emat.studio.masks import label_map
from emat.studio.paint import Paint, Painted
from emat.studio.session import Session, StudioQuery


def find_query(session: Session, key: int) -> StudioQuery:
    """Return a query by its key."""
    query = session.queries.get(key)
    if query is None:
        raise EmatError("this photo is no longer on the page; choose another one")
    return query


def remove_photo(session: Session, key: int) -> None:
    """Remove a photo from the page. What it taught as a correction stays."""
    with session.lock:
        query = session.queries.pop(key, None)
        session.changed()
    if query is not None:
        session.forget(key, query.photo)


def set_threshold(session: Session, number: int, value: float) -> None:
    """Set the mask threshold of a class."""
    with session.lock:
        for shown in session.classes:
            if shown.number == number:
                session.thresholds[shown.name] = min(max(value, 0.0), 1.0)
        session.changed()


def shown_paint(session: Session, query: StudioQuery) -> Paint:
    """Return the masks of a query as the page shows them now, as paint."""
    if query.corrected is not None:
        return session.paint(query.key, query.photo)
    return label_map(session, query, session.numbers, query.photo.working)


def correct(session: Session, key: int, paint: Paint) -> None:
    """Keep what was painted as the photo's masks and make it an example; with nothing painted, a negative one.

    A second correction of the same photo takes the place of the first.
    """
    query = find_query(session, key)
    painted = Painted.of(paint, session.numbers)
    with session.lock:
        if query.corrected is not None:
            names = [example.name for example in session.segmenter.examples_]
            if query.photo.name in names:  # the last one of that name, which the first correction added
                session.segmenter.remove(len(names) - 1 - names[::-1].index(query.photo.name))
    if painted.masks:
        learn(session, painted.example(query.photo, sparse=False))
    else:
        learn(session, Example(query.photo.pixels, {}, name=query.photo.name))
    session.keep_paint(key, paint)
    with session.lock:
        query.corrected = tuple(painted.masks)
        query.changes += 1
        session.changed()
