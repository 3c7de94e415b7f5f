import pytest

from emat.inference.feature_cache import CacheCounts
from emat.training import progress
from emat.training.progress import Reporter, StepReport
from emat.training.validation import Check


def test_an_epoch_says_what_was_measured_in_it_alone(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(20, 2)
    reporter.epoch(0, 0.5, Check(10, 0.25, 0.75, 0.1, 0.01), best=True)
    reporter.epoch(1, 0.4, None, best=False)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("epoch 1 of 2: loss 0.5000, mIoU 25.0, accuracy 75.0")
    assert first.endswith("(best)")
    assert second == "epoch 2 of 2: loss 0.4000"


def test_a_step_says_how_much_is_kept(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    kept = CacheCounts(memory_hits=1, disk_hits=2, misses=1, memory_bytes=2**30, disk_bytes=3 * 2**29)
    Reporter(20, 2).step(StepReport(5, 0, 0.5, kept))
    line = capsys.readouterr().err
    assert line.startswith("epoch 1/2, task 5/20, loss 0.5000, ")
    assert "cache hits 75 %, 1.0 GB + 1.5 GB on disk" in line
