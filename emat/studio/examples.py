"""Classes, drafts, examples and corrections: what the first three steps of the page do to a session."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from scipy import ndimage

from emat.errors import EmatError
from emat.formats.class_names import check_class_name, tidy_name
from emat.formats.regions import TOUCHING
from emat.images import read_photo
from emat.inference.example import Example
from emat.inference.example_set import FittedExample, with_name
from emat.inference.segmenter import Segmenter
from emat.pictures.demo import demo_photos
from emat.studio.history import remember
from emat.studio.masks import label_map, note_drawn
from emat.studio.photos import (
    BACKGROUND_PAINT,
    Paint,
    Painted,
    StudioPhoto,
    keep_dropped,
    keep_photo,
    paint_of,
    read_dropped,
    safe_name,
)
from emat.studio.session import (
    MOST_CLASSES,
    MOST_DRAFTS,
    MOST_PHOTOS,
    Draft,
    Session,
    StackFile,
    StudioClass,
    StudioQuery,
    classes_of,
)
from emat.studio.stacks import Choice, check_choice, chosen_planes, frame_of, name_of, read_planes

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
    name = _class_name(session, name)
    if len(session.classes) >= MOST_CLASSES:
        raise EmatError(
            "too-many-classes", f"the page has colours for {MOST_CLASSES} classes; remove one before you add {name!r}"
        )
    taken = set(session.numbers.values())
    number = next(number for number in range(1, MOST_CLASSES + 1) if number not in taken)
    session.classes.append(StudioClass(name, number))


def _class_name(session: Session, name: str, number: int = 0) -> str:
    """Return a name for the class with this number, without needless spaces; EmatError if it cannot be."""
    name = tidy_name(name)
    if len(name) > LONGEST_CLASS:
        raise EmatError("bad-class-name", f"the class name {name[:LONGEST_CLASS]!r} is too long; shorten it")
    check_class_name(name)
    if name.casefold() in {shown.name.casefold() for shown in session.classes if shown.number != number}:
        raise EmatError("given-twice", f"there is already a class {name!r}; choose another name")
    return name


def rename_class(session: Session, number: int, to: str) -> None:
    """Give a class another name, everywhere; nothing is learnt or looked at again."""
    with session.lock:
        name = next((shown.name for shown in session.classes if shown.number == number), None)
        if name is None:
            raise EmatError("unknown-class", "this class is gone; reload the page")
        to = _class_name(session, to, number)
        if to == name:
            return

        renamed = partial(with_name, name=name, to=to)

        if name in session.segmenter.classes_:
            session.segmenter.rename(name, to)
        session.maps.rename(name, to)
        session.classes = [StudioClass(to, number) if shown.number == number else shown for shown in session.classes]
        session.thresholds, session.forecast = renamed(session.thresholds), renamed(session.forecast)
        session.earlier = None  # it knows the other name
        for query in session.queries.values():
            query.scores = None if query.scores is None else renamed(query.scores)
            query.peaks, query.rules = renamed(query.peaks), renamed(query.rules)
            query.crisp_peaks = None if query.crisp_peaks is None else renamed(query.crisp_peaks)
            query.shares = {look: renamed(shares) for look, shares in query.shares.items()}
            if query.corrected is not None:
                query.corrected = tuple(to if corrected == name else corrected for corrected in query.corrected)
        session.saved_version = -1  # the file of the examples has the other name
        session.changed()


def remove_class(session: Session, number: int) -> None:
    """Remove a class. This is refused while an example shows it."""
    with session.lock:
        name = next((shown.name for shown in session.classes if shown.number == number), None)
        count = sum(name in example.classes for example in session.segmenter.examples_)
        if count:
            raise EmatError("class-in-use", f"{name} is shown by {count} of your examples; remove those first")
        session.classes = [shown for shown in session.classes if shown.number != number]
        for draft in session.drafts.values():  # the next class with this number must not inherit its paint
            paint = session.paint(draft.key, draft.photo)
            session.keep_paint(draft.key, np.where(paint == number, 0, paint).astype(np.uint8))
        session.changed()


def add_draft(session: Session, data: bytes, name: str) -> Draft:
    """Queue a photo to be painted as an example; EmatError says what is wrong with it."""
    _check_room(session)
    taken, key = [draft.photo.name for draft in session.drafts.values()], session.new_key()
    return _queue(
        session, key, read_dropped(data, safe_name(name, taken), session.photo_file(key), session.segmenter.reading)
    )


def _check_room(session: Session) -> None:
    if len(session.drafts) >= MOST_DRAFTS:
        raise EmatError(
            "too-many-photos", f"{MOST_DRAFTS} photos are waiting to be painted; add or skip some of them first"
        )


def _queue(session: Session, key: int, photo: StudioPhoto) -> Draft:
    draft = Draft(key, photo)
    with session.lock:
        session.drafts[key] = draft
        session.changed()
    return draft


def edited_index(session: Session, draft: Draft) -> int | None:
    """Return the index of the example that a draft edits; None if it edits none, or one that was removed."""
    examples = session.segmenter.examples_
    return next((i for i, one in enumerate(examples) if draft.edits is not None and one.thumbnail is draft.edits), None)


def find_draft(session: Session, key: int) -> Draft:
    """Return a draft by its key."""
    draft = session.drafts.get(key)
    if draft is None:
        raise EmatError("no-such-photo", "this photo is not waiting to be painted any more; choose another one")
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
            "empty-mask",
            f"no class is painted on {draft.photo.name} yet; paint one, or say that the photo shows none of them",
        )
    _learn_draft(session, draft, painted.example(draft.photo, draft.sparse))


def add_negative(session: Session, key: int) -> None:
    """Make a photo an example that shows none of the classes."""
    draft = find_draft(session, key)
    _learn_draft(session, draft, Example(draft.photo.pixels, {}, name=draft.photo.name))


def _learn_draft(session: Session, draft: Draft, example: Example) -> None:
    """Make an example of a draft; one that was edited keeps its place."""
    index = edited_index(session, draft)
    remember(session, f"{draft.photo.name} was {'edited' if index is not None else 'added'}")
    learn(session, example, index)
    skip_draft(session, draft.key)


def learn(session: Session, example: Example, instead_of: int | None = None) -> None:
    """Give the segmenter one more example, or one in the place of the example with an index."""
    session.segmenter.add(example, instead_of)
    with session.lock:
        session.version += 1
        session.changed()


def remove_example(session: Session, index: int) -> None:
    """Remove the example at `index`."""
    with session.lock:
        remember(session, f"{_example(session, index).name} was removed")
        session.segmenter.remove(index)
        session.version += 1
        session.changed()


def move_example(session: Session, index: int, by: int) -> None:
    """Move an example forward or back in the list; what was found stays as it is."""
    with session.lock:
        _example(session, index)
        to = min(max(index + by, 0), len(session.segmenter.examples_) - 1)
        session.segmenter.move(index, to)
        session.earlier = None  # it knows the other order
        session.version += 1  # so that the forecast, which knows examples by their places, is made again
        for query in session.queries.values():
            if query.version == session.version - 1:
                query.version = session.version
        session.changed()


def edit_example(session: Session, index: int) -> Draft:
    """Open an example in the editor, with its paint. It stays as it is until it is saved."""
    with session.lock:
        example = _example(session, index)
        for draft in session.drafts.values():
            if edited_index(session, draft) == index:
                return draft
        small = example.working or example.thumbnail
        if small is None:
            raise EmatError("photo-not-kept", f"no picture of {example.name} was kept; add its photo again")
        _check_room(session)
        key = session.new_key()
        draft = _queue(session, key, keep_photo(small.photo, safe_name(example.name), session.photo_file(key)))
        masks = {name: mask == 1 for name, mask in small.masks.items() if name in session.numbers}
        draft.sparse = example.working is not None and example.working.sparse
        paint = paint_of(masks, session.numbers, draft.photo.working)
        if draft.sparse and example.working is not None:
            paint[(paint == 0) & (example.working.other == 0)] = BACKGROUND_PAINT
        session.keep_paint(draft.key, paint)
        draft.edits = example.thumbnail
    return draft


def _example(session: Session, index: int) -> FittedExample:
    examples = session.segmenter.examples_
    if not 0 <= index < len(examples):
        raise EmatError("unknown-example", "this example is gone; reload the page")
    return examples[index]


def add_query(session: Session, photo: StudioPhoto, key: int) -> None:
    """Add a photo in which the classes are to be found."""
    with session.lock:
        session.queries[key] = StudioQuery(key, photo)
        session.changed_photo(session.queries[key])


def add_photo(session: Session, data: bytes, name: str) -> None:
    """Read a photo in which the classes are to be found; EmatError says what is wrong with it."""
    if len(session.queries) >= MOST_PHOTOS:
        raise EmatError("too-many-photos", f"the page holds {MOST_PHOTOS} photos, so {safe_name(name)} was left out")
    key = session.new_key()
    taken = [query.photo.name for query in session.queries.values()]
    reading = session.segmenter.reading
    add_query(session, read_dropped(data, safe_name(name, taken), session.photo_file(key), reading), key)


def add_planes(session: Session, stack: StackFile, choice: Choice) -> Iterator[Draft | StudioQuery]:
    """Make photos of the chosen planes of a stack, one after the other: drafts, or photos to look at.

    Raises:
        EmatError: The stack does not have them, or there is no room for so many.
    """
    check_choice(stack, choice)
    is_draft, count = stack.to == "examples", len(chosen_planes(stack, choice))
    room = MOST_DRAFTS - len(session.drafts) if is_draft else MOST_PHOTOS - len(session.queries)
    if count > room:
        raise EmatError("too-many-photos", f"there is room for {room} more, but these are {count}; take fewer of them")
    taken = [one.photo.name for one in (session.drafts if is_draft else session.queries).values()]
    for plane, photo in read_planes(session, stack, choice):
        name, key = safe_name(name_of(stack, plane, count == 1), taken), session.new_key()
        taken.append(name)
        kept = keep_dropped(photo, name, session.photo_file(key), stack.path)
        kept = replace(kept, frame=frame_of(stack, plane) if count > 1 else None)
        if is_draft:
            yield _queue(session, key, kept)
        else:
            add_query(session, kept, key)
            yield session.queries[key]


def remove_stack(session: Session, stack: int) -> None:
    """Remove all photos of a stack or a video from the page."""
    with session.lock:
        keys = [key for key, query in session.queries.items() if query.photo.frame and query.photo.frame.stack == stack]
    for key in keys:
        remove_photo(session, key)


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
            "too-many-classes",
            f"the file has {len(classes)} classes, but this page shows at most {MOST_CLASSES}; "
            "open a file with fewer classes",
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
        raise EmatError("no-such-photo", "this photo is no longer on the page; choose another one")
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


def found_masks(session: Session, query: StudioQuery) -> Paint:
    """Return the masks of a photo as they were found, as paint, on which a correction begins; they are kept for it."""
    masks = label_map(session, replace(session.snapshot(query), corrected=None), session.numbers, query.photo.working)
    session.keep_found(query.key, masks)
    return masks


def touched(session: Session, query: StudioQuery) -> Paint:
    """Return what the user has decided on a photo in an earlier correction, as paint."""
    paint = session.paint(query.key, query.photo)
    return np.where(paint == 0, BACKGROUND_PAINT, paint).astype(np.uint8) if query.is_painted else paint


def correct(session: Session, key: int, paint: Paint, whole: bool = False) -> None:
    """Make an example of what the user corrected on a photo, and keep it as part of the photo's masks.

    A second correction of the same photo takes the place of the first.

    Args:
        session: Whose photo it is.
        key: The photo's key.
        paint: What the user touched; 0 elsewhere. Of a whole photo, all of it, where 0 is background.
        whole: Whether everything on the photo is right now. Otherwise only what was touched is learnt, and the objects
            that it touches. A segmenter that does not learn needs whole photos.
    """
    query = find_query(session, key)
    masks = session.found(key, query.photo)
    if masks is None:
        masks = found_masks(session, query)
    if not whole and session.segmenter.learner is None:
        paint, whole = np.where(paint == 0, masks, paint).astype(np.uint8), True
    if not whole:
        paint = with_touched_objects(paint, masks)
    if whole:
        paint = np.where(paint == BACKGROUND_PAINT, 0, paint).astype(np.uint8)
    painted = Painted.of(paint, session.numbers)
    if not whole and not painted.masks and not painted.background.any():
        raise EmatError("empty-mask", f"nothing is corrected on {query.photo.name} yet; paint or click what is wrong")
    remember(session, f"{query.photo.name} was corrected", key)
    with session.lock:
        names = [example.name for example in session.segmenter.examples_]
        # The last one of that name is what the first correction added.
        again = query.corrected is not None and query.photo.name in names
        index = len(names) - 1 - names[::-1].index(query.photo.name) if again else None
    if painted.masks or not whole:
        learn(session, painted.example(query.photo, sparse=not whole), index)
    else:
        learn(session, Example(query.photo.pixels, {}, name=query.photo.name), index)
    session.keep_paint(key, paint)
    with session.lock:
        query.corrected, query.whole = tuple(painted.masks), whole
        query.changes += 1
        note_drawn(session, query)
        session.changed()


def with_touched_objects(paint: Paint, masks: Paint) -> Paint:
    """Return what a correction says: the touched pixels, and the whole of each object that was touched.

    Who cuts off or adds a part of an object has looked at the rest of it.

    Args:
        paint: (h, w), what was touched; 0 elsewhere.
        masks: (h, w), those that were found.
    """
    labels = np.where(paint == 0, masks, paint).astype(np.uint8)
    corrected = paint.copy()
    for value in np.unique(labels[(labels > 0) & (labels < BACKGROUND_PAINT)]):
        mask = labels == value
        before, _ = ndimage.label(masks == value, TOUCHING)
        cut = np.isin(before, np.setdiff1d(before[paint > 0], 0))  # objects that lost or confirmed a part
        parts, _ = ndimage.label(mask, TOUCHING)
        corrected[np.isin(parts, np.setdiff1d(parts[mask & (cut | (paint == value))], 0))] = value
    return corrected


def reject_object(session: Session, key: int, x: float, y: float) -> str:
    """Say that an object that was found is not what it was taken for; it is learnt as a negative region.

    Args:
        session: Whose photo it is.
        key: The photo's key.
        x: Where the object is, in shares of the photo's width.
        y: In shares of its height.

    Returns:
        The class that it was taken for.

    Raises:
        EmatError: Nothing was found there.
    """
    query = find_query(session, key)
    session.keep_found(key, shown := label_map(session, session.snapshot(query), session.numbers, query.photo.working))
    height, width = shown.shape
    row, column = min(max(int(y * height), 0), height - 1), min(max(int(x * width), 0), width - 1)
    name = next((name for name, number in session.numbers.items() if number == shown[row, column]), None)
    if name is None:
        raise EmatError("bad-click", "nothing was found at this place; click an object that was found")
    parts, _ = ndimage.label(shown == shown[row, column], TOUCHING)
    paint = touched(session, query)
    paint[parts == parts[row, column]] = BACKGROUND_PAINT
    correct(session, key, paint, query.is_painted)
    return name


def none_here(session: Session, key: int) -> None:
    """Say that a photo shows none of the classes."""
    query = find_query(session, key)
    correct(session, key, np.zeros(query.photo.working, np.uint8), whole=True)
