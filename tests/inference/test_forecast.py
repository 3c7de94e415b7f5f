"""What leaving examples out says: the working size and the refinement that help."""

from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

from emat import Example, Prediction, Segmenter
from emat.errors import EmatError
from emat.images import Pixels
from emat.inference.forecast import best_size, gain_of, suits_refinement
from emat.inference.known_examples import FittedExample, KnownExamples, Thumbnail, WorkingPhoto
from emat.methods.leave_out import Learnt
from emat.methods.pixel_features import WORKING_SIDE
from emat.refine.mobilesam import MobileSAM
from emat.refine.regions import Map, Mask
from tests.refine.conftest import mobilesam

__all__ = ["mobilesam"]


def _stripes(side: int) -> list[Example]:
    """Two photos of fine stripes, which are lost where a photo is shrunk too far."""
    shown = []
    for seed in (1, 2):
        draw = np.random.RandomState(seed)
        photo = draw.randint(90, 130, (side // 2, side, 3)).astype(np.uint8)
        mask = np.zeros(photo.shape[:2], bool)
        mask[:, side // 4 + 2 * seed : side // 2] = True
        photo[:, ::2][mask[:, ::2]] = (200, 60, 50)
        shown.append(Example(photo, {"stripes": mask}, name=f"photo {seed}"))
    return shown


def test_a_file_keeps_the_size_it_was_fitted_at(tmp_path: Path) -> None:
    segmenter = Segmenter.load("default", device="cpu", size=120).fit(_stripes(200))
    assert max(example.working.photo.shape[1] for example in segmenter.examples_ if example.working) == 200
    assert segmenter.working_side == 120
    segmenter.save(tmp_path / "stripes.emat")
    loaded = Segmenter.load(tmp_path / "stripes.emat", device="cpu")
    assert loaded.working_side == 120
    photo = _stripes(200)[0].photo
    assert loaded.predict(photo).scores == segmenter.predict(photo).scores


def _lines(seed: int, width: int, side: int = 300) -> Example:
    """A photo of dark lines of a width, across the photo."""
    draw = np.random.RandomState(seed)
    photo = draw.randint(150, 190, (side, side, 3)).astype(np.uint8)
    mask = np.zeros((side, side), bool)
    for row in draw.randint(10, side - 30, 3):
        mask[row : row + width] = True
    photo[mask] = (60, 50, 50)
    return Example(photo, {"line": mask}, name=f"photo {seed}")


def test_thin_masks_are_learnt_from_at_a_larger_size(tmp_path: Path) -> None:
    thick, thin = ([_lines(seed, width) for seed in (1, 2)] for width in (20, 2))
    segmenter = Segmenter.load("prototype", device="cpu", learn=True).fit(thick)
    assert segmenter.working_side == WORKING_SIDE
    segmenter.fit(thin)
    assert segmenter.working_side == 2 * 300, "as far as a photo of 300 pixels allows"
    assert isinstance(segmenter.learnt_, Learnt)
    assert segmenter.learnt_.working_side == segmenter.working_side
    segmenter.save(tmp_path / "thin.emat")
    loaded = Segmenter.load(tmp_path / "thin.emat", device="cpu")
    assert loaded.working_side == segmenter.working_side
    photo = _lines(3, 2).photo
    assert (loaded.predict(photo).label_map == segmenter.predict(photo).label_map).all()
    # The size follows the examples, so that removing some equals never having shown them.
    mixed = Segmenter.load("prototype", device="cpu", learn=True).fit([_lines(1, 2), *thick])
    assert mixed.working_side == WORKING_SIDE
    assert mixed.remove(2).remove(1).working_side == segmenter.working_side
    given = Segmenter.load("prototype", device="cpu", learn=True, size=WORKING_SIDE).fit(thin)
    assert given.working_side == WORKING_SIDE


def test_small_photos_are_not_tried_at_a_larger_size() -> None:
    tried: list[int | None] = []

    def fitted(side: int | None) -> Segmenter:
        tried.append(side)
        return Segmenter.load("default", device="cpu", size=side).fit(_stripes(60))

    segmenter, said = best_size(fitted)
    assert (tried, said, segmenter.working_side) == ([None], None, WORKING_SIDE)


def test_of_large_photos_the_better_forecast_is_kept_and_said() -> None:
    found: dict[int, float] = {}

    def fitted(side: int | None) -> Segmenter:
        segmenter = Segmenter.load("default", device="cpu", size=side).fit(_stripes(440))
        found[segmenter.working_side] = segmenter.forecast_["stripes"].iou or 0.0
        return segmenter

    segmenter, said = best_size(fitted)
    better = found[2 * WORKING_SIDE] >= found[WORKING_SIDE] + 0.02
    assert segmenter.working_side == WORKING_SIDE * (2 if better else 1)
    assert said is not None
    assert said.startswith("The larger size helps" if better else "A larger size does not help")


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_size_that_is_no_size_is_refused(size: int) -> None:
    with pytest.raises(EmatError, match="the working size is 64 to 2000 pixels"):
        Segmenter.load("default", device="cpu", size=size)


# Refinement


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
    ring = disc & ~ndimage.binary_erosion(disc, iterations=10)  # nothing in the photo shows its inner edge
    left_out: list[int] = []

    def predict(photo: Pixels, others: KnownExamples) -> Prediction:
        left_out.append(len(others.examples))
        return Prediction(photo, {"it": 0.9}, {"it": map_})

    map_ = coarse(disc)
    assert suits_refinement(objects := known(photo, disc, disc), "it", predict)
    assert gain_of(objects, "it", predict) > 0.05
    map_ = np.clip(1.6 * ndimage.gaussian_filter(ring.astype(np.float32), 6), 0, 1)
    assert not suits_refinement(rings := known(photo, ring, ring), "it", predict)
    assert set(left_out) == {1}
    asked = len(left_out)
    assert not suits_refinement(rings, "it", predict)
    assert len(left_out) == asked, "the same examples are asked once"


def test_one_example_must_show_what_mobilesam_can_draw(mobilesam: MobileSAM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emat.refine.mobilesam._loaded", [mobilesam])
    photo, disc = disc_photo()
    ring = disc & ~ndimage.binary_erosion(disc, iterations=10)  # nothing in the photo shows its inner edge

    def predict(photo: Pixels, others: KnownExamples) -> Prediction:
        raise AssertionError("nothing is predicted")

    assert suits_refinement(known(photo, disc), "it", predict)
    assert not suits_refinement(known(photo, ring), "it", predict)


def test_one_example_or_thin_ones_are_never_left_out() -> None:
    photo, disc = disc_photo()

    def predict(photo: Pixels, others: KnownExamples) -> Prediction:
        raise AssertionError("nothing is predicted")

    crack = np.zeros_like(disc)
    crack[60:62, 5:150] = True
    assert suits_refinement(known(photo, disc), "it", predict)
    assert not suits_refinement(known(photo, crack, crack), "it", predict)
