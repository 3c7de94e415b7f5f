"""The prediction for one photo: which classes are present, and where. `ScoreTable` has the predictions of many."""

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from emat.errors import EmatError
from emat.files import write_text
from emat.formats.coco import coco_content
from emat.images import Pixels, resize_map, write_indexed_png
from emat.methods.base import PAPER_THRESHOLDS, Thresholds
from emat.methods.label_map import make_label_map
from emat.pictures.overlay import draw_overlay, save_jpeg
from emat.refine.objects import Instances, absorb_fringes, find_remnants, measure, separate
from emat.refine.refiner import Refinement, refine_maps, shared_mobilesam

__all__ = ["Prediction", "ScoreTable", "Thresholds"]

TOUCHING = np.ones((3, 3), bool)  # pixels that touch at a corner belong to one region


@dataclass(frozen=True, eq=False)
class Prediction:
    """Scores and masks of every class of a segmenter on one photo.

    Every pixel goes to the likeliest class whose score reaches the presence threshold, if its probability reaches the
    mask threshold (`emat.methods.label_map`); thin rims of one class around another go to the other
    (`emat.refine.objects`). A class is present if its score reaches the threshold and it has a pixel.
    """

    photo: Pixels  # (H, W, 3), turned as its EXIF data say
    scores: Mapping[str, float]  # probability that the class is somewhere in the photo
    maps: Mapping[str, NDArray[np.float32]]  # (h, w): foreground probability; smaller than a large photo
    thresholds: Thresholds = PAPER_THRESHOLDS
    objects: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)  # (h, w): MobileSAM's objects, from 1

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; label i of the label map is `classes[i - 1]`."""
        return tuple(self.scores)

    @property
    def present(self) -> set[str]:
        """The names of the classes that are present: each has a score above the threshold and a pixel."""
        return {name for label, name in enumerate(self.classes, start=1) if (self.label_map == label).any()}

    @cached_property
    def label_map(self) -> NDArray[np.uint8]:
        """The label map (H, W): 0 = background, i = `classes[i - 1]`."""
        likely = likely_classes(self)
        shown = {label: name for label, name in enumerate(self.classes, start=1) if name in likely}
        if not shown:
            return np.zeros(self.photo.shape[:2], np.uint8)
        maps = (self.probability(name) for name in shown.values())  # one at a time: large photos have large maps
        labels = make_label_map(maps, self.thresholds.mask, shown)
        return absorb_fringes(labels, lambda label: self.probability(shown[label]))

    def mask(self, name: str) -> NDArray[np.bool_]:
        """Return where a class is (H, W); all False if it is not present. EmatError if there is no such class."""
        return self.label_map == 1 + self.classes.index(self._known(name))

    def probability(self, name: str) -> NDArray[np.float32]:
        """Return the probability (H, W) of each pixel to belong to a class, even if the class is not present."""
        return resize_map(self.maps[self._known(name)], (self.photo.shape[0], self.photo.shape[1]))

    def at(self, thresholds: Thresholds) -> "Prediction":
        """Return the same prediction with other thresholds, without running the network again."""
        return replace(self, thresholds=thresholds)

    def overlay(self) -> Image.Image:
        """Draw every class in its colour over the photo, with a legend."""
        return draw_overlay(self.photo, self.label_map, dict(enumerate(self.classes, start=1)))

    def instances(self, name: str, smallest: int = 1) -> Instances:
        """Return the single objects of a class: a label image and a row of measurements for each.

        Objects that touch are taken apart: where MobileSAM refined the class by its own masks, elsewhere at necks.

        Args:
            name: The class.
            smallest: Objects of fewer pixels are left out.

        Raises:
            EmatError: If there is no such class.

        Example:
            for row in prediction.instances("cell").rows:
                print(row.id, row.area, row.box, row.centroid, row.score)
        """
        mask, objects = self.mask(name), self.objects.get(name)
        if objects is not None and objects.shape != mask.shape:
            resized = Image.fromarray(objects).resize((mask.shape[1], mask.shape[0]), Image.Resampling.NEAREST)
            objects = np.array(resized, np.int32)
        return measure(separate(mask, objects), self.probability(name), smallest)

    @property
    def object_image(self) -> NDArray[np.int32]:
        """The single objects of all classes (H, W), numbered from 1 throughout; 0 is background."""
        image = np.zeros(self.label_map.shape, np.int32)
        for name in self.classes:
            numbers = self.instances(name).label_image
            image = np.where(numbers > 0, numbers + image.max(), image)
        return image

    def to_coco(self, file_name: str = "photo.jpg", *, instances: bool = False) -> dict[str, Any]:
        """Return the masks as the content of a COCO instance file, each object with the score of its class.

        Args:
            file_name: The name of the photo in it.
            instances: Whether objects that touch are separate.
        """
        content = coco_content(file_name, self.label_map, self.classes, self.object_image if instances else None)
        for drawn in content["annotations"]:
            drawn["score"] = round(float(self.scores[self.classes[drawn["category_id"] - 1]]), 4)
        return content

    def to_supervision(self) -> Any:
        """Return the single objects as `supervision.Detections`, with masks, scores and class names.

        Raises:
            EmatError: If the package supervision is not installed.
        """
        try:
            import supervision
        except ImportError:
            raise EmatError("to_supervision needs the package supervision: pip install supervision") from None
        boxes, masks, scores, numbers, names = [], [], [], [], []
        for number, name in enumerate(self.classes):
            single = self.instances(name)
            for row in single.rows:
                left, top, width, height = row.box
                boxes.append([left, top, left + width, top + height])
                masks.append(single.label_image == row.id)
                scores.append(row.score)
                numbers.append(number)
                names.append(name)
        if not boxes:
            return supervision.Detections.empty()
        return supervision.Detections(
            xyxy=np.array(boxes, np.float32),
            mask=np.stack(masks),
            confidence=np.array(scores, np.float32),
            class_id=np.array(numbers),
            data={"class_name": np.array(names)},
        )

    def save(self, path: str | Path) -> None:
        """Write the prediction to a file, whole or not at all; its suffix says what.

        Args:
            path: ``.png`` for the label map as an indexed PNG, ``.jpg`` for the overlay, ``.json`` for COCO.

        Raises:
            EmatError: If the suffix is another one, or the file cannot be written.
        """
        path = Path(path)
        suffix = path.suffix.lower()
        if suffix == ".png":
            write_indexed_png(path, self.label_map)
        elif suffix in (".jpg", ".jpeg"):
            save_jpeg(self.overlay(), path)
        elif suffix == ".json":
            write_text(path, json.dumps(self.to_coco(path.with_suffix(".jpg").name), ensure_ascii=False))
        else:
            raise EmatError(
                f"{path} ends in {suffix or 'nothing'}; save as .png (label map), .jpg (overlay) or .json (COCO)"
            )

    def _repr_png_(self) -> bytes:
        """The overlay, which notebooks show."""
        buffer = io.BytesIO()
        self.overlay().save(buffer, "PNG")
        return buffer.getvalue()

    def found(self) -> Iterator[tuple[str, float, float]]:
        """Yield every present class with its score and its share of the photo."""
        for name in self.classes:
            if name in self.present:
                yield name, self.scores[name], float(self.mask(name).mean())

    def _known(self, name: str) -> str:
        if name not in self.scores:
            raise EmatError(f"there is no class {name!r} here; the classes are {', '.join(self.classes)}")
        return name


def likely_classes(prediction: Prediction) -> set[str]:
    """Return the names of the classes whose score reaches the presence threshold, drawn or not."""
    return {name for name, score in prediction.scores.items() if score >= prediction.thresholds.presence}


def refined(prediction: Prediction, refine: Refinement | None, suited: Callable[[str], bool]) -> Prediction:
    """Return the prediction with refined maps of the classes that are likely present; itself if `refine` is None.

    "auto" asks MobileSAM only about the classes for which `suited` says so; the others follow the photo's edges.
    """
    likely = likely_classes(prediction)
    present = {name: map_ for name, map_ in prediction.maps.items() if name in likely}
    if refine is None or not present:
        return prediction
    chosen: dict[str, Refinement] = {
        name: "guided" if refine == "auto" and not suited(name) else refine for name in present
    }
    answer = refine_maps(prediction.photo, present, prediction.thresholds.mask, chosen, shared_mobilesam(refine))
    maps = {**prediction.maps, **answer.maps}
    drawn = {name: maps[name] for name in maps if name in likely}
    if answer.objects:  # whole objects now compete, so what a class keeps of a region that it lost is not an object
        maps.update(_without_remnants(drawn, prediction.thresholds.mask))
    else:  # edges of the photo tell an object from its surroundings, not one class from another
        maps.update(_same_winners(drawn, prediction))
    return replace(prediction, maps=maps, objects=answer.objects)


def _without_remnants(maps: Mapping[str, NDArray[np.float32]], threshold: float) -> dict[str, NDArray[np.float32]]:
    """Return the maps (h, w) without the regions that other classes have mostly taken."""
    labels = make_label_map(maps.values(), threshold)
    below = np.nextafter(np.float32(threshold), np.float32(0))
    whole = {}
    for label, (name, map_) in enumerate(maps.items(), start=1):
        lost = find_remnants(map_ >= threshold, labels == label)
        whole[name] = np.where(lost, np.minimum(map_, below), map_)
    return whole


def _same_winners(maps: Mapping[str, NDArray[np.float32]], before: Prediction) -> dict[str, NDArray[np.float32]]:
    """Return refined maps (h, w) in which no class takes what another class had `before`, or appears newly."""
    threshold, unrefined = before.thresholds.mask, [before.maps[name] for name in maps]
    winners = absorb_fringes(make_label_map(unrefined, threshold), lambda label: unrefined[label - 1])
    highest = np.maximum.reduce([np.where(winners == i, map_, 0) for i, map_ in enumerate(maps.values(), start=1)])
    same = {}
    for label, (name, map_) in enumerate(maps.items(), start=1):
        limit = np.where((winners > 0) & (winners != label), highest, 1 if (winners == label).any() else threshold)
        same[name] = np.minimum(map_, np.nextafter(limit, 0, dtype=np.float32))
    return same


class ScoreTable:
    """The columns and rows of scores.csv, with the verdict on whole photos: which class is in which photo.

    The columns are the photo and the score of each class, then for each class whether it is present (1 or 0), its share
    of the pixels and the number of its regions.

    Args:
        classes: The names of the classes.
    """

    key = "scores"

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = tuple(classes)
        parts = [f"{name}: {part}" for part in ("present", "share of pixels", "regions") for name in classes]
        self.header = ["photo", *classes, *parts]

    def row(self, photo: str, scores: Mapping[str, float], masks: Sequence[NDArray[np.bool_]]) -> list[str]:
        """Return the row of one photo from its masks (H, W), one for each class; a class may have no score."""
        regions = [str(ndimage.label(mask, TOUCHING)[1]) for mask in masks]
        return [*self.slide_row(photo, scores, [float(mask.mean()) for mask in masks])[: -len(masks)], *regions]

    def slide_row(self, photo: str, scores: Mapping[str, float], shares: Sequence[float]) -> list[str]:
        """Return the row of a slide, whose regions are not counted, from the share of pixels of each class."""
        known = [f"{scores[name]:.4f}" if name in scores else "" for name in self.classes]
        present = [str(int(share > 0)) for share in shares]
        return [photo, *known, *present, *[f"{share:.4f}" for share in shares], *[""] * len(self.classes)]

    def present(self, rows: Iterable[Sequence[str]]) -> dict[str, int]:
        """Return in how many of the photos in `rows` each class is present."""
        first, rows = 1 + len(self.classes), list(rows)
        return {name: sum(row[first + index] == "1" for row in rows) for index, name in enumerate(self.classes)}
