"""A pickle from outside gives plain data or a clear refusal, and never runs anything."""

import collections
import os
import pickle
from pathlib import Path

import pytest

from emat.datasets.safe_pickle import read_plain_pickle
from emat.errors import EmatError


def pickled(path: Path, value: object) -> Path:
    path.write_bytes(pickle.dumps(value))
    return path


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_is_read_in_every_protocol(tmp_path: Path, protocol: int) -> None:
    value = {0: ["a.jpg", "b.jpg"], 1: [], 2: [{"deep": [10**30]}]}
    path = tmp_path / "list.pkl"
    path.write_bytes(pickle.dumps(value, protocol))
    assert read_plain_pickle(path) == value


class CallsSystem:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (self.command,)


def test_a_pickle_that_calls_is_refused_by_the_name_of_what_it_calls(tmp_path: Path) -> None:
    witness = tmp_path / "was_here"
    path = pickled(tmp_path / "evil.pkl", {0: [CallsSystem(f"touch {witness}")]})
    with pytest.raises(EmatError, match=rf"evil\.pkl asks for the global {os.system.__module__}\.system"):
        read_plain_pickle(path)
    assert not witness.exists()


def test_even_harmless_globals_are_refused(tmp_path: Path) -> None:
    path = pickled(tmp_path / "ordered.pkl", collections.OrderedDict(a=1))
    with pytest.raises(EmatError, match=r"collections\.OrderedDict"):
        read_plain_pickle(path)


@pytest.mark.parametrize("value", [b"bytes", 1.5, None, True, (1, 2), {1, 2}], ids=repr)
def test_other_types_are_refused_by_name_at_any_depth(tmp_path: Path, value: object) -> None:
    path = pickled(tmp_path / "other.pkl", {0: [["a", value]]})
    with pytest.raises(EmatError, match=f"holds a {type(value).__name__}"):
        read_plain_pickle(path)


def test_a_list_that_holds_itself_ends(tmp_path: Path) -> None:
    endless: list[object] = ["a"]
    endless.append(endless)
    assert read_plain_pickle(pickled(tmp_path / "endless.pkl", endless))


@pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps({0: ["a"]})[:-4], b"\x80\x04P1\n."])
def test_damaged_files_are_one_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "damaged.pkl"
    path.write_bytes(content)
    with pytest.raises(EmatError, match=r"damaged\.pkl"):
        read_plain_pickle(path)


def test_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EmatError, match="No such file"):
        read_plain_pickle(tmp_path / "absent.pkl")
