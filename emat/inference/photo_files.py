"""The photos that a command line names: files, folders and patterns."""

import glob
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from emat.errors import EmatError
from emat.images import PHOTO_SUFFIXES


@dataclass(frozen=True)
class PhotoFile:
    """A photo, and what it is called in the results: its path inside the folder that was named, else its file name."""

    path: Path
    name: str


def find_photos(arguments: Sequence[str], leave_out: Path | None = None) -> list[PhotoFile]:
    """The photos of files, folders (with all below them) and patterns such as ``"in/*.jpg"``, each once.

    What lies in the folder `leave_out`, where results are written, is passed over.
    """
    found: dict[Path, PhotoFile] = {}
    for argument in arguments:
        for photo in _named_by(argument):
            place = photo.path.resolve()
            if leave_out is None or leave_out.resolve() not in place.parents:
                found.setdefault(place, photo)
    if not found:
        raise EmatError(
            f"no photos in {', '.join(arguments)}; photos are files that end in {', '.join(PHOTO_SUFFIXES)}"
        )
    _refuse_same_names(found.values())
    return list(found.values())


def _named_by(argument: str) -> list[PhotoFile]:
    path = Path(argument).expanduser()
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in PHOTO_SUFFIXES and file.is_file())
        inside = [file.relative_to(path) for file in files]
        hidden = [any(part.startswith(".") for part in name.parts) for name in inside]
        return [PhotoFile(f, n.as_posix()) for f, n, hide in zip(files, inside, hidden, strict=True) if not hide]
    if path.exists() or not glob.has_magic(argument):
        return [PhotoFile(path, path.name)]  # a missing file too: it is reported with the bad ones
    matches = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
    return [PhotoFile(match, match.name) for match in matches if match.suffix.lower() in PHOTO_SUFFIXES]


def _refuse_same_names(photos: Iterable[PhotoFile]) -> None:
    """Two photos that differ in their folder or suffix alone would be written to one mask."""
    taken: dict[str, PhotoFile] = {}
    for photo in photos:
        key = Path(photo.name).with_suffix("").as_posix().casefold()
        other = taken.setdefault(key, photo)
        if other is not photo:
            raise EmatError(
                f"{other.path} and {photo.path} would have results of the same name; write them to two folders"
            )
