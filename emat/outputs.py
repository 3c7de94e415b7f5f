"""Writing files: whole or not at all, and never over what a user would miss.

A file is written under a hidden name first and renamed when it is complete, so that an interrupted run never leaves
half a file. `whole_file` does this for the whole package.

A verb claims its outputs before it begins, with `claim_file` or `claim_folder`. From then on `whole_file` refuses to
replace a file there that the command reads or that emat did not write, unless it is told so. A hidden file in the
folder, `.emat-written`, remembers the content of what emat wrote; so a result that somebody corrected by hand counts as
theirs.
"""

import errno
import hashlib
import itertools
import json
import os
import platform
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from pathlib import Path

from emat.errors import EmatError
from emat.files import file_sha256, folder_sha256, open_input

OWN = ".emat-"  # begins the names of journals and other files that no user has
UNFINISHED = f"{OWN}unfinished-"  # begins the names of files that are not complete
RECORD = f"{OWN}written"

FileId = tuple[int, int]  # device and inode

_numbers = itertools.count(1)
_guards: dict[str, "_Guard"] = {}  # by the absolute path of an output, a file or a folder


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Write a file whole or not at all.

    Args:
        path: The file to write. Its folder is made if it is not there.

    Yields:
        Another path, to write to. When the block ends without an error, that file is renamed to `path`; otherwise it
        is removed and `path` stays as it was.

    Raises:
        EmatError: The file cannot be written, for example because the disk is full, or may not be replaced.
    """
    guard = _guard_of(path)
    if guard is not None:
        guard.refuse(path)
    unfinished = path.with_name(f"{UNFINISHED}{_machine()}-{os.getpid()}-{next(_numbers)}")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_unfinished(path.parent)
            if guard is not None:
                guard.enter(path.parent)
            yield unfinished
            if guard is not None:
                guard.remember(path, unfinished)
            os.replace(unfinished, path)
    finally:
        with suppress(OSError):
            unfinished.unlink()


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Write a folder that counts as one file, such as a Zarr store, whole or not at all.

    Args:
        path: The folder to write. One that is there is replaced, if `whole_file` would replace a file there.

    Yields:
        The path of a folder to write, which does not exist. When the block ends without an error, it becomes `path`.

    Raises:
        EmatError: As `whole_file`.
    """
    guard = _guard_of(path)
    if guard is not None:
        guard.refuse(path, as_folder=True)
    with temporary_folder(path.parent) as scratch, writing(path):
        if guard is not None:
            guard.enter(path.parent)
        yield scratch / "new"
        if guard is not None:
            guard.remember(path, scratch / "new")
        if os.path.lexists(path):
            os.replace(path, scratch / "old")
        os.replace(scratch / "new", path)


def refuse_overwriting(path: Path) -> None:
    """Raise a WriteError if `path` is in an output of this command and may not be replaced."""
    guard = _guard_of(path)
    if guard is not None:
        guard.refuse(path)


def _guard_of(path: Path) -> "_Guard | None":
    """The guard of the innermost output that a file belongs to."""
    whole = os.path.abspath(path) if _guards else ""
    while whole:
        if whole in _guards:
            return _guards[whole]
        whole = os.path.dirname(whole) if os.path.dirname(whole) != whole else ""
    return None


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
            raise EmatError(
                "bad-file-name", f"the name {path.name[:60]!r}... is too long for a file; shorten it"
            ) from None
        raise WriteError(
            "cannot-write", f"{path} cannot be written: {error.strerror or error}; choose another folder or make room"
        ) from None


def write_text(path: Path, text: str, errors: str = "strict") -> None:
    """Write `text` to `path` as UTF-8, whole or not at all.

    Args:
        path: The file.
        text: What to write.
        errors: "replace" for pages that people read: what UTF-8 lacks, such as names of foreign files, becomes ?.
    """
    with whole_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", errors=errors)


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
    return EmatError("cannot-write", f"{path} cannot be written: {reason}; name another file with --out")


