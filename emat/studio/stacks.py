"""Stacks and videos that are dropped: what there is to choose from, and the chosen planes as photos.

A file of several planes or channels waits until the page has asked which of them are wanted. Then each plane becomes a
photo of its own, which knows its place in the file.
"""

import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from emat.errors import EmatError
from emat.files import without_suffix
from emat.images import Pixels, Reading, read_photo
from emat.images.photos import PROJECTIONS
from emat.images.sources import TIFF_STARTS, TIFF_SUFFIXES, pages
from emat.images.stacks import Plane, Stack, open_stack
from emat.images.videos import VIDEO_SUFFIXES
from emat.pictures.overlay import as_jpeg
from emat.studio.photos import LARGEST, SMALL_SIDE, Frame, safe_name
from emat.studio.session import Session, StackFile

FOLDER = "stacks"
MOST_WAITING = 50  # files that are asked about
MOST_PLANES = 500  # that one file gives; the page holds 1000 photos

_reading = threading.Lock()  # a plane may take a gigabyte


@dataclass(frozen=True)
class Choice:
    """Which planes of a stack are wanted.

    Attributes:
        first: The first time or page, as `first_of` counts.
        last: The last one.
        every: 1 for all of them, 2 for every second one.
        project: What becomes of depths: "max", "mean" or "none".
        depth: The only depth that is wanted; None for all of them.
        channels: The names of the channels that are wanted; all of them if empty.
    """

    first: int
    last: int
    every: int = 1
    project: str = "none"
    depth: int | None = None
    channels: tuple[str, ...] = ()


def first_of(kind: str) -> int:
    """The number of the first time or page: pages are counted from 1 as everywhere, frames from 0 as in tables."""
    return 1 if kind == "pages" else 0


def take_stack(session: Session, data: bytes, name: str, to: str) -> bool:
    """Let a dropped file wait if there is something to choose in it; False if it is an ordinary photo.

    Raises:
        EmatError: It is damaged or too large, or too many files are waiting.
    """
    suffix = Path(name).suffix.lower()
    is_tiff = data.startswith(TIFF_STARTS)
    if not is_tiff and suffix not in VIDEO_SUFFIXES:
        return False
    key, plain = session.new_key(), safe_name(name)
    # A folder of its own, because the metadata of a stack may name other files beside it.
    path = session.folder / FOLDER / str(key) / f"stack{suffix if not is_tiff or suffix in TIFF_SUFFIXES else '.tif'}"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    try:
        stack = _described(path, plain, key, to, _reading_of(session))
    except EmatError as error:
        shutil.rmtree(path.parent, ignore_errors=True)
        raise EmatError(error.code, str(error).replace(str(path), plain)) from None
    if stack is None:
        shutil.rmtree(path.parent, ignore_errors=True)
        return False
    with session.lock:
        if len(session.stacks) >= MOST_WAITING:
            stack.remove()
            raise EmatError("too-many-photos", f"{MOST_WAITING} stacks are waiting; choose of those first")
        session.stacks[key] = stack
        session.changed_progress()
    return True


def _reading_of(session: Session) -> Reading:
    """How the segmenter reads photos, at any size: they are made smaller afterwards."""
    return replace(session.segmenter.reading, max_pixels=LARGEST)


def _described(path: Path, name: str, key: int, to: str, reading: Reading) -> StackFile | None:
    """What there is to choose; what the segmenter has decided, such as the channels of a fitted file, is not asked."""
    stack = open_stack(path, reading)
    if stack is not None:
        times, count = stack.shape[:2]
        depths = stack.shape[2] if reading.project == "none" else 1
        is_video = path.suffix.lower() in VIDEO_SUFFIXES
        channels = () if is_video or count == 1 or reading.channels else stack.channels
        if not is_video and not channels and times * depths == 1:
            return None
        return StackFile(key, to, name, path, "video" if is_video else "stack", times, depths, channels)
    count = len(pages(path, name))
    return StackFile(key, to, name, path, "pages", count, 1, ()) if count > 1 else None


