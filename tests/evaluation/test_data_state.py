"""The state of photos and masks changes with their files, and with nothing else."""

import os
import shutil
from pathlib import Path

import pytest

from emat.datasets.opening import open_dataset
from emat.errors import EmatError
from emat.evaluation.data_state import data_state

NAMES = ("photo10", "photo11")


@pytest.fixture
def data(photos: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(photos, tmp_path / "data"))


def state(data: Path) -> str:
    return data_state(open_dataset(data), NAMES)


@pytest.mark.parametrize("file", ["images/photo10.png", "masks/photo11.png"])
def test_a_corrected_file_changes_it(file: str, data: Path) -> None:
    before = state(data)
    os.utime(data / file, ns=(1, 1))
    assert state(data) != before


def test_other_files_and_another_place_leave_it(data: Path, tmp_path: Path) -> None:
    before = state(data)
    os.utime(data / "masks" / "photo20.png", ns=(1, 1))
    (data / "run.json.journal.0").write_text("{}")
    assert state(data) == before
    assert state(data.rename(tmp_path / "elsewhere")) == before


def test_a_zip_is_one_file(data: Path, tmp_path: Path) -> None:
    packed = Path(shutil.make_archive(str(tmp_path / "data"), "zip", data))
    before = state(packed)
    os.utime(packed, ns=(1, 1))
    assert state(packed) != before


def test_a_file_that_is_gone_is_named(data: Path) -> None:
    dataset = open_dataset(data)
    (data / "masks" / "photo10.png").unlink()
    with pytest.raises(EmatError, match=r"photo10.png cannot be read"):
        data_state(dataset, NAMES)
