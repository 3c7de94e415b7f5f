"""The one way from a scene to its rows: find the scale, filter, measure, relate, judge.

`left_out_confidence` says how many false OKs to expect of the verdicts: every example is judged by its own mask, and by
what is found when it is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from emat.errors import EmatError
from emat.images import Pixels
from emat.measure.exports import write_geojson, write_labels, write_rois
from emat.measure.properties import DEFAULT_GROUPS, MEASURED, Row, object_rows, photo_rows
from emat.measure.scene import Area, Filters, Mask, Scene, connected, filtered, numbered
from emat.measure.shares import Within, add_shares, joined
from emat.measure.tables import Table, with_scale
from emat.measure.units import Scale, ScaleObject
from emat.measure.verdicts import Condition, Confidence
from emat.progress import follow
from emat.refine.objects import separate

if TYPE_CHECKING:
    from emat.inference.segmenter import Segmenter

OK, NOT_OK = "OK", "NOT OK"
FindRegion: TypeAlias = Callable[[Pixels], Mask]
MOST_LEFT_OUT = 10  # examples that a verdict is tried on: each takes as long as a fit and a prediction


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
        inner = [share.inner for share in self.within]
        if len(set(inner)) != len(inner):
            twice = next(name for name in inner if inner.count(name) > 1)
            raise EmatError("given-twice", f"--within relates {twice} to two classes; measure them one after the other")
        for condition in self.accept:
            self._check(condition, inner)

    @property
    def says_scale(self) -> bool:
        """Whether the size of a pixel follows from the options, whatever the photo's file says."""
        return self.scale is not None or self.scale_object is not None

    def _check(self, condition: Condition, inner: Sequence[str]) -> None:
        """Refuse a condition on what is not measured: a photo without objects would meet it."""
        group = next((group for group, columns in MEASURED.items() if condition.column in columns), None)
        if group is not None and group not in self.groups:
            raise EmatError(
                "unknown-column",
                f"--accept {condition.text!r}: {condition.column} is not measured; add {group} to --properties",
            )
        if condition.column in ("share_within", "area_within") and condition.class_name not in inner:
            raise EmatError(
                "missing-option",
                f"--accept {condition.text!r}: nothing says what {condition.class_name} is a share of; add --within, "
                f"as in --within {condition.class_name}=leaf",
            )
        unit = None if self.scale is None else self.scale.unit
        unit = unit if self.scale_object is None else self.scale_object.unit
        if unit is not None:
            condition.check_unit(unit)


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
    kept = filtered(joined(scene, options.within), options.filters, scale)
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
    not_met = (
        "; ".join(condition.text for condition in options.accept if not condition.holds(objects, photos, scale)) or None
    )
    verdict = not_met is None
    return verdict, [{**row, "verdict": OK if verdict else NOT_OK, "not_met": not_met} for row in photos]


def check_known(fitted: Segmenter, options: MeasureOptions) -> None:
    """Refuse verdicts on classes of which nothing was left out.

    Raises:
        EmatError: Nothing is known about how well a class is found.
    """
    forecast = fitted.forecast_
    for condition in options.accept:
        name = condition.class_name
        if name in fitted.classes_ and (name not in forecast or forecast[name].iou is None):
            raise EmatError(
                "too-few-examples",
                f"{condition.text}: nothing is known about how well {name} is found, so a verdict would be a guess; "
                "add a second example of it, or judge masks with --masks",
            )


