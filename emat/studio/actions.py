"""What the buttons do to a session. An `EmatError` tells the user what is wrong and what to do."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from emat.errors import EmatError
from emat.formats.class_names import BACKGROUND_NAMES, IGNORED_NAMES
from emat.images import Pixels, read_object_mask, read_photo, resize_mask
from emat.inference.example import Example, Mask
from emat.inference.segmenter import Segmenter
from emat.pictures.demo import demo_photos
from emat.studio.masks import label_map
from emat.studio.photos import MAX_PIXELS, StudioPhoto, masks_of, read_dropped, safe_name, studio_photo
from emat.studio.session import MOST_CLASSES, MOST_PHOTOS, Session, StudioClass, StudioQuery, new_session

LONGEST_CLASS = 40


@dataclass(frozen=True)
class SearchProgress:
    """How far `search` has come with the photos."""

    done: int
    count: int
    query: StudioQuery | None  # the one that has its prediction now


def add_classes(session: Session, text: str) -> None:
    """Add one class or several, separated by commas, semicolons or line breaks."""
    names = [" ".join(part.split()) for part in re.split(r"[,;\n]", text)]
    with session.lock:
        for name in filter(None, names):
            _add_class(session, name)


def remove_class(session: Session, number: int) -> None:
    """Remove a class. This is refused while an example shows it."""
    with session.lock:
        name = next((shown.name for shown in session.classes if shown.number == number), None)
        count = sum(name in example.classes for example in session.segmenter.examples_)
        if count:
            raise EmatError(f"{name} is shown by {count} of your examples; remove those first")
        session.classes = [shown for shown in session.classes if shown.number != number]
        if session.brush == name:
            session.brush = session.classes[0].name if session.classes else None


def choose_brush(session: Session, number: int) -> None:
    """Choose the class that the brush paints."""
    with session.lock:
        session.brush = next((shown.name for shown in session.classes if shown.number == number), session.brush)


def add_drafts(session: Session, files: Sequence[Path]) -> list[EmatError]:
    """Queue photos to be painted as examples; return what is wrong with those that cannot be read."""
    if not session.classes:
        raise EmatError("name at least one class in step 1 first, so that there is something to paint")
    photos, problems = _read_all(files, [draft.name for draft in session.drafts])
    with session.lock:
        session.drafts.extend(photos[: MOST_PHOTOS - len(session.drafts)])
    return problems


def skip_draft(session: Session) -> None:
    """Remove the photo in the editor without making it an example."""
    with session.lock:
        del session.drafts[:1]


def add_mask_file(session: Session, file: Path, layers: Sequence[Pixels]) -> dict[str, Mask]:
    """Return the masks in the editor with the mask of a file on top, for the class that the brush paints."""
    with session.lock:
        draft, brush = _draft(session), session.brush
    if brush is None:
        raise EmatError("name the class of this mask in step 1 first")
    name = safe_name(file.name)
    mask = read_object_mask(file.read_bytes(), name=name, max_pixels=MAX_PIXELS)
    if mask.shape != draft.size:
        raise EmatError(
            f"{name} is {mask.shape[1]} x {mask.shape[0]} pixels but the photo is {draft.size[1]} x {draft.size[0]}; "
            "save the mask at the photo's size"
        )
    size = _working_size(draft)
    painted = {other: under.copy() for other, under in masks_of(layers, session.colours, size).items()}
    small = resize_mask(mask.astype(np.uint8), size) > 0
    for under in painted.values():
        under &= ~small
    return {**painted, brush: small | painted.get(brush, False)}


def add_example(session: Session, layers: Sequence[Pixels]) -> None:
    """Make the photo in the editor an example, with the masks that are painted, and go on to the next photo."""
    with session.lock:
        draft = _draft(session)
    masks = masks_of(layers, session.colours, _working_size(draft))
    if not masks:
        raise EmatError(f"nothing is painted on {draft.name} yet; paint {session.brush or 'a class'} with the brush")
    _learn(session, draft, masks)
    with session.lock:
        session.drafts = [other for other in session.drafts if other is not draft]


def remove_example(session: Session, index: int) -> None:
    """Remove the example at `index`."""
    with session.lock:
        session.segmenter.remove(index)
        session.version += 1


def add_photos(session: Session, files: Sequence[Path]) -> list[EmatError]:
    """Add photos in which the classes are to be found; return what is wrong with those that cannot be read."""
    room = MOST_PHOTOS - len(session.queries)
    photos, problems = _read_all(files[:room], [query.photo.name for query in session.queries.values()])
    if len(files) > room:
        problems.append(EmatError(f"the page holds {MOST_PHOTOS} photos, so {len(files) - room} were left out"))
    with session.lock:
        for photo in photos:
            _ask(session, photo)
    return problems


def remove_photo(session: Session, key: int) -> None:
    """Remove a photo from the page."""
    with session.lock:
        session.queries.pop(key, None)
        if session.correcting == key:
            session.correcting = None


def search(session: Session) -> Iterator[SearchProgress]:
    """Predict every photo that has no prediction from the present examples; stop early when the examples change."""
    with session.lock:
        version, segmenter = session.version, session.segmenter
        todo = [query for query in session.queries.values() if query.version != version]
    if not segmenter.examples_:
        for query in todo:
            query.prediction, query.version = None, version
        return
    yield SearchProgress(0, len(todo), None)
    for done, query in enumerate(todo, start=1):
        prediction = segmenter.predict(query.photo.pixels)
        with session.lock:
            if session.version != version:
                return
            query.prediction = replace(prediction, photo=query.photo.pixels)  # one copy of it is enough
            query.version = version
        yield SearchProgress(done, len(todo), query)


def set_threshold(session: Session, number: int, value: float) -> None:
    """Set the mask threshold of a class."""
    with session.lock:
        for shown in session.classes:
            if shown.number == number:
                session.thresholds[shown.name] = min(max(value, 0.0), 1.0)


def begin_correction(session: Session, key: int) -> None:
    """Put a photo with its prediction into the editor."""
    with session.lock:
        if key not in session.queries:
            raise EmatError("this photo is no longer on the page; choose another one")
        session.correcting = key


def corrected_query(session: Session) -> StudioQuery:
    """Return the query that is being corrected."""
    query = session.queries.get(-1 if session.correcting is None else session.correcting)
    if query is None:
        raise EmatError("no photo is being corrected; choose Correct under one")
    return query


def shown_masks(session: Session, query: StudioQuery) -> dict[str, Mask]:
    """Return the masks (h, w) of a query as the page shows them now."""
    numbers = {shown.name: shown.number for shown in session.classes}
    labels = label_map(session, query, numbers, _working_size(query.photo))
    return {name: labels == number for name, number in numbers.items() if (labels == number).any()}


def finish_correction(session: Session, layers: Sequence[Pixels]) -> bool:
    """Keep what was painted as the photo's masks and make it an example; return False if nothing was painted."""
    query = corrected_query(session)
    masks = masks_of(layers, session.colours, _working_size(query.photo))
    if masks:
        _learn(session, query.photo, masks)
    with session.lock:
        query.corrected = masks
        session.correcting = None
    return bool(masks)


