"""COCO instance JSON, read and written: one file for all photos, with objects as polygons or run lengths."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.files import inner_name, read_json
from emat.formats.class_names import VOID_NAME, number_classes
from emat.formats.drawing import Drawing, DrawnObject, LabelMap, class_name, what_is_wrong, whole_number
from emat.formats.regions import Region, outline
from emat.formats.run_lengths import Counts, counts_of_mask, counts_of_regions, pack
from emat.formats.writing import WriteOptions, Writer
from emat.images import VOID, Pixels
from emat.outputs import whole_file
from emat.progress import tell_once

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
    """Class names in the order of their category ids, and the drawing of each photo by its file name."""

    classes: tuple[str, ...]
    drawings: Mapping[str, Drawing]


def read_coco(path: Path) -> CocoInstances:
    """Read a COCO instance file. Objects that have only a box and no outline are left out.

    Raises:
        EmatError: The file cannot be read, or is not COCO instance JSON.
    """
    content = read_json(path)
    try:
        named = _by_id(content["categories"], "name", "category")
        categories = {number: class_name(category["name"]) for number, category in named.items()}
        photos = _by_id(content["images"], "file_name", "image")
        _refuse_same_file(photos)
        objects, boxes = _objects_by_photo(content["annotations"], categories, photos)
        drawings = [
            Drawing(
                inner_name(str(p["file_name"])),
                whole_number(p["height"]),
                whole_number(p["width"]),
                tuple(objects[number]),
            )
            for number, p in photos.items()
        ]
    except EmatError as error:
        raise EmatError(error.code, f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise EmatError(
            "bad-annotation",
            f"{path} is not COCO instance JSON: {what_is_wrong(error)}; it needs images, annotations and categories",
        ) from None
    if boxes:
        tell_once(f"{path}: {boxes} objects have a box and no outline, and are left out")
    # Two categories of the same name are one class.
    names = dict.fromkeys(categories[number] for number in sorted(categories))
    return CocoInstances(number_classes(list(names)), {drawing.photo: drawing for drawing in drawings})


class CocoWriter(Writer):
    """Writes `annotations.json`, in which every object has packed run lengths or polygons.

    Category ids are class indices. Void is written as a crowd region of each class in the photo, because evaluations
    ignore what is found in a crowd region. In a photo without any class, it is a crowd region of the first class.
    """

    format = "coco"
    file = "annotations.json"
    files = (file,)

    def result_path(self, name: str) -> str:
        """Return the name of the photo, because all photos share one file."""
        return name

    def _is_there(self, path: str) -> bool:
        return True  # the objects are in the journal

    def _refuse_overwriting(self, name: str) -> None:
        pass  # there is no file for a photo

    def _write(self, name: str, label_map: LabelMap, photo: Pixels | None, photo_file: Path | None) -> dict[str, Any]:
        size = (int(label_map.shape[0]), int(label_map.shape[1]))
        objects = [self._object(index, regions, size) for index, regions in self._traced(label_map)]
        void = label_map == VOID
        if void.any():
            present = list(dict.fromkeys(drawn["category_id"] for drawn in objects)) or [1]
            objects += [_crowd(index, counts_of_mask(void), _box(void), size) for index in present]
        return {"size": size, "objects": objects}

    def _object(self, index: int, regions: Sequence[Region], size: tuple[int, int]) -> dict[str, Any]:
        if self.options.shapes == "polygons":
            outlines = [outline(region, self.options.tolerance) for region in regions]
            segmentation: Any = [[_short(number) for number in corners.ravel().tolist()] for corners in outlines]
        else:
            segmentation = {"size": size, "counts": pack(counts_of_regions(regions, size))}
        return {
            "category_id": index,
            "segmentation": segmentation,
            "area": sum(region.area for region in regions),
            "bbox": _box_around([region.box for region in regions]),
            "iscrowd": 0,
        }

    def head(self) -> dict[str, Any]:
        """Return everything but the photos and their objects."""
        categories = [
            {"id": number, "name": name, "supercategory": ""}
            for number, name in enumerate(self.classes, start=1)
            if name != VOID_NAME
        ]
        return {"info": {"description": "label maps written by emat"}, "licenses": [], "categories": categories}

    def _finish(self) -> None:
        head = self.head()
        with whole_file(self.out / self.file) as unfinished, unfinished.open("w", encoding="utf-8") as file:
            file.write(json.dumps(head, ensure_ascii=False)[:-1])
            for title, items in (("images", self._photos()), ("annotations", self._annotations())):
                file.write(f', "{title}": [')
                for number, item in enumerate(items):  # one at a time, to keep memory small with many photos
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


def coco_content(
    name: str, label_map: LabelMap, classes: Sequence[str], objects: NDArray[np.int32] | None = None
) -> dict[str, Any]:
    """Return the content of a COCO file for one photo, as `CocoWriter` writes it.

    Args:
        name: The file name of the photo.
        label_map: Class indices, (H, W).
        classes: The names of the classes.
        objects: The number of the single object at each pixel, (H, W), to keep touching ones apart.
    """
    writer = CocoWriter(Path(), classes, WriteOptions())
    writer._objects = objects
    record = {"name": name, writer.format: writer._write(name, label_map, None, None)}
    writer.journal = lambda: iter([record])
    return {**writer.head(), "images": list(writer._photos()), "annotations": list(writer._annotations())}


def _by_id(items: Iterable[dict[str, Any]], called: str, what: str) -> dict[int, dict[str, Any]]:
    """Return the items by their ids; EmatError names both of two that share one."""
    by_id: dict[int, dict[str, Any]] = {}
    for item in items:
        other = by_id.setdefault(whole_number(item["id"]), item)
        if other is not item:
            raise EmatError(
                "given-twice",
                f"{what} id {item['id']} is there twice, for {other[called]!r} and {item[called]!r}; number them anew",
            )
    return by_id


def _refuse_same_file(photos: Mapping[int, dict[str, Any]]) -> None:
    numbers: dict[str, int] = {}
    for number, photo in photos.items():
        other = numbers.setdefault(inner_name(str(photo["file_name"])), number)
        if other != number:
            raise EmatError(
                "given-twice", f"images {other} and {number} are the same file {photo['file_name']!r}; make them one"
            )


def _objects_by_photo(
    annotations: Iterable[dict[str, Any]], categories: Mapping[int, str], photos: Mapping[int, Any]
) -> tuple[dict[int, list[DrawnObject]], int]:
    """Return the objects of every photo, and how many have a box alone."""
    objects: dict[int, list[DrawnObject]] = {number: [] for number in photos}
    boxes = 0
    for annotation in annotations:
        photo, category = whole_number(annotation["image_id"]), whole_number(annotation["category_id"])
        if photo not in photos:
            raise EmatError(
                "bad-annotation", f"annotation {annotation.get('id')} is for image {photo}, which is not in the file"
            )
        if category not in categories:
            raise EmatError(
                "unknown-class", f"annotation {annotation.get('id')} has category {category}, which is not in the file"
            )
        region = annotation.get("segmentation")
        if not region:
            boxes += 1
            continue
        is_crowd = bool(whole_number(annotation.get("iscrowd") or 0))  # some tools write it as text
        objects[photo].append(DrawnObject(categories[category], region, is_crowd))
    return objects, boxes


def _crowd(index: int, counts: Counts, box: tuple[int, int, int, int], size: tuple[int, int]) -> dict[str, Any]:
    return {
        "category_id": index,
        "segmentation": {"size": size, "counts": pack(counts)},
        "area": int(counts[1::2].sum()),
        "bbox": box,
        "iscrowd": 1,
    }


def _box(mask: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    """Return left, top, width and height of the box around the mask."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    left, top = int(columns[0]), int(rows[0])
    return left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top


def _box_around(boxes: Sequence[tuple[int, int, int, int]]) -> tuple[int, int, int, int]:
    """Return left, top, width and height of the box around boxes."""
    left, top = min(box[0] for box in boxes), min(box[1] for box in boxes)
    right, bottom = max(box[0] + box[2] for box in boxes), max(box[1] + box[3] for box in boxes)
    return left, top, right - left, bottom - top


def _short(number: float) -> float:
    """Round a coordinate to a hundredth of a pixel, and write whole numbers without a fraction."""
    return int(number) if number.is_integer() else round(number, 2)
