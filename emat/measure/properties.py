"""What is measured of an object: size, shape, centre line, intensity and texture, each with its unit and its meaning.

Most numbers are those of scikit-image's `regionprops_table`. The largest Feret diameter and the convex hull equal its
own, but come from SciPy's hull of the outline: scikit-image tests every pixel of a hull and compares all points of its
outline with each other. For one object of 6 million pixels that takes 40 seconds.

Thin things such as cracks, vessels and roots are measured along their centre line (`measure_line`), which is
scikit-image's skeleton without spurs. Its pixels are put in the middle of their neighbours, so that a slanted line is
not a staircase. The outline is scikit-image's contour at the half between object and background. The width at a point
of the centre line is the distance between the outline's nearest point and the one opposite of it. Where the object is a
few pixels wide, it is the number of its pixels for each pixel of length. The length goes on from the ends of the centre
line to the outline.

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
from scipy.spatial import ConvexHull, cKDTree
from scipy.spatial.distance import pdist

from emat.errors import EmatError, needs_extra
from emat.measure.scene import ALL_AROUND, Labels, Mask, Scene, has_objects, on_border

Value: TypeAlias = float | int | str | bool | None
Row: TypeAlias = dict[str, Value]

GROUPS = ("size", "shape", "skeleton", "intensity", "texture")
DEFAULT_GROUPS = ("size", "shape", "intensity")
LENGTH, AREA = "length", "area"
RELIABLE_FROM = 0.3  # expected IoU; masks of less say little about sizes
UNRELIABLE, UNKNOWN = "not reliable", "not known"
DIRECTIONS = ("orientation", "hue")  # 1 and 359 degrees have no mean of 180
ON_EDGE = 1e-6  # pixels: the middle of a pixel on the very edge of a hull belongs to it, whatever was rounded
LEVELS = 32  # greys that textures distinguish
Points = NDArray[np.float64]  # (n, 2) of y, x

NEAR = 3.0  # pixels: the neighbours that a pixel of the centre line is put in the middle of
SPUR = 1.5  # half widths: a shorter branch with a free end leads to a corner of the outline
THIN = 2.0  # pixels from the centre line to the outline, below which pixels are counted instead
OUTLINE_SMOOTHING = 5  # points
OFF = 1.0  # pixels that the centre line may lie beside the middle; what is farther across belongs to another part
TIP = 12.0  # pixels of the centre line that say in which direction it goes on


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
        "width_mean": Column("mean width across the centre line", LENGTH),
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


def _size_and_shape(found: Mapping[str, float], inside: Mask, groups: Sequence[str]) -> Row:
    hull = hull_of(inside)
    size: Row = {
        "equivalent_diameter": found["equivalent_diameter_area"],
        "perimeter": found["perimeter_crofton"],
        "feret_max": hull.longest,
        "feret_min": hull.shortest,
        "major_axis": found["axis_major_length"],
        "minor_axis": found["axis_minor_length"],
    }
    shape: Row = {
        "eccentricity": found["eccentricity"],
        "solidity": found["area"] / hull.area,
        "circularity": min(1.0, 4 * math.pi * found["area"] / max(found["perimeter_crofton"], 1e-9) ** 2),
        "orientation": (math.degrees(found["orientation"]) + 90) % 180,
        "euler_number": int(found["euler_number"]),
    }
    return {**(size if "size" in groups else {}), **(shape if "shape" in groups else {})}


@dataclass(frozen=True)
class Hull:
    """The convex hull of an object, in pixels: how many pixels it has, and its largest and smallest width."""

    area: int
    longest: float
    shortest: float


def hull_of(mask: Mask) -> Hull:
    """Return the convex hull of an object (h, w).

    The outline of an object runs through the middles of the sides of its outermost pixels. Area and largest width are
    those of scikit-image's `regionprops`: of the pixels whose middle lies in the hull of the outline. The smallest
    width, which it does not have, is that of the hull itself: these pixels may stick out on both sides of it.

    >>> hull_of(np.ones((30, 40), bool))
    Hull(area=1200, longest=49.4064773081425, shortest=30.0)
    """
    outline = _hull_of_outline(mask)
    corners = outline.points[outline.vertices]
    edges = np.roll(corners, -1, axis=0) - corners
    across = np.stack([-edges[:, 1], edges[:, 0]], axis=1) / np.linalg.norm(edges, axis=1)[:, None]
    reach = corners @ across.T  # (corners, edges)
    shortest = float((reach.max(axis=0) - reach.min(axis=0)).min())
    filled = _filled(outline, mask.shape)
    around = _hull_of_outline(filled)
    return Hull(int(filled.sum()), float(pdist(around.points[around.vertices]).max()), shortest)


def _filled(hull: ConvexHull, shape: tuple[int, ...]) -> Mask:
    """Return the pixels (h, w) whose middle lies in a hull.

    scikit-image tests every pixel against every edge; here an edge says for each row where the hull begins or ends.
    """
    rows, columns = np.arange(shape[0])[:, None], np.arange(shape[1])
    edges = hull.equations  # (edges, 3): y and x of the normal, offset; with a pixel inside, the sum is below 0
    left, right, flat = edges[edges[:, 1] < 0], edges[edges[:, 1] > 0], edges[edges[:, 1] == 0]
    first = (-(left[:, 2] + left[:, 0] * rows) / left[:, 1]).max(axis=1)
    last = (-(right[:, 2] + right[:, 0] * rows) / right[:, 1]).min(axis=1)
    between = (flat[:, 2] + flat[:, 0] * rows <= ON_EDGE).all(axis=1)  # the upper and the lower side, if they are level
    return (columns >= first[:, None] - ON_EDGE) & (columns <= last[:, None] + ON_EDGE) & between[:, None]


def _hull_of_outline(mask: Mask) -> ConvexHull:
    """Return SciPy's convex hull of the middles of the sides of the outermost pixels, as (y, x)."""
    ends = [_first_and_last(mask), _first_and_last(mask.T)[:, ::-1]]
    pixels = np.concatenate(ends).astype(np.float64)  # (n, 2) of y, x
    sides = np.array([[-0.5, 0], [0.5, 0], [0, -0.5], [0, 0.5]])
    return ConvexHull((pixels[:, None] + sides).reshape(-1, 2))


