"""What a run tells while it goes: a bar on a terminal, plain lines elsewhere."""

import time
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from emat.inference.feature_cache import CacheCounts
from emat.training.settings import GIGABYTE
from emat.training.validation import Check

SECONDS_BETWEEN_LINES = 30.0
RECENT = 0.98  # weight of the loss so far in the loss that is shown


@dataclass(frozen=True)
class StepReport:
    """One finished step."""

    tasks_done: int
    epoch: int
    loss: float
    cache: CacheCounts | None


class Reporter:
    """Tells a person about a run of `tasks` tasks in `epochs` epochs; a process that is not the first stays silent."""

    def __init__(self, tasks: int, epochs: int, *, done: int = 0, silent: bool = False) -> None:
        self._console = Console(stderr=True, quiet=silent, highlight=False)
        self._tasks, self._epochs = tasks, epochs
        self._begun_with, self._begun = done, time.monotonic()
        self._loss: float | None = None
        self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if self._console.is_terminal and not silent:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=self._console)
            self._bar.add_task("training", total=tasks, completed=done)
            self._bar.start()

    def say(self, line: str) -> None:
        """A line for people."""
        self._console.print(line, soft_wrap=True)

    def step(self, report: StepReport) -> None:
        """After a step."""
        self._loss = report.loss if self._loss is None else RECENT * self._loss + (1 - RECENT) * report.loss
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=report.tasks_done, description=self._line(report))
        elif time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self.say(self._line(report) + f", {_duration(self._seconds_left(report.tasks_done))} left")

    def epoch(self, epoch: int, loss: float, check: Check | None, best: bool) -> None:
        """After an epoch."""
        scores = ""
        if check is not None:
            scores = (
                f", mIoU {100 * check.miou:.1f}, accuracy {100 * check.accuracy:.1f}, "
                f"false masks {100 * check.false_mask_rate:.0f} on {100 * check.false_area:.1f} % of the photo"
            )
        self.say(f"epoch {epoch + 1} of {self._epochs}: loss {loss:.4f}{scores}{' (best)' if best else ''}")

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()

    def tasks_per_second(self, tasks_done: int) -> float:
        """Since this process began."""
        return (tasks_done - self._begun_with) / max(time.monotonic() - self._begun, 1e-9)

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


def _gigabytes(cache: CacheCounts) -> str:
    disk = f" + {cache.disk_bytes / GIGABYTE:.1f} GB on disk" if cache.disk_bytes else ""
    return f"{cache.memory_bytes / GIGABYTE:.1f} GB{disk}"


def _duration(seconds: float) -> str:
    minutes = int(seconds) // 60
    return f"{minutes // 60}:{minutes % 60:02d} h"
