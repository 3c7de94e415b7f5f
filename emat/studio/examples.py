"""Classes, drafts, examples and corrections: what the first three steps of the page do to a session."""

import re
from collections.abc import Callable

import numpy as np

from emat.errors import EmatError
from emat.formats.class_names import BACKGROUND_NAMES, IGNORED_NAMES
from emat.images import read_photo
from emat.inference.example import Example
from emat.inference.segmenter import Segmenter
from emat.pictures.demo import demo_photos
from emat.studio.masks import label_map
from emat.studio.photos import Paint, Painted, StudioPhoto, keep_photo, paint_of, read_dropped, safe_name
from emat.studio.session import (
    MOST_CLASSES,
    MOST_DRAFTS,
    MOST_PHOTOS,
    Draft,
    Session,
    StudioClass,
    StudioQuery,
    classes_of,
)

LONGEST_CLASS = 40


def add_classes(session: Session, text: str) -> None:
    """Add one class or several, separated by commas, semicolons or line breaks."""
    names = [" ".join(part.split()) for part in re.split(r"[,;\n]", text)]
    with session.lock:
        for name in filter(None, names):
            add_class(session, name)
        session.changed()


def add_class(session: Session, name: str) -> None:
    """Add one class, with the first colour that is free."""
    if len(name) > LONGEST_CLASS or not name.isprintable():
        raise EmatError(f"the class name {name[:LONGEST_CLASS]!r} is too long or not printable; choose a short word")
    if name.lower() in (*BACKGROUND_NAMES, *IGNORED_NAMES):
        raise EmatError(f"annotation files use {name!r} for pixels without a class; choose another name")
    if name.casefold() in {shown.name.casefold() for shown in session.classes}:
        raise EmatError(f"there is already a class {name!r}; choose another name")
    if len(session.classes) >= MOST_CLASSES:
        raise EmatError(f"the page has colours for {MOST_CLASSES} classes; remove one first")
    taken = set(session.numbers.values())
    number = next(number for number in range(1, MOST_CLASSES + 1) if number not in taken)
    session.classes.append(StudioClass(name, number))


def remove_class(session: Session, number: int) -> None:
    """Remove a class. This is refused while an example shows it."""
    with session.lock:
        name = next((shown.name for shown in session.classes if shown.number == number), None)
        count = sum(name in example.classes for example in session.segmenter.examples_)
        if count:
            raise EmatError(f"{name} is shown by {count} of your examples; remove those first")
        session.classes = [shown for shown in session.classes if shown.number != number]
        for draft in session.drafts.values():  # the next class with this number must not inherit its paint
            paint = session.paint(draft.key, draft.photo)
            session.keep_paint(draft.key, np.where(paint == number, 0, paint).astype(np.uint8))
        session.changed()


def add_draft(session: Session, data: bytes, name: str) -> Draft:
    """Queue a photo to be painted as an example; EmatError says what is wrong with it."""
    taken = [draft.photo.name for draft in session.drafts.values()]
    return _queue(session, lambda key: read_dropped(data, safe_name(name, taken), session.photo_file(key)))


def _queue(session: Session, keep: Callable[[int], StudioPhoto]) -> Draft:
    if len(session.drafts) >= MOST_DRAFTS:
        raise EmatError(f"{MOST_DRAFTS} photos are waiting to be painted; add or skip some of them first")
    key = session.new_key()
    draft = Draft(key, keep(key))
    with session.lock:
        session.drafts[key] = draft
        session.changed()
    return draft


def find_draft(session: Session, key: int) -> Draft:
    """Return a draft by its key."""
    draft = session.drafts.get(key)
    if draft is None:
        raise EmatError("this photo is not waiting to be painted any more; choose another one")
    return draft


def skip_draft(session: Session, key: int) -> None:
    """Remove a photo without making it an example."""
    with session.lock:
        draft = session.drafts.pop(key, None)
        session.changed()
    if draft is not None:
        session.forget(key, draft.photo)


def set_sparse(session: Session, key: int, sparse: bool) -> None:
    """Say whether only what is painted counts on a photo."""
    with session.lock:
        find_draft(session, key).sparse = sparse
        session.changed()


