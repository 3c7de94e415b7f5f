"""The Python of every page runs, in the page's order, in a folder with the files that the pages speak of."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from emat import Example, Segmenter
from emat.images import Pixels
from tests.docs.test_commands import WITH_OWN_TESTS, tiny_head
from tests.docs.test_pages import PAGES, blocks, name_of

__all__ = ["tiny_head"]

ELSEWHERE = {  # a block contains this: where it is run, or why it cannot be
    "from transformers import Sam3Model": "another program, whose weights are given out to those who accept a licence",
    "from ultralytics import YOLOE": "another program",
    "cvat_sdk": "tests/integrations/test_cvat.py",
    "import fiftyone": "tests/integrations/test_fiftyone.py",
    "emat.integrations.napari": "tests/integrations/test_napari.py",
    "pyarrow.dataset": "tests/scale/test_ray_predict.py",
    "openvino.Core": "benchmarks/export.py",
    "emat.click(": "tests/refine/test_click.py: needs MobileSAM's weights",
    "emat.Clicker(": "tests/refine/test_click.py: needs MobileSAM's weights",
    'Segmenter.load("best")': "tests/methods/test_published.py: needs what was fetched",
    "emat.measure": "tests/measure and tests/docs/test_measure_tutorials.py: needs an extra",
}
WITH_PYTHON = [page for page in PAGES if blocks(page, "python") and name_of(page) not in WITH_OWN_TESTS]
SIZE = 420, 400  # width and height of a photo, which holds the boxes and polygons of the pages


def draw(number: int) -> tuple[Pixels, Pixels]:
    """A photo of noise with a red disc, and the disc's mask."""
    random = np.random.default_rng(number)
    photo = random.integers(90, 140, (SIZE[1], SIZE[0], 3), dtype=np.uint8)
    rows, columns = np.mgrid[: SIZE[1], : SIZE[0]]
    disc = (rows - 200) ** 2 + (columns - 180 - 20 * number) ** 2 < 90**2
    photo[disc] = 220, 40, 40
    return photo, disc * np.uint8(255)


@pytest.fixture(scope="module")
def everything(tiny_head: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all files that the blocks start from."""
    root = tmp_path_factory.mktemp("blocks")
    (root / "new_photos").mkdir()
    photo, mask = draw(0)
    for name in ("a.jpg", "b.jpg", "c.jpg", "new.jpg", "dish.png", "empty.jpg", "tile.jpg", "wall.jpg", "cells.jpg"):
        Image.fromarray(photo).save(root / name)
    Image.fromarray(photo).save(root / "new_photos" / "17.jpg")
    for name in ("a.png", "c.png", "a_cat.png", "b_cat.png", "stain.png"):
        Image.fromarray(mask).save(root / name)
    beside = np.zeros_like(mask)
    beside[300:380, 10:60] = 255
    Image.fromarray(beside).save(root / "b_dog.png")
    fitted(tiny_head, "cat", "cell").save(root / "pets.emat")
    fitted(tiny_head, "rust").save(root / "leaves.emat")
    return root


def fitted(head: Path, *classes: str) -> Segmenter:
    shown = [Example(draw(number)[0], {name: draw(number)[1]}) for number in (0, 1) for name in classes]
    return Segmenter.load(head, device="cpu").fit(shown)


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_the_python_of_a_page_runs(
    page: Path, everything: Path, tiny_head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shutil.copytree(everything, tmp_path / "folder"))  # blocks may write over what others read
    examples = [Example(photo, {"cat": mask}) for photo, mask in map(draw, (0, 1))]
    given: dict[str, dict[str, Any]] = {  # what the sentences around the blocks speak of
        "docs/formats/README.md": {"results": [("pets/a.jpg", np.ones((4, 5), np.uint8), None)]},
        "docs/own-photos.md": {"segmenter": fitted(tiny_head, "fluorescent nucleus"), "Example": Example},
        "docs/python.md": {"mask_array": draw(0)[1] > 0, "examples": examples},
    }
    names = dict(given.get(name_of(page), {}))
    for text in blocks(page, "python"):
        if not any(part in text for part in ELSEWHERE):
            exec(compile(text, name_of(page), "exec"), names)


def test_what_is_run_elsewhere_is_still_on_a_page() -> None:
    text = "\n".join(block for page in PAGES for block in blocks(page, "python"))
    assert [part for part in ELSEWHERE if part not in text] == []
