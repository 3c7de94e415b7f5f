"""Where weights are kept in emat's folder."""

from pathlib import Path

from emat.home import emat_home


def backbone_file(name: str) -> Path:
    """Where the weights of a backbone are cached."""
    return emat_home() / "backbones" / f"{name}.safetensors"


def head_file(name: str) -> Path:
    """Where an imported or trained head is kept."""
    return emat_home() / "heads" / f"{name}.safetensors"
