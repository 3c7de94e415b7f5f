"""The one way from a scene to its rows: find the scale, filter, measure, relate, judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emat.errors import EmatError
from emat.measure.exports import write_geojson, write_labels, write_rois
from emat.measure.properties import DEFAULT_GROUPS, Row, object_rows, photo_rows
from emat.measure.scene import Filters, Scene, filtered
from emat.measure.shares import Within, add_shares
from emat.measure.tables import Table, with_scale
from emat.measure.units import Scale, ScaleObject
from emat.measure.verdicts import Condition

OK, NOT_OK = "OK", "NOT OK"


@dataclass(frozen=True)
class MeasureOptions:
    """What is measured, and how.

    Attributes:
        groups: Which groups of properties: size, shape, skeleton, intensity, texture.
        scale: The size of a pixel, the same for all photos.
        scale_object: An object of known diameter in every photo, in place of `scale`.
        within: Which class is to be related to which.
        filters: What does not count as an object.
        accept: What a photo must meet to be OK.
    """

    groups: Sequence[str] = DEFAULT_GROUPS
    scale: Scale | None = None
    scale_object: ScaleObject | None = None
    within: Sequence[Within] = ()
    filters: Filters = field(default_factory=Filters)
    accept: Sequence[Condition] = ()

    def __post_init__(self) -> None:
        if self.scale is not None and self.scale_object is not None:
            raise EmatError(
                "conflicting-options", "--pixel-size and --scale both say how large a pixel is; give one of them"
            )
        inner = [each.inner for each in self.within]
        if len(set(inner)) != len(inner):
            twice = next(name for name in inner if inner.count(name) > 1)
            raise EmatError("given-twice", f"--within relates {twice} to two classes; measure them one after the other")


@dataclass(frozen=True, eq=False)
class Measurements:
    """What was measured on one photo.

    Attributes:
        scene: The photo and the objects that count.
        scale: The size of a pixel; None if it is not known.
        objects: A row for each object, lengths and areas in pixels.
        photos: A row for each class, in the same way.
        verdict: Whether the photo is OK; None if nothing was asked.
    """

    scene: Scene
    scale: Scale | None
    objects: list[Row]
    photos: list[Row]
    verdict: bool | None = None

    def table(self, name: str = "objects") -> list[dict[str, Any]]:
        """Return the table "objects" or "photos" in real units, with the column names of the CSV files.

        >>> import numpy as np
        >>> label_map = np.zeros((20, 20), np.uint8)
        >>> label_map[5:15, 5:15] = 1
        >>> scene = Scene.of_label_map(np.zeros((20, 20, 3), np.uint8), label_map, ["square"])
        >>> measure(scene, MeasureOptions(scale=Scale(0.5, "mm", "ruler"))).table("photos")[0]["area_mm2"]
        25.0
        """
        if name not in ("objects", "photos"):
            raise EmatError("unknown-choice", f"there is no table {name!r}; the tables are objects and photos")
        rows = self.objects if name == "objects" else self.photos
        return Table.of(name, lambda: iter(rows)).values()

    def save(self, path: str | Path) -> None:
        """Write to a file, whose suffix says what: .csv (objects), .parquet, .zip (ImageJ ROIs), .geojson, .tif.

        Raises:
            EmatError: The suffix is another one, or the file cannot be written.
        """
        path = Path(path)
        objects = Table.of("objects", lambda: iter(self.objects))
        writers = {
            ".csv": lambda: objects.write_csv(path),
            ".parquet": lambda: objects.write_parquet(path),
            ".zip": lambda: write_rois(path, self.scene),
            ".geojson": lambda: write_geojson(path, self.scene, self.table()),
            ".tif": lambda: write_labels(path, self.scene, self.scale),
        }
        if path.suffix.lower() not in writers:
            raise EmatError(
                "wrong-suffix", f"{path} ends in {path.suffix or 'nothing'}; it can end in {', '.join(writers)}"
            )
        writers[path.suffix.lower()]()


def measure(scene: Scene, options: MeasureOptions | None = None, in_file: Scale | None = None) -> Measurements:
    """Measure a scene.

    Args:
        scene: A photo and its objects, from `Scene.of_prediction`, `Scene.of_label_map` or `Scene.of_label_image`.
        options: What is measured, and how.
        in_file: What the photo's file says about the size of its pixels; the options come first.

    Raises:
        EmatError: The scale object is not usable, a class does not exist, or scikit-image is not installed.
    """
    options = options or MeasureOptions()
    scale = options.scale or in_file
    if options.scale_object is not None:
        scale = options.scale_object.scale(scene)
    kept = filtered(scene, options.filters, scale)
    objects = object_rows(kept, options.groups)
    photos = photo_rows(kept, objects)
    add_shares(kept, options.within, objects, photos)
    verdict, photos = judged(options, objects, photos, scale)
    return Measurements(
        kept,
        scale,
        [with_scale(row, scale) for row in objects],
        [with_scale(row, scale) for row in photos],
        verdict,
    )


def judged(
    options: MeasureOptions, objects: Sequence[Row], photos: Sequence[Row], scale: Scale | None
) -> tuple[bool | None, list[Row]]:
    """Return whether a photo is OK, None if nothing was asked, and the rows of its classes with that verdict."""
    if not options.accept:
        return None, list(photos)
    verdict = all(condition.holds(objects, photos, scale) for condition in options.accept)
    return verdict, [{**row, "verdict": OK if verdict else NOT_OK} for row in photos]
