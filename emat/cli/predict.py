"""`emat predict`: masks for any number of photos, in the format that the next tool reads."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from emat.cli.progress import follow
from emat.cli.score_table import ScoreTable
from emat.errors import EmatError
from emat.formats.writing import WRITERS, WriteOptions, Writer, open_writer
from emat.inference.photo_files import PhotoFile, find_photos
from emat.inference.photos import read_ahead
from emat.inference.prediction import Thresholds
from emat.inference.segmenter import Segmenter
from emat.inference.tiling import Tiles
from emat.tensor_files import file_sha256

NO_ARGS_IS_HELP = True
SOME_SKIPPED = 3  # exit code: done, but for photos that could not be read


@dataclass(frozen=True)
class Skipped:
    """A photo that could not be read."""

    photo: str
    problem: str


def command(
    segmenter: Annotated[Path, typer.Argument(help="A file that `emat fit` wrote.")],
    photos: Annotated[list[str], typer.Argument(help="Photos, folders, patterns such as 'in/*.jpg'.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for the results.")],
    format: Annotated[str, typer.Option(help=f"One of {', '.join(WRITERS)}.")] = "png",
    tiles: Annotated[
        str | None, typer.Option(help="For small objects in large photos: auto, or tiles a side, such as 3.")
    ] = None,
    presence: Annotated[float | None, typer.Option(help="Probability from which a class counts as there.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Probability from which a pixel is a class's.")] = None,
    shapes: Annotated[
        str | None,
        typer.Option(help="masks (exact) or polygons; coco has masks, labelme and yolo polygons if not given."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="How far polygons may be off, in pixels; 0 keeps every corner of every pixel.")
    ] = 1.0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
) -> None:
    """Find the classes of a fitted segmenter in photos.

    Masks go to the folder in the chosen format, scores to scores.csv in it. A photo that cannot be read is reported
    and skipped, and the exit code is then 3. An interrupted run continues when it is started again.

    Example: emat predict pets.emat holiday/ -o masks --format overlay
    """
    files = find_photos(photos, leave_out=out)
    options = WriteOptions(shapes, tolerance)
    fitted = _load(segmenter, device, _tiles(tiles))
    chosen = Thresholds(
        fitted.thresholds.presence if presence is None else presence,
        fitted.thresholds.mask if threshold is None else threshold,
    )
    fitted.thresholds = chosen
    settings = {"segmenter": file_sha256(segmenter), "tiles": tiles, "thresholds": [chosen.presence, chosen.mask]}
    run = hashlib.sha256(json.dumps(settings).encode()).hexdigest()
    with open_writer(format, out, fitted.classes_, options=options, run=run) as writer:
        done = writer.done()
        if done and not as_json:
            typer.echo(f"continuing: {sum(photo.name in done for photo in files)} of {len(files)} photos are done")
        with ScoreTable(out / "scores.csv", fitted.classes_, keep=done) as scores:
            todo = [photo for photo in files if photo.name not in done]
            skipped = list(_predict(fitted, todo, writer, scores))
    _tell(files, skipped, out, format, as_json)
    if skipped:
        raise typer.Exit(SOME_SKIPPED)


def _load(path: Path, device: str, tiles: Tiles) -> Segmenter:
    if not path.is_file():
        raise EmatError(f"{path} does not exist; make it with `emat fit EXAMPLES -o {path}`")
    fitted = Segmenter.load(path, device=device, tiles=tiles)
    if not fitted.classes_:
        raise EmatError(f"{path} is a head that knows no class yet; show it some with `emat fit EXAMPLES -o pets.emat`")
    return fitted


def _tiles(text: str | None) -> Tiles:
    if text is None or text == "auto":
        return "auto" if text else None
    if not text.isdecimal() or int(text) < 1:
        raise EmatError(f"--tiles is auto or a number of tiles a side from 1, not {text!r}")
    return int(text)


def _predict(fitted: Segmenter, photos: Sequence[PhotoFile], writer: Writer, scores: ScoreTable) -> Iterator[Skipped]:
    """Predict and write the photos, one in memory at a time; yields those that could not be read."""
    reading = zip(photos, read_ahead(photo.path for photo in photos), strict=True)
    for photo, read in follow(reading, len(photos), "photos predicted"):
        if read.pixels is None:
            typer.secho(f"emat: skipped: {read.problem}", err=True, fg=typer.colors.YELLOW)
            yield Skipped(str(photo.path), str(read.problem))
            continue
        prediction = fitted.predict(read.pixels)
        scores.add(photo.name, prediction)
        writer.write(photo.name, prediction.label_map, prediction.photo, photo.path)


def _tell(files: Sequence[PhotoFile], skipped: Sequence[Skipped], out: Path, format: str, as_json: bool) -> None:
    if as_json:
        answer = {
            "photos": len(files),
            "predicted": len(files) - len(skipped),
            "skipped": [vars(one) for one in skipped],
            "out": str(out),
            "format": format,
            "scores": str(out / "scores.csv"),
        }
        typer.echo(json.dumps(answer))
        return
    typer.echo(f"{len(files) - len(skipped)} of {len(files)} photos predicted, {format} in {out}")
    if skipped:
        typer.echo(f"{len(skipped)} skipped; mend or remove them", err=True)
