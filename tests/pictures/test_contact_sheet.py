"""Contact sheets show all photos, thirty a page."""

from pathlib import Path

import numpy as np
from PIL import Image

from emat.formats.writing import open_writer
from emat.pictures.contact_sheet import COLUMNS, GAP, LEGEND, ROWS, TILE
from tests.formats.label_maps import CLASSES


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
