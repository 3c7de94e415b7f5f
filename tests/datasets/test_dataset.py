"""The state of a data set's photos and masks changes with their files, and with nothing else."""

import os
import shutil
from pathlib import Path

import pytest

from emat.datasets.layouts import open_dataset
from emat.errors import EmatError
from tests.evaluation.conftest import make_photos

NAMES = ("photo10", "photo11")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_photos(tmp_path / "data")


def state(data: Path) -> str:
    return open_dataset(data).state(NAMES)


@pytest.mark.parametrize("file", ["images/photo10.png", "masks/photo11.png"])
def test_a_corrected_file_changes_it(file: str, data: Path) -> None:
    before = state(data)
    os.utime(data / file, ns=(1, 1))
    assert state(data) != before


def test_other_files_and_another_folder_leave_it(data: Path, tmp_path: Path) -> None:
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
        dataset.state(NAMES)
