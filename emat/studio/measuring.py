"""Measuring the photos of a session: the page chooses what `emat measure` has options for, and gets its numbers.

What was chosen is kept in the session's folder. Everything is computed by `emat.measure`.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.formats.results import PixelSize
from emat.images import Pixels, resize_mask
from emat.measure import Filters, Measurements, MeasureOptions, Scene, measure
from emat.measure.exports import FORMATS, write_export
from emat.measure.measuring import check_known, left_out_confidence
from emat.measure.properties import GROUPS, UNRELIABLE, Row, Value
from emat.measure.report_html import Report, histogram, picture_of, place_of, versions, write_report
from emat.measure.scene import TOUCHING_RULES, Area
from emat.measure.shares import Within, otsu_region
from emat.measure.tables import TABLES, Table, tables_of, write_tables
from emat.measure.tracks import Tracks, with_tracks
from emat.measure.units import Scale, ScaleObject
from emat.measure.verdicts import Condition
from emat.outputs import write_text
from emat.pictures.overlay import as_jpeg, draw_overlay
from emat.studio.masks import label_map
from emat.studio.photos import scale_of_file
from emat.studio.session import Session, StudioQuery

FILE = "measure.json"
GROUPS_SHOWN = ("size", "shape")  # while the page waits for an answer; exports have what is chosen
UNITS = ("px", "file", "typed", "points", "object")
OTSU = "what stands out"  # the name of the region that brightness or colour finds
HISTOGRAM = "equivalent_diameter"
MOST_ROWS = 500  # of objects on the page; exports have all
MOST_KEPT = 4  # sessions whose last measurement is kept
MOST_CONDITIONS = 8
LONGEST_TEXT = 200
FARTHEST = 1e9  # pixels from the corner of a photo to a point on it
GREY = (128, 128, 128)
PAINTED = "painted in the studio"


@dataclass(frozen=True)
class Choices:
    """What the user chose.

    Attributes:
        inner: The class whose share is asked for; empty for none.
        outer: The class that it is a share of, or `OTSU`.
        unit: Where the size of a pixel comes from: "px" for nowhere, "file", "typed", "points" or "object".
        length: What was typed: the side of a pixel, the distance of two points, or a diameter, such as "23.25mm".
        points: Two points x, y, x, y in pixels of the photo that they were clicked on.
        clicked: The name of that photo.
        scale_class: The class whose diameter is known.
        smallest: Smaller objects do not count, such as "20px" or "5um2"; empty as `fit` decided.
        border: "keep" or "drop" objects that touch the border.
        fill_holes: Whether holes belong to objects.
        touching: "split" or "together".
        accept: The conditions under which a photo is OK.
    """

    inner: str = ""
    outer: str = ""
    unit: str = "file"
    length: str = ""
    points: tuple[float, ...] = ()
    clicked: str = ""
    scale_class: str = ""
    smallest: str = ""
    border: str = "keep"
    fill_holes: bool = False
    touching: str = "split"
    accept: tuple[str, ...] = ()

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Choices:
        """Read what the page sent, or what was saved; EmatError if it is something else."""
        usual, chosen = cls(), {}
        for name, before in asdict(usual).items():
            value = values.get(name, before)
            if isinstance(before, tuple):
                is_right = isinstance(value, (list, tuple)) and len(value) <= MOST_CONDITIONS
                fits = _is_coordinate if name == "points" else _is_short
                is_right = is_right and all(map(fits, value))
                value = tuple(value) if is_right else value
            else:
                is_right = isinstance(value, type(before)) and len(str(value)) <= LONGEST_TEXT
            if not is_right:
                raise EmatError("page-outdated", f"the page sent something else than a choice for {name}; reload it")
            chosen[name] = value
        if chosen["unit"] not in UNITS or chosen["touching"] not in TOUCHING_RULES:
            raise EmatError("page-outdated", "the page sent a choice that is not known; reload it")
        return cls(**chosen)

    def options(self, classes: Sequence[str], groups: Sequence[str]) -> MeasureOptions:
        """Return the options of `emat measure` that these choices are.

        Raises:
            EmatError: One of them says nothing, or is about a class that does not exist.
        """
        names = (*classes, OTSU)
        for name in (self.inner, self.outer, self.scale_class):
            if name and name not in names:
                raise EmatError("unknown-class", f"there is no class {name!r} any more; choose another one")
        within = [Within(self.inner, self.outer)] if self.inner and self.outer and self.inner != self.outer else []
        return MeasureOptions(
            groups=groups,
            scale=self._scale(),
            scale_object=self._scale_object(),
            within=within,
            filters=Filters(Area.read(self.smallest) if self.smallest else None, self.border, self.fill_holes),
            accept=[Condition.read(text, names) for text in self.accept],
        )

    def _scale(self) -> Scale | None:
        if self.unit == "typed" and self.length:
            size = _length(self.length)
            return Scale(size.side, size.unit, "typed in the studio")
        if self.unit == "points" and self.length and len(self.points) == 4:
            x, y, other_x, other_y = self.points
            distance = math.hypot(other_x - x, other_y - y)
            if distance < 2:
                raise EmatError("bad-click", "the two points are the same; click two that are farther apart")
            size = _length(self.length)
            return Scale(size.side / distance, size.unit, f"two points on {self.clicked}, {self.length} apart")
        return None

    def _scale_object(self) -> ScaleObject | None:
        if self.unit != "object" or not self.length or not self.scale_class:
            return None
        size = _length(self.length)
        return ScaleObject(self.scale_class, size.side, size.unit)


def _is_short(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_TEXT


def _is_coordinate(value: object) -> bool:
    """Whether a value is a number of pixels; JSON also has NaN and infinity, which are none."""
    return isinstance(value, (int, float)) and abs(value) <= FARTHEST


def _length(text: str) -> PixelSize:
    try:
        return PixelSize.read(text)
    except EmatError:
        raise EmatError(
            "unclear-option",
            f"{text!r} is not a length; give a number and a unit of nm, um, mm, cm, m or km, as in 10 mm",
        ) from None


def choices_of(session: Session) -> Choices:
    """Return what was chosen; classes that were removed since are forgotten."""
    try:
        chosen = Choices.read(json.loads((session.folder / FILE).read_bytes()))
    except (OSError, ValueError, AttributeError, EmatError):
        return Choices()
    names = (*session.numbers, OTSU, "")
    if chosen.inner not in names or chosen.outer not in names:
        chosen = replace(chosen, inner="", outer="")
    return chosen if chosen.scale_class in names else replace(chosen, scale_class="")


def choose(session: Session, values: Mapping[str, Any]) -> Choices:
    """Keep what the page chose.

    Raises:
        EmatError: A choice cannot be meant.
    """
    chosen = Choices.read(values)
    options = chosen.options(list(session.numbers), GROUPS_SHOWN)
    if options.accept and session.segmenter.classes_:
        check_known(session.segmenter, options)
    session.folder.mkdir(parents=True, exist_ok=True)
    write_text(session.folder / FILE, json.dumps(asdict(chosen)))
    return chosen


def measured(
    session: Session, query: StudioQuery, groups: Sequence[str] = GROUPS_SHOWN, scene: Scene | None = None
) -> Measurements:
    """Measure a photo as the page shows it.

    Args:
        session: The session.
        query: The photo.
        groups: What to measure.
        scene: What `scene_of` gives for it, if that is known.

    Raises:
        EmatError: The photo was not looked at yet, or it does not show the object that sets the scale.
    """
    chosen = choices_of(session)
    options = chosen.options(list(session.numbers), groups)
    scene = scene or scene_of(session, query, chosen)
    in_file = scale_of_file(query.photo) if chosen.unit == "file" else None
    return measure(scene, options, in_file)


_latest: dict[str, tuple[object, Scene, Measurements | EmatError]] = {}  # of each session, for table and picture
_measuring = threading.Lock()


def _shown_measurements(session: Session, query: StudioQuery) -> tuple[Scene, Measurements | EmatError]:
    """What the page shows of a photo: all its objects, and what was measured. Table and picture ask for the same."""
    chosen = choices_of(session)
    state = (query.key, query.changes, query.corrected, session.look_of(query), tuple(session.numbers), chosen)
    with _measuring:
        latest = _latest.get(session.id)
        if latest is None or latest[0] != state:
            scene = scene_of(session, query, chosen)
            try:
                outcome: Measurements | EmatError = measured(session, query, scene=scene)
            except EmatError as problem:
                outcome = problem
            while len(_latest) > MOST_KEPT:
                _latest.pop(next(iter(_latest)))
            latest = _latest[session.id] = (state, scene, outcome)
        return latest[1], latest[2]


def scene_of(session: Session, query: StudioQuery, chosen: Choices) -> Scene:
    """Return a photo and its objects before anything is filtered."""
    names, photo = list(session.numbers), query.photo.whole
    if query.corrected is not None:
        numbers = {name: number for number, name in enumerate(names, start=1)}
        labels = label_map(session, query, numbers, query.photo.size)
        scene = Scene.of_label_map(photo, labels, names, query.photo.name, source=PAINTED, touching=chosen.touching)
    elif query.scores is None:
        raise EmatError("photo-not-read", f"{query.photo.name} was not looked at yet; wait until it is done")
    else:
        prediction = session.prediction(query, photo)
        if chosen.smallest:
            prediction = prediction.with_all_objects()
        scene = Scene.of_prediction(prediction, query.photo.name, source="studio", touching=chosen.touching)
        nothing = np.zeros(scene.size, np.int32)
        order = {name: scene.objects.get(name, nothing) for name in names}
        scene = replace(scene, objects=order, sources=dict.fromkeys(names, "studio"))
    if chosen.outer == OTSU:
        scene = scene.with_class(OTSU, otsu_region(photo), "otsu")
    frame = query.photo.frame
    return scene if frame is None else replace(scene, name=frame.file, position=frame.position)


def answer(session: Session, query: StudioQuery) -> dict[str, Any]:
    """Return the numbers of a photo as the page shows them."""
    _, measurements = _shown_measurements(session, query)
    if isinstance(measurements, EmatError):
        raise measurements
    objects = Table.of("objects", measurements.objects.__iter__)
    photos = Table.of("photos", measurements.photos.__iter__)
    return {
        "verdict": None if measurements.verdict is None else "OK" if measurements.verdict else "NOT OK",
        "scale": None if measurements.scale is None else asdict(measurements.scale),
        "notReliable": sorted({str(row["class"]) for row in measurements.photos if row["reliable"] == UNRELIABLE}),
        "photos": [_shown(row, photos) for row in measurements.photos],
        "objects": [_shown(row, objects) for row in measurements.objects[:MOST_ROWS]],
        "count": len(measurements.objects),
        "histograms": _histograms(measurements, objects),
        "smallest": {"largest": max((int(row["area"] or 0) for row in measurements.objects), default=0)},
    }


def _shown(row: Row, table: Table) -> dict[str, Value]:
    """A row under the keys of `emat.measure`, in real units where they are known."""
    shown: dict[str, Value] = {}
    for column in table.columns:
        value = column.value(row)
        if value is not None or column.key not in shown:
            shown[column.key] = value if not isinstance(value, float) or math.isfinite(value) else None
    return shown


def _histograms(measurements: Measurements, table: Table) -> list[dict[str, Any]]:
    """How wide the objects of each class are."""
    by_key = {column.key: column for column in table.columns}  # of two of a key, the real unit is last
    column = by_key.get(HISTOGRAM)
    drawn = []
    for name in dict.fromkeys(str(row["class"]) for row in measurements.objects):
        values = [] if column is None else [column.value(row) for row in measurements.objects if row["class"] == name]
        numbers = np.array([value for value in values if isinstance(value, (int, float))], np.float64)
        if column is None or not len(numbers):
            continue
        counts, low, high = histogram(numbers)
        shown = {"class": name, "key": HISTOGRAM, "unit": column.written_unit, "numbers": len(numbers)}
        drawn.append(
            {**shown, "counts": counts.tolist(), "low": low, "high": high, "median": float(np.median(numbers))}
        )
    return drawn


def picture(session: Session, query: StudioQuery) -> bytes:
    """A photo with the objects that count in their colours, and grey what does not count, as JPEG."""
    scene, measurements = _shown_measurements(session, query)
    # Without its unit, a photo can still be shown.
    kept = scene if isinstance(measurements, EmatError) else measurements.scene
    size = query.photo.working
    numbers = np.array([0, *(session.numbers.get(name, 0) for name in scene.classes)], np.uint8)
    before, after = numbers[_without(scene, OTSU)], numbers[_without(kept, OTSU)]
    photo = _greyed(query.photo.pixels, resize_mask(((before > 0) & (after == 0)).astype(np.uint8), size) > 0)
    return as_jpeg(draw_overlay(photo, resize_mask(after, size), {}, legend=False))


def _without(scene: Scene, name: str) -> NDArray[np.uint8]:
    others = {class_name: labels for class_name, labels in scene.objects.items() if class_name != name}
    return replace(scene, objects=others).label_map


def _greyed(photo: Pixels, where: NDArray[np.bool_]) -> Pixels:
    mixed = np.where(where[..., None], photo // 2 + np.array(GREY, np.uint8) // 2, photo)
    return np.asarray(mixed, np.uint8)


def write_measurements(session: Session, queries: Sequence[StudioQuery], out: Path, formats: Sequence[str]) -> None:
    """Write what `emat measure` writes: tables, columns.csv, report.html, and files for other programs.

    Args:
        session: Whose photos are measured.
        queries: The photos; those that cannot be measured are named in the report.
        out: A folder.
        formats: "parquet", and any of `FORMATS`.

    Raises:
        EmatError: No photo can be measured, or a file cannot be written.
    """
    rows: dict[str, list[Row]] = {name: [] for name in TABLES}
    pictures: dict[str, str] = {}
    skipped: list[tuple[str, str]] = []
    tracks: dict[tuple[int, int | None], Tracks] = {}  # of each stack and depth
    for query in queries:
        try:
            measurements = measured(session, session.snapshot(query), GROUPS)
        except EmatError as problem:
            skipped.append((query.photo.name, str(problem)))
            continue
        frame = query.photo.frame
        if frame is not None and frame.t is not None:
            linked = tracks.setdefault((frame.stack, frame.z), Tracks()).link(measurements.scene.objects)
            measurements = replace(measurements, objects=with_tracks(measurements.objects, linked))
        rows["objects"] += measurements.objects
        rows["photos"] += measurements.photos
        pictures[place_of(measurements.photos[0])] = picture_of(measurements.scene)
        for format in (wanted for wanted in formats if wanted in FORMATS):
            path = out / format / f"{Path(query.photo.name).stem}{FORMATS[format]}"
            write_export(format, path, measurements.scene, measurements.scale, measurements.table())
    if not rows["photos"]:
        raise EmatError("not-measured", f"no photo could be measured: {skipped[0][1] if skipped else 'there is none'}")
    objects, photos = tables_of(rows["objects"].__iter__, rows["photos"].__iter__, GROUPS)
    write_tables(out, (objects, photos), formats)
    write_report(out / "report.html", _report(session, queries, objects, photos, pictures, skipped))


def _report(
    session: Session,
    queries: Sequence[StudioQuery],
    objects: Table,
    photos: Table,
    pictures: Mapping[str, str],
    skipped: Sequence[tuple[str, str]],
) -> Report:
    chosen = choices_of(session)
    options = chosen.options(list(session.numbers), GROUPS)
    classes = [*session.numbers, *([OTSU] if chosen.outer == OTSU else [])]
    forecasts = session.segmenter.forecast_ if session.segmenter.classes_ else {}
    forecast = {name: expected.iou for name, expected in forecasts.items()}
    notes = []
    if options.accept and session.segmenter.classes_:
        scale = options.scale or scale_of_file(queries[0].photo)
        regions = {OTSU: otsu_region} if chosen.outer == OTSU else {}
        size = queries[0].photo.size
        confidence = left_out_confidence(session.segmenter, options, size, scale, chosen.touching, regions)
        notes = [confidence.sentence()]
    settings = {
        "share": f"{chosen.inner} within {chosen.outer}" if options.within else "",
        "smallest object": chosen.smallest or "a tenth of the smallest example",
        "border": chosen.border,
        "holes": "filled" if chosen.fill_holes else "kept",
        "touching objects": chosen.touching,
        "accept": "; ".join(chosen.accept),
    }
    return Report(
        title=f"{', '.join(session.numbers)}: measured",
        classes=classes,
        objects=objects,
        photos=photos,
        pictures=pictures,
        forecast=forecast,
        notes=notes,
        skipped=skipped,
        settings={name: value for name, value in settings.items() if value},
        versions=versions(),
    )


def report_page(session: Session, queries: Sequence[StudioQuery]) -> bytes:
    """Return the HTML report of all photos that have an answer."""
    folder = session.folder / "report"
    write_measurements(session, queries, folder, ())
    return (folder / "report.html").read_bytes()


def shown_choices(session: Session) -> dict[str, Any]:
    """Return what is chosen and what can be, for the page."""
    return {"chosen": asdict(choices_of(session)), "otsu": OTSU}
