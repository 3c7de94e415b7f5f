"""`emat measure`: from photos to numbers, in tables with units, with verdicts, files and a report."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from emat import __version__
from emat.cli.options import (
    AsJson,
    Overwrite,
    PredictOptions,
    Shapes,
    Tolerance,
    takes,
)
from emat.errors import EmatError
from emat.files import file_sha256, folder_sha256, inner_name, without_suffix
from emat.formats.results import ResultWriter
from emat.formats.writing import WRITERS, WriteOptions, open_writer, read_formats
from emat.images import Pixels, Reading, photo_size
from emat.images.slides import Slide, StackSlide, is_slide, open_slide
from emat.images.sources import split_page
from emat.images.stacks import Stack, open_stack
from emat.inference.photos import PhotoFile, find_photos, photo_state, read_ahead
from emat.inference.slides import SlidePart, SlidePrediction, predict_slide
from emat.inference.tiles import Tiles
from emat.measure.exports import FORMATS as EXPORTS
from emat.measure.exports import open_geojson, open_rois, write_export
from emat.measure.mask_files import MaskFiles
from emat.measure.measuring import FindRegion, Measurements, MeasureOptions, left_out_confidence, measure
from emat.measure.properties import DEFAULT_GROUPS, GROUPS, RELIABLE_FROM, UNRELIABLE, Row, read_groups
from emat.measure.report_html import Report, SlidePicture, picture_of, place_of, shorten, versions, write_report
from emat.measure.scene import Area, Filters, Scene, check_touching
from emat.measure.shares import Within, otsu_region
from emat.measure.slides import SlideMeasurement
from emat.measure.tables import Table, tables_of, write_tables
from emat.measure.tracks import Tracks, with_track
from emat.measure.units import Scale, ScaleObject, given_scale, ground_of, scale_in_file
from emat.measure.verdicts import Condition
from emat.outputs import WriteError, claim_folder
from emat.progress import follow
from emat.refine.refiner import refiner_of

if TYPE_CHECKING:
    from emat.inference.segmenter import Segmenter

NO_ARGS_IS_HELP = True
NOT_OK, SOME_SKIPPED = 1, 3  # exit codes
TABLE_FORMATS = ("csv", "parquet")
MOST_WAITING = 1000  # rows of a slide that are in memory before they are written


@takes(PredictOptions)
def command(
    how: PredictOptions,
    inputs: Annotated[
        list[str], typer.Argument(metavar="[FITTED] PHOTOS...", help="A fitted file, then photos, folders or patterns.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for tables, report and files.")],
    masks: Annotated[
        Path | None, typer.Option(help="Measure these masks instead of predicting: a folder of images, or a COCO file.")
    ] = None,
    mask_values: Annotated[
        str | None, typer.Option(help="What the values of mask images are: classes or objects (single objects).")
    ] = None,
    properties: Annotated[str, typer.Option(help=f"What to measure: {', '.join(GROUPS)}, or all.")] = ",".join(
        DEFAULT_GROUPS
    ),
    within: Annotated[
        list[str] | None, typer.Option(help="Area of one class inside another, such as lesion=leaf: severity.")
    ] = None,
    region: Annotated[
        list[str] | None,
        typer.Option(help="A region that is no class: leaf=otsu, leaf=FOLDER of masks, or leaf=FILE.emat."),
    ] = None,
    pixel_size: Annotated[
        str | None, typer.Option(help="Side of a pixel, such as 0.32um. Default: as the photo's file says.")
    ] = None,
    scale: Annotated[
        str | None, typer.Option(help="A class of known diameter in every photo, such as coin=23.25mm.")
    ] = None,
    min_area: Annotated[
        str | None,
        typer.Option(
            help="Smaller objects do not count: 20px or 5um2. Default: a tenth of the smallest object of the examples."
        ),
    ] = None,
    border: Annotated[str, typer.Option(help="Objects that touch the photo's border: keep or drop.")] = "keep",
    fill_holes: Annotated[bool, typer.Option("--fill-holes", help="Holes in objects belong to them.")] = False,
    touching: Annotated[
        str, typer.Option(help="Objects that touch: split them at necks, or keep them together, as for cracks.")
    ] = "split",
    accept: Annotated[
        list[str] | None, typer.Option(help="A photo is OK if this holds, such as 'crack.area == 0'. May be repeated.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 1 if a photo is NOT OK.")] = False,
    format: Annotated[
        str,
        typer.Option(help=f"What to write: {', '.join((*TABLE_FORMATS, *EXPORTS, *WRITERS))}; several with commas."),
    ] = "csv",
    report: Annotated[bool, typer.Option(help="Write report.html.")] = True,
    shapes: Shapes = None,
    tolerance: Tolerance = WriteOptions.tolerance,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Measure the objects in photos: one row for each object, and one for each photo and class.

    Writes objects.csv, photos.csv, columns.csv (what the columns mean) and report.html. A photo that cannot be measured
    is reported and left out, and the exit code is then 3. An interrupted run continues when it is started again.

    Example: emat measure leaves.emat photos/ -o report --within lesion=leaf --scale coin=23.25mm

    Example: emat measure --masks masks/ photos/ -o report --pixel-size 0.32um
    """
    formats = read_formats(format, (*TABLE_FORMATS, *EXPORTS))
    if masks is not None:
        source: _Source = _Masks(MaskFiles(masks, mask_values), how.reading(), check_touching(touching))
        photos = inputs
    else:
        if mask_values is not None:
            raise EmatError("missing-option", "--mask-values says what mask images mean; give them with --masks")
        fitted, *photos = inputs
        if not photos:
            raise EmatError(
                "missing-option", f"{fitted} is all that was given; add photos, or give their masks with --masks"
            )
        check_touching(touching)
        source = _Predicted(Path(fitted), _load(Path(fitted), how), touching, all_objects=min_area is not None)
    regions = [_region(text, how.device) for text in region or ()]
    classes = tuple(dict.fromkeys((*source.classes, *(each.name for each in regions))))
    options = MeasureOptions(
        groups=read_groups(properties),
        scale=None if pixel_size is None else given_scale(pixel_size),
        scale_object=None if scale is None else ScaleObject.read(scale),
        within=tuple(Within.read(text) for text in within or ()),
        filters=Filters(None if min_area is None else Area.read(min_area), border, fill_holes),
        accept=tuple(Condition.read(text, classes) for text in accept or ()),
    )
    _refuse_unknown(options, classes)
    if strict and not options.accept:
        raise EmatError(
            "missing-option", "--strict needs something to judge by; add --accept, as in --accept 'crack.area == 0'"
        )
    files = find_photos(photos, leave_out=out)
    for each in (*([source.masks] if isinstance(source, _Masks) else ()), *(one.masks for one in regions if one.masks)):
        each.belong_to([photo.name for photo in files])
        if each.path.resolve() in (out.resolve(), *out.resolve().parents):  # masks in it would be taken for given ones
            raise EmatError(
                "output-is-input",
                f"{out} is in {each.path}, which has masks that are read; give a folder outside of it for the result",
            )
    given = [Path(word) for word in inputs if Path(word).is_file()]
    reads = [*given, *(split_page(photo.path)[0] for photo in files), *([masks] if masks else [])]
    reads += [each.path for each in regions if each.path is not None]
    claim_folder(out, reads=reads, overwrite=overwrite)
    notes = source.notes(options, files, regions)
    chosen = {
        name: str(value)
        for name, value in (
            ("properties", ", ".join(options.groups)),
            ("masks", source.described),
            ("within", ", ".join(within or ())),
            ("region", ", ".join(region or ())),
            ("pixel size", pixel_size),
            ("scale", scale),
            ("smallest object", min_area or source.smallest_described),
            ("border", border),
            ("holes", "filled" if fill_holes else "kept"),
            ("touching objects", touching),
            ("accept", "; ".join(accept or ())),
            ("channels", how.channels),
            ("depths", None if source.reading.project == "none" else f"{source.reading.project} of all"),
            ("refine", how.refine if masks is None else None),
            ("formats", ", ".join(formats)),
        )
        if value
    }
    given_besides = [repr(how), mask_values, str(masks), repr(source.reading)]
    contents = [source.identity, *(each.identity for each in regions)]
    states = [[photo.name, _state(photo.path)] for photo in files]
    identity = json.dumps([__version__, chosen, contents, given_besides, states])
    run = _Run(source, regions, options, out, formats)
    writers = [name for name in formats if name in WRITERS]
    with open_writer(
        writers,
        out,
        classes,
        options=WriteOptions(shapes, tolerance),
        run=hashlib.sha256(identity.encode()).hexdigest(),
    ) as writer:
        done = run.done(writer)
        if done and not as_json:
            typer.echo(f"continuing: {sum(photo.name in done for photo in files)} of {len(files)} photos are done")
        skipped = list(run.photos([photo for photo in files if photo.name not in done], writer))
        tables = tables_of(lambda: _rows(writer, "objects"), lambda: _rows(writer, "photos"), options.groups)
        write_tables(out, tables, formats)
        if report:
            pictures = {name: picture for record in writer.rows("picture") for name, picture in [record]}
            hashes = [*source.hashes, *((name, sha) for name, sha in writer.rows("hash"))]
            write_report(
                out / "report.html",
                Report(
                    title=f"{source.title}: measured",
                    classes=classes,
                    objects=tables[0],
                    photos=tables[1],
                    pictures=pictures,
                    forecast=source.expected,
                    notes=notes,
                    skipped=[(name, str(problem)) for name, problem in skipped],
                    settings=chosen,
                    versions=versions(),
                    hashes=shorten(hashes),
                ),
            )
        refused = {str(row["photo"]) for row in tables[1].rows() if row.get("verdict") == "NOT OK"}
        judged = len({str(row["photo"]) for row in tables[1].rows()}) if options.accept else 0
        counts: dict[str, int] = dict.fromkeys(classes, 0)
        for row in tables[1].rows():
            counts[str(row["class"])] += int(row["count"] or 0)
    written = "tables and report.html" if report else "tables"
    _tell(files, skipped, counts, source, refused, judged, notes, written, out, as_json)
    if strict and refused:
        raise typer.Exit(NOT_OK)
    if skipped:
        raise typer.Exit(SOME_SKIPPED)


