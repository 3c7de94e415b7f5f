"""Photos that come together are predicted together, by one thread, in the order in which they came.

A single thread uses the network, so memory does not grow with the number of clients, and a queue of limited length
refuses what could not be answered in time. Photos of a batch are read while earlier ones are predicted. On a GPU they
go through the backbone together; each is compared with the examples on its own, so an answer does not depend on the
others.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from emat.errors import EmatError
from emat.images import Pixels, Source
from emat.inference.photos import read_ahead
from emat.inference.prediction import Prediction
from emat.inference.segmenter import Segmenter

MOST_WAITING = 256
MOST_TOGETHER = 16


class Busy(Exception):
    """More requests are waiting than will be answered soon."""


@dataclass(frozen=True)
class _Request:
    photo: Source
    answer: "Future[Prediction]"


class Batcher:
    """Predicts photos in a thread of its own.

    Args:
        segmenter: Called for the segmenter that is to be used now.
        most_waiting: How many photos may wait.
        most_together: How many photos are taken from the queue together.
        at_once: How many of them go through the backbone together; by default what `Segmenter.predict_many` chooses.
    """

    def __init__(
        self,
        segmenter: Callable[[], Segmenter],
        most_waiting: int = MOST_WAITING,
        most_together: int = MOST_TOGETHER,
        at_once: int | None = None,
    ) -> None:
        self._segmenter, self._most, self._at_once = segmenter, most_together, at_once
        self._waiting: queue.Queue[_Request | None] = queue.Queue(most_waiting)
        self.batches = 0
        self.photos = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="emat-batches", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many photos are waiting."""
        return self._waiting.qsize()

    def submit(self, photo: Source) -> "Future[Prediction]":
        """Ask for a prediction; its errors are those of `Segmenter.predict`.

        Raises:
            Busy: If too many photos are waiting, or the server is ending.
        """
        if self._closed.is_set():
            raise Busy("this server is ending")
        request = _Request(photo, Future())
        try:
            self._waiting.put_nowait(request)
        except queue.Full:
            raise Busy("too many photos are waiting; try again later") from None
        return request.answer

    def close(self) -> None:
        """Answer everything that is waiting, then end the thread."""
        self._closed.set()
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        while True:
            first = self._waiting.get()
            batch = [] if first is None else [first]
            ending = first is None
            while not ending and len(batch) < self._most:
                try:
                    following = self._waiting.get_nowait()
                except queue.Empty:
                    break
                ending = following is None
                if following is not None:
                    batch.append(following)
            self._answer(batch)
            if ending:
                return

    def _answer(self, batch: list[_Request]) -> None:
        if not batch:
            return
        self.batches += 1
        segmenter = self._segmenter()
        asked: deque[_Request] = deque()  # whose photos were read and are not predicted yet
        try:
            photos = self._readable(batch, segmenter, asked)
            for prediction in segmenter.predict_many(photos, batch_size=self._at_once):
                asked.popleft().answer.set_result(prediction)
        except Exception:  # of one photo, which must not be the end of the others
            for request in batch:
                if not request.answer.done():
                    _answer_alone(request, segmenter)

    def _readable(self, batch: list[_Request], segmenter: Segmenter, asked: "deque[_Request]") -> Iterator[Pixels]:
        """Read the photos of a batch; a request whose photo cannot be read is answered at once."""
        reading = read_ahead((request.photo for request in batch), reading=segmenter.reading)
        for request, read in zip(batch, reading, strict=True):
            self.photos += 1
            if read.pixels is None:
                request.answer.set_exception(read.problem or EmatError("photo-not-read", "the photo was not read"))
            else:
                asked.append(request)
                yield read.pixels


def _answer_alone(request: _Request, segmenter: Segmenter) -> None:
    try:
        request.answer.set_result(segmenter.predict(request.photo))
    except Exception as error:
        request.answer.set_exception(error)
