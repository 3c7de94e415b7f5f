"""Results as one zip file: masks in the formats of annotation tools, overlays, tables and the fitted segmenter."""

import csv
import tempfile
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path

from emat.errors import EmatError
from emat.formats.results import ObjectTable, csv_cells
from emat.formats.writing import WITH_OBJECTS, open_writer
from emat.inference.prediction import ScoreTable
from emat.measure.exports import FORMATS
from emat.studio.masks import is_painted, label_map, object_image, single_objects
from emat.studio.measuring import write_measurements
from emat.studio.photos import safe_name
from emat.studio.session import Session, StudioQuery

MASK_FORMATS = {
    "png": "Indexed PNG masks",
    "coco": "COCO JSON",
    "labelme": "LabelMe JSON",
    "yolo": "YOLO segmentation",
    "overlay": "Overlays to look at",
}
OTHER_PARTS = {
    "scores": "scores.csv: scores and area shares",
    "objects": "objects.csv: every object with its area",
    "measurements": "Measurements: tables with units, report.html",
    "parquet": "Measurements as Parquet",
    "labels": "Single objects as OME-TIFF",
    "rois": "ImageJ ROIs",
    "geojson": "GeoJSON for QuPath",
    "zarr": "Single objects as OME-Zarr",
    "emat": "What was learned, as a .emat file",
}
PARTS = {**MASK_FORMATS, **OTHER_PARTS}


def nothing_to_export(session: Session) -> str:
    """Say why there are no results to export; empty if there are some."""
    if answered(session):
        return ""
    if not session.segmenter.classes_:
        return "Add an example in step 2 first"
    if not session.queries:
        return "Drop photos in step 3 first"
    return "Wait until the first photo is done"


def nothing_to_save(session: Session) -> str:
    """Say why there is no fitted segmenter to save; empty if there is one."""
    return "" if session.segmenter.classes_ else "Add an example in step 2 first"


def export(session: Session, parts: Collection[str], folder: Path, objects: bool = False) -> Path:
    """Write `emat-results.zip` into `folder`.

    Args:
        session: Whose results are written.
        parts: Any of `PARTS`. With more than one mask format, each has a folder of its own in the zip.
        folder: Where the zip file is written.
        objects: Whether COCO, LabelMe and YOLO files have single objects, touching ones apart.

    Raises:
        EmatError: A part is not known, or there is nothing to export.
    """
    if not parts or (unknown := sorted(set(parts) - set(PARTS))):
        what = f"there is no format {unknown[0]!r}" if parts else "nothing is chosen"
        raise EmatError("unknown-choice", f"{what}; choose any of {', '.join(PARTS)}")
    if set(parts) != {"emat"} and (reason := nothing_to_export(session)):
        raise EmatError("nothing-to-save", f"there are no masks yet: {reason[:1].lower()}{reason[1:]}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "emat-results.zip"
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        out = Path(scratch) / "out"
        out.mkdir()
        formats = [part for part in MASK_FORMATS if part in parts]
        for format in formats:
            _write_masks(session, format, out if len(formats) == 1 else out / format, objects)
        if "scores" in parts:
            _write_scores(session, out / "scores.csv")
        if "objects" in parts:
            _write_objects(session, out / "objects.csv")
        further = [part for part in ("parquet", *FORMATS) if part in parts]
        if further or "measurements" in parts:
            write_measurements(session, answered(session), out / "measured", further)
        if "emat" in parts:
            save_fitted(session, out)
        pack(out, path)
    return path


def save_fitted(session: Session, folder: Path) -> Path:
    """Write the fitted segmenter to `<first class>.emat` in `folder`."""
    names = session.segmenter.classes_
    if not names:
        raise EmatError("nothing-to-save", "there is nothing to save yet; add an example in step 2 first")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{Path(safe_name(names[0].replace('.', '_'))).stem}.emat"
    session.segmenter.save(path)
    return path


def pack(folder: Path, path: Path) -> None:
    """Put all files below `folder` into a zip file, under names relative to `folder`."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(each for each in folder.rglob("*") if each.is_file()):
            archive.write(file, file.relative_to(folder).as_posix())


def _write_masks(session: Session, format: str, out: Path, objects: bool) -> None:
    numbers = _order(session)
    with open_writer(format, out, list(numbers)) as writer:
        for query in map(session.snapshot, answered(session)):
            if format == "overlay":  # to look at: the size that the page works with is enough
                labels = label_map(session, query, numbers, query.photo.working)
                writer.write(query.photo.name, labels, query.photo.pixels)
                continue
            labels = label_map(session, query, numbers, query.photo.size)
            apart = object_image(session, query, labels, numbers) if objects and format in WITH_OBJECTS else None
            writer.write(query.photo.name, labels, objects=apart)


def _write_scores(session: Session, path: Path) -> None:
    numbers = _order(session)
    table = ScoreTable(list(numbers))
    rows = [table.header]
    for query in map(session.snapshot, answered(session)):
        labels = label_map(session, query, numbers, query.photo.size)
        scores = {} if is_painted(query) else query.scores or {}  # what was painted has no score
        rows.append(table.row(query.photo.name, scores, [labels == number for number in numbers.values()]))
    _write_table(path, rows)


def _write_objects(session: Session, path: Path) -> None:
    numbers = _order(session)
    table = ObjectTable(None)
    rows: list[Sequence[object]] = [table.header]
    for query in map(session.snapshot, answered(session)):
        labels = label_map(session, query, numbers, query.photo.size)
        shown = {name: labels == number for name, number in numbers.items() if (labels == number).any()}
        rows += table.rows(
            query.photo.name, {name: single_objects(session, query, name, mask).rows for name, mask in shown.items()}
        )
    _write_table(path, rows)


def _write_table(path: Path, rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(map(csv_cells, rows))


def _order(session: Session) -> dict[str, int]:
    """The classes numbered from 1 without gaps, as files have them."""
    return {name: number for number, name in enumerate(session.numbers, start=1)}


def answered(session: Session) -> list[StudioQuery]:
    """Return the photos that have masks, found or painted."""
    with session.lock:
        return [query for query in session.queries.values() if query.scores is not None or query.corrected is not None]
