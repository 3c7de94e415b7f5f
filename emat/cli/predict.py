"""`emat predict`: find the classes of a fitted segmenter in any number of photos, and write masks and scores."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from emat import __version__
from emat.cli.options import AsJson, Overwrite, PredictOptions, Shapes, Tolerance, takes
from emat.errors import EmatError
from emat.files import file_sha256, from_user, inner_name, without_suffix
from emat.formats.results import ObjectTable, PixelSize, ResultTable, ResultWriter
from emat.formats.writing import WITH_OBJECTS, WRITERS, WriteOptions, open_writer, read_formats
from emat.images.slides import is_slide, open_slide
from emat.images.sources import split_page
from emat.images.stacks import open_stack
from emat.images.videos import VIDEO_SUFFIXES
from emat.inference.photos import PhotoFile, find_photos, photo_state, read_ahead
from emat.inference.prediction import Prediction, ScoreTable
from emat.inference.segmenter import Segmenter
from emat.inference.slides import SeamJoiner, SlidePart, SlidePrediction, predict_slide, slide_objects
from emat.measure.tracks import Tracks
from emat.outputs import WriteError, claim_file, claim_folder
from emat.progress import follow
from emat.refine.refiner import refiner_of
from emat.scale.ray_predict import BulkOptions, RayOptions, predict_in_bulk

NO_ARGS_IS_HELP = True
SCORES_ALONE = "csv"  # the format that writes scores.csv and nothing else
ENGINES = ("local", "ray")
PRINTED_PHOTOS = 12  # of more photos only the sums are printed; the file has them all
SOME_SKIPPED = 3  # exit code if some photos could not be read


@dataclass(frozen=True)
class Skipped:
    """A photo that could not be read."""

    photo: str
    problem: str
    code: str


@takes(PredictOptions)
def command(
    how: PredictOptions,
    segmenter: Annotated[Path, typer.Argument(help="A file that `emat fit` wrote.")],
    photos: Annotated[list[str], typer.Argument(help="Photos, folders or patterns such as 'in/*.jpg'.")],
    out: Annotated[str, typer.Option("--out", "-o", help="The folder for the results.")],
    format: Annotated[
        str | None,
        typer.Option(
            help=f"Formats, with commas between them: {', '.join((*WRITERS, SCORES_ALONE))}. Default: png, and with "
            "--engine ray rows alone."
        ),
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="A CSV file for single objects: area, box, centroid and score of each.")
    ] = None,
    pixel_size: Annotated[
        str | None, typer.Option(help="Side of a pixel, such as 0.32um: the table then has areas in real units too.")
    ] = None,
    instances: Annotated[
        bool, typer.Option("--instances", help="In coco, labelme and yolo files, separate objects that touch.")
    ] = False,
    pages: Annotated[
        str | None, typer.Option(help="all: predict every page of TIFF stacks. One page is named as in stack.tif[3].")
    ] = None,
    shapes: Shapes = None,
    tolerance: Tolerance = WriteOptions.tolerance,
    engine: Annotated[
        str, typer.Option(help="local, or ray: many workers, s3:// and gs://, rows as Parquet.")
    ] = "local",
    ray_address: Annotated[str | None, typer.Option(help="The Ray cluster. Default: one on this machine.")] = None,
    ray_workers: Annotated[
        int | None, typer.Option(min=1, help="Number of workers. Default: one a GPU, or one a group of cores.")
    ] = None,
    ray_cores: Annotated[int | None, typer.Option(min=1, help="Cores of a worker. Default: 1.")] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Find the classes of a fitted segmenter in photos.

    Masks are written to the folder in the chosen formats, and scores to scores.csv in it. A photo that cannot be read
    is reported and skipped, and the exit code is then 3. An interrupted run continues when it is started again.

    Example: emat predict pets.emat holiday/ -o masks --format png,overlay
    """
    where = _ray_options(engine, ray_address, ray_workers, ray_cores)
    if pages not in (None, "all"):
        raise EmatError(
            "unknown-choice", f"--pages is {pages!r}; it must be all. Name a single page as in 'stack.tif[3]'"
        )
    folder = from_user(out)
    if where is None:
        format = "png" if format is None else format
        files = find_photos(photos, leave_out=folder, all_pages=pages == "all")
    else:
        _refuse_with_ray(format, {"--table": table, "--pixel-size": pixel_size, "--pages": pages})
    formats = (
        [name for name in read_formats(format, [SCORES_ALONE]) if name != SCORES_ALONE] if format is not None else []
    )
    options = WriteOptions(shapes, tolerance)
    size = None if pixel_size is None else PixelSize.read(pixel_size)
    if size is not None and table is None:
        raise EmatError("missing-option", "--pixel-size is for the table of objects; give --table objects.csv too")
    if where is None:
        reads = [segmenter, *(split_page(photo.path)[0] for photo in files)]
        claim_folder(folder, reads=reads, overwrite=overwrite)
    if table is not None:
        if table.resolve() == (folder / "scores.csv").resolve():
            raise EmatError(
                "same-output-name", f"--table {table} is the file of the scores; give the table of objects another name"
            )
        claim_file(table, (".csv",), reads=reads, overwrite=overwrite, flag="--table")
    if instances and not set(formats) & set(WITH_OBJECTS):
        raise EmatError(
            "conflicting-options",
            f"--instances is for the formats {', '.join(WITH_OBJECTS)}, not {format or 'rows alone'}",
        )
    fitted = how.load_fitted(segmenter, None if where is None else "cpu")
    if where is not None:
        bulk = BulkOptions(
            fitted.thresholds, fitted.tiles, fitted.refine, fitted.reading, tuple(formats), options, instances
        )
        _on_ray(segmenter, photos, out, where, bulk, overwrite, as_json)
        return
    videos = [photo for photo in files if photo.path.suffix.lower() in VIDEO_SUFFIXES]
    identity = {
        "segmenter": file_sha256(segmenter),
        "tiles": fitted.tiles,
        "thresholds": [fitted.thresholds.presence, fitted.thresholds.mask],
        "refine": None if fitted.refine is None else refiner_of(fitted.refine),
        "reading": repr(fitted.reading),
        "emat": __version__,
        "instances": instances,
        "videos": [photo_state(video.path) for video in videos],
        "table": None if table is None else [str(table.resolve()), pixel_size],
    }
    run = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    scores, objects = ScoreTable(fitted.classes_), None if table is None else ObjectTable(size, bool(videos))
    tables = [ResultTable(folder / "scores.csv", scores.header, scores.key)]
    if table is not None and objects is not None:
        tables.append(ResultTable(table, objects.header, objects.key))
    with open_writer(formats, folder, fitted.classes_, options=options, run=run, tables=tables) as writer:
        paths = {photo.name: photo.path for photo in files}
        writer.refuse_overwriting(paths)
        done = writer.done(lambda name: photo_state(paths[name]) if name in paths else None)
        if done and not as_json:
            typer.echo(f"continuing: {sum(photo.name in done for photo in files)} of {len(files)} photos are done")
        predicting = _Run(fitted, writer, scores, objects, instances)
        skipped = list(predicting.photos([photo for photo in files if photo.name not in done and photo not in videos]))
        for video in videos:  # all frames again, because a track needs the frames before
            skipped += predicting.video(video)
        rows = list(writer.rows(scores.key))
    _tell(files, skipped, scores, rows, folder, format or "png", as_json)
    if skipped:
        raise typer.Exit(SOME_SKIPPED)


