"""Objects for other programs: ImageJ ROIs, QuPath GeoJSON, and label images as OME-TIFF.

Outlines run along the borders of pixels, so that every program gets exactly the pixels of the mask.
"""

from __future__ import annotations

import io
import json
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from emat.errors import EmatError, install_command
from emat.formats.regions import Region, Ring, trace_regions
from emat.images.stacks import write_zarr
from emat.measure.properties import Row
from emat.measure.scene import Labels, Scene
from emat.measure.units import METRES, Ground, Scale
from emat.outputs import whole_file, whole_folder
from emat.pictures.palette import colour_of

MOVE, LINE, CLOSE = 0, 1, 4  # of the path of an ImageJ ROI with several parts
SAME_TIME = (1980, 1, 1, 0, 0, 0)  # so that the same objects give the same file
LARGEST_16_BITS = 65535
OME_UNITS = {  # as OME-XML and OME-Zarr write them
    "nm": ("nm", "nanometer"),
    "um": ("µm", "micrometer"),
    "mm": ("mm", "millimeter"),
    "cm": ("cm", "centimeter"),
    "m": ("m", "meter"),
    "km": ("km", "kilometer"),
}
Place = Callable[[NDArray[np.float64]], NDArray[np.float64]]  # from corners of pixels (n, 2) of x, y to coordinates


def regions_of(labels: Labels) -> Iterator[tuple[int, list[Region]]]:
    """Give the number and the regions of every object of a label image (H, W)."""
    for number, window in enumerate(ndimage.find_objects(labels), start=1):
        if window is None:
            continue
        rows, columns = window
        regions = trace_regions(labels[window] == number)
        yield number, [moved(region, columns.start, rows.start) for region in regions]


def moved(region: Region, x: int, y: int) -> Region:
    """Return a region farther to the right and down."""
    by = np.array([x, y])
    return Region(region.outer + by, tuple(hole + by for hole in region.holes))


@dataclass(frozen=True)
class Placed:
    """A scene, and where it lies on a slide.

    Attributes:
        scene: The photo, or a piece of a slide, and its objects.
        rows: The rows of its objects, numbered as on the whole slide.
        x: How far the piece is from the left border of the slide, in pixels.
        y: How far it is from the upper border.
        before: How many objects of the slide are numbered before those of the piece.
    """

    scene: Scene
    rows: Sequence[Row] = ()
    x: int = 0
    y: int = 0
    before: int = 0

    def objects(self) -> Iterator[tuple[int, str, int, list[Region]]]:
        """Give the index and name of the class, the number and the regions of every object."""
        for index, (name, labels) in enumerate(self.scene.objects.items(), start=1):
            for number, regions in regions_of(labels):
                yield index, name, self.before + number, [moved(region, self.x, self.y) for region in regions]


Add: TypeAlias = Callable[[Placed], None]


def write_rois(path: Path, scene: Scene) -> None:
    """Write the objects as a zip of ImageJ ROIs, which ImageJ's ROI manager opens; each is named `class-number`.

    Raises:
        EmatError: roifile is not installed, or the file cannot be written.
    """
    with open_rois(path) as add:
        add(Placed(scene))


@contextmanager
def open_rois(path: Path) -> Iterator[Add]:
    """Begin a zip of ImageJ ROIs, to which scenes are added piece by piece."""
    roifile = _package("roifile", "ImageJ ROIs need roifile")
    with whole_file(path) as unfinished, zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(placed: Placed) -> None:
            for index, name, number, regions in placed.objects():
                title = f"{name}-{number:04d}"
                roi = _roi(roifile, regions, title)
                roi.stroke_color = bytes((255, *colour_of(index)))
                safe = title.replace("/", "_").replace("\\", "_")
                archive.writestr(zipfile.ZipInfo(f"{safe}.roi", SAME_TIME), roi.tobytes())

        yield add


def _roi(roifile: ModuleType, regions: Sequence[Region], title: str) -> Any:
    """One polygon if the object is in one piece without holes, else a path of several parts."""
    rings = [ring for region in regions for ring in (region.outer, *region.holes)]
    if len(rings) == 1:
        roi = roifile.ImagejRoi.frompoints(rings[0], name=title)
        roi.roitype = roifile.ROI_TYPE.POLYGON
        roi.right, roi.bottom = rings[0].max(axis=0).tolist()  # roifile adds one, as for the middles of pixels
        return roi
    corners = np.concatenate(rings)
    (left, top), (right, bottom) = corners.min(axis=0).tolist(), corners.max(axis=0).tolist()
    roi = roifile.ImagejRoi()
    roi.version, roi.roitype, roi.name = 227, roifile.ROI_TYPE.RECT, title
    roi.left, roi.top, roi.right, roi.bottom = left, top, right, bottom
    path: list[float] = []
    for ring in rings:
        for number, (x, y) in enumerate(ring.tolist()):
            path += [LINE if number else MOVE, x, y]
        path.append(CLOSE)
    roi.multi_coordinates = np.array(path, np.float32)
    roi.shape_roi_size = len(path)
    return roi


def write_geojson(
    path: Path,
    scene: Scene,
    rows: Sequence[Row],
    locate: Place | None = None,
    crs: str | None = None,
) -> None:
    """Write the objects as GeoJSON, which QuPath and geographic programs open.

    Args:
        path: The file.
        scene: The photo and its objects.
        rows: The rows of its objects; their numbers become measurements.
        locate: Turns corners of pixels into coordinates on the ground, for a photo that carries them.
        crs: The name of these coordinates, such as EPSG:32632.
    """
    with open_geojson(path, locate, crs) as add:
        add(Placed(scene, rows))


