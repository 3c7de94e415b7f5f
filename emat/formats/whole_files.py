"""Texts, and files that appear whole or not at all: written under a hidden name beside their place, then renamed."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from emat.errors import EmatError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to; when the block ends well, what was written is at `path`, else nothing is left."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield unfinished
            os.replace(unfinished, path)
    finally:
        if unfinished.is_file():
            unfinished.unlink()


def write_text(path: Path, text: str) -> None:
    """`text` as UTF-8, whole or not at all."""
    with whole_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def read_text(path: Path) -> str:
    """The UTF-8 text in `path`."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise EmatError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise EmatError(f"{path} cannot be read as text; it must be UTF-8") from None


def read_names(path: Path) -> tuple[str, ...]:
    """The names in a text file, one a line, each once."""
    names = tuple(dict.fromkeys(line.strip() for line in read_text(path).splitlines() if line.strip()))
    if not names:
        raise EmatError(f"{path} names no photo; write one name a line")
    return names


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Whatever keeps the block from writing `path`, such as a full disk, is an EmatError."""
    try:
        yield
    except OSError as error:
        raise EmatError(
            f"{path} cannot be written: {error.strerror or error}; choose another folder or make room"
        ) from None
