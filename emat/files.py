"""Functions for files: writing them whole, locks, hashes, lists of folders, and names of photos.

A file is written under a hidden name first and renamed when it is complete, so that an interrupted run never leaves
half a file. `whole_file` does this for the whole package.
"""

import errno
import hashlib
import itertools
import json
import os
import platform
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock, Timeout
from platformdirs import user_cache_dir

from emat.errors import EmatError

UNFINISHED = ".emat-unfinished-"  # begins the names of files that are not complete
_numbers = itertools.count(1)


def emat_home() -> Path:
    """Return the folder for files that emat can make or fetch again, such as weights. It may not exist yet.

    It is the folder in the environment variable `EMAT_HOME`, or `emat` in the cache folder of the platform.
    """
    chosen = os.environ.get("EMAT_HOME")
    return Path(chosen).expanduser() if chosen else Path(user_cache_dir("emat", appauthor=False, opinion=False))


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Write a file whole or not at all.

    Args:
        path: The file to write. Its folder is made if it is not there.

    Yields:
        Another path, to write to. When the block ends without an error, that file is renamed to `path`; otherwise it
        is removed and `path` stays as it was.

    Raises:
        EmatError: The file cannot be written, for example because the disk is full.
    """
    unfinished = path.with_name(f"{UNFINISHED}{_machine()}-{os.getpid()}-{next(_numbers)}")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_unfinished(path.parent)
            yield unfinished
            os.replace(unfinished, path)
    finally:
        with suppress(OSError):
            unfinished.unlink()


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """Make a folder in `parent` that is removed when the block ends; if the process is killed, by the next one."""
    folder = parent / f"{UNFINISHED}{_machine()}-{os.getpid()}-{next(_numbers)}"
    with writing(folder):
        parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished(parent)
        folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@cache
def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes of this machine left unfinished in a folder; once in a process."""
    import psutil

    with suppress(OSError):
        for name in os.listdir(folder):
            machine, _, rest = name.removeprefix(UNFINISHED).partition("-")
            process = rest.partition("-")[0]
            if not name.startswith(UNFINISHED) or machine != _machine() or not process.isdecimal():
                continue
            if not psutil.pid_exists(int(process)):
                with suppress(OSError):
                    shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()


@cache
def _machine() -> str:
    """Return a short name of this machine. Others may share a folder, and their processes cannot be seen here."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


class WriteError(EmatError):
    """Something could not be written. A run of many photos stops then: the next one could not be written either."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError inside the block into a `WriteError` that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise EmatError(f"the name {path.name[:60]!r}... is too long for a file; shorten it") from None
        raise WriteError(
            f"{path} cannot be written: {error.strerror or error}; choose another folder or make room"
        ) from None


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8, whole or not at all."""
    with whole_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def read_text(path: Path) -> str:
    """Read a UTF-8 text file.

    Raises:
        EmatError: The file cannot be read, or is not UTF-8 text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise EmatError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise EmatError(f"{path} cannot be read as text; save it as UTF-8") from None


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        EmatError: The file cannot be read, is a pipe or a device, or is not JSON.
    """
    refuse_pipe(path)
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise EmatError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise EmatError(f"{path} is not JSON ({error}); fetch or save it again") from None


def refuse_pipe(path: Path) -> None:
    """Raise an EmatError if `path` is a pipe or a device, which might never end."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return  # opening it will say what is wrong
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise EmatError(f"{path} is not a file but a pipe or a device; save it to a file first")


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
        raise EmatError(f"{path} has no name of a photo; write one on each line")
    return names


def check_output(path: Path) -> None:
    """Make the folder of `path` and check that a file can be written there.

    Long work calls this before it starts, so that it does not fail at the end.

    Raises:
        EmatError: `path` is a folder, or nothing can be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from None
    if path.is_dir():
        raise _refused(path, "it is a folder")
    if not os.access(path.parent, os.W_OK):
        raise _refused(path, f"you may not write to the folder {path.parent}")


def _refused(path: Path, reason: str) -> EmatError:
    return EmatError(f"{path} cannot be written: {reason}; name another file with --out")


@contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock during the block, so that only one process at a time is inside it.

    The operating system releases the lock of a process that ends unexpectedly.

    Args:
        path: The lock file.
        waiting: Called once if another process has the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        waiting()
        lock.acquire()
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
            with os.scandir(folder) as found:
                visible = sorted((each for each in found if not each.name.startswith(".")), key=lambda each: each.name)
        except OSError:
            continue
        yield folder, [each.name for each in visible if _is_there(each.is_file)]
        if deepest is not None and len(above) > deepest:
            continue
        around = {*above, *map(str, Path(above[-1]).parents)}  # every folder that contains this one
        for each in reversed([each for each in visible if _is_there(each.is_dir)]):
            real = os.path.realpath(each.path)
            if real not in around:
                pending.append((folder / each.name, (*above, real)))


def _is_there(asked: Callable[[], bool]) -> bool:
    try:
        return asked()
    except OSError:  # for example a link to itself
        return False


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, as `sha256sum` prints it."""
    total = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                total.update(block)
    except OSError as error:
        raise EmatError(f"{path} cannot be read: {error.strerror or error}") from None
    return total.hexdigest()


def files_state(paths: Iterable[Path], start: str = "") -> str:
    """Return a SHA-256 of the names, sizes and times of files, which changes when one of the files changes."""
    state = hashlib.sha256(start.encode())
    for path in paths:
        try:
            found = path.stat()
        except OSError as error:
            raise EmatError(f"{path} cannot be read: {error.strerror}; restore it or check the data set") from None
        state.update(f"{path.name}|{found.st_size}|{found.st_mtime_ns}\n".encode())
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
        raise EmatError(f"the file name {os.fsencode(name)!r} is not UTF-8; rename the file")
    parts = [part for part in name.replace("\\", "/").split("/") if part != "."]
    if "" in parts or ".." in parts or not parts or ":" in parts[0] or "\0" in name:
        raise EmatError(f"the file name {name!r} leads out of the photo folder; make it relative to that folder")
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