def find_stack(session: Session, key: int) -> StackFile:
    """Return a file that waits by its key."""
    stack = session.stacks.get(key)
    if stack is None:
        raise EmatError("no-such-photo", "this file is not waiting any more; drop it again")
    return stack


def leave_stack(session: Session, key: int) -> None:
    """Leave a file out."""
    with session.lock:
        stack = session.stacks.pop(key, None)
        session.changed_progress()
    if stack is not None:
        stack.remove()


def check_choice(stack: StackFile, choice: Choice) -> None:
    """Raise an EmatError if a file does not have what is wanted of it, or that is too much."""
    first = first_of(stack.kind)
    if not first <= choice.first <= choice.last < first + stack.times or choice.every < 1:
        raise EmatError(
            "bad-number", f"choose numbers from {first} to {first + stack.times - 1}, the first before the last"
        )
    if choice.project not in PROJECTIONS or (choice.depth is not None and not 0 <= choice.depth < stack.depths):
        raise EmatError("page-outdated", "there are no such depths; reload the page")
    if (count := len(chosen_planes(stack, choice))) > MOST_PLANES:
        raise EmatError(
            "too-many-photos", f"these are {count} photos, but a file gives at most {MOST_PLANES}; take fewer of them"
        )


def chosen_planes(stack: StackFile, choice: Choice) -> list[Plane]:
    """The planes that are wanted, in the order of times; a page is a time."""
    times: Sequence[int | None] = range(choice.first, choice.last + 1, choice.every) if stack.times > 1 else (None,)
    depths: Sequence[int | None] = (None,)
    if stack.depths > 1 and choice.project == "none":
        depths = range(stack.depths) if choice.depth is None else (choice.depth,)
    return [Plane(z, t) for t in times for z in depths]


def read_planes(session: Session, stack: StackFile, choice: Choice) -> Iterator[tuple[Plane, Pixels]]:
    """Read the planes that are wanted, each as a photo (H, W, 3).

    Raises:
        EmatError: The file is damaged, or does not have them.
    """
    check_choice(stack, choice)
    reading = _reading_of(session)
    reading = replace(
        reading,
        channels=choice.channels if stack.channels else reading.channels,
        project=choice.project if stack.depths > 1 else reading.project,
    )
    try:
        opened: Stack | None = None if stack.kind == "pages" else open_stack(stack.path, reading)
        for plane in chosen_planes(stack, choice):
            with _reading:
                if opened is None:
                    photo = read_photo(f"{stack.path}[{plane.t}]", name=stack.name, reading=reading)
                else:
                    photo = opened.photo(opened.values(plane, reading.project), reading)
            yield plane, photo[..., :3]
    except EmatError as error:
        raise EmatError(error.code, str(error).replace(str(stack.path), stack.name)) from None


def preview(session: Session, stack: StackFile, choice: Choice) -> bytes:
    """The first plane that is wanted as a small JPEG."""
    photo = next(read_planes(session, stack, choice))[1]
    picture = Image.fromarray(photo)
    picture.thumbnail((SMALL_SIDE, SMALL_SIDE))
    return as_jpeg(picture)


def frame_of(stack: StackFile, plane: Plane) -> Frame:
    """The place of a plane in its file, as its photo keeps it."""
    return Frame(stack.key, stack.name, plane.z, plane.t)


def name_of(stack: StackFile, plane: Plane, is_only: bool) -> str:
    """The name of the photo of a plane: the file's own if it is the only one, so that masks fit it.

    >>> name_of(StackFile(1, "photos", "a.mp4", Path("a.mp4"), "video", 9, 1, ()), Plane(None, 3), False)
    'a_t00003.png'
    """
    mark = "" if is_only else "".join(f"_{axis}{number:05d}" for axis, number in plane.position.items())
    return f"{without_suffix(stack.name)}{mark}.png"


def waiting_stacks(session: Session) -> list[dict[str, Any]]:
    """What the page asks about, as JSON."""
    return [
        {
            "key": one.key,
            "to": one.to,
            "name": one.name,
            "kind": one.kind,
            "first": first_of(one.kind),
            "times": one.times,
            "depths": one.depths,
            "channels": list(one.channels),
            "most": MOST_PLANES,
        }
        for one in session.stacks.values()
    ]