def _ray_options(engine: str, address: str | None, workers: int | None, cores: int | None) -> RayOptions | None:
    """Where Ray runs; None if the photos are predicted in this process."""
    if engine not in ENGINES:
        raise EmatError("unknown-choice", f"--engine is {engine!r}; it must be {' or '.join(ENGINES)}")
    if engine == "ray":
        return RayOptions(address, workers, cores or RayOptions.cores)
    for flag, value in (("--ray-address", address), ("--ray-workers", workers), ("--ray-cores", cores)):
        if value is not None:
            raise EmatError("missing-option", f"{flag} is for --engine ray; add --engine ray, or leave {flag} out")
    return None


def _refuse_with_ray(format: str | None, given: Mapping[str, object]) -> None:
    """Raise an EmatError if something is asked for that needs all photos in one process."""
    together = [name for name in (SCORES_ALONE, "sheet") if name in (format or "").split(",")]
    asked = [flag for flag, value in given.items() if value is not None]
    if problems := [*(f"--format {name}" for name in together), *asked]:
        raise EmatError(
            "conflicting-options",
            f"--engine ray writes rows and the files of single photos, so it does not take {', '.join(problems)}; "
            "leave it out, or predict without --engine ray",
        )


def _on_ray(
    segmenter: Path,
    photos: list[str],
    out: str,
    where: RayOptions,
    options: BulkOptions,
    overwrite: bool,
    as_json: bool,
) -> None:
    done = predict_in_bulk(segmenter, photos, out, where, options, overwrite)
    if as_json:
        typer.echo(json.dumps(asdict(done)))
    else:
        before = f", {done.done_before} of them before" if done.done_before else ""
        files = "".join(f", {name}" for name in options.formats)
        typer.echo(f"{done.photos - done.failed} of {done.photos} photos predicted{before}; rows{files} in {out}")
    if done.failed:
        typer.echo(f"{done.failed} cannot be read; their rows say why", err=True)
        raise typer.Exit(SOME_SKIPPED)


