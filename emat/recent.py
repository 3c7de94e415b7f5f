"""What was computed from photos last, kept in memory while there is room."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from emat.images import Pixels

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """Values that were computed from photos. When there are too many, those used longest ago are forgotten.

    A photo is known by the array itself, not by its content, and is kept as long as its values. Several threads may ask
    at once.

    Args:
        limit: The most bytes to keep; the value that was asked for last stays even if it is larger.
        size: The bytes of a value.
    """

    def __init__(self, limit: int, size: Callable[[Value], int]) -> None:
        self._limit, self._size = limit, size
        self._kept: OrderedDict[tuple[int, Hashable], tuple[Pixels, Value]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, photo: Pixels, compute: Callable[[], Value], setting: Hashable = None) -> Value:
        """Return what `compute` returned when it was last asked for this photo and setting, or compute it now."""
        key = id(photo), setting
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][1]
        value = compute()
        with self._lock:
            self._kept[key] = photo, value
            while len(self._kept) > 1 and sum(self._size(one) for _, one in self._kept.values()) > self._limit:
                self._kept.popitem(last=False)
        return value
