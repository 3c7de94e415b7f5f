"""The prediction for one photo: which classes are present, and where. `ScoreTable` has the predictions of many."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from emat.errors import EmatError
from emat.formats.coco import coco_content
from emat.formats.regions import TOUCHING
from emat.images import Pixels, resize_map, write_indexed_png
from emat.inference.postprocessing import ClassRules, LabelLayers, make_labels, refine
from emat.methods.base import PAPER_THRESHOLDS, Thresholds
from emat.outputs import write_text
from emat.pictures.html import embedded, table
from emat.pictures.overlay import draw_overlay, save_jpeg
from emat.refine.objects import Instances, measure, separate

if TYPE_CHECKING:
    from emat.measure import Measurements, MeasureOptions

__all__ = ["Prediction", "ScoreTable", "Thresholds"]

SHOWN_SIDE = 480  # pixels: the longest side of a picture in a notebook


@dataclass(frozen=True, eq=False)
class Prediction:
    """Scores and masks of every class of a segmenter on one photo.

    Masks follow from the probability maps by `emat.inference.postprocessing`. A class is present if its score reaches
    the presence threshold and it has a pixel.
    """

    photo: Pixels  # (H, W, 3), turned as its EXIF data say
    scores: Mapping[str, float]  # probability that the class is somewhere in the photo
    maps: Mapping[str, NDArray[np.float32]]  # (h, w): foreground probability; smaller than a large photo
    rules: Mapping[str, ClassRules] = field(default_factory=dict)  # of each class; by default the paper's thresholds
    objects: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)  # (h, w): MobileSAM's objects, from 1

    def __post_init__(self) -> None:
        if self.photo.shape[2] > 3:  # further channels are for the pixel learner
            object.__setattr__(self, "photo", np.ascontiguousarray(self.photo[..., :3]))
        usual = ClassRules(PAPER_THRESHOLDS)
        object.__setattr__(self, "rules", {name: self.rules.get(name, usual) for name in self.scores})

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
        return self._layers.labels

    @cached_property
    def _layers(self) -> LabelLayers:
        return make_labels((self.photo.shape[0], self.photo.shape[1]), self.scores, self.probability, self.rules)

    @property
    def overlapped(self) -> frozenset[str]:
        """The classes that others lie on; their masks are whole, and reach below the others."""
        return frozenset(name for rule in self.rules.values() for name in rule.lies_on if name in self.scores)

    def mask(self, name: str) -> NDArray[np.bool_]:
        """Return where a class is (H, W); all False if it is not present. EmatError if there is no such class."""
        layer = self._layers.below if name in self.overlapped and not self.rules[name].lies_on else self.label_map
        return layer == 1 + self.classes.index(self._known(name))

    def probability(self, name: str) -> NDArray[np.float32]:
        """Return the probability (H, W) of each pixel to belong to a class, even if the class is not present."""
        return resize_map(self.maps[self._known(name)], (self.photo.shape[0], self.photo.shape[1]))

    def at(self, thresholds: Thresholds | Mapping[str, Thresholds]) -> "Prediction":
        """Return the same prediction with other thresholds, for all classes or by name, without a new comparison."""
        given = dict.fromkeys(self.classes, thresholds) if isinstance(thresholds, Thresholds) else thresholds
        rules = {name: replace(rule, thresholds=given.get(name, rule.thresholds)) for name, rule in self.rules.items()}
        return replace(self, rules=rules)

    def with_all_objects(self) -> "Prediction":
        """Return the same prediction with the objects that `fit` found too small to count."""
        return replace(self, rules={name: replace(rule, smallest=0.0) for name, rule in self.rules.items()})

    def refined(self) -> "Prediction":
        """Return the prediction with refined maps, each class as its rule says."""
        answer = refine(self.photo, self.scores, self.maps, self.rules)
        return replace(self, maps=answer.maps, objects=answer.objects)

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

    def measure(
        self,
        options: "MeasureOptions | None" = None,
        *,
        photo: Path | str | None = None,
        name: str | None = None,
        touching: str = "split",
    ) -> "Measurements":
        """Measure the single objects: size, shape and intensity of each, and sums for each class.

        Args:
            options: What is measured, and how: groups of properties, the size of a pixel, filters, shares, verdicts.
            photo: The photo's file. It says the size of a pixel, and intensities are of its original values. Without
                it, they are of the 8 bits that `photo` of this prediction has.
            name: The photo's name in the tables; by default that of the file.
            touching: "split" takes objects that touch apart, "together" keeps connected pixels one object.

        Raises:
            EmatError: The extra `measure` is not installed, or the options do not fit the photo.

        Example:
            for row in prediction.measure(photo="dish.tif").table("objects"):
                print(row["class"], row["area_px"], row["circularity"])
        """
        from emat.measure import Scene, measure
        from emat.measure.scene import check_touching
        from emat.measure.units import scale_in_file

        file = None if photo is None else Path(photo)
        name = name or (file.name if file else "photo")
        scene = Scene.of_prediction(self, name, touching=check_touching(touching))
        if file is None:
            return measure(scene, options)
        is_said = options is not None and options.says_scale
        return measure(scene.with_values(file), options, None if is_said else scale_in_file(file))

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
            raise EmatError(
                "missing-package", "to_supervision needs the package supervision: pip install supervision"
            ) from None
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
                "wrong-suffix",
                f"{path} ends in {suffix or 'nothing'}; save as .png (label map), .jpg (overlay) or .json (COCO)",
            )

    def __repr__(self) -> str:
        shares = {name: share for name, _, share in self.found()}
        classes = [
            f"{name} {score:.2f} on {shares[name]:.1%} of it" if name in shares else f"no {name} ({score:.2f})"
            for name, score in self.scores.items()
        ]
        height, width = self.photo.shape[:2]
        return f"Prediction(photo of {width} x {height}: {', '.join(classes)})"

    def _repr_html_(self) -> str:
        """The overlay and a row for each class, which notebooks show."""
        shares = {name: share for name, _, share in self.found()}
        rows = [
            [name, f"{score:.2f}", "yes" if name in shares else "no", f"{shares.get(name, 0):.1%}"]
            for name, score in self.scores.items()
        ]
        scores = table(["class", "score", "present", "share of the photo"], rows)
        return f'<img src="{embedded(self.overlay(), SHOWN_SIDE)}">{scores}'

    def found(self) -> Iterator[tuple[str, float, float]]:
        """Yield every present class with its score and its share of the photo."""
        for name in self.classes:
            if name in self.present:
                yield name, self.scores[name], float(self.mask(name).mean())

    def _known(self, name: str) -> str:
        if name not in self.scores:
            raise EmatError(
                "unknown-class", f"there is no class {name!r} here; the classes are {', '.join(self.classes)}"
            )
        return name


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
        cells = [f"{scores[name]:.4f}" if name in scores else "" for name in self.classes]
        present = [str(int(share > 0)) for share in shares]
        return [photo, *cells, *present, *[f"{share:.4f}" for share in shares], *[""] * len(self.classes)]

    def present(self, rows: Iterable[Sequence[str]]) -> dict[str, int]:
        """Return in how many of the photos in `rows` each class is present."""
        first, rows = 1 + len(self.classes), list(rows)
        return {name: sum(row[first + index] == "1" for row in rows) for index, name in enumerate(self.classes)}