@dataclass(frozen=True)
class _Run:
    """Predicts photos and writes what was found."""

    fitted: Segmenter
    writer: ResultWriter
    scores: ScoreTable
    objects: ObjectTable | None
    instances: bool  # whether touching objects are apart in files of masks

    def photos(self, photos: Sequence[PhotoFile]) -> Iterator[Skipped]:
        """Predict and write one photo after the other; yields those that could not be read."""
        reading = self.fitted.reading
        ahead = read_ahead((photo.path for photo in photos), reading=reading, states=True)
        for photo, read in follow(zip(photos, ahead, strict=True), len(photos), "photos predicted"):
            try:
                name = inner_name(photo.name)
                if read.pixels is None and self.fitted.tiles_ is not None and is_slide(photo.path, reading):
                    self._slide(photo.path, name, read.state)
                    continue
                prediction, rows = self.fitted.predict(read.photo()), None
                if self.objects is not None:
                    objects = {class_name: prediction.instances(class_name).rows for class_name in prediction.classes}
                    rows = self.objects.rows(name, objects)
                self._write(name, prediction, rows, photo.path, read.state)
            except WriteError:
                raise  # the next photo could not be written either
            except EmatError as problem:
                yield _skipped(photo.path, problem)

    def video(self, video: PhotoFile) -> Iterator[Skipped]:
        """Predict every frame of a video; in the table, an object keeps its number from frame to frame."""
        try:
            stack, tracks = open_stack(video.path, self.fitted.reading), Tracks()
            if stack is None:
                raise EmatError("no-such-file", f"{video.path} does not exist; check the name and the folder")
            name, planes = inner_name(video.name), stack.planes("none")
            for plane in follow(planes, len(planes), "frames predicted"):
                frame, rows = plane.t or 0, None
                prediction = self.fitted.predict(stack.photo(stack.values(plane, "none"), self.fitted.reading))
                if self.objects is not None:
                    apart = {class_name: prediction.instances(class_name) for class_name in prediction.classes}
                    track_of = tracks.link({class_name: one.label_image for class_name, one in apart.items()})
                    objects = {class_name: one.rows for class_name, one in apart.items()}
                    rows = self.objects.rows(name, objects, frame, track_of)
                self._write(f"{without_suffix(name)}_t{frame:05d}.png", prediction, rows)
        except WriteError:
            raise
        except EmatError as problem:
            yield _skipped(video.path, problem)

    def _write(
        self,
        name: str,
        prediction: Prediction,
        objects: list[list[str]] | None,
        photo: Path | None = None,
        state: str | None = None,
    ) -> None:
        masks = [prediction.mask(class_name) for class_name in prediction.classes]
        rows = {self.scores.key: [self.scores.row(name, prediction.scores, masks)]}
        if self.objects is not None and objects is not None:
            rows[self.objects.key] = objects
        apart = prediction.object_image if self.instances else None
        self.writer.write(name, prediction.label_map, prediction.photo, photo, apart, rows, state)

    def _slide(self, path: Path, name: str, state: str | None) -> None:
        """Predict a slide that is too large for the memory, window by window."""
        table = self.objects
        counted = () if table is None else self.fitted.classes_  # the classes whose objects are in the table
        with open_slide(path, self.fitted.reading) as slide:
            answer = SlidePrediction(self.fitted.classes_, slide.size)
            joiners = {class_name: SeamJoiner([class_name], slide.size) for class_name in counted}
            counts = dict.fromkeys(joiners, 0)

            def watch(part: SlidePart) -> None:
                for class_name, joiner in joiners.items():
                    complete = [row for region in joiner.add(part) for row in slide_objects(region, class_name)]
                    first = counts[class_name] + 1
                    complete = [replace(row, id=number) for number, row in enumerate(complete, start=first)]
                    counts[class_name] += len(complete)
                    if complete and table is not None:
                        self.writer.write_rows(name, {table.key: table.rows(name, {class_name: complete})})

            def row() -> dict[str, list[list[str]]]:
                shares = [answer.share(class_name) for class_name in answer.classes]
                return {self.scores.key: [self.scores.slide_row(name, answer.scores, shares)]}

            bands = predict_slide(self.fitted, slide, self.fitted.tiles_, answer, watch)
            self.writer.write_bands(name, slide.size, bands, row, state)


