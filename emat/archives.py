"""Files from a zip or tar archive, unpacked safely, one at a time.

A member is copied to a path that the caller chooses, so the names in an archive cannot make it write anywhere else. An
archive with names that lead out of it is refused as a whole, since it was made to do harm.
"""

import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from emat.errors import EmatError
from emat.files import inner_name

LARGEST_MEMBER = 4 << 30  # bytes; the largest checkpoint that anybody published is a tenth of it
BLOCK = 1 << 20
BROKEN = (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, RuntimeError, ValueError)


@dataclass(frozen=True)
class ArchiveMember:
    """A regular file inside an archive."""

    name: str  # with forward slashes, relative, without `..`
    bytes: int


def archive_members(path: Path) -> list[ArchiveMember]:
    """List the regular files of a zip or tar archive, compressed or not.

    Raises:
        EmatError: It is neither a zip nor a tar, it is damaged or cut short, a name leads out of the archive, two
            members have the same name, or a member is larger than 4 GB.
    """
    members: dict[str, ArchiveMember] = {}
    with _readable(path):
        for name, size in _listed(path):
            member = ArchiveMember(_safe(name, path), size)
            if member.name in members:
                raise EmatError("unsafe-archive", f"{path} holds {name!r} twice; do not use it")
            if size > LARGEST_MEMBER:
                raise EmatError(
                    "unsafe-archive", f"{path} says that {name!r} has {size} bytes, which is too much; do not use it"
                )
            members[member.name] = member
    return list(members.values())


def take_member(path: Path, member: ArchiveMember, target: Path) -> None:
    """Copy one member of an archive to the file `target`.

    Raises:
        EmatError: The archive is damaged or cut short, or the member is longer than the archive said.
    """
    with _readable(path), _opened(path, member.name) as source, target.open("wb") as out:
        shutil.copyfileobj(_Limited(source, member.bytes), out)
        if out.tell() != member.bytes:
            raise EOFError(f"{member.name} has {out.tell()} of {member.bytes} bytes")


class _Limited:
    """A file from which no more is read than the archive announced; a decompression bomb unpacks to more."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file, self._left = file, limit

    def read(self, size: int = BLOCK, /) -> bytes:
        block = self._file.read(min(size, self._left + 1))
        self._left -= len(block)
        if self._left < 0:
            raise ValueError("a member is longer than it says")
        return block


def _listed(path: Path) -> Iterator[tuple[str, int]]:
    if _is_zip(path):
        with zipfile.ZipFile(path) as zipped:
            yield from ((one.filename, one.file_size) for one in zipped.infolist() if not one.is_dir())
        return
    with tarfile.open(path) as tarred:
        for one in tarred:
            _safe(one.name, path)
            if one.isreg():  # links and devices are never followed
                yield one.name, one.size


@contextmanager
def _opened(path: Path, name: str) -> Iterator[IO[bytes]]:
    if _is_zip(path):
        with zipfile.ZipFile(path) as zipped:
            info = next(one for one in zipped.infolist() if not one.is_dir() and inner_name(one.filename) == name)
            with zipped.open(info) as file:
                yield file
        return
    with tarfile.open(path) as tarred:
        member = next(one for one in tarred if one.isreg() and inner_name(one.name) == name)
        content = tarred.extractfile(member)
        assert content is not None  # it is a regular file
        with content:
            yield content


def _is_zip(path: Path) -> bool:
    """Look at the first bytes. `zipfile` looks at the end, where a tar may hold a checkpoint, which is itself a zip."""
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def _safe(name: str, path: Path) -> str:
    try:
        return inner_name(name.rstrip("/"))
    except EmatError:
        raise EmatError(
            "path-leads-out", f"{path} holds the name {name!r}, which leads out of the archive; do not use it"
        ) from None


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except BROKEN as error:
        with path.open("rb") as file:
            start = file.read(512).lstrip().lower()
        what = (
            "a web page"
            if start.startswith((b"<!doctype", b"<html"))
            else "damaged, cut short, or neither a zip nor a tar"
        )
        reason = str(error).strip() or type(error).__name__
        raise EmatError("damaged-file", f"{path} is {what} ({reason}); fetch it again") from None
