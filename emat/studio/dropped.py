"""Files that are dropped together in step 2: photos, masks, and LabelMe, COCO and YOLO files.

A photo with masks or outlines becomes an example at once; the others wait to be painted.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np

from emat.errors import EmatError
from emat.formats.coco import read_coco
from emat.formats.drawing import Drawing
from emat.formats.labelme import is_labelme, read_labelme
from emat.formats.yolo import read_yolo, read_yolo_names
from emat.images import MASK_SUFFIXES, PHOTO_SUFFIXES, VOID, read_mask, read_object_mask
from emat.images.sources import PHOTO_FORMATS, load_image
from emat.inference.example import Mask
from emat.studio.examples import add_class, add_draft, add_negative, find_draft, learn, skip_draft
from emat.studio.photos import MAX_PIXELS, Painted, paint_of, safe_name
from emat.studio.session import Draft, Session
from emat.studio.words import page_sentence

CLASS_LISTS = ("data.yaml", "dataset.yaml", "data.yml", "classes.txt", "labels.txt")
FEW_COLOURS = 16  # a picture with no more colours may be a mask
USUAL_ENDINGS = ("mask", "masks", "label", "labels", "seg", "segmentation", "gt", "annotation")
ONLY_CLASS = "object"  # the class of a first mask that names none

FileList = Sequence[tuple[str, Path]]  # the name of each file as it was dropped, and where it is


@dataclass
class Outlines:
    """What annotation files say, by the stems of photos."""

    drawings: dict[str, Drawing] = field(default_factory=dict)
    yolo: dict[str, Path] = field(default_factory=dict)
    yolo_names: tuple[str, ...] = ()


def sort_drop(session: Session, files: FileList) -> list[str]:
    """Make examples and drafts of files that were dropped together; return sentences about what was left out."""
    problems: list[str] = []
    outlines = _read_outlines(session, files, problems)
    pictures = [(name, path) for name, path in files if name.lower().endswith(PHOTO_SUFFIXES)]
    masks = _pair_masks(session, pictures)
    used = {name for paired in masks.values() for name, _ in paired}
    waiting = {stem(draft.photo.name): draft for draft in session.drafts.values()}
    drafts: dict[str, Draft] = {}
    for name, path in pictures:
        if name not in used:
            try:
                drafts[stem(name)] = add_draft(session, path.read_bytes(), name)
            except EmatError as error:
                problems.append(page_sentence(error))
    for photo, draft in {**waiting, **drafts}.items():
        try:
            _complete(session, draft, outlines, photo, masks.get(photo, ()))
        except EmatError as error:
            problems.append(page_sentence(error))
    if unused := sorted({*outlines.drawings, *outlines.yolo} - {*waiting, *drafts}):
        more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        problems.append(f"the outlines of {unused[0]}{more} have no photo here; drop photos and outlines together")
    return problems


def _read_outlines(session: Session, files: FileList, problems: list[str]) -> Outlines:
    outlines = Outlines(yolo_names=tuple(session.numbers))
    for name, path in files:
        kind = PurePosixPath(name.lower())
        try:
            if kind.name in CLASS_LISTS:
                outlines.yolo_names = read_yolo_names(path)
            elif kind.suffix == ".json" and is_labelme(path):
                drawing = read_labelme(path)
                outlines.drawings[stem(drawing.photo)] = drawing
            elif kind.suffix == ".json":
                outlines.drawings |= {stem(photo): drawing for photo, drawing in read_coco(path).drawings.items()}
            elif kind.suffix == ".txt":
                outlines.yolo[stem(name)] = path
            elif not name.lower().endswith(PHOTO_SUFFIXES):
                problems.append(f"{safe_name(name)} is neither a photo, a mask nor a LabelMe, COCO or YOLO file")
        except EmatError as error:
            problems.append(str(error).replace(str(path), safe_name(name)))
    return outlines


def _complete(
    session: Session, draft: Draft, outlines: Outlines, photo: str, masks: "Iterable[tuple[str, Path]]"
) -> None:
    """Make an example of a draft if masks or outlines came with it."""
    drawing = outlines.drawings.pop(photo, None)
    if photo in outlines.yolo:
        file = outlines.yolo.pop(photo)
        if not outlines.yolo_names:
            raise EmatError(
                "no-classes", "the numbers in a YOLO file need names; drop data.yaml or classes.txt with it"
            )
        drawing = read_yolo(file, draft.photo.name, draft.photo.size, outlines.yolo_names)
    if drawing is not None:
        _learn_drawing(session, draft, drawing)
        return
    read: dict[str, Mask] = {}
    void = np.zeros(draft.photo.size, bool)
    for name, path in masks:
        for shown, mask in _read_masks(session, draft, name, path).items():
            if shown is None:
                void |= mask
            else:
                read[shown] = mask | read.get(shown, np.zeros_like(mask))
    if read:
        _learn_masks(session, draft, read, void)


def _learn_drawing(session: Session, draft: Draft, drawing: Drawing) -> None:
    if (drawing.height, drawing.width) != draft.photo.size:
        height, width = draft.photo.size
        raise EmatError(
            "mask-size",
            f"the outlines of {draft.photo.name} are for {drawing.width} x {drawing.height} pixels, but the photo has "
            f"{width} x {height}; drop the photo that they were drawn on",
        )
    names = list(dict.fromkeys(drawn.class_name for drawn in drawing.objects if not drawn.crowd))
    labels = drawing.label_map(names)
    masks = {name: labels == number for number, name in enumerate(names, start=1) if (labels == number).any()}
    if masks:
        _learn_masks(session, draft, masks, labels == VOID)
    else:
        add_negative(session, draft.key)


def _learn_masks(session: Session, draft: Draft, masks: Mapping[str, Mask], void: Mask) -> None:
    spelling = {shown.casefold(): shown for shown in session.numbers}
    with session.lock:
        for name in masks:
            if name.casefold() not in spelling:
                add_class(session, name)
                spelling[name.casefold()] = name
    named = {spelling[name.casefold()]: mask for name, mask in masks.items()}
    numbers = {**session.numbers, "": VOID}
    paint = paint_of({**named, "": void}, numbers, draft.photo.working)
    learn(session, Painted.of(paint, session.numbers).example(find_draft(session, draft.key).photo, sparse=False))
    skip_draft(session, draft.key)


def _read_masks(session: Session, draft: Draft, name: str, path: Path) -> "dict[str | None, Mask]":
    """Return the masks of one file by their classes; those of undecided pixels under None."""
    plain = safe_name(name)
    size = draft.photo.size
    colours = _colours(path)
    if colours is not None and len(colours) > 2 and colours <= {*range(len(session.classes) + 1), VOID}:
        labels = read_mask(path, name=plain, max_pixels=MAX_PIXELS)
        masks: dict[str | None, Mask] = {
            shown.name: labels == number for number, shown in enumerate(session.classes, start=1)
        }
        masks = {shown: mask for shown, mask in {**masks, None: labels == VOID}.items() if mask.any()}
    else:
        masks = {_class_of(session, draft, name): read_object_mask(path, name=plain, max_pixels=MAX_PIXELS)}
    for mask in masks.values():
        if mask.shape != size:
            raise EmatError(
                "mask-size",
                f"{plain} is {mask.shape[1]} x {mask.shape[0]} pixels but its photo is {size[1]} x {size[0]}; "
                "save the mask at the photo's size",
            )
    return masks


def _class_of(session: Session, draft: Draft, name: str) -> str:
    """The class that a mask's name ends with, or the only one that there is."""
    ending = _ending(stem(draft.photo.name), stem(name)) or ""
    if ending and ending not in USUAL_ENDINGS:
        return next((shown for shown in session.numbers if shown.casefold() == ending), ending)
    if len(session.classes) > 1:
        first = session.classes[0].name
        raise EmatError(
            "ambiguous-mask",
            f"{safe_name(name)} does not say which class it shows; end its name with the class, as in "
            f"{stem(draft.photo.name)}_{first}.png",
        )
    return session.classes[0].name if session.classes else ONLY_CLASS


