"""Photos on their way to the method: found on the command line, and read ahead of it."""

import glob
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from emat.errors import EmatError
from emat.files import content_state, from_user
from emat.images import PHOTO_SUFFIXES, Pixels, Reading, Source, describe, read_channels
from emat.images.sources import TIFF_SUFFIXES, split_page
from emat.images.sources import pages as find_pages
from emat.images.stacks import ZARR_SUFFIX
from emat.progress import tell_once

Item = TypeVar("Item")
Result = TypeVar("Result")

READ_AHEAD = 2  # photos in memory beside the one that is predicted

# Found on the command line


@dataclass(frozen=True)
class PhotoFile:
    """A photo file, and its name in the results: its path inside the given folder, or its file name."""

    path: Path
    name: str


def find_photos(arguments: Sequence[str], leave_out: Path | None = None, all_pages: bool = False) -> list[PhotoFile]:
    """Find the photos that a command line names.

    Args:
        arguments: Files, folders (with everything below them) and patterns such as ``"in/*.jpg"``. A page of a TIFF
            stack is named as in ``"stack.tif[3]"``.
        leave_out: The folder that results are written to. Photos in it are ignored where a folder or a pattern is
            searched that contains it; photos that are named in it are not.
        all_pages: Whether a TIFF stack stands for all its pages, which are named `stack_p001` and so on.

    Returns:
        Every photo once, in the given order. Files that do not exist are included, so that they are reported like
        files that cannot be read.

    Raises:
        EmatError: If there are no photos, or the results of two photos would have the same name.
    """
    photos: dict[Path, PhotoFile] = {}
    results, left_out = None if leave_out is None else leave_out.resolve(), False
    for argument in arguments:
        has_results = results is not None and _searched(argument) in (results, *results.parents)
        for photo in (page for file in _named_by(argument) for page in (_pages(file) if all_pages else [file])):
            path = photo.path.resolve()
            if has_results and results in path.parents:
                left_out = True
            else:
                photos.setdefault(path, photo)
    if not photos and left_out:
        raise EmatError(
            "output-is-input",
            f"{leave_out} has the photos and cannot take the results too; choose another folder with --out",
        )
    if not photos:
        raise EmatError(
            "no-photos",
            f"no photos in {', '.join(arguments)}; photos are files that end in {', '.join(PHOTO_SUFFIXES)}",
        )
    _refuse_same_names(photos.values())
    return list(photos.values())


def _searched(argument: str) -> Path | None:
    """The folder that has to be searched: the argument, or where the matches of a pattern are; None for a file."""
    path = from_user(argument)
    if path.is_dir():
        return path.resolve()
    if path.exists() or not glob.has_magic(argument):
        return None
    fixed = itertools.takewhile(lambda part: not glob.has_magic(part), path.parts)
    return Path(*fixed).resolve()


def _named_by(argument: str) -> list[PhotoFile]:
    path = from_user(argument)
    file, page = split_page(path)
    if page is not None and file.is_file():
        return [_page(PhotoFile(file, file.name), page)]
    if path.is_dir() and path.suffix.lower() == ZARR_SUFFIX:
        return [PhotoFile(path, path.name)]
    if path.is_dir():
        photos = []
        for file in path.rglob("*"):
            name, suffix = file.relative_to(path), file.suffix.lower()
            if any(folder.suffix == ZARR_SUFFIX for folder in file.parents):  # a part of a photo that is a folder
                continue
            if file.is_symlink() and file.is_dir():
                tell_once(f"{file} is a link to a folder, which is not searched for photos; name it too if it has some")
            # A link that leads nowhere and a pipe are reported like photos that cannot be read.
            is_photo = suffix == ZARR_SUFFIX or (suffix in PHOTO_SUFFIXES and not file.is_dir())
            if is_photo and not any(part.startswith(".") for part in name.parts):
                photos.append(PhotoFile(file, name.as_posix()))
        return sorted(photos, key=lambda photo: photo.path)
    if path.exists() or not glob.has_magic(argument):
        return [PhotoFile(path, path.name)]
    matches = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
    return [PhotoFile(match, match.name) for match in matches if match.suffix.lower() in PHOTO_SUFFIXES]


def _pages(photo: PhotoFile) -> list[PhotoFile]:
    """Every page of a TIFF stack; the photo itself if it is none, or cannot be read, which is reported later."""
    if photo.path.suffix.lower() not in TIFF_SUFFIXES:
        return [photo]
    try:
        numbers = find_pages(photo.path, str(photo.path))
    except EmatError:
        return [photo]
    return [photo] if len(numbers) == 1 else [_page(photo, number) for number in numbers]


def _page(photo: PhotoFile, number: int) -> PhotoFile:
    name = Path(photo.name)
    page = name.with_name(f"{name.stem}_p{number:03d}{name.suffix}")
    return PhotoFile(photo.path.with_name(f"{photo.path.name}[{number}]"), page.as_posix())


def _refuse_same_names(photos: Iterable[PhotoFile]) -> None:
    """Two photos that differ only in their folder or suffix would be written to the same mask."""
    taken: dict[str, PhotoFile] = {}
    for photo in photos:
        key = Path(photo.name).with_suffix("").as_posix().casefold()
        other = taken.setdefault(key, photo)
        if other is not photo:
            raise EmatError(
                "same-output-name",
                f"{other.path} and {photo.path} would have results of the same name; write them to two folders",
            )


# Read ahead


@dataclass(frozen=True)
class ReadPhoto:
    """A photo that was read, or the reason why it could not be."""

    source: Source
    pixels: Pixels | None  # (H, W, 3), or with further channels as `read_channels` gives it
    problem: EmatError | None
    state: str | None = None  # of the file when it was read, if that was asked for

    def photo(self) -> Pixels:
        """Return its pixels; EmatError if it could not be read."""
        if self.pixels is None:
            raise self.problem or EmatError("photo-not-read", f"{describe(self.source)} was not read")
        return self.pixels


def read_ahead(
    sources: Iterable[Source], ahead: int = READ_AHEAD, reading: Reading | None = None, states: bool = False
) -> Generator[ReadPhoto, None, None]:
    """Read photos in a thread while earlier ones are processed.

    Args:
        sources: Paths, file contents, PIL images or arrays.
        ahead: How many photos may be read before they are asked for.
        reading: How they are read.
        states: Whether to say the state of each photo's file, for which it is read once more.

    Yields:
        The photos in order.
    """
    return in_advance(partial(_read, reading=reading or Reading(), states=states), sources, ahead)


def in_advance(read: Callable[[Item], Result], items: Iterable[Item], ahead: int) -> Generator[Result, None, None]:
    """Read items in a thread while earlier ones are processed, at most so many ahead; yields them in order."""
    waiting: deque[Future[Result]] = deque()
    reader = ThreadPoolExecutor(1, thread_name_prefix="emat-reader")
    try:
        for item in items:
            waiting.append(reader.submit(read, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        reader.shutdown(wait=True, cancel_futures=True)


def photo_state(path: Path) -> str | None:
    """Return the `content_state` of a photo's file, None if there is none."""
    try:
        return content_state(split_page(path)[0])
    except EmatError:
        return None


def _read(source: Source, reading: Reading, states: bool) -> ReadPhoto:
    # Before the photo is read: if it is replaced in between, the state is the old one, and the photo is not done.
    state = photo_state(Path(source)) if states and isinstance(source, (str, Path)) else None
    try:
        return ReadPhoto(source, read_channels(source, reading=reading), None, state)
    except EmatError as error:
        return ReadPhoto(source, None, error, state)
