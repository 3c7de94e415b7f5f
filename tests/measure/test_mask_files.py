"""Masks of any program are measured, and what could be meant in two ways is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from emat.measure.mask_files import MaskFiles
from tests.measure.shapes import disc
from tests.raises import raises_code

DISC = disc(60)
PHOTO = np.zeros((*DISC.shape, 3), np.uint8)
SMOOTH = (255 * ndimage.gaussian_filter(DISC.astype(np.float32), 1)).astype(np.uint8)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(DISC.astype(np.uint8), id="index"),
        pytest.param(255 * DISC.astype(np.uint8), id="white"),
        pytest.param(np.repeat(255 * DISC[..., None].astype(np.uint8), 3, axis=2), id="white in colour"),
        pytest.param(DISC[..., None] * np.array([200, 30, 30], np.uint8), id="red"),
        pytest.param(SMOOTH, id="smooth edges"),
    ],
)
def test_a_mask_of_one_object_may_have_any_colour(tmp_path: Path, values: NDArray[np.uint8]) -> None:
    Image.fromarray(values).save(tmp_path / "a_mask.png")
    scene = MaskFiles(tmp_path).scene("a.jpg", PHOTO, "together")
    assert scene.classes == ("object",)
    assert np.array_equal(scene.mask("object"), DISC)


def test_values_that_may_be_classes_or_objects_are_refused(tmp_path: Path) -> None:
    values = DISC.astype(np.uint8)
    values[:20, :20] = 2
    Image.fromarray(values).save(tmp_path / "a.png")
    with raises_code("ambiguous-mask", "--mask-values"):
        MaskFiles(tmp_path).scene("a.jpg", PHOTO, "together")
    assert MaskFiles(tmp_path, "objects").scene("a.jpg", PHOTO, "together").object_image.max() == 2


def test_an_object_of_a_coco_file_that_lies_on_another_one_does_not_vanish(tmp_path: Path) -> None:
    def square(number: int, left: int, side: int) -> dict[str, object]:
        corners = [left, left, left + side, left, left + side, left + side, left, left + side]
        return {"id": number, "image_id": 1, "category_id": 1, "segmentation": [corners], "iscrowd": 0}

    content = {
        "images": [{"id": 1, "file_name": "a.jpg", "height": 500, "width": 500}],
        "categories": [{"id": 1, "name": "cell"}],
        "annotations": [square(1, 40, 10), square(2, 20, 100)],
    }
    (tmp_path / "masks.json").write_text(json.dumps(content))
    scene = MaskFiles(tmp_path / "masks.json").scene("a.jpg", PHOTO, "together")
    assert np.bincount(scene.objects["cell"].ravel())[1:].tolist() == [100, 9900]


@pytest.mark.parametrize("kind", ["folder", "coco"])
def test_one_mask_is_not_measured_on_two_photos(tmp_path: Path, kind: str) -> None:
    """Photos of the same name in two folders, of which one mask has no folder."""
    path = tmp_path
    for name in ("a", "b"):
        Image.fromarray(DISC.astype(np.uint8)).save(tmp_path / f"{name}.png")
    if kind == "coco":
        photos = [{"id": n, "file_name": f"{name}.jpg", "height": 500, "width": 500} for n, name in enumerate("ab")]
        path = tmp_path / "masks.json"
        path.write_text(json.dumps({"images": photos, "categories": [{"id": 1, "name": "cell"}], "annotations": []}))
    masks = MaskFiles(path)
    masks.belong_to(["a.jpg", "sub/a.jpg", "x/b.jpg", "y/b.jpg", "z/c.jpg"])
    masks.scene("a.jpg", PHOTO, "together")
    for name, other in (("sub/a.jpg", "a.jpg"), ("x/b.jpg", "y/b.jpg"), ("y/b.jpg", "x/b.jpg")):
        with raises_code("ambiguous-mask", other):
            masks.scene(name, PHOTO, "together")
    alone = MaskFiles(path)
    alone.belong_to(["x/b.jpg"])
    alone.scene("x/b.jpg", PHOTO, "together")


@pytest.mark.parametrize("name", ["a_cp_masks.png", "a.ome_cp_masks.png", "a.ome.png"])
def test_a_mask_of_an_ome_tiff_may_be_named_without_ome(tmp_path: Path, name: str) -> None:
    Image.fromarray(DISC.astype(np.uint8)).save(tmp_path / name)
    assert np.array_equal(MaskFiles(tmp_path).scene("a.ome.tif", PHOTO, "together").mask("object"), DISC)
