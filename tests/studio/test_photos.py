"""What is dropped on the page is made small and harmless."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from emat.errors import EmatError
from emat.formats.photo_names import inner_name, without_suffix
from emat.studio.photos import LONGEST_NAME, WORKING_SIDE, read_dropped, safe_name


@given(st.lists(st.text(max_size=120), max_size=6))
def test_names_stay_in_their_folder_and_never_share_a_stem(names: list[str]) -> None:
    taken: list[str] = []
    for name in names:
        taken.append(safe_name(name, taken))
    for name in taken:
        assert inner_name(name) == name
        assert "/" not in name
        assert name.isprintable()
        assert len(name) <= LONGEST_NAME + len("-100")
    assert len({without_suffix(name).casefold() for name in taken}) == len(taken)


def test_a_large_photo_is_worked_on_small_and_its_size_is_remembered(tmp_path: Path) -> None:
    Image.new("RGB", (2000, 1000)).save(tmp_path / "large.png")
    photo = read_dropped(tmp_path / "large.png")
    assert photo.pixels.shape == (WORKING_SIDE // 2, WORKING_SIDE, 3)
    assert photo.size == (1000, 2000)


def test_a_small_photo_is_left_as_it_is(tmp_path: Path) -> None:
    Image.new("RGB", (30, 20)).save(tmp_path / "small.png")
    assert read_dropped(tmp_path / "small.png").pixels.shape == (20, 30, 3)


def test_a_photo_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    Image.new("1", (10_000, 6_000)).save(tmp_path / "bomb.png")
    with pytest.raises(EmatError, match=r"bomb\.png has 10000 x 6000 pixels"):
        read_dropped(tmp_path / "bomb.png")


def test_what_is_no_photo_is_named_without_its_place(tmp_path: Path) -> None:
    (tmp_path / "notes.jpg").write_text("not a photo")
    with pytest.raises(EmatError, match=r"^notes\.jpg is not JPEG"):
        read_dropped(tmp_path / "notes.jpg")
