"""Overlays show every class where it is, and leave the rest of the photo alone."""

from pathlib import Path

import numpy as np
from PIL import Image

from emat.formats.writing import open_writer
from emat.images import VOID
from emat.pictures.overlay import COLUMNS, GAP, LEGEND, ROWS, TILE, draw_overlay
from emat.pictures.palette import colour_of
from tests.formats.label_maps import CLASSES


def grey(height: int, width: int) -> np.ndarray:
    return np.full((height, width, 3), 128, np.uint8)


def test_regions_are_tinted_towards_their_colour_and_the_rest_is_untouched() -> None:
    label_map = np.zeros((200, 300), np.uint8)
    label_map[50:150, 40:120] = 1
    label_map[50:150, 180:260] = 2
    picture = np.asarray(draw_overlay(grey(200, 300), label_map, {1: "cat", 2: "dog"}, legend=False)).astype(int)
    for index, (y, x) in {1: (100, 80), 2: (100, 220)}.items():
        towards = np.array(colour_of(index)) - 128
        assert (np.sign(picture[y, x] - 128) == np.sign(towards)).all()
        assert (np.abs(picture[y, x] - 128) < np.abs(towards)).all()  # the photo shines through
        border = picture[y, {1: 40, 2: 180}[index]]
        assert np.abs(border - colour_of(index)).sum() < np.abs(picture[y, x] - colour_of(index)).sum()
    assert (picture[10:30, 10:290] == 128).all()


def test_the_legend_names_what_is_present_and_only_then_is_there() -> None:
    empty = np.zeros((200, 300), np.uint8)
    assert (np.asarray(draw_overlay(grey(200, 300), empty, {1: "cat"})) == 128).all()
    one, two = empty.copy(), empty.copy()
    one[:20, :20] = two[:20, :20] = 1
    two[:20, 40:60] = VOID
    tall = [
        int((np.asarray(draw_overlay(grey(200, 300), m, {1: "cat"}))[100:, 12] != 128).any(1).sum()) for m in (one, two)
    ]
    assert 0 < tall[0] < tall[1]


def test_the_first_thirty_six_classes_have_colours_of_their_own() -> None:
    assert len({colour_of(index) for index in range(1, 37)}) == 36


def test_tiny_photos_and_hundreds_of_classes_can_be_drawn() -> None:
    names = {index: f"a rather long name {index}" for index in range(1, 255)}
    for height, width in ((1, 1), (3, 40), (40, 3), (64, 64)):
        label_map = (np.arange(height * width).reshape(height, width) % 256).astype(np.uint8)
        assert draw_overlay(grey(height, width), label_map, names).size == (width, height)


def test_the_written_picture_is_the_photo_at_its_size(tmp_path: Path) -> None:
    with open_writer("overlay", tmp_path, CLASSES) as writer:
        writer.write("x/a.png", np.zeros((50, 70), np.uint8), grey(50, 70))
    with Image.open(tmp_path / "x" / "a.jpg") as image:
        assert (image.format, image.size) == ("JPEG", (70, 50))
        assert np.abs(np.asarray(image).astype(int) - 128).max() <= 2


def test_pages_hold_thirty_photos_and_the_last_the_rest(tmp_path: Path) -> None:
    with open_writer("sheet", tmp_path, CLASSES) as writer:
        for number in range(COLUMNS * ROWS + 2):
            photo = np.full((40, 60, 3), 7 * number, np.uint8)
            writer.write(
                f"{number}/a-rather-long-name-that-does-not-fit-below-its-picture.jpg", photo[..., 0] * 0, photo
            )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sheet-1.jpg", "sheet-2.jpg"]
    with Image.open(tmp_path / "sheet-2.jpg") as page:
        assert page.width == GAP + 2 * (TILE + GAP)
        for column, number in enumerate((30, 31)):
            middle = (GAP + column * (TILE + GAP) + TILE // 2, LEGEND + TILE - 20)
            assert np.abs(np.array(page.getpixel(middle)) - 7 * number).max() <= 3


def test_a_run_without_photos_has_no_page(tmp_path: Path) -> None:
    open_writer("sheet", tmp_path, CLASSES).close()
    assert list(tmp_path.iterdir()) == []
