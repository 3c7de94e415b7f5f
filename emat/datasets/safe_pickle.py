"""Reading pickles that came from outside: plain data or nothing.

A pickle is a program that may call anything. Fold lists circulate as pickles nevertheless, so they are read
by a machine that finds nothing to call, and what it builds must be dict, list, str and int throughout.
"""

import pickle
from pathlib import Path
from typing import Any, NoReturn

from emat.errors import EmatError

LARGEST_FILE = 256 * 1024 * 1024  # bytes; the largest circulated list has 3.3 million
PLAIN_TYPES = (dict, list, str, int)
WAY_OUT = "only dict, list, str and int are read from a pickle"


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise EmatError(f"asks for the global {module_name}.{global_name}; {WAY_OUT}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise EmatError(f"refers to an object outside itself; {WAY_OUT}")


def read_plain_pickle(path: Path) -> object:
    """The dict, list, str or int in `path`; anything else, at any depth, is an `EmatError` that names it."""
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise EmatError(f"has {size} bytes, more than the {LARGEST_FILE} that a fold list may have")
        with path.open("rb") as file:
            value = _PlainUnpickler(file).load()
        _refuse_other_types(value)
    except EmatError as error:
        raise EmatError(f"{path} {error}") from None
    except OSError as error:
        raise EmatError(f"{path} cannot be read: {error.strerror}") from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise EmatError(f"{path} is no readable pickle ({type(error).__name__}); fetch the list again") from None
    return value


def _refuse_other_types(value: object) -> None:
    # Each container is visited once: a hostile pickle may nest one a billion times, or inside itself.
    seen: set[int] = set()
    pending = [value]
    while pending:
        item = pending.pop()
        if type(item) not in PLAIN_TYPES:
            raise EmatError(f"holds a {type(item).__name__}; {WAY_OUT}")
        if isinstance(item, (dict, list)) and id(item) not in seen:
            seen.add(id(item))
            pending.extend(item)
            if isinstance(item, dict):
                pending.extend(item.values())
