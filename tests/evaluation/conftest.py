"""A tiny data set of real files, some photos with two classes, and a head with random weights."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emat.images import write_indexed_png

COLOURS = {1: (220, 40, 40), 2: (40, 200, 60), 3: (50, 80, 230), 4: (230, 210, 40)}
PHOTOS_PER_CLASS = 5
HEIGHT, WIDTH = 44, 60


def make_photos(root: Path) -> Path:
    """Four classes in two folds; every second photo also shows the fold's other class, large enough to count."""
    random = np.random.default_rng(0)
    (root / "images").mkdir(parents=True)
    (root / "classes.txt").write_text("disc\nbar\nblob\nslab\n")
    for class_id in COLOURS:
        for number in range(PHOTOS_PER_CLASS):
            photo = random.integers(90, 130, (HEIGHT, WIDTH, 3)).astype(np.uint8)
            mask = np.zeros((HEIGHT, WIDTH), np.uint8)
            top, left = random.integers(2, 14), random.integers(2, 12)
            other = class_id + 1 if class_id % 2 else class_id - 1
            shown = [(class_id, left)] + ([(other, left + 26)] if number % 2 else [])
            for each, start in shown:
                where = np.s_[top : top + 14 + 2 * number, start : start + 20]
                mask[where], photo[where] = each, COLOURS[each]
            name = f"photo{class_id}{number}"
            Image.fromarray(photo).save(root / "images" / f"{name}.png")
            write_indexed_png(root / "masks" / f"{name}.png", mask)
    return root


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("data") / "shapes")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