def claim_file(
    path: Path, ends: Collection[str] = (), *, reads: Iterable[Path] = (), overwrite: bool = False, flag: str = "--out"
) -> None:
    """Claim a file as the output of a command, and check that it can be written.

    Args:
        path: The file.
        ends: The endings that its name may have, such as ".emat"; any if not given.
        reads: Files and folders that the command reads.
        overwrite: Whether a file may be replaced that emat did not write, or that the command reads.
        flag: The option that names the file, for messages.

    Raises:
        EmatError: The name has another ending, the file is read by the command or was not written by emat, or nothing
            can be written there.
    """
    if ends and not path.is_dir() and path.suffix.lower() not in ends:
        raise EmatError("wrong-suffix", f"{flag} is {path}; its name must end in {', '.join(ends)}")
    guard = _Guard(path.parent, reads, overwrite, flag)
    guard.refuse(path)
    check_output(path)
    _guards[os.path.abspath(path)] = guard


def claim_folder(path: Path, *, reads: Iterable[Path] = (), overwrite: bool = False, flag: str = "--out") -> None:
    """Claim a folder for the output of a command; arguments as in `claim_file`.

    A file in it that may not be replaced is refused when it would be written, or by `refuse_overwriting` before.
    """
    _guards[os.path.abspath(path)] = _Guard(path, reads, overwrite, flag)


def forget_claims() -> None:
    """Forget all claims; every command begins with none."""
    _guards.clear()


class _Guard:
    """Refuses to replace files, and remembers those that are written."""

    def __init__(self, folder: Path, reads: Iterable[Path], overwrite: bool, flag: str) -> None:
        self._folder, self._overwrite, self._flag = folder, overwrite, flag
        self._reads = set() if overwrite else {found for each in reads if (found := _id(each)) is not None}

    def refuse(self, path: Path, *, as_folder: bool = False) -> None:
        """Raise a WriteError if `path` may not be replaced: a file, or a folder that counts as one."""
        if self._overwrite or path.name.startswith(OWN) or not os.path.lexists(path):
            return
        if path.is_dir() and not as_folder:  # it cannot be replaced by a file, as whoever tries is told
            return
        way_out = f"choose another {self._flag}, or replace it with --overwrite"
        if self._reads and not self._reads.isdisjoint(map(_id, (path, *path.parents))):
            raise WriteError("output-is-input", f"{path} is read by this command and would be overwritten; {way_out}")
        if _mark(path) not in self._written[self._name(path)]:
            raise WriteError("refuses-overwrite", f"{path} is there already, and is not as emat wrote it; {way_out}")

    def remember(self, path: Path, content: Path) -> None:
        """Remember that the file `content` is about to become `path`: before it does, in case the process is killed."""
        if not path.name.startswith(OWN):
            self._note(self._name(path), _mark(content))

    def enter(self, folder: Path) -> None:
        """Remember that files are written to a folder below: a killed process may leave one unfinished there."""
        if folder != self._folder:
            self._note(f"{self._name(folder)}/", "")

    def _note(self, name: str, mark: str) -> None:
        if mark in self._written[name]:
            return
        with (self._folder / RECORD).open("a", encoding="utf-8") as file:
            # A process that found no room may have left half a line, which must not swallow this one.
            file.write("\n" + json.dumps([name, mark]) + "\n" if self._is_cut() else json.dumps([name, mark]) + "\n")
        self._written[name].add(mark)

    @cached_property
    def _written(self) -> "defaultdict[str, set[str]]":
        """The SHA-256 of everything that was written to each file of the folder.

        What a killed process left unfinished is removed from all folders that were written to, also from those that
        this command does not use.
        """
        written: defaultdict[str, set[str]] = defaultdict(set)
        for line in self._record().decode(errors="replace").splitlines():
            try:
                name, mark = json.loads(line)
                written[str(name)].add(str(mark))
            except (ValueError, TypeError):  # the last line of a process that was killed
                continue
        for name in written:
            if name.endswith("/") and not name.startswith("/") and ".." not in Path(name).parts:
                remove_unfinished(self._folder / name)
        return written

    def _record(self) -> bytes:
        """The content of the record; none if there is no such file."""
        try:
            with open_input(self._folder / RECORD) as file:
                return file.read()
        except EmatError:
            return b""

    def _is_cut(self) -> bool:
        """Whether the record ends within a line."""
        return not (self._record() or b"\n").endswith(b"\n")

    def _name(self, path: Path) -> str:
        return Path(os.path.relpath(path, self._folder)).as_posix()


def _mark(path: Path) -> str:
    return folder_sha256(path) if path.is_dir() else file_sha256(path)


def _id(path: Path) -> FileId | None:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
