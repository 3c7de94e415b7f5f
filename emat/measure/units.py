"""The size of a pixel, its unit, and where both come from. No unit is ever made up: without one, tables are in pixels.

In this order: what the user says (`--pixel-size`, or an object of known diameter in the photo), the coordinates of a
GeoTIFF, OME-XML or OME-Zarr, ImageJ's tags, and the resolution of a TIFF file. `Ground` says where the pixels of a
GeoTIFF lie.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.formats.results import PixelSize
from emat.images import Reading
from emat.images.photos import DESCRIPTION_TAG
from emat.images.sources import PHOTO_FORMATS, TIFF_STARTS, identify, open_image, split_page
from emat.images.stacks import ZARR_SUFFIX, ome_facts, open_stack
from emat.measure.convex_hull import hull_of
from emat.measure.scene import Scene, on_border

METRES = {"nm": 1e-9, "um": 1e-6, "mm": 1e-3, "cm": 1e-2, "m": 1.0, "km": 1e3}
SPELLINGS = {
    "µm": "um", "μm": "um", "micron": "um", "microns": "um", "micrometer": "um", "micrometre": "um", "\\u00b5m": "um",
    "nanometer": "nm", "nanometre": "nm", "millimeter": "mm", "millimetre": "mm", "centimeter": "cm",
    "centimetre": "cm", "kilometer": "km", "meter": "m", "metre": "m", "inch": "inch", "in": "inch",
}  # fmt: skip
INCH = 2.54  # cm
X_RESOLUTION_TAG, Y_RESOLUTION_TAG, RESOLUTION_UNIT_TAG = 282, 283, 296
PER_INCH, PER_CENTIMETRE = 2, 3
SMALLEST, LARGEST = 1e-15, 1e9  # metres that the side of a pixel can have
SCREEN_RESOLUTIONS = (72, 96)  # dots an inch that programs write without knowing anything
SQUARE = 0.01  # by how much the sides of a pixel may differ
ROUND = 0.9  # the shorter axis of a scale object over the longer one; less is seen from the side or is not a disc
FULL = 0.95  # its share of its convex hull
ALIKE = 0.05  # by how much the diameters of several scale objects may differ
LARGE = 0.25  # of the largest scale object's area: what is smaller is a wrong piece
PIXEL_SCALE_TAG, TIE_POINT_TAG, TRANSFORMATION_TAG, KEYS_TAG = 33550, 33922, 34264, 34735
RASTER_TYPE_KEY, GEOGRAPHIC_KEY, PROJECTED_KEY, LINEAR_UNIT_KEY = 1025, 2048, 3072, 3076
PIXEL_IS_POINT = 2  # of the raster type: coordinates are those of the middle of a pixel, not of its corner
LINEAR_UNITS = {9001: 1.0, 9002: 0.3048, 9003: 1200 / 3937}  # metres in a metre, a foot and a US survey foot
UTM = (range(25828, 25839), range(26901, 26924), range(32601, 32661), range(32701, 32761))  # codes, all in metres
WEB_MERCATOR = (3857, 3785, 900913)  # its metres are right at the equator only; at 50 degrees north, 1 is 0.64 m
USER_DEFINED = 32767


@dataclass(frozen=True)
class Scale:
    """The side of a pixel in a real unit, and where that is known from.

    >>> Scale(0.32, "um", "option --pixel-size").in_unit("mm").side
    0.00032
    """

    side: float
    unit: str
    source: str

    def in_unit(self, unit: str) -> Scale:
        """Return the same scale in another unit, such as mm; EmatError if there is no such unit."""
        if unit not in METRES:
            raise EmatError("unknown-unit", f"there is no unit {unit!r}; the units are {', '.join(METRES)}")
        if unit == self.unit:
            return self
        return Scale(float(f"{self.side * METRES[self.unit] / METRES[unit]:.12g}"), unit, self.source)


def given_scale(text: str) -> Scale:
    """Return the scale that --pixel-size says; EmatError if it is not one.

    >>> given_scale("0.32um")
    Scale(side=0.32, unit='um', source='given by --pixel-size')
    """
    size = PixelSize.read(text)
    return Scale(size.side, size.unit, "given by --pixel-size")


def scale_in_file(path: Path) -> Scale | None:
    """Return what a photo's file says about the size of its pixels; None if it says nothing.

    Raises:
        EmatError: Its pixels are not square.
    """
    file, _ = split_page(path)
    if file.suffix.lower() == ZARR_SUFFIX:
        stack = open_stack(file, Reading())
        sides_of_stack = None if stack is None else _with_source(stack.pixel, "OME-Zarr")
        return None if sides_of_stack is None else _square(sides_of_stack, path)
    try:
        with file.open("rb") as opened:
            if not opened.read(4).startswith(TIFF_STARTS):
                return None
        with open_image(f"{file}[1]", PHOTO_FORMATS, 1 << 62, str(path)) as image:
            tags: Mapping[int, object] = dict(getattr(image, "tag_v2", {}))
    except Exception:  # Pillow's readers raise nearly everything; whoever reads the photo says what is wrong
        return None
    ground = ground_of(path)
    if ground is not None:  # the resolution of a map is for printing it
        return None if ground.metres is None else Scale(ground.metres, "m", "GeoTIFF")
    text = _as_utf8(str(tags.get(DESCRIPTION_TAG, "")))
    for sides in (_of_ome(text), _of_imagej(text, tags), _of_resolution(tags)):
        if sides is not None:
            return _square(sides, path)
    return None


def _as_utf8(text: str) -> str:
    """Pillow takes the text of a TIFF file for Latin-1; OME-XML is UTF-8."""
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text


_Sides = tuple[float, float, str, str]  # x, y, unit, source


def _of_ome(text: str) -> _Sides | None:
    return _with_source(ome_facts(text)[1], "OME-XML")


def _with_source(pixel: tuple[float, float, str] | None, source: str) -> _Sides | None:
    if pixel is None or (unit := _unit(pixel[2])) is None or _number(pixel[0]) is None or _number(pixel[1]) is None:
        return None
    return pixel[0], pixel[1], unit, source


def _of_imagej(text: str, tags: Mapping[int, object]) -> _Sides | None:
    if not text.startswith("ImageJ="):
        return None
    named = re.search(r"^unit=(.+)$", text, re.MULTILINE)
    unit = _unit(named[1].strip()) if named else None
    x, y = (_number(tags.get(tag)) for tag in (X_RESOLUTION_TAG, Y_RESOLUTION_TAG))
    if unit is None or x is None or y is None:
        return None
    return 1 / x, 1 / y, unit, "ImageJ tags"


def _of_resolution(tags: Mapping[int, object]) -> _Sides | None:
    x, y = (_number(tags.get(tag)) for tag in (X_RESOLUTION_TAG, Y_RESOLUTION_TAG))
    kind = tags.get(RESOLUTION_UNIT_TAG)
    if x is None or y is None or kind not in (PER_INCH, PER_CENTIMETRE):
        return None
    if str(tags.get(DESCRIPTION_TAG, "")).startswith("ImageJ="):  # ImageJ's own unit counts, and there is none
        return None
    if kind == PER_CENTIMETRE:
        return 1 / x, 1 / y, "cm", "TIFF resolution"
    if round(x, 2) in SCREEN_RESOLUTIONS:
        return None
    return INCH / x, INCH / y, "cm", f"TIFF resolution of {x:g} dpi"


def _unit(text: str) -> str | None:
    unit = SPELLINGS.get(text, SPELLINGS.get(text.lower(), text))
    return unit if unit in METRES else None


def _number(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return number if math.isfinite(number) and number > 0 else None


def _square(sides: _Sides, path: Path) -> Scale | None:
    x, y, unit, source = sides
    if not all(SMALLEST <= side * METRES[unit] <= LARGEST for side in (x, y)):
        return None  # a program wrote it without knowing anything
    if abs(x - y) > SQUARE * max(x, y):
        raise EmatError(
            "pixels-not-square",
            f"the pixels of {path} are {x:.4g} x {y:.4g} {unit} ({source}), which is not square; resample the photo",
        )
    return handy(Scale(x, unit, source))


def handy(scale: Scale) -> Scale:
    """Return the scale in the unit in which a pixel's side is a number that people write, such as 0.085 mm.

    >>> handy(Scale(0.0000325, "cm", "TIFF resolution"))
    Scale(side=0.325, unit='um', source='TIFF resolution')
    """
    if scale.unit != "cm":
        return scale
    return scale.in_unit("um" if scale.side < 1e-3 else "mm" if scale.side < 1 else "cm")


@dataclass(frozen=True)
class ScaleObject:
    """An object of known diameter in every photo, such as a coin.

    >>> ScaleObject.read("coin=23.25mm")
    ScaleObject(name='coin', diameter=23.25, unit='mm')
    """

    name: str
    diameter: float
    unit: str

    @classmethod
    def read(cls, text: str) -> ScaleObject:
        """Read what --scale says; EmatError if it is not a class and a diameter."""
        name, _, size = text.partition("=")
        try:
            diameter = PixelSize.read(size if name else "")
        except EmatError:
            raise EmatError(
                "unclear-option", f"--scale is {text!r}; give a class and its diameter, as in coin=23.25mm"
            ) from None
        return cls(name, diameter.side, diameter.unit)

    def scale(self, scene: Scene) -> Scale:
        """Find the size of a pixel of a photo from the object's diameter there.

        Raises:
            EmatError: The object is missing, cut off, not round, or there are several of different sizes.
        """
        labels = scene.objects[scene.check_class(self.name)]
        areas = np.bincount(labels.ravel())
        areas[0] = 0
        if not areas.any():
            raise EmatError(
                "no-scale-object",
                f"{scene.name} shows no {self.name}, so the size of its pixels is not known; photograph it too",
            )
        large = np.flatnonzero(areas >= LARGE * areas.max())
        if set(large.tolist()) & set(on_border(labels).tolist()):
            raise EmatError(
                "no-scale-object", f"the {self.name} is cut off at the border of {scene.name}; photograph it whole"
            )
        diameters = []
        for number in large:
            hull = hull_of(labels == number)
            if hull.shortest < ROUND * hull.longest or areas[number] < FULL * hull.area:
                raise EmatError(
                    "no-scale-object",
                    f"the {self.name} in {scene.name} is not round ({hull.longest:.0f} x {hull.shortest:.0f} pixels); "
                    "photograph it from above, or correct its mask",
                )
            diameters.append(2 * math.sqrt(areas[number] / math.pi))
        if max(diameters) > (1 + ALIKE) * min(diameters):
            listed = ", ".join(f"{diameter:.0f}" for diameter in diameters)
            raise EmatError(
                "no-scale-object",
                f"{scene.name} has several objects of {self.name}, {listed} pixels wide; leave one of them",
            )
        side = self.diameter / (sum(diameters) / len(diameters))
        return Scale(side, self.unit, f"{self.name} of {self.diameter:g} {self.unit}")


@dataclass(frozen=True)
class Ground:
    """The coordinates of a photo's pixels on the ground.

    Attributes:
        matrix: (2, 3): from x and y in pixels, counted from the photo's corner, to coordinates.
        crs: The coordinate system, such as EPSG:32632; None if the file does not name it.
        metres: The side of a pixel; None if coordinates are degrees or Web Mercator, their unit is not known, or pixels
            are not square.
    """

    matrix: NDArray[np.float64]
    crs: str | None
    metres: float | None

    def locate(self, corners: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the coordinates of corners of pixels (n, 2) of x, y."""
        return corners @ self.matrix[:, :2].T + self.matrix[:, 2]


