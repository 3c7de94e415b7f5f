"""Class lists as people write them."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emat.formats.class_names import VOID_NAME, class_names_in, label_type, number_classes, read_class_names
from tests.raises import raises_code


@pytest.mark.parametrize(
    "text",
    [
        "cat\ntraffic light\n",
        "\ufeffcat\r\ntraffic light\r\n",
        "background\ncat\ntraffic light",
        "__ignore__\n_background_\ncat\ntraffic light\n",
        "1 cat\n2 traffic light\n",
        "2: traffic light\n1: cat\n",
        "0 background\n1 cat\n2 traffic light\n255 void/ignore\n",
    ],
)
def test_every_way_of_writing_a_class_list_is_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "classes.txt"
    path.write_bytes(text.encode())
    assert read_class_names(path) == ("cat", "traffic light")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "no-classes"),
        ("background", "no-classes"),
        ("cat\ncat", "given-twice"),
        ("1 a\n3 b", "class-numbers"),
    ],
)
def test_a_list_that_cannot_be_is_refused(text: str, code: str) -> None:
    with raises_code(code):
        class_names_in(text, "classes.txt")


def test_a_list_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_bytes(b"\xff\xfe\x80")
    with raises_code("not-text"):
        read_class_names(tmp_path / "classes.txt")
    with raises_code("no-such-file"):
        read_class_names(tmp_path / "nothing.txt")


@given(st.integers(1, 600))
def test_numbering_keeps_every_name_and_never_uses_void(count: int) -> None:
    names = [f"class {number}" for number in range(count)]
    numbered = number_classes(names)
    assert [name for name in numbered if name != VOID_NAME] == names
    assert VOID_NAME not in numbered or numbered.index(VOID_NAME) == 254
    assert len(numbered) < 255 or numbered[254] == VOID_NAME
    assert np.iinfo(label_type(numbered)).max >= len(numbered)


def test_a_number_of_thousands_of_digits_is_no_index(tmp_path: Path) -> None:
    assert class_names_in("1" * 5000 + " cat", "classes.txt") == ("1" * 5000 + " cat",)
    with raises_code("file-too-large"):
        class_names_in("\n" * 2_000_000, "classes.txt")


def test_names_that_look_the_same_are_one_name() -> None:
    assert class_names_in("cafe\u0301 \ncat", "classes.txt") == ("caf\u00e9", "cat")
    with raises_code("given-twice"):
        class_names_in("cafe\u0301\ncaf\u00e9", "classes.txt")
