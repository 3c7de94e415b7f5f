"""What is measured of an object: size, shape, centre line, intensity and texture, each with its unit and its meaning.

Most numbers are those of scikit-image's `regionprops_table`. Convex hulls come from `convex_hull`, and what is measured
of thin things such as cracks, vessels and roots from `centre_line`.

Lengths and areas are in pixels here; `tables` turns them into real units.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from emat.errors import EmatError, needs_extra
from emat.measure.centre_line import measure_line
from emat.measure.convex_hull import hull_of
from emat.measure.scene import Labels, Mask, Scene, has_objects, on_border

Value: TypeAlias = float | int | str | bool | None
Row: TypeAlias = dict[str, Value]

GROUPS = ("size", "shape", "skeleton", "intensity", "texture")
DEFAULT_GROUPS = ("size", "shape", "intensity")
LENGTH, AREA = "length", "area"
RELIABLE_FROM = 0.3  # expected IoU; masks of less say little about sizes
UNRELIABLE, UNKNOWN = "not reliable", "not known"
DIRECTIONS = ("orientation", "hue")  # 1 and 359 degrees have no mean of 180
LEVELS = 32  # greys that textures distinguish


@dataclass(frozen=True)
class Column:
    """A column of a table: what it means, whether it is a length or an area, and the type of its values in pixels."""

    meaning: str
    kind: str = ""  # LENGTH, AREA, or the unit of a number that has no other
    type: type[float] | type[str] = float  # also int and bool, which are kinds of float


ALWAYS = {
    "photo": Column("name of the photo", type=str),
    "z": Column("plane of the stack, from 0", type=int),
    "t": Column("time point of the stack, from 0", type=int),
    "class": Column("name of the class", type=str),
    "id": Column("number of the object, the same in label images, ROIs and GeoJSON", type=int),
    "track": Column(
        "number of the object through time, for each z by itself: objects that overlap in successive frames", type=int
    ),
    "source": Column("where the mask comes from", type=str),
    "reliable": Column(
        f"yes; '{UNRELIABLE}' if the forecast expects an IoU below {RELIABLE_FROM}; '{UNKNOWN}' if nothing was left "
        "out; empty if the mask was not predicted",
        type=str,
    ),
    "score": Column("mean probability of the object's pixels"),
    "touches_border": Column("whether the object touches the photo's border, so that it may be cut off", type=bool),
    "left": Column("left side of the box around the object", "px", type=int),
    "top": Column("upper side of the box", "px", type=int),
    "width": Column("width of the box", "px", type=int),
    "height": Column("height of the box", "px", type=int),
    "centroid_x": Column("mean x of its pixels; the centre of the first pixel is 0", "px"),
    "centroid_y": Column("mean y of its pixels", "px"),
    "area": Column("area of the object: the number of its pixels, times the area of a pixel", AREA, type=int),
}
MEASURED: dict[str, dict[str, Column]] = {
    "size": {
        "equivalent_diameter": Column("diameter of a disc of the same area", LENGTH),
        "perimeter": Column("length of the outline with that of holes, by Crofton's formula in 4 directions", LENGTH),
        "feret_max": Column("largest distance between two parallel lines that touch the object", LENGTH),
        "feret_min": Column("smallest distance between two parallel lines that touch the object", LENGTH),
        "major_axis": Column("longer axis of the ellipse with the same second moments", LENGTH),
        "minor_axis": Column("shorter axis of that ellipse", LENGTH),
    },
    "shape": {
        "eccentricity": Column("of that ellipse: 0 is a circle, 1 a line"),
        "solidity": Column("area over the area of the convex hull; 1 has no dents"),
        "circularity": Column("4 pi area / perimeter^2; 1 is a disc, at most 1"),
        "orientation": Column("direction of the longer axis from the x axis, counter-clockwise, 0 to 180", "degrees"),
        "euler_number": Column("parts minus holes; pixels that touch at a corner are connected", type=int),
    },
    "skeleton": {
        "skeleton_length": Column("length of the centre line with all branches, to the ends of the object", LENGTH),
        "width_mean": Column("area over length of the centre line, without tips and branch points", LENGTH),
        "width_max": Column("largest width across the centre line", LENGTH),
        "branch_points": Column("points at which the centre line branches", type=int),
    },
    "intensity": {
        "intensity_mean_*": Column("mean of the original values of the channel"),
        "intensity_min_*": Column("lowest original value of the channel"),
        "intensity_max_*": Column("highest original value of the channel"),
        "intensity_sd_*": Column("standard deviation of the original values of the channel"),
        "intensity_sum_*": Column("sum of the original values of the channel"),
        "red": Column("mean red of the photo as shown, 0 to 255"),
        "green": Column("mean green, 0 to 255"),
        "blue": Column("mean blue, 0 to 255"),
        "hue": Column("hue of that mean colour, 0 to 360", "degrees"),
        "saturation": Column("saturation of that mean colour", "%"),
        "value": Column("value (brightness) of that mean colour", "%"),
    },
    "texture": {
        "entropy": Column(f"entropy of its greys in {LEVELS} steps", "bits"),
        "contrast": Column(f"contrast of the co-occurrence matrix of neighbours, {LEVELS} greys"),
        "homogeneity": Column("homogeneity of that matrix"),
        "correlation": Column("correlation of that matrix"),
        "energy": Column("energy of that matrix"),
    },
}
OF_PHOTOS = {
    "count": Column("number of objects", type=int),
    "count_at_border": Column("number of those that touch the photo's border", type=int),
    "share": Column("share of the photo that the objects of the class cover", "%"),
    "within": Column("class or region of which the share is a part", type=str),
    "within_area": Column("area of that class or region, with what lies on it", AREA, type=int),
    "area_within": Column("area of this class inside of it", AREA, type=int),
    "share_within": Column("the second of these in percent of the first: severity", "%"),
    "verdict": Column("OK if the photo meets every --accept, else NOT OK", type=str),
    "not_met": Column("the conditions that the photo does not meet", type=str),
    "pixel_size": Column("side of a pixel, in the unit of the next column"),
    "unit": Column("unit of the pixel's side; px if it is not known", type=str),
    "unit_source": Column("where the size of a pixel comes from", type=str),
}


OTHERWISE_OF_PHOTOS = {  # what columns mean in the table of photos, if that is something else than of an object
    "score": Column("probability that the class is in the photo"),
    "area": Column(
        "area of all objects of the class: the number of their pixels, times the area of a pixel", AREA, int
    ),
}


def column_of(name: str, table: str = "objects") -> Column:
    """Return what a column of a table means, also one of a channel or a mean over objects.

    >>> column_of("mean_perimeter").kind, column_of("intensity_sum_DAPI").meaning
    ('length', 'sum of the original values of the channel DAPI')
    """
    if table == "photos" and name in OTHERWISE_OF_PHOTOS:
        return OTHERWISE_OF_PHOTOS[name]
    if name in OF_PHOTOS:
        return OF_PHOTOS[name]
    for columns in (ALWAYS, *MEASURED.values()):
        if name in columns:
            return columns[name]
    for intensity, column in MEASURED["intensity"].items():
        if intensity.endswith("*") and name.startswith(intensity[:-1]):
            return replace(column, meaning=f"{column.meaning} {name[len(intensity) - 1 :]}")
    if name.startswith("mean_"):
        inner = column_of(name.removeprefix("mean_"))
        return replace(inner, meaning=f"mean over the objects: {inner.meaning}", type=float)
    if name.startswith("percent_"):
        return Column(f"share of the object that {name.removeprefix('percent_')} covers", "%")
    if name.startswith("id_of_"):
        return Column(f"number of the {name.removeprefix('id_of_')} that the object lies in", type=int)
    raise KeyError(name)


def object_columns(groups: Sequence[str]) -> list[str]:
    """The columns that objects have whatever is found, for a table without any; those of channels are not known."""
    usual = [name for name in ALWAYS if name not in ("z", "t", "track")]
    return [*usual, *(name for group in groups for name in MEASURED[group] if not name.endswith("*"))]


def read_groups(text: str) -> tuple[str, ...]:
    """Read what --properties says, such as `size,shape` or `all`; EmatError if there is no such group."""
    asked = [part.strip() for part in text.split(",")]
    if asked == ["all"]:
        return GROUPS
    for name in asked:
        if name not in GROUPS:
            raise EmatError(
                "unknown-choice", f"there are no properties {name!r}; the groups are {', '.join(GROUPS)} and all"
            )
    return tuple(name for name in GROUPS if name in asked)


def object_rows(scene: Scene, groups: Sequence[str] = DEFAULT_GROUPS) -> list[Row]:
    """Measure every object of a scene.

    Args:
        scene: The photo and its objects.
        groups: Which of `GROUPS` to measure.

    Returns:
        A row for each object, in the order of the numbers; lengths and areas are in pixels.

    Raises:
        EmatError: scikit-image is not installed.
    """
    return [row for name in scene.classes for row in _rows_of_class(scene, name, groups)]


def _rows_of_class(scene: Scene, name: str, groups: Sequence[str]) -> list[Row]:
    labels = scene.objects[name]
    if not has_objects(labels):
        return []
    numbers = np.unique(labels[labels > 0])
    asked = ["label", "area", "bbox", "centroid"]
    if "size" in groups or "shape" in groups:
        asked += ["equivalent_diameter_area", "perimeter_crofton", "axis_major_length", "axis_minor_length"]
        asked += ["eccentricity", "orientation", "euler_number"]
    measured = _skimage("measure").regionprops_table(labels, properties=asked)
    border = set(on_border(labels).tolist())
    scores = (
        None
        if scene.probability is None or name not in scene.scores
        else (ndimage.mean(scene.probability(name), labels, numbers))
    )
    windows = ndimage.find_objects(labels)
    channels = _channels(scene) if "intensity" in groups else {}
    intensities = {channel: _intensities(values, labels, numbers) for channel, values in channels.items()}
    rows = []
    for index, number in enumerate(measured["label"].tolist()):
        top, left, bottom, right = (int(measured[f"bbox-{side}"][index]) for side in range(4))
        row: Row = {"photo": scene.name, **scene.position, "class": name, "id": number}
        row["source"], row["reliable"] = scene.sources[name], reliability(scene, name)
        row["score"] = None if scores is None else float(scores[index])
        row["touches_border"] = number in border
        row.update(left=left, top=top, width=right - left, height=bottom - top)
        row["centroid_x"], row["centroid_y"] = (
            float(measured["centroid-1"][index]),
            float(measured["centroid-0"][index]),
        )
        row["area"] = int(measured["area"][index])
        inside = labels[windows[number - 1]] == number
        if "size" in groups or "shape" in groups:
            row.update(_size_and_shape({key: float(column[index]) for key, column in measured.items()}, inside, groups))
        if "skeleton" in groups:
            line = measure_line(inside)
            row["skeleton_length"], row["width_mean"], row["width_max"] = line.length, line.width_mean, line.width_max
            row["branch_points"] = line.branch_points
        for channel, several in intensities.items():
            row.update({f"intensity_{kind}_{channel}": float(values[index]) for kind, values in several.items()})
        if "intensity" in groups:
            row.update(_colour(scene.photo[windows[number - 1]][inside].mean(axis=0).tolist()))
        if "texture" in groups:
            row.update(_texture(scene.photo[windows[number - 1]], inside))
        rows.append(row)
    return rows


def reliability(scene: Scene, name: str) -> str:
    """Say whether the forecast trusts the masks of a class; empty if they were not predicted."""
    if name not in scene.expected:
        return ""
    expected = scene.expected[name]
    return UNKNOWN if expected is None else UNRELIABLE if expected < RELIABLE_FROM else "yes"


def _size_and_shape(measured: Mapping[str, float], inside: Mask, groups: Sequence[str]) -> Row:
    hull = hull_of(inside)
    size: Row = {
        "equivalent_diameter": measured["equivalent_diameter_area"],
        "perimeter": measured["perimeter_crofton"],
        "feret_max": hull.longest,
        "feret_min": hull.shortest,
        "major_axis": measured["axis_major_length"],
        "minor_axis": measured["axis_minor_length"],
    }
    shape: Row = {
        "eccentricity": measured["eccentricity"],
        "solidity": measured["area"] / hull.area,
        "circularity": min(1.0, 4 * math.pi * measured["area"] / max(measured["perimeter_crofton"], 1e-9) ** 2),
        "orientation": (math.degrees(measured["orientation"]) + 90) % 180,
        "euler_number": int(measured["euler_number"]),
    }
    return {**(size if "size" in groups else {}), **(shape if "shape" in groups else {})}


def _channels(scene: Scene) -> dict[str, NDArray[Any]]:
    """The original values (H, W) of each channel, by its name; a grey photo has one."""
    if scene.values is not None:
        names = scene.channels or tuple(str(number) for number in range(scene.values.shape[2]))
        return {name: scene.values[..., index] for index, name in enumerate(names)}
    red, green, blue = (scene.photo[..., index] for index in range(3))
    if np.array_equal(red, green) and np.array_equal(red, blue):
        return {"grey": red}
    return {"red": red, "green": green, "blue": blue}


def _intensities(values: NDArray[Any], labels: Labels, numbers: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
    work = values.astype(np.float64)
    with np.errstate(invalid="ignore"):  # SciPy also divides for numbers that are not asked for
        deviation = np.asarray(ndimage.standard_deviation(work, labels, numbers))
    counts = ndimage.sum_labels(np.ones_like(labels, np.float64), labels, numbers)
    total = ndimage.sum_labels(work, labels, numbers)
    return {
        "mean": total / counts,
        "min": np.asarray(ndimage.minimum(work, labels, numbers)),
        "max": np.asarray(ndimage.maximum(work, labels, numbers)),
        "sd": deviation,
        "sum": total,
    }


def _colour(mean: Iterable[float]) -> Row:
    red, green, blue = mean
    hue, saturation, value = colorsys.rgb_to_hsv(red / 255, green / 255, blue / 255)
    return {
        "red": red,
        "green": green,
        "blue": blue,
        "hue": 360 * hue,
        "saturation": 100 * saturation,
        "value": 100 * value,
    }


def _texture(photo: NDArray[np.uint8], inside: Mask) -> Row:
    """Measure the greys of an object; pairs of neighbours of which one is outside do not count."""
    feature = _skimage("feature")
    grey = photo @ np.array([0.299, 0.587, 0.114])
    levels = np.where(inside, 1 + (grey * LEVELS / 256).astype(np.uint8), 0).astype(np.uint8)
    shares = np.bincount(levels[inside], minlength=LEVELS + 1) / inside.sum()
    entropy = float(-(shares[shares > 0] * np.log2(shares[shares > 0])).sum()) + 0.0
    angles = [0, math.pi / 4, math.pi / 2, 3 * math.pi / 4]
    pairs = feature.graycomatrix(levels, [1], angles, LEVELS + 1, symmetric=True)[1:, 1:].astype(np.float64)
    if not pairs.sum():
        return {"entropy": entropy, "contrast": None, "homogeneity": None, "correlation": None, "energy": None}
    pairs = pairs.sum(axis=3, keepdims=True) / pairs.sum()
    names = ("contrast", "homogeneity", "correlation", "energy")
    return {"entropy": entropy, **{name: float(feature.graycoprops(pairs, name)[0, 0]) for name in names}}


def photo_rows(scene: Scene, objects: Sequence[Row]) -> list[Row]:
    """Sum up the objects of a scene: a row for each class, with zeros where there is nothing.

    Args:
        scene: The photo and its objects.
        objects: What `object_rows` gave for it.
    """
    sums = PhotoSums()
    for row in objects:
        sums.add(row)
    return sums.rows(scene)


class PhotoSums:
    """Sums over the objects of a photo, from which the rows of its classes are made."""

    def __init__(self) -> None:
        self._objects: dict[str, int] = {}
        self._at_border: dict[str, int] = {}
        self._area: dict[str, int] = {}
        self._sums: dict[str, dict[str, tuple[int, float]]] = {}  # of each class and column: number and sum

    def add(self, row: Row) -> None:
        """Take the row of one object."""
        name = str(row["class"])
        self._objects[name] = self._objects.get(name, 0) + 1
        self._at_border[name] = self._at_border.get(name, 0) + bool(row["touches_border"])
        self._area[name] = self._area.get(name, 0) + int(row["area"] or 0)
        sums = self._sums.setdefault(name, {})
        for key, value in row.items():
            if (key not in ALWAYS or key == "area") and key not in DIRECTIONS:
                count, total = sums.get(key, (0, 0.0))
                is_number = isinstance(value, (int, float))
                sums[key] = (count + is_number, total + float(value or 0)) if is_number else (count, total)

    def rows(self, scene: Scene) -> list[Row]:
        """Return a row for each class of a scene."""
        pixels = scene.size[0] * scene.size[1]
        rows = []
        for name in scene.classes:
            area = self._area.get(name, 0)
            row: Row = {"photo": scene.name, **scene.position, "class": name}
            row["source"], row["reliable"] = scene.sources[name], reliability(scene, name)
            row["score"] = scene.scores.get(name)
            row["count"], row["count_at_border"] = self._objects.get(name, 0), self._at_border.get(name, 0)
            row["area"], row["share"] = area, 100 * area / pixels
            for key, (count, total) in self._sums.get(name, {}).items():
                row[f"mean_{key}"] = total / count if count else None
            rows.append(row)
        return rows


def _skimage(part: str) -> ModuleType:
    from importlib import import_module

    with needs_extra("measuring", "measure"):
        import_module("skimage")
    return import_module(f"skimage.{part}")
