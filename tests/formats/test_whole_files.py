"""A file is there whole, or as it was before."""

from contextlib import suppress
from pathlib import Path

import pytest

from emat.errors import EmatError
from emat.formats.whole_files import whole_file, write_text


def test_a_failure_leaves_the_file_as_it_was_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "before")
    with suppress(KeyboardInterrupt), whole_file(path) as unfinished:
        unfinished.write_text("half")
        raise KeyboardInterrupt
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]
    assert path.read_text() == "before"


def test_folders_are_made_and_what_stands_in_the_way_is_named(tmp_path: Path) -> None:
    write_text(tmp_path / "x" / "y" / "a.txt", "é")
    assert (tmp_path / "x" / "y" / "a.txt").read_bytes() == "é".encode()
    with pytest.raises(EmatError, match=r"b\.txt cannot be written"):
        write_text(tmp_path / "x" / "y" / "a.txt" / "b.txt", "")
    with pytest.raises(EmatError, match="cannot be written"):
        write_text(tmp_path / "x", "a folder of that name is there")
