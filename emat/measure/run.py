"""One run over many photos: each is measured in its own way, plain photo, stack or slide, and written at once.

Rows, pictures and hashes go to the `ResultWriter`, from which tables and report are made when all photos are done, so
an interrupted run can continue.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from emat.errors import EmatError
from emat.files import file_sha256, inner_name, without_suffix
from emat.formats.results import ResultWriter
from emat.images import Pixels, Reading
from emat.images.slides import is_slide, open_slide
from emat.images.sources import split_page
from emat.images.stacks import Stack, open_stack
from emat.inference.photos import PhotoFile, read_ahead
from emat.inference.slides import SlidePart, SlidePrediction, predict_slide
from emat.measure.exports import FORMATS, open_geojson, open_rois, write_export
from emat.measure.mask_source import MaskSource, Region, content_of
from emat.measure.measuring import MeasureOptions, measure
from emat.measure.properties import Row
from emat.measure.report_html import SlidePicture, picture_of, place_of
from emat.measure.scene import Scene
from emat.measure.slides import SlideMeasurement
from emat.measure.tables import Table
from emat.measure.tracks import Tracks, with_tracks
from emat.measure.units import ground_of, scale_in_file
from emat.outputs import WriteError
from emat.progress import follow

if TYPE_CHECKING:
    from emat.inference.segmenter import Segmenter

MOST_WAITING = 1000  # rows of a slide that are in memory before they are written


@dataclass(frozen=True)
class MeasureRun:
    """Measures photos and writes what was found.

    Attributes:
        source: Where the masks come from.
        regions: Regions that are no classes.
        options: What is measured, and how.
        out: The folder for files for other programs.
        formats: What is written; of these, only the files for other programs concern it.
        names: The photos, by the names that their files have.
    """

    source: MaskSource
    regions: Sequence[Region]
    options: MeasureOptions
    out: Path
    formats: Sequence[str]
    names: dict[str, PhotoFile] = field(default_factory=dict)

    def photos(self, photos: Sequence[PhotoFile], writer: ResultWriter) -> Iterator[tuple[str, EmatError]]:
        """Measure one photo after the other; yields those that could not be, with the reason."""
        reading, fitted = self.source.reading, self.source.fitted
        tiled = fitted is not None and fitted.tiles_ is not None
        slides = {photo.name for photo in photos if tiled and is_slide(photo.path, reading)}
        stacks = {photo.name: _stack(photo.path, reading) for photo in photos if photo.name not in slides}
        plain = (photo.path for photo in photos if photo.name in stacks and stacks[photo.name] is None)
        ahead = read_ahead(plain, reading=reading)
        for photo in follow(photos, len(photos), "photos measured"):
            try:
                if fitted is not None and photo.name in slides:
                    self._slide(photo, fitted, writer)
                    continue
                stack = stacks[photo.name]
                if isinstance(stack, EmatError):
                    raise stack
                if stack is not None:
                    self._stack(photo, stack, writer)
                    continue
                read = next(ahead)
                if read.pixels is None:
                    raise read.problem or EmatError("photo-not-read", f"{photo.path} was not read")
                self._photo(photo, read.pixels, writer)
            except WriteError:
                raise  # the next photo could not be written either
            except EmatError as problem:
                yield photo.name, problem

    def _photo(self, photo: PhotoFile, pixels: Pixels, writer: ResultWriter) -> None:
        name = inner_name(photo.name)
        scene = self.source.scene(name, pixels)
        if "intensity" in self.options.groups:
            scene = scene.with_values(photo.path, self.source.reading)
        self._measure(name, scene, photo, writer)

    def _slide(self, photo: PhotoFile, fitted: Segmenter, writer: ResultWriter) -> None:
        """Measure a photo that is too large for the memory, window by window."""
        self._refuse_for_slides(photo.path)
        name, source = inner_name(photo.name), self.source
        ground = ground_of(photo.path)
        locate, crs = (None, None) if ground is None else (ground.locate, ground.crs)
        openers = {"rois": open_rois, "geojson": lambda path: open_geojson(path, locate, crs)}
        scale = self.options.scale or scale_in_file(photo.path)
        with open_slide(photo.path, source.reading) as slide, ExitStack() as files:
            exports = self._exports(name)
            adds = [files.enter_context(openers[format](exports[format])) for format in exports if format in openers]
            measurement = SlideMeasurement(
                name, slide, source.classes, self.options, scale, source.path.name, source.expected, source.touching
            )
            answer, picture = SlidePrediction(tuple(source.classes), slide.size), SlidePicture(slide.size)
            waiting: list[list[str]] = []

            def watch(part: SlidePart) -> None:
                picture.add(part)
                for placed in measurement.add(part):
                    values = Table.of("objects", placed.rows.__iter__).values()
                    for add in adds:
                        add(replace(placed, rows=values))
                    waiting.extend(_texts(placed.rows))
                if len(waiting) >= MOST_WAITING:
                    writer.write_rows(name, {"objects": waiting})
                    waiting.clear()

            def rows() -> dict[str, list[list[str]]]:
                photos = measurement.photos(answer.scores)
                return {
                    "objects": waiting,
                    "photos": _texts(photos),
                    "picture": [[place_of(photos[0]), picture.address()]],
                    "hash": [[name, content_of(split_page(photo.path)[0])]],
                }

            bands = predict_slide(fitted, slide, fitted.tiles_, answer, watch, source.all_objects)
            writer.write_bands(name, slide.size, bands, rows)

    def _refuse_for_slides(self, path: Path) -> None:
        asked: dict[str, object] = {
            "--scale": self.options.scale_object,
            "--region": self.regions,
            "--fill-holes": self.options.filters.fill_holes,  # holes may lie in parts that show nothing of their object
            "--format labels": "labels" in self.formats,
            "--format zarr": "zarr" in self.formats,
        }
        for flag in (flag for flag, value in asked.items() if value):
            raise EmatError(
                "not-for-slides",
                f"{path} is measured in windows, for which there is no {flag}; leave it out, or make the slide smaller",
            )

    def _stack(self, photo: PhotoFile, stack: Stack, writer: ResultWriter) -> None:
        """Measure every plane of a stack; each has a row of its own."""
        project = self.source.reading.project
        tracks: dict[int | None, Tracks] = {}  # of each depth
        for plane in stack.planes(project):
            values = stack.values(plane, project)
            name = inner_name(photo.name)
            mark = "".join(f"_{axis}{number:03d}" for axis, number in plane.position.items())
            written = f"{without_suffix(name)}{mark}{Path(name).suffix}"
            if plane.t is None and written in self.done(writer):  # a track needs the frames before
                continue
            scene = self.source.scene(written if mark else name, stack.photo(values, self.source.reading))
            scene = replace(scene, name=name, values=values, channels=stack.channels, position=plane.position)
            linked = None if plane.t is None else tracks.setdefault(plane.z, Tracks())
            self._measure(written, scene, photo, writer, linked)

    def _measure(
        self, written: str, scene: Scene, photo: PhotoFile, writer: ResultWriter, tracks: Tracks | None = None
    ) -> None:
        """Measure a scene and write what was found, under the name that its files have."""
        other = self.names.setdefault(_stem(written).casefold(), photo)
        if other is not photo:
            raise EmatError(
                "same-output-name",
                f"{other.path} and {photo.path} would both be written as {written}; rename one of the photos",
            )
        for region in self.regions:
            scene = scene.with_class(region.name, region.find(written, scene.photo), region.source)
        measurements = measure(scene, self.options, None if self.options.says_scale else scale_in_file(photo.path))
        if tracks is not None:
            linked = tracks.link(measurements.scene.objects)
            measurements = replace(measurements, objects=with_tracks(measurements.objects, linked))
        for format, path in self._exports(written).items():
            ground = ground_of(photo.path)
            write_export(format, path, measurements.scene, measurements.scale, measurements.table(), ground)
        has_hash = photo.path.is_file() and not scene.position.get("t")  # of a video once, not with every frame
        rows = {
            "objects": _texts(measurements.objects),
            "photos": _texts(measurements.photos),
            "picture": [[place_of(measurements.photos[0]), picture_of(measurements.scene)]],
            "hash": [[scene.name, file_sha256(photo.path)]] if has_hash else [],
        }
        kept = measurements.scene
        writer.write(written, kept.label_map, kept.photo, photo.path, kept.object_image, rows)

    def done(self, writer: ResultWriter) -> set[str]:
        """The names of what an earlier, interrupted run has measured, and whose files are still there."""
        return writer.done(lambda name: None if all(map(os.path.lexists, self._exports(name).values())) else "gone")

    def _exports(self, name: str) -> dict[str, Path]:
        """The files for other programs that are written for a photo, by their format."""
        return {
            format: self.out / format / f"{_stem(name)}{FORMATS[format]}"
            for format in self.formats
            if format in FORMATS
        }


def _stem(name: str) -> str:
    """A photo's name without its suffix, also without .ome, which the files for other programs add themselves."""
    return without_suffix(name).removesuffix(".ome")


def _stack(path: Path, reading: Reading) -> Stack | EmatError | None:
    """The stack at a path, None for a plain photo or a slide, or what is wrong with it."""
    try:
        return open_stack(path, reading)
    except EmatError as problem:
        return problem


def _texts(rows: Sequence[Row]) -> list[list[str]]:
    """Rows as a result writer keeps them."""
    return [[json.dumps(row)] for row in rows]


def read_rows(writer: ResultWriter, table: str) -> Iterator[Row]:
    """Give the rows of "objects" or "photos" that a run has written."""
    return (json.loads(text) for (text,) in writer.rows(table))
