"""Progress of long work, on standard error: a bar on a terminal, now and then a plain line elsewhere."""

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import track

Item = TypeVar("Item")

SECONDS_BETWEEN_LINES = 10.0


def follow(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """The items, telling the user how many of `total` are done; `what` is the work, such as "masks read"."""
    console = Console(stderr=True)
    if console.is_terminal:
        yield from track(items, description=what, total=total, console=console, transient=True)
        return
    began = last = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            left = (last - began) / done * (total - done)
            console.print(f"{what}: {done} of {total}, about {left:.0f} s left", highlight=False)