def _first_and_last(mask: Mask) -> NDArray[np.int64]:
    """Return the first and the last pixel (y, x) of every row that has one; no others are on the hull."""
    rows = np.flatnonzero(mask.any(axis=1))
    first = mask[rows].argmax(axis=1)
    last = mask.shape[1] - 1 - mask[rows, ::-1].argmax(axis=1)
    return np.concatenate([np.stack([rows, first], axis=1), np.stack([rows, last], axis=1)])


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


@dataclass(frozen=True)
class LineMeasures:
    """An object measured along its centre line, in pixels."""

    length: float
    width_mean: float
    width_max: float
    branch_points: int


def measure_line(mask: Mask) -> LineMeasures:
    """Measure one object (h, w) along its centre line.

    >>> bar = np.zeros((30, 120), bool)
    >>> bar[10:18, 10:110] = True
    >>> found = measure_line(bar)
    >>> round(found.length), round(found.width_mean, 1), found.branch_points
    (100, 8.0, 0)
    """
    from skimage.measure import find_contours
    from skimage.morphology import skeletonize

    padded = np.pad(mask, 2)
    inside = ndimage.distance_transform_edt(padded)
    skeleton = _without_spurs(skeletonize(padded), inside)
    pixels = np.argwhere(skeleton)
    tree = cKDTree(pixels)
    near = tree.query_ball_point(pixels, NEAR)
    line = np.array([pixels[each].mean(axis=0) for each in near])
    contours = [contour[:-1] for contour in find_contours(padded.astype(np.float32), 0.5)]
    outline = np.concatenate([_smooth(contour) for contour in contours])
    exact = np.concatenate(contours)
    steps = _steps(pixels, tree)
    degree = np.bincount(steps.ravel(), minlength=len(pixels))
    ends = np.flatnonzero(degree <= 1)
    half, nearest = cKDTree(outline).query(line)
    length = float(np.linalg.norm(line[steps[:, 0]] - line[steps[:, 1]], axis=1).sum())
    for end in ends:
        before = pixels[tree.query_ball_point(pixels[end], TIP)]
        length += _to_the_outline(line[end], before, exact, half[end] + NEAR)
    if len(pixels) == 1:
        length = 2 * float(half[0])
    widths = _widths(line, outline, nearest, half)
    thin = half < THIN
    if thin.any():
        widths = np.where(thin, _counted_widths(padded, skeleton, near, length), widths)
    away = _away_from_ends(pixels, ends, half)
    widths = widths[away] if away.any() else widths
    forks = ndimage.label(skeleton & (_neighbours(skeleton) >= 3), ALL_AROUND)[1]
    return LineMeasures(length, float(widths.mean()), float(widths.max()), int(forks))


