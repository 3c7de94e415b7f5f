"""Reading files: opening what a user gave within limits, finding files in folders, hashes, locks, and names of photos.

`outputs` writes them.
"""

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from filelock import FileLock, Timeout
from platformdirs import user_cache_dir

from emat.errors import EmatError

LARGEST_TEXT = 16 << 20  # bytes of a list of classes or names
MOST_DIGITS = 9  # of a number in a text
LONGEST_SHOWN = 300  # characters of a path in a sentence


def emat_home() -> Path:
    """Return the folder for files that emat can make or fetch again, such as weights. It may not exist yet.

    It is the folder in the environment variable `EMAT_HOME`, or `emat` in the cache folder of the platform.
    """
    chosen = os.environ.get("EMAT_HOME")
    return from_user(chosen) if chosen else Path(user_cache_dir("emat", appauthor=False, opinion=False))


@contextmanager
def open_input(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that was given to emat; whatever reads a user's file opens it here.

    Raises:
        EmatError: It does not exist, may not be read, is a folder, or is a pipe or a device, which might never end.
            Also if reading inside the block fails.
    """
    try:
        # Without O_NONBLOCK, to open a pipe would wait for somebody who writes to it.
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:  # for example a name that is too long, or has a zero byte
        raise unreadable(path, error) from None
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise EmatError("not-a-file", f"{path} is not a file but {what}; give a file")
    try:
        with open(number, "rb") as file:
            yield file
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: OSError | ValueError) -> EmatError:
    """Return the error for a file that the operating system does not give."""
    sentence = f"{shown(path)} cannot be read: {getattr(error, 'strerror', None) or error}"
    if isinstance(error, FileNotFoundError):
        return EmatError("no-such-file", sentence)
    return EmatError("cannot-read", sentence)


def shown(path: Path | str) -> str:
    """Return a path for a sentence, the middle of a very long one left out."""
    text = str(path)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:60]}...{text[-20:]}"


def limited(file: IO[bytes], most: int, name: str) -> bytes:
    """Read a file that is open to its end; EmatError if it has more than `most` bytes."""
    content = file.read(most + 1)
    if len(content) > most:
        raise EmatError(
            "file-too-large", f"{name} has more than {most >> 20} MB, which is too much for text; check what it is"
        )
    return content


def as_text(content: bytes, name: str) -> str:
    """Decode UTF-8; EmatError if it is something else."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise EmatError("not-text", f"{name} cannot be read as text; save it as UTF-8") from None


def read_text(path: Path, most: int = LARGEST_TEXT) -> str:
    """Read a UTF-8 text file of at most `most` bytes.

    Raises:
        EmatError: The file cannot be read, is larger, or is not UTF-8 text.
    """
    with open_input(path) as file:
        return as_text(limited(file, most, str(path)), str(path))


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        EmatError: The file cannot be read, is a pipe or a device, or is not JSON.
    """
    with open_input(path) as file:
        content = file.read()
    try:
        return json.loads(content)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EmatError("bad-syntax", f"{path} is not JSON ({error}); fetch or save it again") from None
    except ValueError:  # Python reads no whole number of so many digits
        raise EmatError("bad-syntax", f"{path} has a number of thousands of digits; fetch or save it again") from None


def is_number(text: str) -> bool:
    """Whether a text is a whole number of at most nine digits; Python refuses to read one of thousands.

    >>> is_number("12"), is_number("-1"), is_number("1" * 5000)
    (True, False, False)
    """
    return text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS


def from_user(path: Path | str) -> Path:
    """Return a path that a user gave, with `~` replaced by the home folder; EmatError if there is none."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise EmatError("no-such-file", f"{shown(path)} names a user who does not exist; check it") from None


def is_file(path: Path) -> bool:
    """Whether there is a file of that name; also for names that the file system does not allow."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or with a zero byte
        return False


def read_names(path: Path) -> tuple[str, ...]:
    """Read a text file that has one name on each line; a name that is repeated counts once.

    Raises:
        EmatError: The file cannot be read, or has no name.
    """
    names = tuple(dict.fromkeys(line.strip() for line in read_text(path).splitlines() if line.strip()))
    if not names:
        raise EmatError("empty-list", f"{path} has no name of a photo; write one on each line")
    return names


@contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock during the block, so that only one process at a time is inside it.

    The operating system releases the lock of a process that ends unexpectedly.

    Args:
        path: The lock file.
        waiting: Called once if another process has the lock.

    Raises:
        EmatError: The lock file cannot be written.
    """
    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        waiting()
        lock.acquire()
    except OSError as error:
        raise EmatError(
            "cannot-write",
            f"{path} cannot be written: {error.strerror or error}; choose another one with EMAT_HOME or --cache",
        ) from None
    try:
        yield
    finally:
        lock.release()


def walk(root: Path, deepest: int | None = None) -> Iterator[tuple[Path, list[str]]]:
    """Give `root` and every folder below it with the names of its files, without hidden files and folders.

    Symbolic links to folders are followed, except a link to a folder that contains it, which would be endless. Broken
    links and folders without permission are left out.

    Args:
        root: Where to start.
        deepest: How many levels below `root` to go; all of them if not given.
    """
    pending: list[tuple[Path, tuple[str, ...]]] = [(root, (os.path.realpath(root),))]
    while pending:
        folder, above = pending.pop()
        try:
            with os.scandir(folder) as entries:
                visible = sorted(
                    (entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name
                )
        except OSError:
            continue
        yield folder, [entry.name for entry in visible if _is_there(entry.is_file)]
        if deepest is not None and len(above) > deepest:
            continue
        around = {*above, *map(str, Path(above[-1]).parents)}  # every folder that contains this one
        for entry in reversed([entry for entry in visible if _is_there(entry.is_dir)]):
            real = os.path.realpath(entry.path)
            if real not in around:
                pending.append((folder / entry.name, (*above, real)))


def _is_there(asked: Callable[[], bool]) -> bool:
    try:
        return asked()
    except OSError:  # for example a link to itself
        return False


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, as `sha256sum` prints it."""
    total = hashlib.sha256()
    with open_input(path) as file:
        while block := file.read(1 << 20):
            total.update(block)
    return total.hexdigest()


def folder_sha256(folder: Path) -> str:
    """Return a SHA-256 of the names and contents of all files below a folder."""
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        total.update(f"{path.relative_to(folder).as_posix()}|{file_sha256(path)}\n".encode(errors="surrogateescape"))
    return total.hexdigest()


def content_state(path: Path) -> str:
    """Return the size, the time and the SHA-256 of a file, which change when the file is replaced."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    return f"{status.st_size} {status.st_mtime_ns} {file_sha256(path)}"


def files_state(paths: Iterable[Path], start: str = "") -> str:
    """Return a SHA-256 of the names, sizes and times of files, which changes when one of the files changes."""
    state = hashlib.sha256(start.encode())
    for path in paths:
        try:
            status = path.stat()
        except OSError as error:
            raise unreadable(path, error) from None
        state.update(f"{path.name}|{status.st_size}|{status.st_mtime_ns}\n".encode())
    return state.hexdigest()


def folder_state(root: Path) -> str:
    """Return the `files_state` of one file, or of all files in a folder."""
    files = sorted(folder / name for folder, names in walk(root) for name in names) if root.is_dir() else [root]
    return files_state(files, start=str(root.resolve()))


def inner_name(name: str) -> str:
    """Return the name of a photo with forward slashes, and check that it stays inside the folder of photos.

    Names become paths of files that are written, and an annotation file may contain any name.

    Raises:
        EmatError: The name is empty, an absolute path, leads out of the folder, or is not UTF-8.

    >>> inner_name("cats\\\\a.jpg")
    'cats/a.jpg'
    """
    if not is_text(name):
        raise EmatError("bad-file-name", f"the file name {os.fsencode(name)!r} is not UTF-8; rename the file")
    parts = [part for part in name.replace("\\", "/").split("/") if part != "."]
    if "" in parts or ".." in parts or not parts or ":" in parts[0] or "\0" in name:
        raise EmatError(
            "path-leads-out", f"the file name {name!r} leads out of the photo folder; make it relative to that folder"
        )
    return "/".join(parts)


def is_text(name: str) -> bool:
    """Whether a name can be written as UTF-8; names of files that are not UTF-8 cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def without_suffix(name: str) -> str:
    """Return the name of a photo without its suffix.

    >>> without_suffix("v1.2/a.b.jpg")
    'v1.2/a.b'
    """
    return PurePosixPath(name).with_suffix("").as_posix()
