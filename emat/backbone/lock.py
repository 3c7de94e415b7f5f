"""One process at a time: a lock that the operating system lets go of when its holder dies."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

if sys.platform == "win32":
    import msvcrt

    def _take(file: IO[bytes], wait: bool) -> None:
        file.seek(0)
        while True:
            try:
                return msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
            except OSError:
                if not wait:
                    raise  # LK_LOCK gives up after ten seconds, so that waiting means asking again
else:
    import fcntl

    def _take(file: IO[bytes], wait: bool) -> None:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path`; `waiting` is called once if another process holds it first.

    The file stays behind: removing it would let a third process lock a new file while a second waits on the
    old.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            _take(file, wait=False)
        except OSError:
            waiting()
            _take(file, wait=True)
        yield
