import numpy as np
import pytest
from scipy import ndimage

from emat import Prediction
from emat.images import Pixels
from emat.inference.fitted_file import FittedExample, Thumbnail, WorkingPhoto
from emat.inference.known_examples import KnownExamples
from emat.inference.refinement_choice import gain_of, suits_refinement
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


def known(photo: Pixels, *masks: Mask) -> KnownExamples:
    def example(number: int, mask: Mask) -> FittedExample:
        labels = mask.astype(np.uint8)
        working = WorkingPhoto(photo, {"it": labels}, np.zeros_like(labels))
        return FittedExample(f"{number}", {"it": None}, Thumbnail(photo, {"it": mask}), working)

    return KnownExamples(tuple(example(number, mask) for number, mask in enumerate(masks)))


def coarse(mask: Mask) -> Map:
    return ndimage.gaussian_filter(np.roll(mask, 6, axis=1).astype(np.float32), 6)


def test_the_examples_that_are_left_out_decide(mobilesam: MobileSAM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emat.refine.mobilesam._loaded", [mobilesam])
    photo, disc = disc_photo()
    half = disc & (np.arange(160) < 80)  # nothing in the photo shows where it ends
    left_out: list[int] = []

    def predict(photo: Pixels, others: KnownExamples) -> Prediction:
        left_out.append(len(others.examples))
        return Prediction(photo, {"it": 0.9}, {"it": map_})

    map_ = coarse(disc)
    assert suits_refinement(objects := known(photo, disc, disc), "it", predict)
    assert gain_of(objects, "it", predict) > 0.05
    map_ = half.astype(np.float32)
    assert not suits_refinement(halves := known(photo, half, half), "it", predict)
    assert set(left_out) == {1}
    asked = len(left_out)
    assert not suits_refinement(halves, "it", predict)
    assert len(left_out) == asked, "the same examples are asked once"


def test_one_example_or_thin_ones_are_never_left_out() -> None:
    photo, disc = disc_photo()

    def predict(photo: Pixels, others: KnownExamples) -> Prediction:
        raise AssertionError("nothing is predicted")

    crack = np.zeros_like(disc)
    crack[60:62, 5:150] = True
    assert suits_refinement(known(photo, disc), "it", predict)
    assert not suits_refinement(known(photo, crack, crack), "it", predict)