class _Source:
    """Where masks come from."""

    classes: tuple[str, ...]
    reading: Reading
    described: str
    title: str
    smallest_described = "every object counts"
    expected: dict[str, float | None] = {}  # noqa: RUF012 - replaced, never changed
    hashes: list[tuple[str, str]] = []  # noqa: RUF012
    identity = ""

    def scene(self, name: str, photo: Pixels) -> Scene:
        """Return the scene of a photo."""
        raise NotImplementedError

    def notes(self, options: MeasureOptions, files: Sequence[PhotoFile], regions: Sequence[_Region]) -> list[str]:
        """Return what the reader of a report must know before the photos are measured."""
        return []


class _Masks(_Source):
    """Masks that somebody else drew."""

    def __init__(self, masks: MaskFiles, reading: Reading, touching: str) -> None:
        self.masks, self.reading, self._touching = masks, reading, touching
        self.described, self.title = str(masks.path), masks.path.name
        self.identity = content_of(masks.path)

    @property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of the classes."""
        return self.masks.classes

    def scene(self, name: str, photo: Pixels) -> Scene:
        """Return the scene of a photo from its mask file."""
        return self.masks.scene(name, photo[..., :3], self._touching)

    def notes(self, options: MeasureOptions, files: Sequence[PhotoFile], regions: Sequence[_Region]) -> list[str]:
        """Say that verdicts are as good as the masks."""
        return ["The verdicts take the given masks for right."] if options.accept else []


class _Predicted(_Source):
    """Masks that a fitted segmenter draws."""

    def __init__(self, path: Path, fitted: Segmenter, touching: str, all_objects: bool) -> None:
        self._path, self.fitted, self._touching = path, fitted, touching
        self._all_objects = all_objects  # whether objects count that `fit` found too small
        self.reading, self.classes = fitted.reading, fitted.classes_
        forecast = fitted.forecast_
        self.expected = {name: forecast[name].iou if name in forecast else None for name in self.classes}
        shares = {name: one.smallest for name, one in fitted.decisions_.classes.items() if one.smallest}
        listed = ", ".join(f"{name} {100 * share:.2g} %" for name, share in shares.items())
        self.smallest_described = (
            f"a tenth of the smallest example: {listed} of the photo" if listed else "every one counts"
        )
        self.described, self.title = str(path), path.stem
        refiner = None if fitted.refine is None else refiner_of(fitted.refine)
        self.hashes = [(path.name, file_sha256(path))]
        self.identity = json.dumps([*self.hashes, refiner])

    def scene(self, name: str, photo: Pixels) -> Scene:
        """Return the scene of a photo as the segmenter sees it."""
        prediction = self.fitted.predict(photo)
        if self._all_objects:
            prediction = prediction.with_all_objects()
        return Scene.of_prediction(prediction, name, source=self._path.name, touching=self._touching)

    def slide(
        self, name: str, slide: Slide | StackSlide, options: MeasureOptions, scale: Scale | None
    ) -> tuple[SlideMeasurement, SlidePrediction]:
        """Begin the measurement of a slide."""
        measurement = SlideMeasurement(
            name, slide, self.classes, options, scale, self._path.name, self.expected, self._touching
        )
        return measurement, SlidePrediction(self.classes, slide.size)

    def bands(
        self, slide: Slide | StackSlide, answer: SlidePrediction, tiles: Tiles, watch: Callable[[SlidePart], None]
    ) -> Iterator[Pixels]:
        """Predict a slide band by band, and show every part to `watch`."""
        return predict_slide(self.fitted, slide, tiles, answer, watch, self._all_objects)

    def notes(self, options: MeasureOptions, files: Sequence[PhotoFile], regions: Sequence[_Region]) -> list[str]:
        """Say how many false OKs to expect, from examples that are left out in turn.

        Raises:
            EmatError: Nothing can be left out, so nothing is known.
        """
        if not options.accept:
            return []
        size = photo_size(files[0].path, reading=self.reading)
        scale = options.scale if options.says_scale else scale_in_file(files[0].path)
        finders = {each.name: each.find_anywhere for each in regions}
        return [left_out_confidence(self.fitted, options, size, scale, self._touching, finders).sentence()]


def _load(path: Path, how: PredictOptions) -> Segmenter:
    if path.suffix != ".emat" and not path.is_file():
        raise EmatError(
            "wrong-file-kind",
            f"{path} is not a fitted file; begin with one, as in `emat measure pets.emat photos/`, or give --masks",
        )
    return how.load_fitted(path)


@dataclass(frozen=True)
class _Region:
    """A region that is no class, found by Otsu's threshold, read from a folder, or predicted by another file."""

    name: str
    source: str
    find: Callable[[str, Pixels], np.ndarray[tuple[int, int], np.dtype[np.bool_]]]
    path: Path | None = None  # what is read for it
    masks: MaskFiles | None = None  # if it is a folder of masks

    @property
    def find_anywhere(self) -> FindRegion | None:
        """Finds it on a photo without a name, such as an example; None if its masks belong to photos by name."""
        return None if self.path is not None and self.path.is_dir() else lambda photo: self.find("", photo)

    @property
    def identity(self) -> str:
        """What its masks depend on, beside the photo."""
        return self.source if self.path is None else content_of(self.path)