def _skipped(path: Path, problem: EmatError) -> Skipped:
    """Report a photo that could not be read."""
    typer.secho(f"emat: skipped: {problem}", err=True, fg=typer.colors.YELLOW)
    return Skipped(str(path), str(problem), problem.code)


def _tell(
    files: Sequence[PhotoFile],
    skipped: Sequence[Skipped],
    scores: ScoreTable,
    rows: Sequence[Sequence[str]],
    out: Path,
    format: str,
    as_json: bool,
) -> None:
    if as_json:
        answer = {
            "photos": len(files),
            "predicted": len(files) - len(skipped),
            "skipped": [vars(one) for one in skipped],
            "out": str(out),
            "format": format,
            "scores": str(out / "scores.csv"),
            "present": scores.present(rows),
        }
        typer.echo(json.dumps(answer))
        return
    if rows:
        _print_verdicts(scores, rows)
    typer.echo(f"{len(files) - len(skipped)} of {len(files)} photos predicted, {format} in {out}")
    if skipped:
        typer.echo(f"{len(skipped)} skipped; repair or remove them", err=True)


def _print_verdicts(scores: ScoreTable, rows: Sequence[Sequence[str]]) -> None:
    """Print the verdict on each photo, or in how many photos each class is present if there are many."""
    table = Table(box=box.SIMPLE_HEAD)
    if len(rows) > PRINTED_PHOTOS:
        table.add_column("class")
        table.add_column("photos with it", justify="right")
        for name, count in scores.present(rows).items():
            table.add_row(escape(name), f"{count} of {len(rows)}")
    else:
        for column in ("photo", "class"):
            table.add_column(column)
        for column in ("score", "present", "area", "regions"):
            table.add_column(column, justify="right")
        for photo, *values in rows:
            parts = np.array(values).reshape(4, len(scores.classes)).T  # (classes, 4)
            for name, (score, present, share, regions) in zip(scores.classes, parts, strict=True):
                verdict = "yes" if present == "1" else "no"
                area = f"{float(share):.1%}"
                table.add_row(escape(photo), escape(name), f"{float(score):.2f}", verdict, area, str(regions))
    Console().print(table)
