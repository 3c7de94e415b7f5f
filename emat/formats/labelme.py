"""LabelMe: one JSON file beside each photo, objects as polygons, rectangles, circles or small masks."""

import base64
import binascii
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from emat.errors import EmatError
from emat.formats.drawing import Drawing, DrawnObject, Polygon, RunLengths, coco_masks
from emat.images import read_object_mask

CIRCLE_CORNERS = 72
WITHOUT_AREA = ("point", "points", "line", "linestrip")


def read_labelme(path: Path) -> Drawing:
    """What is drawn in the file. Points and lines enclose nothing and are left out.

    `Drawing.photo` is the photo's path relative to the JSON file's folder.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise EmatError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise EmatError(f"{path} is not JSON ({error}); save it again") from None
    try:
        height, width = int(content["imageHeight"]), int(content["imageWidth"])
        objects = [
            DrawnObject(str(shape["label"]), _region(shape, height, width))
            for shape in content["shapes"]
            if shape.get("shape_type", "polygon") not in WITHOUT_AREA
        ]
        return Drawing(str(content["imagePath"]).replace("\\", "/"), height, width, tuple(objects))
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise EmatError(
            f"{path} is not a LabelMe file: {type(error).__name__} {error}; "
            "it needs imagePath, imageHeight, imageWidth and shapes"
        ) from None


def is_labelme(path: Path) -> bool:
    """Whether the JSON file looks like LabelMe's."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "shapes" in content and "imagePath" in content


def _region(shape: dict[str, Any], height: int, width: int) -> list[Polygon] | RunLengths:
    kind = shape.get("shape_type", "polygon")
    points = [(float(x), float(y)) for x, y in shape["points"]]
    if kind == "polygon":
        corners = points
    elif kind == "rectangle":
        (left, top), (right, bottom) = points
        corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
    elif kind == "circle":
        centre, edge = points
        corners = _circle(centre, math.dist(centre, edge))
    elif kind == "mask":
        return _mask_region(shape["mask"], points[0], height, width)
    else:
        raise ValueError(f"unknown shape type {kind!r}")
    return [[number for corner in corners for number in corner]]


def _circle(centre: tuple[float, float], radius: float) -> list[tuple[float, float]]:
    angles = [2 * math.pi * step / CIRCLE_CORNERS for step in range(CIRCLE_CORNERS)]
    return [(centre[0] + radius * math.cos(a), centre[1] + radius * math.sin(a)) for a in angles]


def _mask_region(encoded: str, corner: tuple[float, float], height: int, width: int) -> RunLengths:
    """Run lengths of a small PNG whose top left pixel lies at `corner`."""
    small = read_object_mask(base64.b64decode(encoded, validate=True))
    left, top = int(corner[0]), int(corner[1])
    if left < 0 or top < 0 or top + small.shape[0] > height or left + small.shape[1] > width:
        raise ValueError("a mask that reaches beyond the photo")
    whole = np.zeros((height, width), np.uint8, order="F")
    whole[top : top + small.shape[0], left : left + small.shape[1]] = small
    runs: RunLengths = coco_masks().encode(whole)
    return runs
