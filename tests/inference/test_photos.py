"""Photos: which ones a command line names, and how tiles cover them."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from emat.errors import EmatError
from emat.inference.example import Example
from emat.inference.photos import OVERLAP, find_photos, views
from emat.inference.segmenter import Segmenter
from tests.inference.colour_method import ColourMethod


@pytest.fixture
def album(tmp_path: Path) -> Path:
    for name in ("a.jpg", "b.PNG", "deep/c.jpg", "deep/notes.txt", ".hidden/d.jpg", "out/e.jpg"):
        path = tmp_path / "album" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(path) if path.suffix != ".txt" else path.write_text("no photo")
    return tmp_path / "album"


def test_a_folder_gives_all_below_it_by_their_path_but_results(album: Path) -> None:
    assert [photo.name for photo in find_photos([str(album)], leave_out=album / "out")] == [
        "a.jpg",
        "b.PNG",
        "deep/c.jpg",
    ]


def test_files_and_patterns_give_names_and_nothing_twice(album: Path) -> None:
    found = find_photos([str(album / "a.jpg"), str(album / "**" / "*.jpg"), str(album / "a.jpg")])
    assert [photo.name for photo in found] == ["a.jpg", "c.jpg", "e.jpg"]


def test_a_missing_file_is_left_for_the_run_to_report(album: Path) -> None:
    assert [photo.name for photo in find_photos([str(album / "gone.jpg")])] == ["gone.jpg"]


def test_nothing_to_predict_is_an_error(album: Path) -> None:
    with pytest.raises(EmatError, match="no photos in"):
        find_photos([str(album / "*.gif")])


def test_two_photos_of_one_name_are_refused(album: Path) -> None:
    Image.new("RGB", (4, 4)).save(album / "a.png")
    with pytest.raises(EmatError, match=r"a.jpg and .*a.png would have results of the same name"):
        find_photos([str(album)])


@given(st.integers(1, 900), st.integers(1, 900), st.one_of(st.integers(1, 6), st.just("auto")))
def test_tiles_cover_every_pixel_and_stay_inside(height: int, width: int, tiles: int | str) -> None:
    whole, *parts = views((height, width), 100, tiles)  # type: ignore[arg-type]
    assert (whole.top, whole.left, whole.height, whole.width) == (0, 0, height, width)
    seen = np.zeros((height, width), bool)
    for part in parts:
        assert part.top >= 0
        assert part.left >= 0
        assert part.top + part.height <= height
        assert part.left + part.width <= width
        seen[part.area] = True
    assert seen.all() or not parts


def test_neighbours_overlap() -> None:
    first, second = views((100, 400), 100, 2)[1:3]
    assert first.left + first.width - second.left >= OVERLAP * first.width - 1


def test_a_small_photo_is_not_cut_by_auto() -> None:
    assert len(views((120, 140), 100, "auto")) == 1
    assert len(views((200, 300), 100, "auto")) == 1 + 2 * 3


def test_a_small_object_found_by_tiles_is_missed_without() -> None:
    grey, red = np.full((256, 256, 3), 90, np.uint8), (250, 20, 20)
    shown = grey.copy()
    shown[64:192, 64:192] = red
    asked = grey.copy()
    asked[201:209, 41:49] = red  # one pixel of the whole as the network sees it, between two of them
    example = Example(shown, {"red": (64, 64, 192, 192)})
    without = Segmenter(ColourMethod()).fit([example]).predict(asked)
    with_tiles = Segmenter(ColourMethod(), tiles="auto").fit([example]).predict(asked)
    truth = np.zeros((256, 256), bool)
    truth[201:209, 41:49] = True
    assert without.present == set()
    assert not without.mask("red").any()
    assert with_tiles.present == {"red"}
    found = with_tiles.mask("red")
    assert (found & truth).sum() / (found | truth).sum() > 0.5


def test_a_tile_without_the_class_adds_nothing() -> None:
    grey = np.full((64, 64, 3), 90, np.uint8)
    shown = grey.copy()
    shown[:, :32] = (250, 20, 20)
    plain = Segmenter(ColourMethod(), tiles=3).fit([Example(shown, {"red": (0, 0, 32, 64)})]).predict(grey)
    assert not plain.mask("red").any()


@pytest.mark.parametrize("tiles", [0, -1, "many", 1.5, True])
def test_other_values_are_refused(tiles: object) -> None:
    with pytest.raises(EmatError, match="tiles is None, 'auto' or a number of tiles a side"):
        Segmenter(ColourMethod(), tiles=tiles)  # type: ignore[arg-type]
