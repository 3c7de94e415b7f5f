"""Results as one zip file: masks in the formats of annotation tools, overlays, tables and the fitted segmenter."""

import tempfile
import zipfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from emat.errors import EmatError
from emat.formats.results import ObjectRow, ObjectTable, ResultTable
from emat.formats.writing import WITH_OBJECTS, open_writer
from emat.inference.prediction import ScoreTable
from emat.measure.exports import FORMATS
from emat.studio.masks import label_map, object_image, single_objects
from emat.studio.measuring import write_measurements
from emat.studio.photos import safe_name
from emat.studio.session import Session, StudioQuery
from emat.studio.tracks import has_tracks, tracks_of

MASK_FORMATS = {
    "png": "Indexed PNG masks",
    "coco": "COCO JSON",
    "labelme": "LabelMe JSON",
    "yolo": "YOLO segmentation",
    "overlay": "Overlays to look at",
}
OTHER_PARTS = {
    "scores": "scores.csv: scores and area shares",
    "objects": "objects.csv: every object with its area, through the frames of videos",
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
        if set(parts) & {*MASK_FORMATS, "scores", "objects"}:
            _write_results(session, [part for part in MASK_FORMATS if part in parts], parts, out, objects)
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
        for file in sorted(entry for entry in folder.rglob("*") if entry.is_file()):
            archive.write(file, file.relative_to(folder).as_posix())


def _write_results(session: Session, formats: Sequence[str], parts: Collection[str], out: Path, separate: bool) -> None:
    """Write masks and tables as `emat predict` writes them; `separate` keeps touching objects apart in masks."""
    numbers = {name: number for number, name in enumerate(session.numbers, start=1)}  # without gaps, as files have them
    frames = any(map(has_tracks, answered(session)))
    classes, scores, objects = list(numbers), ScoreTable(list(numbers)), ObjectTable(None, frames)
    tables = [ResultTable(out / f"{table.key}.csv", table.header, table.key) for table in (scores, objects)]
    tables = [table for table in tables if table.key in parts]
    with ExitStack() as stack:
        # One format is written beside the tables; several have folders of their own.
        folders = {format: out / format for format in formats} if len(formats) > 1 else {}
        writers = [open_writer([] if folders else formats, out, classes, tables=tables)]
        writers += [open_writer(format, folder, classes) for format, folder in folders.items()]
        for writer in writers:
            stack.enter_context(writer)
        for query in map(session.snapshot, answered(session)):
            labels = label_map(session, query, numbers, query.photo.size)
            masks = {name: labels == number for name, number in numbers.items()}
            rows: dict[str, list[list[str]]] = {}
            if "scores" in parts:
                own_scores = {} if query.is_painted else query.scores or {}  # what was painted has no score
                rows["scores"] = [scores.row(query.photo.name, own_scores, list(masks.values()))]
            if "objects" in parts:
                shown = {name: single_objects(session, query, name, mask) for name, mask in masks.items() if mask.any()}
                rows["objects"] = _object_rows(session, query, objects, {name: one.rows for name, one in shown.items()})
            apart = object_image(session, query, labels, numbers) if separate and {*formats} & {*WITH_OBJECTS} else None
            photo = query.photo.whole if "overlay" in formats else None
            for index, writer in enumerate(writers):
                writer.write(query.photo.name, labels, photo, objects=apart, rows=rows if index == 0 else None)


def _object_rows(
    session: Session, query: StudioQuery, table: ObjectTable, objects: Mapping[str, Sequence[ObjectRow]]
) -> list[list[str]]:
    """The rows of a photo's objects; in a frame, the number of an object is the one that it has in all frames."""
    frame = query.photo.frame
    if frame is None or frame.t is None:
        return table.rows(query.photo.name, objects)
    name = frame.file if frame.z is None else query.photo.name
    return table.rows(name, objects, frame.t, tracks_of(session, query, query.photo.size))


def answered(session: Session) -> list[StudioQuery]:
    """Return the photos that have masks, found or painted."""
    with session.lock:
        return [query for query in session.queries.values() if query.scores is not None or query.corrected is not None]