def _region(text: str, device: str) -> _Region:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise EmatError(
            "unclear-option", f"--region is {text!r}; write it as in leaf=otsu, leaf=masks/ or leaf=leaf.emat"
        )
    path = Path(value)
    if value == "otsu":
        return _Region(name, "otsu", lambda _, photo: otsu_region(photo))
    if path.is_dir():
        masks = MaskFiles(path)
        return _Region(name, path.name, lambda photo, _: masks.region(photo), path, masks)
    if path.suffix == ".emat":
        fitted = _load(path, PredictOptions(device=device))
        wanted = name if name in fitted.classes_ else fitted.classes_[0] if len(fitted.classes_) == 1 else None
        if wanted is None:
            raise EmatError(
                "unknown-class", f"--region {text}: {path} has no class {name!r} but {', '.join(fitted.classes_)}"
            )
        return _Region(name, path.name, lambda _, photo: fitted.predict(photo).mask(wanted), path)
    raise EmatError(
        "wrong-file-kind",
        f"--region is {text!r}, but {value} is neither otsu, nor a folder of masks, nor a fitted file",
    )


def _refuse_unknown(options: MeasureOptions, classes: Sequence[str]) -> None:
    asked = [
        (f"--within {each.inner}={each.outer}", name) for each in options.within for name in (each.inner, each.outer)
    ]
    if options.scale_object is not None:
        asked.append(("--scale", options.scale_object.name))
    for flag, name in asked:
        if name not in classes:
            raise EmatError(
                "unknown-class",
                f"{flag}: there is no class {name!r}; the classes are {', '.join(classes)}. A region that is no class "
                f"is given with --region {name}=otsu",
            )


