"""The folder of fetched and imported weights: EMAT_HOME, or `emat` in the platform's cache folder."""

import os
import sys
from pathlib import Path


def emat_home() -> Path:
    """EMAT_HOME if set, else the platform's cache folder for us."""
    if given := os.environ.get("EMAT_HOME"):
        return Path(given).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "emat"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "emat"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "emat"


def backbone_file(name: str) -> Path:
    """Where the weights of a backbone are cached."""
    return emat_home() / "backbones" / f"{name}.safetensors"


def head_file(name: str) -> Path:
    """Where an imported or trained head is kept."""
    return emat_home() / "heads" / f"{name}.safetensors"
