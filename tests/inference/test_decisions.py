"""What `fit` decides of refinement, by examples that are left out."""

import numpy as np
import pytest
from scipy import ndimage

from emat import Prediction
from emat.images import Pixels
from emat.inference.decisions import LeftOutExample, decide_refinements
from emat.inference.example_set import ExampleSet, FittedExample, Thumbnail, WorkingPhoto
from emat.refine.mobilesam import MobileSAM
from emat.refine.regions import Map, Mask
from tests.refine.conftest import mobilesam

__all__ = ["mobilesam"]


def disc_photo() -> tuple[Pixels, Mask]:
    y, x = np.mgrid[:120, :160]
    disc = (y - 60) ** 2 + (x - 80) ** 2 <= 35**2
    photo = np.stack([60 + 0.3 * x + 0.2 * y] * 3, axis=2).astype(np.uint8)
    photo[disc] = (200, 120, 60)
    return photo, disc


def known(photo: Pixels, *masks: Mask) -> ExampleSet:
    def example(number: int, mask: Mask) -> FittedExample:
        labels = mask.astype(np.uint8)
        working = WorkingPhoto(photo, {"it": labels}, np.zeros_like(labels))
        return FittedExample(f"{number}", {"it": None}, Thumbnail(photo, {"it": mask}), working)

    return ExampleSet(tuple(example(number, mask) for number, mask in enumerate(masks)))


def coarse(mask: Mask) -> Map:
    return ndimage.gaussian_filter(np.roll(mask, 6, axis=1).astype(np.float32), 6)


def nothing_is_predicted(example: LeftOutExample, grid: tuple[int, int]) -> Prediction:
    raise AssertionError("nothing is predicted")


def test_the_examples_that_are_left_out_decide(mobilesam: MobileSAM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emat.refine.mobilesam._loaded", [mobilesam])
    photo, disc = disc_photo()
    ring = disc & ~ndimage.binary_erosion(disc, iterations=10)  # nothing in the photo shows its inner edge
    left_out: list[int] = []

    def predict(example: LeftOutExample, grid: tuple[int, int]) -> Prediction:
        left_out.append(example.index)
        return Prediction(example.photo, {"it": 0.9}, {"it": map_})

    map_ = coarse(disc)
    assert decide_refinements(known(photo, disc, disc), predict) == {"it": "auto"}
    assert left_out == [0, 1], "each example is predicted once"
    map_ = np.clip(1.6 * ndimage.gaussian_filter(ring.astype(np.float32), 6), 0, 1)
    assert decide_refinements(known(photo, ring, ring), predict)["it"] != "auto"


def test_a_refinement_that_gains_nothing_is_left_out() -> None:
    """The map is right already, along an edge that the photo does not show."""
    photo = np.full((120, 160, 3), 120, np.uint8)
    photo[:, :70] = 60
    dots = np.zeros((120, 160), bool)
    dots[::12, ::12] = dots[1::12, ::12] = True

    def predict(example: LeftOutExample, grid: tuple[int, int]) -> Prediction:
        return Prediction(example.photo, {"it": 0.9}, {"it": dots.astype(np.float32)})

    assert decide_refinements(known(photo, dots, dots), predict) == {"it": None}


def test_one_example_must_show_what_mobilesam_can_draw(mobilesam: MobileSAM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emat.refine.mobilesam._loaded", [mobilesam])
    photo, disc = disc_photo()
    ring = disc & ~ndimage.binary_erosion(disc, iterations=10)  # nothing in the photo shows its inner edge
    assert decide_refinements(known(photo, disc), nothing_is_predicted) == {"it": "auto"}
    assert decide_refinements(known(photo, ring), nothing_is_predicted) == {"it": "guided"}
