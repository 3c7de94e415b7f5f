"""Photos with channels, depth and time: OME-TIFF, ImageJ's TIFF, OME-Zarr and videos, plane by plane.

A plane has every channel at one depth (z) and one time (t). For backbones it becomes a photo of three colours: one
channel is grey, of two the first is magenta and the second green, three are red, green and blue, and of more every
third channel goes to the same colour. `Reading.channels` chooses others. Each channel is stretched by its own values.
More than three channels follow the colours, so that the pixel learner sees each of them.

The files say which of their axes is which. A TIFF stack that does not is a stack of pages, as before.
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError, needs_extra
from emat.files import inner_name, is_file, is_number
from emat.images.photos import FEWEST_FURTHER, Reading, scaled
from emat.images.sources import TIFF_SUFFIXES, Pixels, too_large
from emat.images.videos import CHANNELS, VIDEO_SUFFIXES, Video

ZARR_SUFFIX = ".zarr"
AXES = "TCZYX"
MOST_PLANES = 100_000
MOST_CHANNELS = 4096  # hyperspectral cameras have hundreds
MOST_CHANNELS_FULL = 16  # of the largest size that is read
LARGEST_PIECE = 1 << 28  # bytes of one decoded tile or strip, of which a window is put together
ALL_PIXELS = (slice(None), slice(None))
COLOUR_OF_TWO = (0, 1, 0)  # magenta and green, which everybody can tell apart

Window: TypeAlias = tuple[slice, slice]  # rows and columns
Limits: TypeAlias = Sequence[tuple[float, float]]  # what becomes 0 and 255


@dataclass(frozen=True)
class Plane:
    """One depth and one time of a stack; None where the stack has only one, or several were projected."""

    z: int | None
    t: int | None

    @property
    def position(self) -> dict[str, int]:
        """What there is of both, by name."""
        return {name: value for name, value in (("z", self.z), ("t", self.t)) if value is not None}


@dataclass(frozen=True)
class Stack:
    """A file of several planes or channels.

    Attributes:
        path: The file or folder.
        shape: The number of times, channels and depths, height and width.
        channels: The names of the channels; their numbers where they have none.
        pixel: Side of a pixel in x and in y, and its unit as the file writes it; None if it does not say.
    """

    path: Path
    shape: tuple[int, int, int, int, int]
    channels: tuple[str, ...]
    pixel: tuple[float, float, str] | None
    _read: Callable[[int, int, Window], NDArray[Any]]  # of t, z, rows and columns: (Y, X, C)

    def planes(self, project: str) -> list[Plane]:
        """Return the planes, after the depths are projected by "max" or "mean", or kept ("none")."""
        times, _, depths, _, _ = self.shape
        zs = [None] if depths == 1 or project != "none" else list(range(depths))
        ts = [None] if times == 1 else list(range(times))
        return [Plane(z, t) for t in ts for z in zs]

    def only_plane(self, project: str) -> Plane:
        """Return the plane of a stack that has a single one after the projection.

        Raises:
            EmatError: It has several.
        """
        planes = self.planes(project)
        if len(planes) > 1:
            raise EmatError(
                "several-pages",
                f"{self.path} has {self.shape[2]} depths and {self.shape[0]} times; project depths with --project max, "
                "or measure all of them with `emat measure`",
            )
        return planes[0]

    def values(self, plane: Plane, project: str, window: Window = ALL_PIXELS) -> NDArray[Any]:
        """Return the original values of a plane, (H, W, C); a mean is rounded to the type of the values.

        Args:
            plane: The plane.
            project: What becomes of its depths.
            window: Its rows and columns that are read; without it, all of them.

        Raises:
            EmatError: The file is damaged.
        """
        with _damage(self.path):
            t = plane.t or 0
            if plane.z is not None or self.shape[2] == 1:
                return self._read(t, plane.z or 0, window)
            total: Any = None
            for z in range(self.shape[2]):  # one at a time: a stack may be larger than the memory
                one = self._read(t, z, window)
                if project == "max":
                    total = one if total is None else np.maximum(total, one)
                else:
                    total = one.astype(np.float64) if total is None else total + one
            if project == "max":
                return np.asarray(total)
            mean = total / self.shape[2]
            return np.asarray(np.rint(mean).astype(one.dtype) if one.dtype.kind in "ui" else mean.astype(one.dtype))

    def photo(self, values: NDArray[Any], reading: Reading, limits: Limits | None = None) -> Pixels:
        """Return the values of a plane (H, W, C) as a photo: (H, W, 3), or with more channels as `read_channels` says.

        Args:
            values: The values of all channels.
            reading: Which channels are chosen, and how they are stretched.
            limits: What `limits` returns; by default that of the values.

        Raises:
            EmatError: There is no such channel.
        """
        bright = [values[..., index] for index in self.chosen(reading.channels)]
        if values.dtype != np.uint8:
            limits = self.limits(values, reading) if limits is None else limits
            bright = [scaled(channel, *ends) for channel, ends in zip(bright, limits, strict=True)]
        if len(bright) == 1:
            return np.repeat(bright[0][..., None], 3, axis=2)
        if len(bright) == 2:
            return np.stack([bright[index] for index in COLOUR_OF_TWO], axis=2)
        colours = [np.maximum.reduce(bright[colour::3]) for colour in range(3)]
        return np.stack([*colours, *(bright if len(bright) >= FEWEST_FURTHER else ())], axis=2)

    def limits(self, values: NDArray[Any], reading: Reading) -> Limits:
        """Return the values that become 0 and 255, for each chosen channel of values (..., C)."""
        return [reading.stretch.limits(values[..., index]) for index in self.chosen(reading.channels)]

    def chosen(self, asked: Sequence[str]) -> list[int]:
        """Return the indices of channels that are given by name or number; all of them if none is given.

        Raises:
            EmatError: There is no such channel.
        """
        names = [name.casefold() for name in self.channels]
        indices = []
        for one in asked:
            if one.casefold() in names:
                indices.append(names.index(one.casefold()))
            elif is_number(one) and int(one) < len(names):
                indices.append(int(one))
            else:
                raise EmatError(
                    "no-such-channel",
                    f"{self.path} has no channel {one!r}; its channels are {', '.join(self.channels)}, or 0 to "
                    f"{len(names) - 1}",
                )
        return indices or list(range(len(names)))


def read_stack(path: Path, reading: Reading) -> Pixels:
    """Read a stack of one plane as a photo, as `read_channels` does.

    Raises:
        EmatError: It has several planes, and nothing says how to project them.
    """
    stack = open_stack(path, reading)
    if stack is None:
        raise EmatError(
            "several-pages", f"{path} does not say which of its axes are channels; name a page as in '{path}[1]'"
        )
    return stack.photo(stack.values(stack.only_plane(reading.project), reading.project), reading)


def open_stack(path: Path, reading: Reading) -> Stack | None:
    """Open a file that may be a stack.

    Args:
        path: A file, or the folder of an OME-Zarr.
        reading: Its limit of pixels is for one plane.

    Returns:
        The stack; None if the file is a plain photo, or does not say what its axes are.

    Raises:
        EmatError: The file is damaged or too large, or what reads it is not installed.
    """
    if path.suffix.lower() == ZARR_SUFFIX and path.is_dir():
        with _damage(path):
            stack: Stack | None = _open_zarr(path)
    elif path.suffix.lower() in TIFF_SUFFIXES and path.is_file():
        stack = _open_tiff(path)
    elif path.suffix.lower() in VIDEO_SUFFIXES and path.is_file():
        with _damage(path):
            video = Video(path, reading.max_pixels)
            shape = (video.count, len(CHANNELS), 1, *video.size)
            stack = Stack(path, shape, CHANNELS, None, lambda t, _, window: video.frame(t)[window])
    else:
        return None
    if stack is not None:
        times, channels, depths, height, width = stack.shape
        if height * width > reading.max_pixels:
            raise EmatError("photo-too-large", too_large(str(path), reading.max_pixels, (width, height)))
        if height * width * channels > MOST_CHANNELS_FULL * reading.max_pixels:
            raise EmatError(
                "photo-too-large",
                f"{path} has {channels} channels of {width} x {height} pixels, too many for the memory; save fewer of "
                "them, or allow more pixels with --max-pixels",
            )
        if times * depths > MOST_PLANES:
            raise EmatError("photo-too-large", f"{path} has {times * depths} planes, more than {MOST_PLANES}; split it")
    return stack


def _open_tiff(path: Path) -> Stack | None:
    """A TIFF whose metadata name its axes; a single grey or RGB plane is a plain photo."""
    try:
        import tifffile
    except ImportError:
        return None  # it is read as a plain photo, which says what is wrong with a stack
    _silence_tifffile()
    try:
        with tifffile.TiffFile(path) as file:
            return _described(tifffile, file, path)
    except EmatError:
        raise
    except Exception:  # whoever reads it as a photo says what is wrong
        return None


def _silence_tifffile() -> None:
    """Keep remarks of tifffile off the terminal. What matters of them is checked here, and said in a sentence."""
    logging.getLogger("tifffile").addHandler(logging.NullHandler())
    warnings.filterwarnings("ignore", category=UserWarning, module="tifffile")


def _described(tifffile: ModuleType, file: Any, path: Path) -> Stack | None:
    """The stack that an open TIFF file describes; None if it does not say what its axes are."""
    description = str(file.ome_metadata) if file.is_ome else None
    if description is not None and not _is_credible(description, path, math.prod(file.pages[0].shape)):
        return None
    if not (file.is_ome or file.is_imagej) or not file.series:
        return None
    series = file.series[0]
    if missing := sum(page is None for page in series.pages):  # tifffile would take them for black
        raise EmatError(
            "damaged-file",
            f"{path} lacks {missing} of its {len(series.pages)} planes; add the other files of its series, or save it "
            "again",
        )
    axes, shape = str(series.axes), tuple(int(side) for side in series.shape)
    order = axes.replace("S", "C") if "C" not in axes else axes
    if set(order) - set(AXES) or not {"Y", "X"} <= set(order) or len(set(order)) != len(order):
        return None
    sizes = dict(zip(order, shape, strict=True))
    if set(order) == {"Y", "X"} or ("S" in axes and set(order) == {"Y", "X", "C"}):
        return None
    if np.dtype(series.dtype).kind not in "uif":
        return None
    labels = (file.imagej_metadata or {}).get("Labels") if file.is_imagej else None
    full = tuple(sizes.get(axis, 1) for axis in AXES)
    names, pixel = ome_facts(description) if description else ([], None)
    if not names and isinstance(labels, list) and full[0] == full[2] == 1:
        names = [str(label) for label in labels]

    def read(t: int, z: int, window: Window) -> NDArray[Any]:
        _silence_tifffile()
        with tifffile.TiffFile(path) as opened:
            one = opened.series[0]
            if window != ALL_PIXELS:
                return _plane(_windows_of(tifffile, one, path), order, t, z, window)
            leading = [axis for axis in order if axis not in "YX" and not ("S" in axes and axis == "C")]
            number = int(np.prod([sizes[axis] for axis in leading], dtype=np.int64))
            if len(one.pages) != number:
                return _plane(np.asarray(one.asarray()).reshape(shape), order, t, z)
            parts = []
            for c in range(1 if "S" in axes or "C" not in order else sizes["C"]):
                position = {"T": t, "Z": z, "C": c}
                index = 0
                for axis in leading:
                    index = index * sizes[axis] + position[axis]
                page: NDArray[Any] = np.asarray(one.asarray(key=index))
                parts.append(page if page.ndim == 3 else page[..., None])
            return np.concatenate(parts, axis=2)

    return Stack(path, full, _named(names, full[1], path), pixel, read)  # type: ignore[arg-type]


def _open_zarr(path: Path) -> Stack:
    zarr = _zarr()
    root = zarr.open_group(str(path), mode="r")
    facts: Mapping[str, Any] = dict(root.attrs)
    facts = facts.get("ome", facts)
    scales = facts["multiscales"][0]
    listed = [str(axis["name"] if isinstance(axis, dict) else axis).upper() for axis in scales["axes"]]
    order = "".join(listed)
    first = scales["datasets"][0]
    array = root[str(first["path"])]
    if set(order) - set(AXES) or not {"Y", "X"} <= set(order) or array.ndim != len(order):
        raise EmatError("stack-axes", f"{path} has the axes {order}; they may be {', '.join(AXES)}")
    if np.dtype(array.dtype).kind not in "uif":
        raise EmatError("not-an-image", f"{path} holds {array.dtype}, which are not the values of a photo")
    sizes = dict(zip(order, array.shape, strict=True))
    full = tuple(int(sizes.get(axis, 1)) for axis in AXES)
    names = [str(one.get("label", "")) for one in facts.get("omero", {}).get("channels", [])]

    def read(t: int, z: int, window: Window) -> NDArray[Any]:
        return _plane(array, order, t, z, window)

    return Stack(path, full, _named(names, full[1], path), _zarr_pixel(scales, first, listed), read)  # type: ignore[arg-type]


def _zarr_pixel(
    scales: Mapping[str, Any], first: Mapping[str, Any], axes: Sequence[str]
) -> tuple[float, float, str] | None:
    """The sides of a pixel: the steps of the largest picture, times those that hold for pictures of all sizes."""
    steps = [
        one["scale"]
        for level in (first, scales)
        for one in level.get("coordinateTransformations", [])
        if one["type"] == "scale"
    ]
    units = {str(one["name"]).upper(): one.get("unit") for one in scales["axes"] if isinstance(one, dict)}
    if not steps or not units.get("X") or units.get("X") != units.get("Y"):
        return None
    x, y = (math.prod(float(step[axes.index(axis)]) for step in steps) for axis in "XY")
    return x, y, str(units["X"])


def write_zarr(path: Path, planes: NDArray[Any], names: Sequence[str], pixel: tuple[float, str] | None) -> None:
    """Write planes (C, H, W) as an OME-Zarr of version 0.4, with names of channels and the size of a pixel.

    Args:
        path: The folder; it must not exist.
        planes: The values.
        names: The names of the channels.
        pixel: Side of a pixel, and its unit as OME writes it, such as micrometer.
    """
    zarr = _zarr()
    root = zarr.open_group(str(path), mode="w", zarr_format=2)
    side = min(1024, *planes.shape[1:])
    array = root.create_array("0", shape=planes.shape, dtype=planes.dtype, chunks=(1, side, side))
    array[:] = planes
    unit = {} if pixel is None else {"unit": pixel[1]}
    step = 1.0 if pixel is None else pixel[0]
    root.attrs["multiscales"] = [
        {
            "version": "0.4",
            "axes": [
                {"name": "c", "type": "channel"},
                {"name": "y", "type": "space", **unit},
                {"name": "x", "type": "space", **unit},
            ],
            "datasets": [{"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [1.0, step, step]}]}],
        }
    ]
    root.attrs["omero"] = {"channels": [{"label": name} for name in names]}


def _plane(whole: Any, order: str, t: int, z: int, window: Window = ALL_PIXELS) -> NDArray[Any]:
    """Return a window of one plane (Y, X, C) of an array whose axes are named, and of which only that is read."""
    index: dict[str, int | slice] = {"T": t, "Z": z, "Y": window[0], "X": window[1]}
    part = np.asarray(whole[tuple(index.get(axis, slice(None)) for axis in order)])
    left = [axis for axis in order if axis not in "TZ"]
    moved = part.transpose([left.index(axis) for axis in ("Y", "X", *(["C"] if "C" in left else []))])
    return np.ascontiguousarray(moved if moved.ndim == 3 else moved[..., None])


def _windows_of(tifffile: ModuleType, series: Any, path: Path) -> Any:
    """Return a series of a TIFF as an array of which a window is read without the rest."""
    if series.dataoffset is not None:
        return tifffile.memmap(path, series=0, mode="r")
    array = _zarr().open(series.aszarr(level=0), mode="r")
    if math.prod(array.chunks) * array.dtype.itemsize > LARGEST_PIECE:
        raise EmatError("photo-too-large", f"{path} is stored in pieces that are too large; save it as a tiled TIFF")
    return array


def _named(names: Sequence[str], count: int, path: Path) -> tuple[str, ...]:
    """Return a name for every channel, no two the same; EmatError if there are more than any camera has."""
    if count > MOST_CHANNELS:
        raise EmatError("photo-too-large", f"{path} has {count} channels, more than {MOST_CHANNELS}; save fewer")
    if len(names) != count or len(set(names)) != count or not all(names):
        return tuple(str(number) for number in range(count))
    return tuple(names)


def ome_facts(text: str) -> tuple[list[str], tuple[float, float, str] | None]:
    """Return the names of channels, and the size of a pixel, that OME-XML gives."""
    root = _parsed(text)
    pixels = None if root is None else next((one for one in root.iter() if _tag(one) == "Pixels"), None)
    if pixels is None:
        return [], None
    names = [one.get("Name", "") for one in pixels if _tag(one) == "Channel"]
    try:
        x, y = (float(pixels.get(f"PhysicalSize{axis}", "")) for axis in "XY")
    except ValueError:
        return names, None
    units = {pixels.get(f"PhysicalSize{axis}Unit", "µm") for axis in "XY"}
    return names, (x, y, units.pop()) if len(units) == 1 else None


def _is_credible(text: str, path: Path, page: int) -> bool:
    """Whether OME-XML can be given to tifffile, which reserves memory for every number in it and opens every file.

    `page` is how many values a page of the file has. EmatError if it has more planes than are read.
    """
    root = _parsed(text)
    if root is None:
        return False
    planes = 0
    for one in root.iter():
        tag = _tag(one)
        if tag[:-1].endswith("Along"):  # a further axis, which is not read
            return False
        if tag.endswith("Pixels"):
            sizes = [one.get(f"Size{axis}", "") for axis in AXES]
            if not all(is_number(size) and int(size) for size in sizes):
                return False
            times, channels, depths, height, width = map(int, sizes)
            planes += max(times * channels * depths, times * channels * depths * height * width // page)
        if tag.endswith("TiffData"):
            numbers = [value for name, value in one.attrib.items() if name != "UUID"]
            if not all(map(is_number, numbers)):
                return False
            planes = max(planes, *map(int, numbers)) if numbers else planes
        if tag.endswith("UUID") and (name := one.get("FileName")) is not None:
            other = path.parent / inner_name(name)
            if os.path.lexists(other) and not is_file(other):
                return False
    if planes > MOST_PLANES:
        raise EmatError("photo-too-large", f"{path} has {planes} planes, more than {MOST_PLANES}; split it")
    return True


def _parsed(text: str) -> ElementTree.Element | None:
    """Parse OME-XML; None if it is none, or has what no OME-XML has and what can be made to fill the memory."""
    if "<OME" not in text or "<!DOCTYPE" in text or "<!ENTITY" in text:
        return None
    try:
        return ElementTree.fromstring(text.strip().encode())
    except (ElementTree.ParseError, ValueError):
        return None


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Say that a file is damaged, whatever its library raises."""
    try:
        yield
    except EmatError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise EmatError("damaged-file", f"{path} cannot be read ({reason}); save it again or leave it out") from None


def _zarr() -> ModuleType:
    with needs_extra("OME-Zarr", "science"):
        import zarr
    return zarr