def ground_of(path: Path) -> Ground | None:
    """Return where the pixels of a file lie; None if it does not say."""
    file, _ = split_page(path)
    try:
        with identify(file, ("TIFF",), str(path))[0] as image:
            tags: Mapping[int, Any] = dict(getattr(image, "tag_v2", {}))
        matrix, keys = _matrix(tags), _keys(tags.get(KEYS_TAG, ()))
    except Exception:  # tags of another type, or damaged: Pillow's readers raise nearly everything
        return None
    if matrix is None or not np.isfinite(matrix).all() or abs(np.linalg.det(matrix[:, :2])) < 1e-30:
        return None
    if keys.get(RASTER_TYPE_KEY) == PIXEL_IS_POINT:
        matrix[:, 2] -= matrix[:, :2].sum(axis=1) / 2
    projected, geographic = keys.get(PROJECTED_KEY), keys.get(GEOGRAPHIC_KEY)
    code = next((number for number in (projected, geographic) if number not in (None, 0, USER_DEFINED)), None)
    sides = np.linalg.norm(matrix[:, :2], axis=0)
    unit = _metres_in_unit(projected, keys.get(LINEAR_UNIT_KEY))
    square = abs(sides[0] - sides[1]) <= 0.01 * sides.max()
    metres = None if unit is None or not square else float(sides[0]) * unit
    return Ground(matrix, None if code is None else f"EPSG:{code}", metres)


