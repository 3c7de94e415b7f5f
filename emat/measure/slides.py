"""Measuring a slide that is too large for the memory, while it is predicted part by part.

Regions that lie in several parts are joined first (`emat.inference.slides`); then each is a small scene of its own and
is measured as every scene. Classes that `--within` relates are joined together, so that a lesion meets its leaf. What
is kept of objects that were measured is sums, and what verdicts ask for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from emat.images.slides import Slide, StackSlide
from emat.inference.slides import SeamJoiner, SlidePart, SlideRegion
from emat.measure.exports import Placed
from emat.measure.measuring import MeasureOptions, judged
from emat.measure.properties import PhotoSums, Row, object_rows, photo_rows
from emat.measure.scene import Scene, channel_names, connected, filtered, no_objects, numbered
from emat.measure.shares import Within, add_shares, joined
from emat.measure.tables import with_scale
from emat.measure.units import Scale
from emat.refine.objects import separate


@dataclass(eq=False)
class SlideMeasurement:
    """The measurement of one slide.

    Attributes:
        name: The slide's name in tables.
        slide: The slide.
        classes: The names of its classes.
        options: What is measured, and how; an object that sets the scale is for photos.
        scale: The size of a pixel; None if it is not known.
        source: Where the masks come from.
        expected: The IoU that the forecast expects of each class.
        touching: "split" takes objects that touch apart, "together" keeps connected pixels one object.
    """

    name: str
    slide: Slide | StackSlide
    classes: Sequence[str]
    options: MeasureOptions
    scale: Scale | None
    source: str
    expected: Mapping[str, float | None]
    touching: str = "split"
    _joiners: list[SeamJoiner] = field(init=False)
    _sums: PhotoSums = field(init=False, default_factory=PhotoSums)
    _within: dict[Within, tuple[int, int]] = field(init=False, default_factory=dict)
    _asked: list[Row] = field(init=False, default_factory=list)  # of objects, what verdicts ask for
    _count: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        groups = _groups(self.classes, self.options.within)
        self._joiners = [SeamJoiner(group, self.slide.size) for group in groups]

    def add(self, part: SlidePart) -> Iterator[Placed]:
        """Take the next part, and give the pieces of the slide that are complete, with their objects and rows."""
        overlapping = part.prediction.overlapped
        for joiner in self._joiners:
            for region in joiner.add(part):
                placed = self._measured(region, overlapping)
                if placed.rows:
                    yield placed

    def photos(self, scores: Mapping[str, float]) -> list[Row]:
        """Return a row for each class of the whole slide, after all parts were added."""
        rows = self._sums.rows(self._scene(self.slide.size, {}, scores))
        for share, (outside, inside) in self._within.items():
            for row in rows:
                if row["class"] == share.inner:
                    percent = 100 * inside / outside if outside else None
                    row.update(within=share.outer, within_area=outside, area_within=inside, share_within=percent)
        return [with_scale(row, self.scale) for row in judged(self.options, self._asked, rows, self.scale)[1]]

    def _scene(
        self, size: tuple[int, int], objects: Mapping[str, NDArray[np.int32]], scores: Mapping[str, float]
    ) -> Scene:
        return Scene(
            self.name,
            np.broadcast_to(np.uint8(0), (*size, 3)),
            {name: objects.get(name, no_objects(size)) for name in self.classes},
            dict.fromkeys(self.classes, self.source),
            scores=scores,
            expected=self.expected,
        )

    def _measured(self, region: SlideRegion, overlapping: frozenset[str]) -> Placed:
        """Measure a region; rows are numbered and placed as on the whole slide."""
        size = (region.view.height, region.view.width)
        way = separate if self.touching == "split" else connected
        objects = numbered({name: way(region.mask(name)) for name in region.marks})
        scene = replace(
            self._scene(size, objects, dict.fromkeys(region.marks, 1.0)),
            photo=region.photo,
            overlapping=overlapping,
            probability=region.probability,
        )
        if self.slide.has_values and "intensity" in self.options.groups:
            values = self.slide.values(region.view.top, region.view.left, *size)
            scene = replace(scene, values=values, channels=self.slide.channels or channel_names(values.shape[2]))
        related = [share for share in self.options.within if share.inner in region.marks]
        kept = filtered(joined(scene, related), self.options.filters, self.scale)
        rows = object_rows(kept, self.options.groups)
        for row in rows:
            self._sums.add(row)
        photos = photo_rows(kept, rows)
        add_shares(kept, related, rows, photos)
        for share in related:
            row = next(photo_row for photo_row in photos if photo_row["class"] == share.inner)
            outside, inside = self._within.get(share, (0, 0))
            self._within[share] = outside + int(row["within_area"] or 0), inside + int(row["area_within"] or 0)
        placed = [with_scale(self._placed(row, region), self.scale) for row in rows]
        if self.options.accept:
            self._asked += [{key: row[key] for key in self._columns() if key in row} for row in placed]
        self._count += len(rows)
        return Placed(kept, placed, region.view.left, region.view.top, self._count - len(rows))

    def _columns(self) -> tuple[str, ...]:
        return ("class", *(condition.column for condition in self.options.accept if condition.over_objects))

    def _placed(self, row: Row, region: SlideRegion) -> Row:
        by = {"left": region.view.left, "top": region.view.top, "id": self._count}
        by |= {"centroid_x": region.view.left, "centroid_y": region.view.top}
        by |= {key: self._count for key in row if key.startswith("id_of_")}
        moved = {key: value + by[key] for key, value in row.items() if key in by and isinstance(value, (int, float))}
        return {**row, **moved}


def _groups(classes: Sequence[str], within: Sequence[Within]) -> list[list[str]]:
    """Put classes together that are related, directly or by others.

    >>> _groups(["leaf", "coin", "lesion"], [Within("lesion", "leaf")])
    [['leaf', 'lesion'], ['coin']]
    """
    group = {name: {name} for name in classes}
    for share in within:
        joined = group[share.inner] | group[share.outer]
        for name in joined:
            group[name] = joined
    groups: list[list[str]] = []
    for name in classes:
        if not any(name in names for names in groups):
            groups.append([other for other in classes if other in group[name]])
    return groups