@contextmanager
def open_geojson(path: Path, locate: Place | None = None, crs: str | None = None) -> Iterator[Add]:
    """Begin a GeoJSON file, to which scenes are added piece by piece; the arguments are those of `write_geojson`."""
    system = "" if crs is None else f'"crs": {json.dumps({"type": "name", "properties": {"name": crs}})}, '
    with whole_file(path) as unfinished, unfinished.open("w", encoding="utf-8") as file:
        file.write(f'{{"type": "FeatureCollection", {system}"features": [')
        separator = ""

        def add(placed: Placed) -> None:
            nonlocal separator
            measured = {int(row["id"] or 0): row for row in placed.rows}
            for index, name, number, regions in placed.objects():
                polygons = [[_closed(ring, locate) for ring in (region.outer, *region.holes)] for region in regions]
                single = len(polygons) == 1
                feature = {
                    "type": "Feature",
                    "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{placed.scene.name}/{name}/{number}")),
                    "geometry": {
                        "type": "Polygon" if single else "MultiPolygon",
                        "coordinates": polygons[0] if single else polygons,
                    },
                    "properties": {
                        "objectType": "annotation",
                        "name": f"{name} {number}",
                        "classification": {"name": name, "color": list(colour_of(index))},
                        "measurements": _numbers(measured.get(number, {})),
                    },
                }
                file.write(separator + json.dumps(feature, ensure_ascii=False))
                separator = ",\n"

        yield add
        file.write("]}")


def _closed(ring: Ring, locate: Place | None) -> list[list[float]]:
    corners = np.concatenate([ring, ring[:1]])
    return corners.tolist() if locate is None else locate(corners.astype(np.float64)).tolist()


def _numbers(row: Row) -> dict[str, float]:
    return {
        key: value
        for key, value in row.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and key != "id"
    }


def write_labels(path: Path, scene: Scene, scale: Scale | None) -> None:
    """Write the numbers of the objects as an OME-TIFF of 16 or 32 bits, with the size of a pixel.

    It has one plane; where classes overlap, one plane for each class, named after it.

    Raises:
        EmatError: tifffile is not installed, or the file cannot be written.
    """
    planes, names = label_planes(scene)
    tifffile = _package("tifffile", "label images need tifffile")
    metadata: dict[str, Any] = {"axes": "CYX", "Channel": {"Name": names}}
    options: dict[str, Any] = {}
    if scale is not None:
        for axis in "XY":
            metadata[f"PhysicalSize{axis}"], metadata[f"PhysicalSize{axis}Unit"] = scale.side, OME_UNITS[scale.unit][0]
        per_centimetre = METRES["cm"] / (scale.side * METRES[scale.unit])
        options = {"resolution": (per_centimetre, per_centimetre), "resolutionunit": "CENTIMETER"}
    with whole_file(path) as unfinished:
        buffer = io.BytesIO()  # tifffile would take a suffix for the kind of file
        tifffile.imwrite(
            buffer, planes, ome=True, metadata=metadata, compression="zlib", photometric="minisblack", **options
        )
        unfinished.write_bytes(buffer.getvalue())


def write_zarr_labels(path: Path, scene: Scene, scale: Scale | None) -> None:
    """Write the same planes as an OME-Zarr, whole or not at all; an earlier one is replaced.

    Raises:
        EmatError: zarr is not installed, or the folder cannot be written.
    """
    planes, names = label_planes(scene)
    pixel = None if scale is None else (scale.side, OME_UNITS[scale.unit][1])
    with whole_folder(path) as unfinished:
        write_zarr(unfinished, planes, names, pixel)


def label_planes(scene: Scene) -> tuple[NDArray[Any], list[str]]:
    """Return the numbers of the objects, (planes, H, W) of 16 or 32 bits, and the name of each plane."""
    has_layers = scene.has_layers
    planes = list(scene.objects.values()) if has_layers else [scene.object_image]
    names = list(scene.objects) if has_layers else ["objects"]
    stacked = np.stack(planes)
    return stacked.astype(np.uint16 if stacked.max(initial=0) <= LARGEST_16_BITS else np.uint32), names


def _package(name: str, why: str) -> ModuleType:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise EmatError("missing-package", f"{why}; install it with: {install_command('measure')}") from None


FORMATS: Mapping[str, str] = {"labels": ".ome.tif", "zarr": ".ome.zarr", "rois": ".zip", "geojson": ".geojson"}


def write_export(
    format: str, path: Path, scene: Scene, scale: Scale | None, rows: Sequence[Row], ground: Ground | None = None
) -> None:
    """Write the objects of a scene in one of `FORMATS`.

    Args:
        format: The format.
        path: The file.
        scene: The photo and its objects.
        scale: The size of a pixel.
        rows: The rows of its objects, for formats that keep measurements.
        ground: Where its pixels lie on the ground, for formats that keep coordinates.
    """
    if format == "labels":
        write_labels(path, scene, scale)
    elif format == "zarr":
        write_zarr_labels(path, scene, scale)
    elif format == "rois":
        write_rois(path, scene)
    else:
        locate, crs = (None, None) if ground is None else (ground.locate, ground.crs)
        write_geojson(path, scene, rows, locate, crs)