@dataclass(frozen=True)
class _Run:
    """Measures photos and writes what was found."""

    source: _Source
    regions: Sequence[_Region]
    options: MeasureOptions
    out: Path
    formats: Sequence[str]
    names: dict[str, PhotoFile] = field(default_factory=dict)  # the photos, by the names that their files have

    def photos(self, photos: Sequence[PhotoFile], writer: ResultWriter) -> Iterator[tuple[str, EmatError]]:
        """Measure one photo after the other; yields those that could not be, with the reason."""
        reading = self.source.reading
        tiled = isinstance(self.source, _Predicted) and self.source.fitted.tiles_ is not None
        slides = {photo.name for photo in photos if tiled and is_slide(photo.path, reading)}
        stacks = {photo.name: _stack(photo.path, reading) for photo in photos if photo.name not in slides}
        plain = (photo.path for photo in photos if photo.name in stacks and stacks[photo.name] is None)
        ahead = read_ahead(plain, reading=reading)
        for photo in follow(photos, len(photos), "photos measured"):
            try:
                if photo.name in slides and isinstance(self.source, _Predicted):
                    self._slide(photo, self.source, writer)
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
                typer.secho(f"emat: left out: {problem}", err=True, fg=typer.colors.YELLOW)
                yield photo.name, problem

    def _photo(self, photo: PhotoFile, pixels: Pixels, writer: ResultWriter) -> None:
        name = inner_name(photo.name)
        scene = self.source.scene(name, pixels)
        if "intensity" in self.options.groups:
            scene = scene.with_values(photo.path, self.source.reading)
        self._measure(name, scene, photo, writer)

    def _slide(self, photo: PhotoFile, source: _Predicted, writer: ResultWriter) -> None:
        """Measure a photo that is too large for the memory, window by window."""
        name = inner_name(photo.name)
        holes = self.options.filters.fill_holes  # which may lie in parts that show nothing of their object
        refused: dict[str, object] = {
            "--scale": self.options.scale_object,
            "--region": self.regions,
            "--fill-holes": holes,
        }
        refused |= {f"--format {each}": each in self.formats for each in ("labels", "zarr")}
        for flag, asked in refused.items():
            if asked:
                raise EmatError(
                    "not-for-slides",
                    f"{photo.path} is measured in windows, for which there is no {flag}; leave it out, or make the "
                    "slide smaller",
                )
        ground = ground_of(photo.path)
        locate, crs = (None, None) if ground is None else (ground.locate, ground.crs)
        openers = {"rois": open_rois, "geojson": lambda path: open_geojson(path, locate, crs)}
        with open_slide(photo.path, source.reading) as slide, ExitStack() as files:
            adds = [
                files.enter_context(openers[format](self._exports(name)[format]))
                for format in self.formats
                if format in openers
            ]
            scale = self.options.scale or scale_in_file(photo.path)
            measurement, answer = source.slide(name, slide, self.options, scale)
            picture, waiting = SlidePicture(slide.size), list[list[str]]()

            def watch(part: SlidePart) -> None:
                picture.add(part)
                for placed in measurement.add(part):
                    values = Table.of("objects", placed.rows.__iter__).values()
                    for add in adds:
                        add(replace(placed, rows=values))
                    waiting.extend([json.dumps(row)] for row in placed.rows)
                if len(waiting) >= MOST_WAITING:
                    writer.write_rows(name, {"objects": waiting})
                    waiting.clear()

            def rows() -> dict[str, list[list[str]]]:
                photos = measurement.photos(answer.scores)
                return {
                    "objects": waiting,
                    "photos": [[json.dumps(row)] for row in photos],
                    "picture": [[place_of(photos[0]), picture.address()]],
                    "hash": [[name, content_of(split_page(photo.path)[0])]],
                }

            bands = source.bands(slide, answer, source.fitted.tiles_, watch)
            writer.write_bands(name, slide.size, bands, rows)

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
            measurements = replace(
                measurements, objects=[with_track(row, linked[int(row["id"] or 0)]) for row in measurements.objects]
            )
        self._export(written, measurements, photo.path)
        has_hash = photo.path.is_file() and not scene.position.get("t")  # of a video once, not with every frame
        rows = {
            "objects": [[json.dumps(row)] for row in measurements.objects],
            "photos": [[json.dumps(row)] for row in measurements.photos],
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
        return {each: self.out / each / f"{_stem(name)}{EXPORTS[each]}" for each in self.formats if each in EXPORTS}

    def _export(self, name: str, found: Measurements, photo: Path) -> None:
        for format, path in self._exports(name).items():
            write_export(format, path, found.scene, found.scale, found.table(), ground_of(photo))


def _stem(name: str) -> str:
    """A photo's name without its suffix, also without .ome, which the files for other programs add themselves."""
    return without_suffix(name).removesuffix(".ome")


def _state(path: Path) -> str | None:
    """The state of a photo, which may be a folder, such as a stack in OME-Zarr."""
    return folder_sha256(path) if path.is_dir() else photo_state(path)


def content_of(path: Path) -> str:
    """The SHA-256 of a file, or of all files in a folder."""
    return folder_sha256(path) if path.is_dir() else file_sha256(path)


def _stack(path: Path, reading: Reading) -> Stack | EmatError | None:
    """The stack at a path, None for a plain photo or a slide, or what is wrong with it."""
    try:
        return open_stack(path, reading)
    except EmatError as problem:
        return problem


def _rows(writer: ResultWriter, table: str) -> Iterator[Row]:
    return (json.loads(text) for (text,) in writer.rows(table))


def _tell(
    files: Sequence[PhotoFile],
    skipped: Sequence[tuple[str, EmatError]],
    counts: dict[str, int],
    source: _Source,
    refused: set[str],
    judged: int,
    notes: Sequence[str],
    written: str,
    out: Path,
    as_json: bool,
) -> None:
    weak = [name for name, iou in source.expected.items() if iou is not None and iou < RELIABLE_FROM]
    if as_json:
        answer = {
            "photos": len(files),
            "measured": len(files) - len(skipped),
            "skipped": [{"photo": name, "problem": str(problem), "code": problem.code} for name, problem in skipped],
            "objects": counts,
            "not_ok": sorted(refused) if judged else None,
            "not_reliable": weak,
            "notes": list(notes),
            "out": str(out),
        }
        typer.echo(json.dumps(answer))
        return
    for name, count in counts.items():
        mark = f" ({UNRELIABLE}: add examples)" if name in weak else ""
        typer.echo(f"{name}: {count:,} objects{mark}")
    if judged:
        typer.echo(f"{judged - len(refused)} of {judged} photos are OK, {len(refused)} NOT OK")
    for note in notes:
        typer.echo(note)
    typer.echo(f"{len(files) - len(skipped)} of {len(files)} photos measured; {written} in {out}")
