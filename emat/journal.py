"""Journals: what a run has done, kept line by line, so that an interrupted run continues where it stopped."""

import io
import json
import os
import platform
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from emat.errors import EmatError
from emat.files import open_input
from emat.outputs import WriteError, write_text, writing


class Journal:
    """A file that records what a run has done, so that an interrupted run continues where it stopped.

    The first line is JSON that identifies the run, and each other line is a record with its checksum. The journal is
    removed when the run is complete. The journal of another run is replaced. Lines that are incomplete or damaged are
    ignored, so that what they recorded is done again.

    Only one process at a time can have a journal open, because two that write to one folder would overwrite each
    other's results.

    Args:
        path: The file.
        run: What identifies the run.
        unchecked: Whether lines without a checksum count, which earlier versions wrote.

    Raises:
        EmatError: The file cannot be written, or another process has it open.
    """

    def __init__(self, path: Path, run: dict[str, Any], *, unchecked: bool = False) -> None:
        self._path, self._unchecked = path, unchecked
        self._lock = _lock(path)
        kept = _lines_of(path, run, unchecked) or []
        self._is_empty = not kept
        write_text(path, "".join([json.dumps(run) + "\n", *kept]))
        with writing(path):
            self._file = path.open("a", encoding="utf-8")

    def add(self, record: dict[str, Any]) -> None:
        """Append a record, which is kept even if the process is killed immediately afterwards."""
        try:
            text = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
            self._file.write(f"{_checksum(text)} {text}\n")
            self._file.flush()
            self._is_empty = False
        except OSError as error:
            raise WriteError(
                "cannot-write", f"{self._path} cannot be written: {error.strerror}; make room and run again"
            ) from None

    def records(self) -> Iterator[dict[str, Any]]:
        """Give all records in the order in which they were added."""
        with self._path.open(encoding="utf-8") as file:
            next(file)
            yield from (record for line in file if (record := _record(line, self._unchecked)) is not None)

    def leave(self) -> None:
        """Close the journal and keep it for a run that continues; remove it if it is empty."""
        self._close()
        if self._is_empty:
            self._path.unlink(missing_ok=True)
        _release(self._lock)

    def remove(self) -> None:
        """Remove the journal, because the run is complete."""
        self._close()
        self._path.unlink(missing_ok=True)
        _release(self._lock)

    def _close(self) -> None:
        with suppress(OSError):  # on a full disk, what was not written is not closed either
            self._file.close()


def read_journal(path: Path, run: Mapping[str, Any], *, unchecked: bool = False) -> list[dict[str, Any]] | None:
    """Return the records in a journal of a run; None if there is no such file or it belongs to another run."""
    lines = _lines_of(path, run, unchecked)
    return None if lines is None else [record for line in lines if (record := _record(line, unchecked)) is not None]


def _lines_of(path: Path, run: Mapping[str, Any], unchecked: bool) -> list[str] | None:
    try:
        with open_input(path) as content, io.TextIOWrapper(content, encoding="utf-8", errors="replace") as file:
            is_same = json.loads(file.readline()) == run
            return [line for line in file if _record(line, unchecked) is not None] if is_same else None
    except (EmatError, ValueError, RecursionError):
        return None


def _record(line: str, unchecked: bool) -> dict[str, Any] | None:
    """The record in a line; None if the line is incomplete or damaged."""
    if not line.endswith("\n"):
        return None
    checksum, _, text = line.removesuffix("\n").partition(" ")
    if line.startswith("{") and unchecked:
        text = line
    elif checksum != _checksum(text):
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode(errors='surrogatepass')):08x}"


def _lock(journal: Path) -> FileLock:
    """Take the lock of a journal. The system releases it if the process is killed."""
    path = journal.with_name(f".{journal.name.lstrip('.')}.lock")
    with writing(journal):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0.2)
        except Timeout:
            raise EmatError(
                "output-in-use",
                f"{journal.parent} is being written by {_holder(path)}; wait for it to end, or choose another folder",
            ) from None
        except NotImplementedError:  # a file system without locks
            return lock
        with suppress(OSError):
            path.write_text(json.dumps({"process": os.getpid(), "machine": platform.node(), "since": time.time()}))
    return lock


def _release(lock: FileLock) -> None:
    # The file is removed before the lock is released. Otherwise another process could take the lock in between, and
    # its file would be removed.
    with suppress(OSError):
        if lock.is_locked:
            Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text())
        since = time.strftime("%H:%M:%S", time.localtime(float(holder["since"])))
        return f"process {int(holder['process'])} on {holder['machine']} since {since}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
