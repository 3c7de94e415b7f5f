"""Photos that are predicted together, by one thread."""

import threading
from pathlib import Path
from typing import Any

import pytest

from emat import Segmenter
from emat.errors import EmatError
from emat.images import Pixels
from emat.inference.prediction import Prediction
from emat.scale.serve import Batcher, Busy
from tests.scale.conftest import photo_of


def test_requests_are_answered_in_batches_and_a_full_queue_says_so(fitted: Segmenter) -> None:
    batcher = Batcher(lambda: fitted, most_waiting=3, most_together=4)
    answers: list[Any] = []

    def submit_many() -> None:
        for _ in range(50):
            answers.append(batcher.submit(photo_of(1)))

    with pytest.raises(Busy, match="too many"):
        submit_many()
    batcher.close()  # answers what is waiting
    assert all(answer.result(0).scores == fitted.predict(photo_of(1)).scores for answer in answers)
    assert batcher.batches < batcher.photos == len(answers)
    with pytest.raises(Busy, match="ending"):
        batcher.submit(photo_of(1))


class Stumbling(Segmenter):
    """Cannot predict one photo, of 9 pixels a side."""

    def _unrefined(self, photo: Pixels, *rest: Any, **named: Any) -> Prediction:
        if photo.shape[0] == 9:
            raise RuntimeError("stumbled")
        return super()._unrefined(photo, *rest, **named)


def test_photos_go_through_the_backbone_together_and_a_bad_one_harms_no_other(fitted_file: Path) -> None:
    segmenter = Stumbling.load(fitted_file, device="cpu")
    free = threading.Event()

    def wait_for_all() -> Segmenter:
        free.wait(60)
        return segmenter

    batcher = Batcher(wait_for_all, at_once=4)
    photos: list[Any] = [photo_of(1), b"nonsense", photo_of(2), photo_of(3)[:9], photo_of(4), photo_of(5)]
    answers = [batcher.submit(photo) for photo in photos]
    free.set()
    batcher.close()
    assert isinstance(answers[1].exception(0), EmatError)
    assert isinstance(answers[3].exception(0), RuntimeError)
    for number, index in ((1, 0), (2, 2), (4, 4), (5, 5)):
        assert answers[index].result(0).scores == pytest.approx(segmenter.predict(photo_of(number)).scores, abs=1e-5)
