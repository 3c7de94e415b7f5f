"""Photos that are dropped on the page get small and harmless; paint becomes masks and masks become paint."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from PIL import Image

from emat.errors import EmatError
from emat.files import inner_name, without_suffix
from emat.pictures.palette import colour_of
from emat.studio.photos import LONGEST_NAME, WORKING_SIDE, masks_of, paint_of, read_dropped, safe_name
from emat.studio.session import MOST_CLASSES
from tests.studio.conftest import left_half, paint


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


def test_what_is_no_photo_is_named_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "notes.jpg").write_text("not a photo")
    with pytest.raises(EmatError, match=r"^notes\.jpg is not JPEG"):
        read_dropped(tmp_path / "notes.jpg")


COLOURS = {f"class {number}": colour_of(number) for number in range(1, MOST_CLASSES + 1)}


@given(arrays.arrays(np.uint8, (9, 11), elements=st.integers(0, MOST_CLASSES)))
def test_masks_come_back_from_their_paint(label_map: NDArray[np.uint8]) -> None:
    masks = {f"class {number}": label_map == number for number in np.unique(label_map) if number}
    painted = masks_of([np.array(paint_of(masks, COLOURS, (9, 11)))], COLOURS, (9, 11))
    assert painted.keys() == masks.keys()
    for name, mask in masks.items():
        np.testing.assert_array_equal(painted[name], mask)


def test_colours_that_are_slightly_off_are_the_nearest_class_and_faint_edges_are_none() -> None:
    red, green, blue = colour_of(1)
    layer = np.array([[[red - 3, green + 2, blue + 4, 140], [red, green, blue, 40]]], np.uint8)
    assert masks_of([layer], COLOURS, (1, 2))["class 1"].tolist() == [[True, False]]


def test_the_upper_layer_wins() -> None:
    everywhere = np.ones((40, 60), bool)
    masks = masks_of([paint(colour_of(1), everywhere), paint(colour_of(2), left_half())], COLOURS, (40, 60))
    np.testing.assert_array_equal(masks["class 2"], left_half())
    np.testing.assert_array_equal(masks["class 1"], ~left_half())


def test_a_layer_of_another_size_is_brought_to_the_photo_s() -> None:
    large = np.array(Image.fromarray(paint(colour_of(1), left_half())).resize((120, 80), Image.Resampling.NEAREST))
    np.testing.assert_array_equal(masks_of([large], COLOURS, (40, 60))["class 1"], left_half())


def test_nothing_painted_is_no_mask() -> None:
    assert masks_of([], COLOURS, (4, 4)) == {}
    assert masks_of([np.zeros((4, 4, 4), np.uint8)], COLOURS, (4, 4)) == {}
