"""The state of a data set changes with its files and nothing else; areas of classes are counted once and kept."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from emat.datasets.dataset import ClassAreas, class_fractions
from emat.datasets.layouts import open_dataset
from emat.files import emat_home
from tests.evaluation.conftest import make_photos
from tests.raises import raises_code

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
    with raises_code("no-such-file", "photo10.png"):
        dataset.state(NAMES)


MASK = np.array([[0, 2, 2, 255], [0, 1, 2, 255]], dtype=np.uint8)


class Reader:
    """Reads `MASK`, and remembers which names it was asked for."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def __call__(self, name: str) -> NDArray[np.integer]:
        self.read.append(name)
        return MASK


def test_void_belongs_to_the_whole_but_is_no_class() -> None:
    assert class_fractions(MASK) == {1: 1 / 8, 2: 3 / 8}
    assert list(class_fractions(MASK)) == [1, 2]


@given(arrays(np.uint8, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.sampled_from([0, 1, 9, 255])))
def test_fractions_agree_with_counting_each_class(mask: NDArray[np.uint8]) -> None:
    assert class_fractions(mask) == {c: (mask == c).mean() for c in (1, 9) if (mask == c).any()}


def test_a_mask_is_read_once() -> None:
    reader = Reader()
    areas = ClassAreas(reader)
    assert [areas["a"], areas["a"], areas["b"]] == [{1: 1 / 8, 2: 3 / 8}] * 3
    assert reader.read == ["a", "b"]


def test_kept_areas_spare_the_masks_in_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
    source = tmp_path / "masks.zip"
    source.write_bytes(b"the masks")
    first = ClassAreas.of_source(Reader(), source)
    counted = first["a"]
    first.keep()
    assert [path.parent for path in emat_home().rglob("*.json")] == [tmp_path / "home" / "class-areas"]
    reader = Reader()
    assert ClassAreas.of_source(reader, source)["a"] == counted
    assert reader.read == []
    source.write_bytes(b"other masks")
    assert ClassAreas.of_source(reader, source)["a"] == counted
    assert reader.read == ["a"]


def test_a_damaged_file_of_areas_costs_a_second_count_only(tmp_path: Path) -> None:
    kept = tmp_path / "areas.json"
    for content in ("", "[1]", '{"a": 3}', '{"a": {"x": 1}}'):
        kept.write_text(content)
        reader = Reader()
        assert ClassAreas(reader, kept)["a"] == {1: 1 / 8, 2: 3 / 8}
        assert reader.read == ["a"]
