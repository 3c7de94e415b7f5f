"""COCO instance JSON: one file for many photos, objects as polygons or run lengths."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emat.errors import EmatError
from emat.formats.class_names import number_classes
from emat.formats.drawing import Drawing, DrawnObject

COCO_CLASSES = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow",
    "elephant", "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee",
    "skis", "snowboard", "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard",
    "tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple",
    "sandwich", "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch",
    "potted plant", "bed", "dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard",
    "cell phone", "microwave", "oven", "toaster", "sink", "refrigerator", "book", "clock", "vase", "scissors",
    "teddy bear", "hair drier", "toothbrush",
)  # fmt: skip


@dataclass(frozen=True)
class CocoInstances:
    """Class names in order of their category ids, and each photo's drawing by its file name."""

    classes: tuple[str, ...]
    drawings: Mapping[str, Drawing]


def read_coco(path: Path) -> CocoInstances:
    """The instances in the file. Objects without an outline (boxes alone) are left out."""
    content = _parse(path)
    try:
        categories = {int(c["id"]): str(c["name"]) for c in content["categories"]}
        photos = {int(p["id"]): p for p in content["images"]}
        objects = _objects_by_photo(content["annotations"], categories, photos)
        drawings = [
            Drawing(_safe(str(p["file_name"])), int(p["height"]), int(p["width"]), tuple(objects[number]))
            for number, p in photos.items()
        ]
    except EmatError as error:
        raise EmatError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise EmatError(
            f"{path} is not COCO instance JSON: {type(error).__name__} {error}; "
            "it needs images, annotations and categories"
        ) from None
    names = dict.fromkeys(categories[number] for number in sorted(categories))  # two ids of one name are one class
    return CocoInstances(number_classes(list(names)), {drawing.photo: drawing for drawing in drawings})


def file_digest(path: Path) -> str:
    """SHA-256 of the file, so that what was made from it can be told from what a changed file would give."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise EmatError(f"{path} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def _parse(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise EmatError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise EmatError(f"{path} is not JSON ({error}); fetch or export it again") from None


def _objects_by_photo(
    annotations: Iterable[dict[str, Any]], categories: Mapping[int, str], photos: Mapping[int, Any]
) -> dict[int, list[DrawnObject]]:
    objects: dict[int, list[DrawnObject]] = {number: [] for number in photos}
    for annotation in annotations:
        photo, category = int(annotation["image_id"]), int(annotation["category_id"])
        if photo not in photos:
            raise EmatError(f"annotation {annotation.get('id')} is for image {photo}, which is not in the file")
        if category not in categories:
            raise EmatError(f"annotation {annotation.get('id')} has category {category}, which is not in the file")
        region = annotation.get("segmentation")
        if region:
            objects[photo].append(DrawnObject(categories[category], region, bool(annotation.get("iscrowd"))))
    return objects


def _safe(name: str) -> str:
    """`name`, unless it leads out of the photo folder: names become paths in the cache of masks."""
    parts = name.replace("\\", "/").split("/")
    if not name or ".." in parts or parts[0] == "" or ":" in parts[0]:
        raise EmatError(f"the file name {name!r} leads out of the photo folder; make it relative to that folder")
    return "/".join(parts)
