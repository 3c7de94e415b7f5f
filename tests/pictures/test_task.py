"""A task's picture shows photos tinted where the masks are, and as much as the task holds."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emat.datasets.dataset import Dataset
from emat.datasets.folders import FolderDataset
from emat.pictures.palette import PRINT_COLOURS
from emat.pictures.task import draw_task
from emat.tasks.task import Setting, Task


@pytest.fixture
def pets(tmp_path: Path) -> Dataset:
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    (tmp_path / "classes.txt").write_text("ant\nbee\n")
    for i, size in enumerate([(60, 40), (40, 90), (300, 300)]):
        Image.new("RGB", size, (200, 200, 200)).save(tmp_path / "images" / f"p{i}.png")
        mask = np.zeros(size[::-1], np.uint8)
        mask[5:25, 5:25] = i % 2 + 1
        Image.fromarray(mask).save(tmp_path / "masks" / f"p{i}.png")
    return FolderDataset(tmp_path)


def colours_in(picture: Image.Image) -> set[tuple[int, ...]]:
    counted = picture.getcolors(picture.width * picture.height) or ()
    return {colour for _, colour in counted if isinstance(colour, tuple)}


def test_each_way_is_drawn_in_its_own_colour(pets: Dataset) -> None:
    first, second, query = pets.names
    picture = draw_task(Task(0, query, 1, (1, 2), ((first,), (second,))), pets)
    assert {PRINT_COLOURS[0], PRINT_COLOURS[1]} <= colours_in(picture)
    assert PRINT_COLOURS[2] not in colours_in(picture)


def test_a_repeated_shot_is_drawn_once(pets: Dataset) -> None:
    first, second, query = pets.names
    once = draw_task(Task(0, query, 1, (1,), ((first, second),)), pets)
    often = draw_task(Task(0, query, 1, (1,), ((first, second, *[first] * 20),)), pets)
    assert often.size == once.size
    assert often.tobytes() != once.tobytes()


def test_more_shots_make_a_larger_picture(pets: Dataset) -> None:
    first, second, query = pets.names
    small = draw_task(Task(0, query, 1, (1,), ((first,),)), pets)
    wide = draw_task(Task(0, query, 1, (1,), ((first, second),)), pets)
    tall = draw_task(Task(0, query, 1, (1, 2, 1, 2), ((first,),) * 4, Setting.FULLY_AUGMENTED, True), pets)
    assert wide.width > small.width
    assert tall.height > small.height