def _metres_in_unit(projected: int | None, unit: int | None) -> float | None:
    """How many metres on the ground a unit of projected coordinates is; None if that is not known."""
    if projected is None or projected in WEB_MERCATOR:
        return None
    if unit is None:
        return 1.0 if any(projected in codes for codes in UTM) else None
    return LINEAR_UNITS.get(unit)


def _matrix(tags: Mapping[int, Any]) -> NDArray[np.float64] | None:
    whole = tags.get(TRANSFORMATION_TAG)
    if whole is not None and len(whole) == 16:
        square = np.array(whole, np.float64).reshape(4, 4)
        return square[:2, [0, 1, 3]]
    scale, tie = tags.get(PIXEL_SCALE_TAG), tags.get(TIE_POINT_TAG)
    if scale is None or tie is None or len(scale) < 2 or len(tie) < 6:
        return None
    column, row, _, x, y = (float(number) for number in tie[:5])
    across, down = float(scale[0]), -float(scale[1])
    return np.array([[across, 0.0, x - across * column], [0.0, down, y - down * row]])


def _keys(values: Sequence[int]) -> dict[int, int]:
    """The keys of a GeoTIFF whose values are in the directory itself."""
    entries = [tuple(values[start : start + 4]) for start in range(4, len(values) - 3, 4)]
    return {int(key): int(value) for key, where, _, value in entries if where == 0}
