"""Independent pieces of work on all cores: several at once, each on one core, wastes less than one on all of them."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

WORKERS_AT_MOST = 8  # each needs its own intermediate memory


class Workers:
    """Does pieces of work side by side and gives their results in order; nothing asks for gradients.

    PyTorch releases Python's lock while it computes, so threads will do.
    """

    def __init__(self, pool: ThreadPoolExecutor | None = None) -> None:
        self._pool = pool

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """`function` of each item."""

        def without_gradients(item: Item) -> Result:
            with torch.no_grad():  # a thread has a mode of its own
                return function(item)

        if self._pool is None:
            return map(without_gradients, items)
        return self._pool.map(without_gradients, items)


@contextmanager
def all_cores(device: torch.device, workers: int | None = None) -> Iterator[Workers]:
    """Workers that share PyTorch's threads between them; one alone where `device` is no CPU.

    Numbers depend on the threads of a worker in their last digits, and so not on how many workers there are as long as
    each has one thread.
    """
    threads = torch.get_num_threads()
    count = min(threads, WORKERS_AT_MOST) if workers is None else workers
    if device.type != "cpu" or count < 2:
        yield Workers()
        return
    torch.set_num_threads(max(1, threads // count))  # threads that start from now on take this number
    try:
        with ThreadPoolExecutor(count) as pool:
            yield Workers(pool)
    finally:
        torch.set_num_threads(threads)
