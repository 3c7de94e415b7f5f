"""Tiny real data sets, one in each layout: photos of 8 x 6 pixels, masks that are known in full."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from emat.datasets.dataset import Dataset, class_fractions
from emat.images import write_indexed_png

HEIGHT, WIDTH = 6, 8


def save_photo(path: Path, size: tuple[int, int] = (HEIGHT, WIDTH)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size[1], size[0]), (90, 120, 150)).save(path)


def half_mask(value: int) -> np.ndarray:
    """`value` in the left half, background in the right."""
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[:, : WIDTH // 2] = value
    return mask


def classes_in(dataset: Dataset, name: str) -> tuple[int, ...]:
    """The classes that the mask of a photo shows."""
    return tuple(class_fractions(dataset.mask(name)))


LEFT_HALF = [0, 0, 4, 0, 4, 6, 0, 6]


def voc_tree(root: Path) -> Path:
    for name, value in (("2007_000001", 15), ("2007_000002", 3)):
        save_photo(root / "JPEGImages" / f"{name}.jpg")
        write_indexed_png(root / "SegmentationClass" / f"{name}.png", half_mask(value))
    save_photo(root / "JPEGImages" / "2007_000009.jpg")  # VOC has many photos without mask
    lists = root / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "val.txt").write_text("2007_000001\n2007_000002\n")
    return root


def voc_zip(root: Path) -> Path:
    tree = voc_tree(root / "tree")
    path = root / "masks.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for mask in sorted((tree / "SegmentationClass").iterdir()):
            archive.write(mask, f"SegmentationClassAug/{mask.name}")
        archive.writestr("__MACOSX/SegmentationClassAug/._2007_000001.png", b"")
    return path


def coco_content(photos: list[str]) -> dict[str, Any]:
    """Category ids with a gap, as COCO has them; the dog is drawn over the cat's lower half."""
    lower = [0, 3, 4, 3, 4, 6, 0, 6]
    return {
        "categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}],
        "images": [
            {"id": n, "file_name": photo, "height": HEIGHT, "width": WIDTH} for n, photo in enumerate(photos, start=1)
        ],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 3, "iscrowd": 0, "segmentation": [LEFT_HALF]},
            {"id": 2, "image_id": 1, "category_id": 7, "iscrowd": 0, "segmentation": [lower]},
            {
                "id": 3,
                "image_id": 1,
                "category_id": 7,
                "iscrowd": 1,
                "segmentation": {"size": [HEIGHT, WIDTH], "counts": [18, 12, 18]},  # columns 3 and 4
            },
            {"id": 4, "image_id": 1, "category_id": 7, "iscrowd": 0, "segmentation": []},
        ],
    }


def coco_2014(root: Path) -> Path:
    (root / "annotations").mkdir(parents=True)
    for split in ("train2014", "val2014"):
        photos = [f"COCO_{split}_000000000001.jpg", f"COCO_{split}_000000000002.jpg"]
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(coco_content(photos)))
        for photo in photos:
            save_photo(root / split / photo)
    return root


def coco_mini(root: Path) -> Path:
    (root / "annotations").mkdir(parents=True)
    (root / "annotations" / "instances_train2017.json").write_text(json.dumps(coco_content(["01.jpg", "02.jpg"])))
    for photo in ("01.jpg", "02.jpg"):
        save_photo(root / "images" / photo)
    return root


def coco_png(root: Path) -> Path:
    for split, value in (("train2014", 1), ("val2014", 80)):
        save_photo(root / split / f"COCO_{split}_000000000001.jpg")
        path = root / "annotations" / split / f"COCO_{split}_000000000001.png"
        path.parent.mkdir(parents=True)
        Image.fromarray(half_mask(value)).save(path)
    return root


def mask_folder(root: Path) -> Path:
    for name, value in (("a", 1), ("b", 2)):
        save_photo(root / "images" / f"{name}.jpg")
        write_indexed_png(root / "masks" / f"{name}.png", half_mask(value))
    (root / "classes.txt").write_text("cat\ndog\n")
    return root


def class_folders(root: Path) -> Path:
    for name in ("cat", "dog"):
        save_photo(root / "images" / name / "1.jpg")
        path = root / "masks" / name / "1.png"
        path.parent.mkdir(parents=True)
        Image.fromarray(half_mask(255)).save(path)
    return root


def fss_1000(root: Path) -> Path:
    for name in ("abacus", "zebra"):
        save_photo(root / name / "1.jpg")
        Image.fromarray(half_mask(255)).convert("RGB").save(root / name / "1.png")
    return root


def labelme(root: Path) -> Path:
    for name, label in (("a", "dog"), ("b", "cat")):
        save_photo(root / f"{name}.jpg")
        shape = {"label": label, "shape_type": "rectangle", "points": [[0, 0], [4, 6]]}
        content = {"imagePath": f"{name}.jpg", "imageHeight": HEIGHT, "imageWidth": WIDTH, "shapes": [shape]}
        (root / f"{name}.json").write_text(json.dumps(content))
    return root


def yolo(root: Path) -> Path:
    for split in ("train", "val"):
        save_photo(root / "images" / split / "a.jpg")
        save_photo(root / "images" / split / "empty.jpg")
        labels = root / "labels" / split / "a.txt"
        labels.parent.mkdir(parents=True)
        labels.write_text("1 0 0 0.5 0 0.5 1 0 1\n")
    (root / "data.yaml").write_text("path: .\nnames:\n  0: cat\n  1: dog\n")
    return root


BUILDERS: dict[str, Callable[[Path], Path]] = {
    "voc tree": voc_tree,
    "voc zip": voc_zip,
    "coco 2014": coco_2014,
    "coco mini": coco_mini,
    "coco png": coco_png,
    "folder": mask_folder,
    "class folders": class_folders,
    "fss-1000": fss_1000,
    "labelme": labelme,
    "yolo": yolo,
}


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Builds a layout by name in a fresh folder; kept masks go into a folder of the test's own."""
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))

    def make(layout: str) -> Path:
        root = tmp_path / layout.replace(" ", "-")
        root.mkdir()
        return BUILDERS[layout](root)

    return make
