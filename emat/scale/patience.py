"""How long a request may take to arrive: a client that sends nothing more must not be waited for without end."""

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

Value = TypeVar("Value")

SECONDS = 60.0  # for any request
SLOWEST = 64 * 1024  # bytes a second from then on
SENTENCE = "the request did not arrive in time; send it again, or use a faster connection"


class TooSlow(Exception):
    """A request did not arrive in time."""


class Patience:
    """Waits for the parts of one request: a minute, and a second more for every 64 KB of it."""

    def __init__(self) -> None:
        self._until = time.monotonic() + SECONDS

    def count(self, part: bytes) -> None:
        """Grant the time that these bytes may have taken."""
        self._until += len(part) / SLOWEST

    async def wait(self, part: Awaitable[Value]) -> Value:
        """Wait for the next part; TooSlow if it does not come in time."""
        try:
            return await asyncio.wait_for(part, max(0.0, self._until - time.monotonic()))
        except asyncio.TimeoutError:
            raise TooSlow(SENTENCE) from None