def _neighbours(skeleton: Mask) -> NDArray[np.uint8]:
    return np.asarray(
        ndimage.convolve(skeleton.astype(np.uint8), ALL_AROUND.astype(np.uint8), mode="constant") - skeleton
    )


def _without_spurs(skeleton: Mask, inside: NDArray[np.float64]) -> Mask:
    """Remove the short branches that lead from the centre line to corners of the outline."""
    from skimage.morphology import skeletonize

    count = _neighbours(skeleton)
    forks = skeleton & (count >= 3)
    if not forks.any():
        return skeleton
    around = ndimage.binary_dilation(forks, ALL_AROUND)
    width_of_fork = np.where(around, ndimage.maximum_filter(np.where(forks, inside, 0), 3), 0)
    branches, most = ndimage.label(skeleton & ~forks, ALL_AROUND)
    numbers = np.arange(1, most + 1)
    is_free = np.asarray(ndimage.maximum(count <= 1, branches, numbers), bool)
    width = np.asarray(ndimage.maximum(width_of_fork, branches, numbers))
    pixels = np.asarray(ndimage.sum_labels(skeleton, branches, numbers))
    spurs = is_free & (width > 0) & (pixels <= SPUR * width + 1)
    if spurs.all() and forks.sum() < 3:  # a blob: what is left of it is its middle
        return forks if forks.any() else skeleton
    return np.asarray(skeletonize(skeleton & ~np.isin(branches, numbers[spurs])))


def _smooth(contour: Points) -> Points:
    if len(contour) < 4 * OUTLINE_SMOOTHING:  # it would shrink
        return contour
    return np.asarray(ndimage.uniform_filter1d(contour, OUTLINE_SMOOTHING, axis=0, mode="wrap"))


def _steps(pixels: NDArray[np.int64], tree: cKDTree) -> NDArray[np.int64]:
    """Return the pairs of neighbouring pixels, without a diagonal beside two straight steps."""
    pairs = tree.query_pairs(1.5, output_type="ndarray").reshape(-1, 2)
    one, other = pixels[pairs[:, 0]], pixels[pairs[:, 1]]
    diagonal = (one != other).all(axis=1)
    there = np.zeros(pixels.max(axis=0) + 1, bool)
    there[pixels[:, 0], pixels[:, 1]] = True
    around_the_corner = there[one[:, 0], other[:, 1]] | there[other[:, 0], one[:, 1]]
    kept: NDArray[np.int64] = pairs[~(diagonal & around_the_corner)]
    return kept


def _widths(
    line: Points, outline: Points, nearest: NDArray[np.int64], half: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the distances across, which do not change if the centre line lies beside the middle."""
    here = outline[nearest]
    opposite = outline[cKDTree(outline).query(2 * line - here)[1]]
    return np.minimum(np.linalg.norm(here - opposite, axis=1), 2 * half + 2 * OFF)


def _counted_widths(mask: Mask, skeleton: Mask, near: NDArray[np.object_], length: float) -> NDArray[np.float64]:
    """Return around each pixel of the centre line how many pixels the object has for each pixel of length."""
    index = np.zeros(mask.shape, np.int64)
    index[skeleton] = np.arange(int(skeleton.sum()))
    rows, columns = ndimage.distance_transform_edt(~skeleton, return_distances=False, return_indices=True)
    owners = index[rows, columns][mask]
    counts = np.bincount(owners, minlength=len(near))
    step = length / len(near)
    return np.array([counts[each].mean() for each in near]) / max(step, 1e-9)


def _away_from_ends(pixels: NDArray[np.int64], ends: NDArray[np.int64], half: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether a pixel of the centre line is so far from an end that the width there is not that of the tip."""
    if not len(ends):
        return np.ones(len(pixels), bool)
    distance = cKDTree(pixels[ends]).query(pixels)[0]
    return np.asarray(distance > np.maximum(half, NEAR))


def _to_the_outline(end: Points, before: NDArray[np.int64], outline: Points, farthest: float) -> float:
    """Return how far the tip of an object is from an end of its centre line, in the line's direction."""
    ahead = outline - end
    away = end - before.mean(axis=0)
    size = float(np.linalg.norm(away))
    nearest = float(np.linalg.norm(ahead, axis=1).min())
    if size < 1e-6:
        return nearest
    along, across = ahead @ (away / size), np.abs(ahead @ (np.array([-away[1], away[0]]) / size))
    met = along[(along > 0) & (across < 1)]
    if not len(met):
        return nearest
    return float(met[met <= farthest].max(initial=0) or met.min())  # beside a thin line, its sides are met first
