"""Journals: what a run has done, kept line by line, so that an interrupted run continues where it stopped."""

import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from emat.errors import EmatError
from emat.outputs import WriteError, write_text, writing


class Journal:
    """A file that records what a run has done, so that an interrupted run continues where it stopped.

    The first line is JSON that identifies the run, and each other line is a record. The journal is removed when the run
    is complete. The journal of another run is replaced, and an incomplete last line is ignored.

    Only one process at a time can have a journal open, because two that write to one folder would overwrite each
    other's results.

    Args:
        path: The file.
        run: What identifies the run.

    Raises:
        EmatError: The file cannot be written, or another process has it open.
    """

    def __init__(self, path: Path, run: dict[str, Any]) -> None:
        self._path = path
        self._lock = _lock(path)
        kept = _lines_of(path, run) or []
        self._is_empty = not kept
        write_text(path, "".join([json.dumps(run) + "\n", *kept]))
        with writing(path):
            self._file = path.open("a", encoding="utf-8")

    def add(self, record: dict[str, Any]) -> None:
        """Append a record, which is kept even if the process is killed immediately afterwards."""
        try:
            self._file.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
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
            yield from (json.loads(line) for line in file if _is_record(line))

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


def read_journal(path: Path, run: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the records in a journal of a run; None if there is no such file or it belongs to another run."""
    lines = _lines_of(path, run)
    return None if lines is None else [json.loads(line) for line in lines]


def _lines_of(path: Path, run: Mapping[str, Any]) -> list[str] | None:
    try:
        with path.open(encoding="utf-8") as file:
            return [line for line in file if _is_record(line)] if json.loads(file.readline()) == run else None
    except (OSError, ValueError):
        return None


def _is_record(line: str) -> bool:
    """Whether a line is a record that was written completely, which ends its line."""
    try:
        return line.endswith("\n") and isinstance(json.loads(line), dict)
    except ValueError:
        return False


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
