"""Curves for TensorBoard, each point on disk when it was added.

TensorBoard's own writer works in a thread of its own, where a full disk ends in a traceback that nobody can catch.
"""

import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from emat.errors import EmatError
from emat.formats.whole_files import writing

VERSION = "brain.Event:2"  # of TensorBoard's format; its readers drop what a run that goes on replaces


class Curves:
    """A new file of points in `folder`; those that files before it have after `step` no longer count."""

    def __init__(self, folder: Path, step: int) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
            from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
            from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]
        except ImportError:
            raise EmatError('training needs TensorBoard; install it with: pip install "emat[train]"') from None
        self._event, self._summary = Event, Summary
        self._path = folder / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}"  # read in this order
        with writing(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab")
        self._records = RecordWriter(self._file)
        self._write(step + 1, file_version=VERSION)
        self._write(step + 1, session_log=SessionLog(status=SessionLog.START))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """A point of every named curve."""
        points = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step, summary=self._summary(value=points))

    def close(self) -> None:
        """No more points."""
        with suppress(OSError):  # all that was added is on disk, or its error was raised then
            self._file.close()

    def _write(self, step: int, **content: Any) -> None:
        with writing(self._path):
            self._records.write(self._event(wall_time=time.time(), step=step, **content).SerializeToString())
            self._file.flush()