def cancel_correction(session: Session) -> None:
    """End a correction and keep the photo as it was."""
    with session.lock:
        session.correcting = None


def start_demo(session: Session) -> None:
    """Add the examples and photos of `emat demo`."""
    demo = demo_photos()
    for example in demo.examples:
        shown = example.read()
        with session.lock:
            for name in shown.masks:
                if name not in session.colours:
                    _add_class(session, name)
        photo = studio_photo(shown.photo, safe_name(example.title))
        size = _working_size(photo)
        small = {name: resize_mask(mask.astype(np.uint8), size) > 0 for name, mask in shown.masks.items()}
        _learn(session, photo, small)
    with session.lock:
        taken = [query.photo.name for query in session.queries.values()]
        for path in demo.queries.values():
            _ask(session, studio_photo(read_photo(path), safe_name(path.name, taken)))


def take_over(session: Session, segmenter: Segmenter) -> None:
    """Replace classes and examples by those of a fitted file; the photos stay."""
    fresh = new_session(segmenter)
    if len(fresh.classes) > MOST_CLASSES:
        raise EmatError(
            f"the file has {len(fresh.classes)} classes, but this page shows at most {MOST_CLASSES}; "
            "open a file with fewer classes"
        )
    with session.lock:
        session.segmenter, session.classes, session.brush = segmenter, fresh.classes, fresh.brush
        session.thresholds, session.correcting = {}, None
        session.version += 1


def start_over(session: Session, segmenter: Segmenter) -> None:
    """Remove everything that was done in this tab."""
    fresh = new_session(segmenter)
    with session.lock:
        take_over(session, segmenter)
        session.drafts, session.queries, session.first_shown = fresh.drafts, fresh.queries, 0


def save_fitted(session: Session, folder: Path) -> Path:
    """Write the fitted segmenter to `<first class>.emat` in `folder`."""
    names = session.segmenter.classes_
    if not names:
        raise EmatError("there is nothing to save yet; add an example in step 2 first")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{Path(safe_name(names[0].replace('.', '_'))).stem}.emat"
    session.segmenter.save(path)
    return path


def _add_class(session: Session, name: str) -> None:
    if len(name) > LONGEST_CLASS or not name.isprintable():
        raise EmatError(f"the class name {name[:LONGEST_CLASS]!r} is too long or not printable; choose a short word")
    if name.lower() in (*BACKGROUND_NAMES, *IGNORED_NAMES):
        raise EmatError(f"annotation files use {name!r} for pixels without a class; choose another name")
    if name.casefold() in {shown.name.casefold() for shown in session.classes}:
        raise EmatError(f"there is already a class {name!r}; choose another name")
    if len(session.classes) >= MOST_CLASSES:
        raise EmatError(f"the page has colours for {MOST_CLASSES} classes; remove one first")
    taken = {shown.number for shown in session.classes}
    number = next(number for number in range(1, MOST_CLASSES + 1) if number not in taken)
    session.classes.append(StudioClass(name, number))
    session.brush = session.brush or name


def _learn(session: Session, photo: StudioPhoto, masks: dict[str, Mask]) -> None:
    session.segmenter.add(Example(photo.pixels, masks, name=photo.name))
    with session.lock:
        session.version += 1


def _ask(session: Session, photo: StudioPhoto) -> None:
    session.queries[session.next_key] = StudioQuery(session.next_key, photo)
    session.next_key += 1


def _working_size(photo: StudioPhoto) -> tuple[int, int]:
    return photo.pixels.shape[0], photo.pixels.shape[1]


def _draft(session: Session) -> StudioPhoto:
    if not session.drafts:
        raise EmatError("there is no photo to paint on; drop one in step 2 first")
    return session.drafts[0]


def _read_all(files: Sequence[Path], taken: Sequence[str]) -> tuple[list[StudioPhoto], list[EmatError]]:
    photos: list[StudioPhoto] = []
    problems: list[EmatError] = []
    for file in files:
        try:
            photos.append(read_dropped(file, [*taken, *(photo.name for photo in photos)]))
        except EmatError as error:
            problems.append(error)
    return photos, problems
