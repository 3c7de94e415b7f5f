"""A tiny package that adds something to emat through entry points, installed for the time of one test."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


def install_package(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    module: str,
    source: str,
    entry_points: Mapping[str, Mapping[str, str]],
) -> None:
    """Write what pip would: the module, and metadata whose entry points name attributes of the module."""
    (folder / f"{module}.py").write_text(source)
    metadata = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, points in entry_points.items():
        lines += [f"[{group}]", *(f"{key} = {module}:{attribute}" for key, attribute in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, module, raising=False)
