"""COCO instance JSON: one file for many photos, objects as polygons or run lengths."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.formats.class_names import VOID_NAME, number_classes
from emat.formats.drawing import Drawing, DrawnObject, LabelMap
from emat.formats.outlines import outline
from emat.formats.photo_names import inner_name
from emat.formats.polygons import Region, trace_classes
from emat.formats.run_lengths import Counts, counts_of_mask, counts_of_region, pack
from emat.formats.whole_files import whole_file
from emat.formats.writing import Writer
from emat.images import VOID, Pixels

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
            Drawing(inner_name(str(p["file_name"])), int(p["height"]), int(p["width"]), tuple(objects[number]))
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


class CocoWriter(Writer):
    """`annotations.json`; every region is an object, its segmentation packed run lengths or a polygon.

    Category ids are class indices. Void becomes a crowd of each class in the photo, since a crowd tells an
    evaluation not to count what is found there; in a photo without any class, a crowd of the first.
    """

    format = "coco"
    file = "annotations.json"

    def place(self, name: str) -> str:
        """All photos share one file, so this is the photo's own name."""
        return name

    def _is_there(self, place: str) -> bool:
        return True  # the journal itself holds the objects

    def _write(self, name: str, label_map: LabelMap, photo: Pixels | None, photo_file: Path | None) -> dict[str, Any]:
        size = (int(label_map.shape[0]), int(label_map.shape[1]))
        objects = [self._object(index, region, size) for index, region in trace_classes(label_map)]
        void = label_map == VOID
        if void.any():
            present = list(dict.fromkeys(drawn["category_id"] for drawn in objects)) or [1]
            objects += [_crowd(index, counts_of_mask(void), _box(void), size) for index in present]
        return {"size": size, "objects": objects}

    def _object(self, index: int, region: Region, size: tuple[int, int]) -> dict[str, Any]:
        if self.options.shapes == "polygons":
            corners = outline(region, self.options.tolerance)
            segmentation: Any = [[_short(number) for number in corners.ravel().tolist()]]
        else:
            segmentation = {"size": size, "counts": pack(counts_of_region(region, size))}
        return {
            "category_id": index,
            "segmentation": segmentation,
            "area": region.area,
            "bbox": region.box,
            "iscrowd": 0,
        }

    def _finish(self) -> None:
        categories = [
            {"id": number, "name": name, "supercategory": ""}
            for number, name in enumerate(self.classes, start=1)
            if name != VOID_NAME
        ]
        head = {"info": {"description": "label maps written by emat"}, "licenses": [], "categories": categories}
        with whole_file(self.out / self.file) as unfinished, unfinished.open("w", encoding="utf-8") as file:
            file.write(json.dumps(head, ensure_ascii=False)[:-1])
            for title, items in (("images", self._photos()), ("annotations", self._annotations())):
                file.write(f', "{title}": [')
                for number, item in enumerate(items):  # one at a time: a run may have any number of photos
                    file.write((",\n" if number else "\n") + json.dumps(item, ensure_ascii=False))
                file.write("]")
            file.write("}\n")

    def _photos(self) -> Iterator[dict[str, Any]]:
        for number, record in enumerate(self._records(), start=1):
            height, width = record["size"]
            yield {"id": number, "file_name": record["name"], "height": height, "width": width}

    def _annotations(self) -> Iterator[dict[str, Any]]:
        objects = (
            (photo, drawn) for photo, record in enumerate(self._records(), start=1) for drawn in record["objects"]
        )
        for number, (photo, drawn) in enumerate(objects, start=1):
            yield {"id": number, "image_id": photo, **drawn}


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


def _crowd(index: int, counts: Counts, box: tuple[int, int, int, int], size: tuple[int, int]) -> dict[str, Any]:
    return {
        "category_id": index,
        "segmentation": {"size": size, "counts": pack(counts)},
        "area": int(counts[1::2].sum()),
        "bbox": box,
        "iscrowd": 1,
    }


def _box(mask: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    """Left, top, width and height of what is in the mask."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    left, top = int(columns[0]), int(rows[0])
    return left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top


def _short(number: float) -> float:
    """A coordinate as whole number where it is one, else to a hundredth of a pixel."""
    return int(number) if number.is_integer() else round(number, 2)
