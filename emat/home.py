"""Where emat keeps what it can make or fetch again: weights, encoded images, counted masks."""

import os
import sys
from pathlib import Path


def emat_home() -> Path:
    """The folder `EMAT_HOME` names, else `emat` in the platform's cache folder; it need not exist yet."""
    chosen = os.environ.get("EMAT_HOME")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "emat"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "emat"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "emat"
