"""Progress of long work on standard error: a bar on a terminal, and otherwise a line of text every ten seconds."""

import logging
import os
import time
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TypeVar

from rich.console import Console
from rich.progress import track

Item = TypeVar("Item")

SECONDS_BETWEEN_LINES = 10.0


def follow(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """Pass items on and show how many are done.

    Args:
        items: The items.
        total: The number of items.
        what: The name of the work, such as "masks read".

    Yields:
        The items.
    """
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


def is_first_process() -> bool:
    """Whether this is the first process, which alone writes messages. Launchers set variables that say so."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0


@cache
def _said(kind: str) -> list[str]:
    return []


def tell_first(kind: str, message: str) -> None:
    """Log a warning the first time that something of this kind happens, and only in the first process."""
    if is_first_process() and not _said(kind):
        _said(kind).append(message)
        logging.getLogger("emat").warning(message)


@cache
def tell_once(message: str) -> None:
    """Log a warning, only once for the same message and only in the first process."""
    if is_first_process():
        logging.getLogger("emat").warning(message)
