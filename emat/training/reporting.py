"""What a run reports: lines or a progress bar on standard error, a CSV file, and curves for TensorBoard."""

import csv
import io
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from emat.errors import needs_extra
from emat.features import CacheCounts
from emat.outputs import write_text, writing
from emat.training.options import GIGABYTE
from emat.training.state import ValidationScores

SECONDS_BETWEEN_LINES = 30.0
RECENT = 0.98  # weight of the earlier losses in the loss that is shown
CSV = "metrics.csv"
COLUMNS = (
    "epoch",
    "step",
    "tasks",
    "loss",
    "masks",
    "presence",
    "lr",
    "miou",
    "accuracy",
    "false_mask_rate",
    "false_area",
    "tasks_per_second",
    "cache_hits",
    "cache_bytes",
)
EVENT_VERSION = "brain.Event:2"  # in this version of the format, TensorBoard drops points that a resumed run replaces


@dataclass(frozen=True)
class StepReport:
    """A finished step."""

    tasks_done: int
    epoch: int
    loss: float
    cache: CacheCounts | None


class Reporter:
    """Tells the user how a run is going: with a progress bar on a terminal, with plain lines elsewhere.

    Args:
        tasks: The number of tasks in the run.
        epochs: The number of epochs in the run.
        done: The number of tasks that were done before this process started.
        silent: Whether to print nothing, as every process except the first does.
    """

    def __init__(self, tasks: int, epochs: int, *, done: int = 0, silent: bool = False) -> None:
        self._console = Console(stderr=True, quiet=silent, highlight=False)
        self._tasks, self._epochs = tasks, epochs
        self._done_before, self._started_at = done, time.monotonic()
        self._loss: float | None = None
        self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if self._console.is_terminal and not silent:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=self._console)
            self._bar.add_task("training", total=tasks, completed=done)
            self._bar.start()

    def say(self, line: str) -> None:
        """Print a line."""
        self._console.print(line, soft_wrap=True)

    def step(self, report: StepReport) -> None:
        """Report a step: move the bar, or print a line if the last one was some time ago."""
        self._loss = report.loss if self._loss is None else RECENT * self._loss + (1 - RECENT) * report.loss
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=report.tasks_done, description=self._line(report))
        elif time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self.say(self._line(report) + f", {_duration(self._seconds_left(report.tasks_done))} left")

    def epoch(self, epoch: int, loss: float, scores: ValidationScores | None, best: bool) -> None:
        """Print the mean loss of an epoch, and the scores of its validation if there was one."""
        validated = ""
        if scores is not None:
            validated = (
                f", mIoU {100 * scores.miou:.1f}, accuracy {100 * scores.accuracy:.1f}, "
                f"false masks {100 * scores.false_mask_rate:.0f} on {100 * scores.false_area:.1f} % of the photo"
            )
        self.say(f"epoch {epoch + 1} of {self._epochs}: loss {loss:.4f}{validated}{' (best)' if best else ''}")

    def close(self) -> None:
        """Remove the progress bar."""
        if self._bar is not None:
            self._bar.stop()

    def tasks_per_second(self, tasks_done: int) -> float:
        """Return the speed since this process started."""
        return (tasks_done - self._done_before) / max(time.monotonic() - self._started_at, 1e-9)

    def _line(self, report: StepReport) -> str:
        cache = report.cache
        kept = "" if cache is None else f", cache hits {100 * cache.hit_rate:.0f} %, {_gigabytes(cache)}"
        rate = self.tasks_per_second(report.tasks_done)
        return (
            f"epoch {report.epoch + 1}/{self._epochs}, task {report.tasks_done}/{self._tasks}, "
            f"loss {self._loss:.4f}, {rate:.1f} tasks/s{kept}"
        )

    def _seconds_left(self, tasks_done: int) -> float:
        return (self._tasks - tasks_done) / max(self.tasks_per_second(tasks_done), 1e-9)


class RunLogs:
    """The log files of a run: a CSV file with a row for each epoch, and curves for TensorBoard.

    Args:
        folder: The folder of the run.
        epoch: The number of epochs that are done. Rows of later epochs, from before the run was resumed, are dropped.
        step: The number of steps that are done. Points of later steps are dropped.
    """

    def __init__(self, folder: Path, epoch: int, step: int) -> None:
        self._path = folder / CSV
        self._rows = [row for row in _read_rows(self._path) if int(row["epoch"]) < epoch]
        self._curves = Curves(folder / "tensorboard", step)

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Log values after one step."""
        self._curves.add(step, {f"step/{name}": value for name, value in values.items()})

    def epoch(self, values: Mapping[str, float]) -> None:
        """Log the values of one epoch."""
        self._rows.append({name: values.get(name, "") for name in COLUMNS})
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        write_text(self._path, text.getvalue())
        self._curves.add(int(values["step"]), {f"epoch/{name}": value for name, value in values.items()})

    def close(self) -> None:
        """Close the files."""
        self._curves.close()


class Curves:
    """Curves for TensorBoard; each point is on disk as soon as it was added.

    TensorBoard's own writer is not used because it writes in a thread, where the error of a full disk cannot be caught.

    Args:
        folder: The folder in which a new file of points is written.
        step: Points of earlier files after this step no longer count.

    Raises:
        EmatError: If TensorBoard is not installed, or the file cannot be written.
    """

    def __init__(self, folder: Path, step: int) -> None:
        with needs_extra("training", "train"):
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
            from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
            from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]
        self._event, self._summary = Event, Summary
        # TensorBoard reads the files in the order of their names.
        self._path = folder / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}"
        with writing(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab")
        self._records = RecordWriter(self._file)
        self._write(step + 1, file_version=EVENT_VERSION)
        self._write(step + 1, session_log=SessionLog(status=SessionLog.START))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point to each of the named curves."""
        points = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step, summary=self._summary(value=points))

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # every point is on disk already, or its error was raised when it was added
            self._file.close()

    def _write(self, step: int, **content: Any) -> None:
        with writing(self._path):
            self._records.write(self._event(wall_time=time.time(), step=step, **content).SerializeToString())
            self._file.flush()


def _read_rows(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [dict(row) for row in csv.DictReader(file)]


def _gigabytes(cache: CacheCounts) -> str:
    disk = f" + {cache.disk_bytes / GIGABYTE:.1f} GB on disk" if cache.disk_bytes else ""
    return f"{cache.memory_bytes / GIGABYTE:.1f} GB{disk}"


def _duration(seconds: float) -> str:
    minutes = int(seconds) // 60
    return f"{minutes // 60}:{minutes % 60:02d} h"
