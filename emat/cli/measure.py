"""`emat measure`: from photos to numbers, in tables with units, with verdicts, files and a report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from emat.files import folder_sha256
from emat.formats.writing import WRITERS, WriteOptions, open_writer, read_formats
from emat.images import Reading, photo_size
from emat.images.slides import ANY_SIZE
from emat.images.sources import split_page
from emat.images.stacks import open_stack
from emat.inference.photos import PhotoFile, find_photos, photo_state
from emat.measure.exports import FORMATS as EXPORTS
from emat.measure.mask_files import MaskFiles
from emat.measure.mask_source import MaskSource, Region
from emat.measure.measuring import OK, MeasureOptions, left_out_confidence
from emat.measure.properties import DEFAULT_GROUPS, GROUPS, RELIABLE_FROM, UNRELIABLE, read_groups
from emat.measure.report_html import Report, shorten, versions, write_report
from emat.measure.run import MeasureRun, read_rows
from emat.measure.scene import Area, Filters, check_touching
from emat.measure.shares import Within
from emat.measure.tables import Table, tables_of, write_tables
from emat.measure.units import ScaleObject, given_scale, scale_in_file
from emat.measure.verdicts import Condition
from emat.outputs import claim_folder

if TYPE_CHECKING:
    from emat.inference.segmenter import Segmenter

NO_ARGS_IS_HELP = True
NOT_OK, SOME_SKIPPED = 1, 3  # exit codes
TABLE_FORMATS = ("csv", "parquet")


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
        source = MaskSource.of_files(MaskFiles(masks, mask_values), how.reading(), check_touching(touching))
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
        source = MaskSource.of_fitted(Path(fitted), _load(Path(fitted), how), touching, min_area is not None)
    plain = PredictOptions(device=how.device)
    regions = [Region.read(text, lambda path: _load(path, plain)) for text in region or ()]
    classes = tuple(dict.fromkeys((*source.classes, *(region.name for region in regions))))
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
    for mask_files in (source.files, *(region.files for region in regions)):
        if mask_files is None:
            continue
        mask_files.belong_to([photo.name for photo in files])
        if mask_files.path.resolve() in (out.resolve(), *out.resolve().parents):  # results would be taken for masks
            raise EmatError(
                "output-is-input",
                f"{out} is in {mask_files.path}, which has masks that are read; give a folder outside of it",
            )
    given = [Path(word) for word in inputs if Path(word).is_file()]
    reads = [*given, *(split_page(photo.path)[0] for photo in files), *([masks] if masks else [])]
    reads += [region.path for region in regions if region.path is not None]
    claim_folder(out, reads=reads, overwrite=overwrite)
    notes = _notes(source, options, files, regions)
    chosen = {
        name: str(value)
        for name, value in (
            ("properties", ", ".join(options.groups)),
            ("masks", str(source.path)),
            ("within", ", ".join(within or ())),
            ("region", ", ".join(region or ())),
            ("pixel size", pixel_size),
            ("scale", scale),
            ("smallest object", min_area or source.smallest),
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
    contents = [source.identity, *(region.identity for region in regions)]
    states = [[photo.name, _state(photo.path)] for photo in files]
    identity = json.dumps([__version__, chosen, contents, given_besides, states])
    run = MeasureRun(source, regions, options, out, formats)
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
        skipped = []
        for name, problem in run.photos([photo for photo in files if photo.name not in done], writer):
            typer.secho(f"emat: left out: {problem}", err=True, fg=typer.colors.YELLOW)
            skipped.append((name, problem))
        tables = tables_of(lambda: read_rows(writer, "objects"), lambda: read_rows(writer, "photos"), options.groups)
        write_tables(out, tables, formats)
        if report:
            pictures = {name: picture for record in writer.rows("picture") for name, picture in [record]}
            hashes = [*source.hashes, *((name, sha) for name, sha in writer.rows("hash"))]
            write_report(
                out / "report.html",
                Report(
                    title=f"{source.path.stem if source.fitted else source.path.name}: measured",
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
        outcome = _Outcome.of(len(files), skipped, tables[1], classes, source.expected, notes)
    written = f"tables and report.html in {out}" if report else f"tables in {out}"
    typer.echo(json.dumps({**outcome.as_json(), "out": str(out)}) if as_json else outcome.sentences(written))
    if strict and outcome.not_ok:
        raise typer.Exit(NOT_OK)
    if skipped:
        raise typer.Exit(SOME_SKIPPED)


def _notes(
    source: MaskSource, options: MeasureOptions, files: Sequence[PhotoFile], regions: Sequence[Region]
) -> list[str]:
    """Say how far verdicts can be trusted: how many false OKs to expect, from examples that are left out in turn.

    Raises:
        EmatError: Nothing can be left out, so nothing is known.
    """
    if not options.accept:
        return []
    if source.fitted is None:
        return ["The verdicts take the given masks for right."]
    path, size = _first_size(files, source.reading)
    scale = options.scale if options.says_scale else scale_in_file(path)
    finders = {region.name: region.find_anywhere for region in regions}
    return [left_out_confidence(source.fitted, options, size, scale, source.touching, finders).sentence()]


def _first_size(files: Sequence[PhotoFile], reading: Reading) -> tuple[Path, tuple[int, int]]:
    """Return the first photo that can be read, however large, with its height and width."""
    reading, problem = replace(reading, max_pixels=ANY_SIZE), EmatError("photo-not-read", "there is no photo")
    for photo in files:
        try:
            stack = open_stack(photo.path, reading)
            return photo.path, photo_size(photo.path, reading=reading) if stack is None else stack.shape[3:]
        except EmatError as error:
            problem = error
    raise problem


def _load(path: Path, how: PredictOptions) -> Segmenter:
    if path.suffix != ".emat" and not path.is_file():
        raise EmatError(
            "wrong-file-kind",
            f"{path} is not a fitted file; begin with one, as in `emat measure pets.emat photos/`, or give --masks",
        )
    return how.load_fitted(path)


def _refuse_unknown(options: MeasureOptions, classes: Sequence[str]) -> None:
    asked = [
        (f"--within {share.inner}={share.outer}", name)
        for share in options.within
        for name in (share.inner, share.outer)
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


def _state(path: Path) -> str | None:
    """The state of a photo, which may be a folder, such as a stack in OME-Zarr."""
    return folder_sha256(path) if path.is_dir() else photo_state(path)


@dataclass(frozen=True)
class _Outcome:
    """What a run tells at its end."""

    photos: int
    skipped: Sequence[tuple[str, EmatError]]
    objects: Mapping[str, int]  # of each class
    judged: Mapping[str, bool]  # whether a photo is OK, by its name; empty if nothing was asked
    weak: Sequence[str]  # classes of which the forecast expects little
    notes: Sequence[str]

    @classmethod
    def of(
        cls,
        photos: int,
        skipped: Sequence[tuple[str, EmatError]],
        table: Table,
        classes: Sequence[str],
        expected: Mapping[str, float | None],
        notes: Sequence[str],
    ) -> _Outcome:
        """Sum up the table of photos; a stack is OK if all of its planes are."""
        objects, judged = dict.fromkeys(classes, 0), dict[str, bool]()
        for row in table.rows():
            name = str(row["photo"])
            objects[str(row["class"])] += int(row["count"] or 0)
            if "verdict" in row:
                judged[name] = judged.get(name, True) and row["verdict"] == OK
        weak = [name for name, iou in expected.items() if iou is not None and iou < RELIABLE_FROM]
        return cls(photos, skipped, objects, judged, weak, notes)

    @property
    def not_ok(self) -> list[str]:
        """The photos that are not OK."""
        return sorted(name for name, is_ok in self.judged.items() if not is_ok)

    def as_json(self) -> dict[str, object]:
        """What --json prints."""
        return {
            "photos": self.photos,
            "measured": self.photos - len(self.skipped),
            "skipped": [
                {"photo": name, "problem": str(problem), "code": problem.code} for name, problem in self.skipped
            ],
            "objects": self.objects,
            "not_ok": self.not_ok if self.judged else None,
            "not_reliable": list(self.weak),
            "notes": list(self.notes),
        }

    def sentences(self, written: str) -> str:
        """What is printed otherwise; `written` says what was written and where."""
        lines = []
        for name, count in self.objects.items():
            mark = f" ({UNRELIABLE}: add examples)" if name in self.weak else ""
            lines.append(f"{name}: {count:,} object{'' if count == 1 else 's'}{mark}")
        if self.judged:
            bad = len(self.not_ok)
            lines.append(f"{len(self.judged) - bad} of {len(self.judged)} photos are OK, {bad} NOT OK")
        lines += [*self.notes, f"{self.photos - len(self.skipped)} of {self.photos} photos measured; {written}"]
        return "\n".join(lines)
