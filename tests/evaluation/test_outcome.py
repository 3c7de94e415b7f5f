"""An outcome survives its short form, and damaged short forms are refused."""

import json

import numpy as np
import pytest

from emat.evaluation.outcome import TaskOutcome, judge_task

MASK = np.array([[3, 3, 0, 255], [5, 0, 8, 8]], np.uint8)
LABELS = np.array([[1, 0, 1, 1], [2, 2, 0, 2]])


@pytest.mark.parametrize("present", [None, (True, False)])
@pytest.mark.parametrize("scores", [None, (0.93, 0.21)])
def test_an_outcome_is_the_same_after_a_file(
    present: tuple[bool, ...] | None, scores: tuple[float, ...] | None
) -> None:
    outcome = judge_task((3, 5), present, LABELS, MASK, scores)
    assert TaskOutcome.from_row(json.loads(json.dumps(outcome.row()))) == outcome


def test_every_pixel_is_on_one_side() -> None:
    assert judge_task((3, 5), None, LABELS, MASK).pixels == MASK.size


def test_a_row_whose_lengths_differ_is_refused() -> None:
    row = judge_task((3, 5), (True, True), LABELS, MASK).row()
    row[3] = (1,)
    with pytest.raises(ValueError, match="2 ways"):
        TaskOutcome.from_row(row)
