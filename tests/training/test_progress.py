import pytest

from emat.training.progress import Reporter
from emat.training.validation import Check


def test_an_epoch_says_what_was_measured_in_it_alone(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(20, 2)
    reporter.epoch(0, 0.5, Check(10, 0.25, 0.75, 0.1, 0.01), best=True)
    reporter.epoch(1, 0.4, None, best=False)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("epoch 1 of 2: loss 0.5000, mIoU 25.0, accuracy 75.0")
    assert first.endswith("(best)")
    assert second == "epoch 2 of 2: loss 0.4000"
