"""Class areas are counted once, kept while the masks are unchanged, and counted again when they change."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from emat.datasets.class_areas import ClassAreas, class_fractions
from emat.files import emat_home

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