def _pair_masks(session: Session, pictures: FileList) -> dict[str, list[tuple[str, Path]]]:
    """Find the pictures that are masks of others, by the stems of their photos."""
    photos = {stem(name): name for name, _ in pictures}
    photos |= {stem(draft.photo.name): "" for draft in session.drafts.values()}
    pairs: dict[str, list[tuple[str, Path]]] = {}
    # The other picture of two with the same stem is the photo, whatever the order in which they were dropped.
    for name, path in pictures:
        if not name.lower().endswith(MASK_SUFFIXES):
            continue
        fitting = [
            photo
            for photo in photos
            if (ending := _ending(photo, stem(name))) is not None and photos[photo] != name and _fits(path, ending)
        ]
        if (
            not fitting
            and any(other != name and stem(other) == stem(name) for other, _ in pictures)
            and _fits(path, "")
        ):
            fitting = [stem(name)]
        if fitting:
            pairs.setdefault(max(fitting, key=len), []).append((name, path))
    return pairs


def _fits(path: Path, ending: str) -> bool:
    """Whether a file can be a mask: few colours, or a name that says so."""
    return ending in USUAL_ENDINGS or _colours(path) is not None


def _colours(path: Path) -> "set[object] | None":
    """The colours of a picture if there are few, as a mask has; None otherwise."""
    try:
        image = load_image(path, PHOTO_FORMATS, MAX_PIXELS, path.name)
    except EmatError:
        return None  # the reader says what is wrong with it
    # Pillow counts no colours of 16 bits.
    counted = (image.convert("I") if image.mode.startswith("I;16") else image).getcolors(FEW_COLOURS)
    return None if counted is None else {colour for _, colour in counted}


def _ending(photo: str, mask: str) -> str | None:
    """What a mask's stem has after its photo's, without the character between them; None if it is another photo's.

    >>> _ending("a", "a_cat"), _ending("a", "a"), _ending("a", "ab")
    ('cat', '', None)
    """
    if mask == photo:
        return ""
    match = re.fullmatch(re.escape(photo) + r"[_\-. ]+(.+)", mask)
    return match[1].strip() if match else None


def stem(name: str) -> str:
    """The part of a file name by which photos, masks and outlines are matched."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    return unicodedata.normalize("NFC", PurePosixPath(last).stem).casefold()
