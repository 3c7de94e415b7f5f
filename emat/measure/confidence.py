"""How many false OKs to expect: every example is judged by its own mask, and by what is found when it is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from emat.errors import EmatError
from emat.measure.measuring import MeasureOptions
from emat.measure.properties import object_rows, photo_rows
from emat.measure.scene import Scene, filtered
from emat.measure.shares import add_shares
from emat.measure.units import Scale
from emat.measure.verdicts import Confidence
from emat.progress import follow

if TYPE_CHECKING:
    from emat.inference.segmenter import Segmenter

MOST_LEFT_OUT = 10  # examples that a verdict is tried on: each takes as long as a fit and a prediction


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
    fitted: Segmenter, options: MeasureOptions, size: tuple[int, int], scale: Scale | None, touching: str
) -> Confidence:
    """Judge every example by its own mask, and by what is predicted when it is left out.

    Examples are kept at a smaller size. Lengths and areas in a condition are for the photos, so they are converted as
    if the examples had the size of a photo.

    Args:
        fitted: The segmenter.
        options: The conditions, and how objects are measured.
        size: Height and width of a photo.
        scale: The size of its pixels.
        touching: "split" takes objects that touch apart, "together" keeps connected pixels one object.

    Raises:
        EmatError: Fewer than two examples can be left out, or nothing is known of a class.
    """
    check_known(fitted, options)
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
        height, width = working.photo.shape[:2]
        magnified = (size[0] * size[1] / (height * width)) ** 0.5
        label_map = np.zeros((height, width), np.uint8)
        for number, name in enumerate(fitted.classes_, start=1):
            if name in working.masks:
                label_map[working.masks[name] == 1] = number
        truth = Scene.of_label_map(working.photo[..., :3], label_map, fitted.classes_, touching=touching)
        others = fitted.copy().remove(index)
        others.refine = (
            "guided" if fitted.refine == "auto" else fitted.refine
        )  # whether MobileSAM helps is not asked again
        found = Scene.of_prediction(others.predict(working.photo), touching=touching)
        missing = {name: np.zeros((height, width), np.int32) for name in fitted.classes_ if name not in found.classes}
        found = replace(found, objects={**found.objects, **missing}, sources=truth.sources)
        verdicts.append((_is_ok(truth, options, magnified, scale), _is_ok(found, options, magnified, scale)))
    return Confidence.of(verdicts)


def _is_ok(scene: Scene, options: MeasureOptions, magnified: float, scale: Scale | None) -> bool:
    kept = filtered(scene, replace(options.filters, smallest=None))  # that is for photos of another size
    objects = object_rows(kept, options.groups)
    photos = photo_rows(kept, objects)
    add_shares(kept, [each for each in options.within if each.outer in kept.classes], objects, photos)
    return all(condition.holds(objects, photos, scale, magnified) for condition in options.accept)
