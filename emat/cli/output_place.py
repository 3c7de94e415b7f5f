"""Where long work will write its results, looked at before it starts and not when it ends."""

import os
from pathlib import Path

from emat.errors import EmatError


def check_output(path: Path) -> None:
    """Make the folder of `path`; EmatError if no file can be written there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from None
    if path.is_dir():
        raise _refused(path, "it is a folder")
    if not os.access(path.parent, os.W_OK):
        raise _refused(path, f"the folder {path.parent} is not yours to write to")


def _refused(path: Path, reason: str) -> EmatError:
    return EmatError(f"{path} cannot be written: {reason}; choose another place by -o")
