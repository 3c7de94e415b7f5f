import csv
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from emat.features import CacheCounts
from emat.training import reporting
from emat.training.reporting import Reporter, RunLogs, StepReport
from emat.training.state import ValidationScores
from tests.raises import raises_code

pytest.importorskip("tensorboard")


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def points(folder: Path, curve: str) -> list[tuple[int, float]]:
    """What TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(point.step, point.value) for point in events.Scalars(curve)]


@contextmanager
def no_room_beyond(size: int) -> Iterator[None]:
    """No file may grow past `size` bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_run_that_goes_on_replaces_what_came_after(tmp_path: Path) -> None:
    first = RunLogs(tmp_path, 0, 0)
    for epoch in range(3):
        first.step(10 * (epoch + 1), {"loss": 1.0 + epoch})
        first.epoch({"epoch": epoch, "step": 10 * (epoch + 1), "loss": 1.0 + epoch})
    first.close()
    again = RunLogs(tmp_path, 2, 20)
    again.step(30, {"loss": 0.5})
    again.epoch({"epoch": 2, "step": 30, "loss": 0.5})
    again.close()
    assert [(row["epoch"], row["loss"], row["miou"]) for row in rows(tmp_path)] == [
        ("0", "1.0", ""),
        ("1", "2.0", ""),
        ("2", "0.5", ""),
    ]
    assert points(tmp_path, "step/loss") == points(tmp_path, "epoch/loss") == [(10, 1.0), (20, 2.0), (30, 0.5)]


def test_a_full_disk_is_reported_and_the_rows_before_stay(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logs = RunLogs(tmp_path, 0, 0)
    logs.epoch({"epoch": 0, "step": 1, "loss": 1.0})
    size = (tmp_path / "metrics.csv").stat().st_size
    with no_room_beyond(size):
        with raises_code("cannot-write", "metrics.csv"):
            logs.epoch({"epoch": 1, "step": 2, "loss": 0.5})
        with raises_code("cannot-write", "events.out.tfevents"):
            logs.step(2, {f"loss {number}": 0.5 for number in range(100)})
        logs.close()
    assert [row["epoch"] for row in rows(tmp_path)] == ["0"]
    assert capfd.readouterr().err == ""


def test_an_epoch_says_what_was_measured_in_it_alone(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(20, 2)
    reporter.epoch(0, 0.5, ValidationScores(10, 0.25, 0.75, 0.1, 0.01), best=True)
    reporter.epoch(1, 0.4, None, best=False)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("epoch 1 of 2: loss 0.5000, mIoU 25.0, accuracy 75.0")
    assert first.endswith("(best)")
    assert second == "epoch 2 of 2: loss 0.4000"


def test_a_step_says_how_much_is_kept(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "SECONDS_BETWEEN_LINES", 0.0)
    kept = CacheCounts(memory_hits=1, disk_hits=2, misses=1, memory_bytes=2**30, disk_bytes=3 * 2**29)
    Reporter(20, 2).step(StepReport(5, 0, 0.5, kept))
    line = capsys.readouterr().err
    assert line.startswith("epoch 1/2, task 5/20, loss 0.5000, ")
    assert "cache hits 75 %, 1.0 GB + 1.5 GB on disk" in line
