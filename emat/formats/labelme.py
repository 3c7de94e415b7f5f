"""LabelMe: a JSON file for each photo, with objects as polygons, rectangles, circles or small masks."""

import base64
import io
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from emat.errors import EmatError
from emat.files import read_json, without_suffix
from emat.formats.class_names import IGNORED_NAMES, VOID_NAME
from emat.formats.drawing import (
    Drawing,
    DrawnObject,
    LabelMap,
    Polygon,
    RunLengths,
    class_name,
    what_is_wrong,
    whole_number,
)
from emat.formats.regions import Region, outline, trace_regions
from emat.formats.run_lengths import counts_of_mask, mask_of_region
from emat.formats.writing import Writer
from emat.images import VOID, Pixels, read_object_mask
from emat.outputs import write_text
from emat.progress import tell_first

VERSION = "5.5.0"  # the first version of LabelMe whose files have all the fields that are written here
IGNORE, BACKGROUND = "__ignore__", "_background_"
CIRCLE_CORNERS = 72
ROTATED = ("rectangle", "rotation", "oriented_rectangle")  # with four corners, as tools beside LabelMe write them
WITHOUT_AREA = ("point", "points", "line", "linestrip")


def read_labelme(path: Path) -> Drawing:
    """Read a LabelMe file. Points and lines have no area and are left out with a message; `__ignore__` is void.

    Returns:
        The drawing. `Drawing.photo` is the path of the photo relative to the folder of the JSON file.

    Raises:
        EmatError: The file cannot be read, or is not a LabelMe file.
    """
    content = read_json(path)
    try:
        height, width = whole_number(content["imageHeight"]), whole_number(content["imageWidth"])
        photo = str(content["imagePath"]).replace("\\", "/")
        Drawing(photo, height, width, ())  # refuses a wrong size, before a mask of that size is made
        shapes = list(content["shapes"])
        with_area = [shape for shape in shapes if shape.get("shape_type", "polygon") not in WITHOUT_AREA]
        objects = [
            DrawnObject(name, _region(shape, height, width), name.lower() in IGNORED_NAMES)
            for name, shape in ((class_name(shape["label"]), shape) for shape in with_area)
        ]
        drawing = Drawing(photo, height, width, tuple(objects))
    except EmatError as error:
        raise EmatError(error.code, f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise EmatError(
            "bad-annotation",
            f"{path} is not a LabelMe file: {what_is_wrong(error)}; "
            "it needs imagePath, imageHeight, imageWidth and shapes",
        ) from None
    if left_out := len(shapes) - len(with_area):
        what = "a point or line" if left_out == 1 else f"{left_out} points or lines"
        tell_first("labelme without area", f"{path} has {what}: they enclose no area and are left out, in all files")
    return drawing


def is_labelme(path: Path) -> bool:
    """Whether a JSON file is one of LabelMe's."""
    try:
        content = read_json(path)
    except EmatError:
        return False
    return isinstance(content, dict) and "shapes" in content and "imagePath" in content


class LabelMeWriter(Writer):
    """Writes `<name>.json`, which belongs beside the photo, and `labels.txt` for LabelMe's option `--labels`.

    Every region is a shape. The label of void is `__ignore__`, as LabelMe calls it.
    """

    format = "labelme"
    files = ("labels.txt",)

    def result_path(self, name: str) -> str:
        """Return the path of the JSON file."""
        return f"{without_suffix(name)}.json"

    def photo_path(self, name: str) -> str:
        """Return the path of the photo, beside the JSON file."""
        return name

    def _begin(self) -> None:
        names = [name for name in self.classes if name != VOID_NAME]
        write_text(self.out / "labels.txt", "\n".join([IGNORE, BACKGROUND, *names]) + "\n")

    def _write(self, name: str, label_map: LabelMap, photo: Pixels | None, photo_file: Path | None) -> dict[str, Any]:
        shapes = [
            # The shapes of one object are a group, as LabelMe calls it.
            self._shape(self.classes[index - 1], region, number if len(regions) > 1 else None)
            for number, (index, regions) in enumerate(self._traced(label_map), start=1)
            for region in regions
        ]
        shapes += [self._shape(IGNORE, region) for region in trace_regions(label_map == VOID)]
        file = self.out / self.result_path(name)
        path = name.rpartition("/")[2] if photo_file is None else _way_from(file.parent, photo_file)
        content: dict[str, Any] = {
            "version": VERSION,
            "flags": {},
            "shapes": shapes,
            "imagePath": path,
            "imageData": None,
            "imageHeight": int(label_map.shape[0]),
            "imageWidth": int(label_map.shape[1]),
        }
        write_text(file, json.dumps(content, ensure_ascii=False, indent=1))
        return {}

    def _shape(self, label: str, region: Region, group: int | None = None) -> dict[str, Any]:
        others: dict[str, Any] = {"label": label, "group_id": group, "description": "", "flags": {}}
        if self.options.shapes != "masks":
            points = outline(region, self.options.tolerance).round(2).tolist()
            return {**others, "shape_type": "polygon", "points": points, "mask": None}
        left, top, width, height = region.box
        buffer = io.BytesIO()
        Image.fromarray(mask_of_region(region).astype(np.uint8) * 255).save(buffer, "PNG")
        encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
        last = [left + width - 1, top + height - 1]  # in LabelMe, this is the last pixel of the mask
        return {**others, "shape_type": "mask", "points": [[left, top], last], "mask": encoded}


def _way_from(folder: Path, photo: Path) -> str:
    try:
        return Path(os.path.relpath(photo.resolve(), folder.resolve())).as_posix()
    except ValueError:  # on Windows, the photo is on another drive
        return photo.resolve().as_posix()


def _region(shape: dict[str, Any], height: int, width: int) -> list[Polygon] | RunLengths:
    kind = shape.get("shape_type", "polygon")
    points = [(float(x), float(y)) for x, y in shape["points"]]
    if kind == "mask" and points:
        return _mask_region(shape["mask"], points[0], height, width)
    if kind == "polygon" or (kind in ROTATED and len(points) == 4):
        corners = points
    elif kind == "rectangle" and len(points) == 2:
        (left, top), (right, bottom) = points
        corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
    elif kind == "circle" and len(points) == 2:
        corners = _circle(points[0], math.dist(*points))
    else:
        raise EmatError(
            "bad-outline",
            f"a {shape['label']} is a shape of type {kind!r} with {len(points)} points, which is not read; "
            "draw it as a polygon",
        )
    return [[number for corner in corners for number in corner]]


def _circle(centre: tuple[float, float], radius: float) -> list[tuple[float, float]]:
    angles = [2 * math.pi * step / CIRCLE_CORNERS for step in range(CIRCLE_CORNERS)]
    return [(centre[0] + radius * math.cos(a), centre[1] + radius * math.sin(a)) for a in angles]


def _mask_region(encoded: str, corner: tuple[float, float], height: int, width: int) -> RunLengths:
    """Return the run lengths of a small PNG whose top left pixel is at `corner`."""
    small = read_object_mask(base64.b64decode(encoded, validate=True))
    left, top = int(corner[0]), int(corner[1])
    if left < 0 or top < 0 or top + small.shape[0] > height or left + small.shape[1] > width:
        raise EmatError("bad-outline", "a mask extends beyond the photo; correct it or leave it out")
    whole = np.zeros((height, width), bool)
    whole[top : top + small.shape[0], left : left + small.shape[1]] = small
    return {"size": [height, width], "counts": counts_of_mask(whole).tolist()}