def add_example(session: Session, key: int, paint: Paint) -> None:
    """Make a photo an example, with what is painted on it."""
    draft = find_draft(session, key)
    painted = Painted.of(paint, session.numbers)
    if not painted.masks:
        raise EmatError(
            f"no class is painted on {draft.photo.name} yet; paint one, or say that the photo shows none of them"
        )
    learn(session, painted.example(draft.photo, draft.sparse))
    skip_draft(session, key)


def add_negative(session: Session, key: int) -> None:
    """Make a photo an example that shows none of the classes."""
    draft = find_draft(session, key)
    learn(session, Example(draft.photo.pixels, {}, name=draft.photo.name))
    skip_draft(session, key)


def learn(session: Session, example: Example) -> None:
    """Give the segmenter one more example."""
    session.segmenter.add(example)
    with session.lock:
        session.version += 1
        session.changed()


def remove_example(session: Session, index: int) -> None:
    """Remove the example at `index`."""
    with session.lock:
        session.segmenter.remove(index)
        session.version += 1
        session.changed()


def edit_example(session: Session, index: int) -> Draft:
    """Take an example back into the editor, with its paint."""
    with session.lock:
        examples = session.segmenter.examples_
        if not 0 <= index < len(examples):
            raise EmatError("this example is gone; reload the page")
        example = examples[index]
        small = example.working or example.thumbnail
        if small is None:
            raise EmatError(f"no picture of {example.name} was kept; add its photo again")
        draft = _queue(session, lambda key: keep_photo(small.photo, safe_name(example.name), session.photo_file(key)))
        masks = {name: mask == 1 for name, mask in small.masks.items() if name in session.numbers}
        session.keep_paint(draft.key, paint_of(masks, session.numbers, draft.photo.working))
        draft.sparse = example.working is not None and example.working.sparse
        remove_example(session, index)
    return draft


def add_query(session: Session, photo: StudioPhoto, key: int) -> None:
    """Add a photo in which the classes are to be found."""
    with session.lock:
        session.queries[key] = StudioQuery(key, photo)
        session.changed_photo(session.queries[key])


def add_photo(session: Session, data: bytes, name: str) -> None:
    """Read a photo in which the classes are to be found; EmatError says what is wrong with it."""
    if len(session.queries) >= MOST_PHOTOS:
        raise EmatError(f"the page holds {MOST_PHOTOS} photos, so {safe_name(name)} was left out")
    key = session.new_key()
    taken = [query.photo.name for query in session.queries.values()]
    add_query(session, read_dropped(data, safe_name(name, taken), session.photo_file(key)), key)


def start_demo(session: Session) -> None:
    """Add the examples and photos of `emat demo`."""
    demo = demo_photos()
    for example in demo.examples:
        shown = example.read()
        with session.lock:
            for name in shown.masks:
                if name not in session.numbers:
                    add_class(session, name)
        learn(session, Example(shown.photo, shown.masks, name=safe_name(example.title)))
    for path in demo.queries.values():
        key = session.new_key()
        taken = [query.photo.name for query in session.queries.values()]
        add_query(session, keep_photo(read_photo(path), safe_name(path.name, taken), session.photo_file(key)), key)


def take_over(session: Session, segmenter: Segmenter) -> None:
    """Replace classes and examples by those of a fitted file; the photos stay."""
    classes = classes_of(segmenter)
    if len(classes) > MOST_CLASSES:
        raise EmatError(
            f"the file has {len(classes)} classes, but this page shows at most {MOST_CLASSES}; "
            "open a file with fewer classes"
        )
    with session.lock:
        session.segmenter, session.classes, session.thresholds = segmenter, classes, {}
        for query in session.queries.values():
            query.corrected = None  # it was painted with other classes
        session.version += 1
        session.changed()


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
        session.changed_progress()
    if query is not None:
        session.forget(key, query.photo)


def set_threshold(session: Session, number: int, value: float) -> None:
    """Set the mask threshold of a class."""
    with session.lock:
        for shown in session.classes:
            if shown.number == number:
                session.thresholds[shown.name] = min(max(value, 0.0), 1.0)
        session.changed()


def set_crisp(session: Session, crisp: bool) -> None:
    """Say whether refined masks are shown."""
    with session.lock:
        session.crisp = crisp
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
