"""Photos a second of bulk prediction on Ray by number of workers, and the memory and processor time that they take.

python benchmarks/bulk.py pets.emat PHOTOS --workers 1,2
"""

import argparse
import tempfile
import threading
import time
from pathlib import Path

import psutil

from emat.scale.ray_predict import RayOptions, predict_in_bulk


class Watch:
    """Memory and processor time of this process and all that it started.

    Attributes:
        most: The most bytes that they had in memory at once.
    """

    def __init__(self) -> None:
        self.most, self._ending = 0, threading.Event()
        self._seconds: dict[int, float] = {}  # by process
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def seconds(self) -> float:
        """Seconds of processor time so far."""
        return sum(self._seconds.values())

    def _watch(self) -> None:
        own = psutil.Process()
        while not self._ending.wait(0.5):
            used = 0
            for process in [own, *own.children(recursive=True)]:
                try:
                    used += process.memory_info().rss
                    times = process.cpu_times()
                except psutil.Error:
                    continue
                self._seconds[process.pid] = times.user + times.system
            self.most = max(self.most, used)

    def end(self) -> None:
        """Stop watching."""
        self._ending.set()
        self._thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("segmenter", type=Path)
    parser.add_argument("photos")
    parser.add_argument("--workers", default="1,2")
    asked = parser.parse_args()
    for workers in map(int, asked.workers.split(",")):
        with tempfile.TemporaryDirectory() as out:
            watch, began = Watch(), time.perf_counter()
            done = predict_in_bulk(asked.segmenter, [asked.photos], out, RayOptions(workers=workers))
            seconds = time.perf_counter() - began
            watch.end()
        print(
            f"{workers} workers: {done.photos} photos in {seconds:.1f} s with the start of Ray, "
            f"{done.photos / seconds:.2f} a second, {watch.seconds:.0f} s of processor time, "
            f"{watch.most / 2**30:.1f} GB at most"
        )


if __name__ == "__main__":
    main()