def left_out_confidence(
    fitted: Segmenter,
    options: MeasureOptions,
    size: tuple[int, int],
    scale: Scale | None,
    touching: str,
    regions: Mapping[str, FindRegion | None] | None = None,
) -> Confidence:
    """Judge every example by its own mask, and by what is predicted when it is left out.

    Examples are kept at a smaller size. Lengths and areas in a condition are for the photos, so they are converted as
    if the examples had the size of a photo. If an object sets the scale, that in the example does.

    Args:
        fitted: The segmenter.
        options: The conditions, and how objects are measured.
        size: Height and width of a photo.
        scale: The size of its pixels.
        touching: "split" takes objects that touch apart, "together" keeps connected pixels one object.
        regions: What finds each region that is no class, None if it was only given for the photos.

    Raises:
        EmatError: Fewer than two examples can be left out, or nothing is known of a class or region.
    """
    finders = {name: find for name, find in (regions or {}).items() if find is not None}
    check_known(fitted, options)
    _check_regions(options, [name for name in regions or {} if name not in finders])
    within = [share for share in options.within if share.outer in (*fitted.classes_, *finders)]
    options = replace(options, within=within)
    kept = [
        (index, one.working)
        for index, one in enumerate(fitted.examples_)
        if one.working is not None and not one.working.sparse
    ]
    if len(kept) < 2:
        raise EmatError(
            "too-few-examples",
            "--accept: fewer than two examples can be left out, so nothing is known about false OKs; add examples, or "
            "judge masks with --masks",
        )
    verdicts = []
    for index, working in follow(kept[:MOST_LEFT_OUT], min(len(kept), MOST_LEFT_OUT), "examples left out"):
        shape = (working.photo.shape[0], working.photo.shape[1])
        magnified = (size[0] * size[1] / (shape[0] * shape[1])) ** 0.5
        others = fitted.copy().remove(index)
        if fitted.refine == "auto":
            others.refine = "guided"  # whether MobileSAM helps is not asked again
        prediction = others.predict(working.photo)
        if options.filters.smallest is not None:
            prediction = prediction.with_all_objects()
        predicted = Scene.of_prediction(prediction, touching=touching)
        objects = {name: predicted.objects.get(name, np.zeros(shape, np.int32)) for name in fitted.classes_}
        predicted = replace(predicted, objects=objects, sources=dict.fromkeys(objects, ""))
        masks = {name: working.masks.get(name, np.zeros(shape, np.uint8)) == 1 for name in fitted.classes_}
        way = separate if touching == "split" else connected
        truth = replace(predicted, objects=numbered({name: way(mask) for name, mask in masks.items()}))
        for name, find in finders.items():  # nobody drew a region, so it is the same for both
            region = find(working.photo[..., :3])
            truth, predicted = (scene.with_class(name, region, "") for scene in (truth, predicted))
        is_ok = _is_ok(truth, options, magnified, scale)
        if is_ok is not None:  # else the scale object was not drawn
            verdicts.append((is_ok, bool(_is_ok(predicted, options, magnified, scale))))
    if not verdicts:
        raise EmatError(
            "too-few-examples",
            "--accept: no example shows the object that sets the scale, so nothing is known about false OKs; add "
            "examples that show it, or judge masks with --masks",
        )
    return Confidence.of(verdicts)


def _check_regions(options: MeasureOptions, given: Sequence[str]) -> None:
    """Refuse verdicts on regions that were only given for the photos, and not for the examples."""
    outer = {share.inner: share.outer for share in options.within}
    for condition in options.accept:
        name = condition.class_name
        name = outer.get(name, name) if condition.column in ("share_within", "area_within") else name
        if name in given:
            raise EmatError(
                "too-few-examples",
                f"{condition.text}: the examples have no {name}, so nothing is known about false OKs; find it by "
                f"--region {name}=otsu or a fitted file, or judge masks with --masks",
            )


def _is_ok(scene: Scene, options: MeasureOptions, magnified: float, scale: Scale | None) -> bool | None:
    """Judge an example; None if it does not show the object that sets the scale, so that no photo would be judged."""
    if options.scale_object is not None:
        try:
            magnified, scale = 1.0, options.scale_object.scale(scene)
        except EmatError:
            return None
    smallest = options.filters.smallest
    if smallest is not None:  # it is for photos of another size
        smallest = Area(smallest.pixels(scale, "the first photo") / magnified**2)
    kept = filtered(joined(scene, options.within), replace(options.filters, smallest=smallest))
    objects = object_rows(kept, options.groups)
    photos = photo_rows(kept, objects)
    add_shares(kept, options.within, objects, photos)
    return all(condition.holds(objects, photos, scale, magnified) for condition in options.accept)
