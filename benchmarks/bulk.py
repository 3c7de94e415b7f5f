"""Photos a second of bulk prediction on Ray by number of workers, and the memory that they take.

python benchmarks/bulk.py pets.emat PHOTOS --workers 1,2
"""

import argparse
import tempfile
import threading
import time
from pathlib import Path

import psutil

from emat.scale.ray_predict import RayOptions, predict_in_bulk


class Memory:
    """The most that this process and all that it started had in memory at once, in bytes."""

    def __init__(self) -> None:
        self.most, self._ending = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        own = psutil.Process()
        while not self._ending.wait(0.5):
            used = 0
            for process in [own, *own.children(recursive=True)]:
                try:
                    used += process.memory_info().rss
                except psutil.Error:
                    continue
            self.most = max(self.most, used)

    def end(self) -> int:
        """Stop watching and return the most."""
        self._ending.set()
        self._thread.join()
        return self.most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("segmenter", type=Path)
    parser.add_argument("photos")
    parser.add_argument("--workers", default="1,2")
    asked = parser.parse_args()
    for workers in map(int, asked.workers.split(",")):
        with tempfile.TemporaryDirectory() as out:
            memory, began = Memory(), time.perf_counter()
            done = predict_in_bulk(asked.segmenter, [asked.photos], out, RayOptions(workers=workers))
            seconds = time.perf_counter() - began
        print(
            f"{workers} workers: {done.photos} photos in {seconds:.1f} s with the start of Ray, "
            f"{done.photos / seconds:.2f} a second, {memory.end() / 2**30:.1f} GB at most"
        )


if __name__ == "__main__":
    main()
