"""What leaving examples out says: the working size that helps, what to expect, and which example stands out."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from emat import Example, Segmenter
from emat.inference.decisions import best_size
from emat.inference.forecast import forecasts
from emat.pixel_learner.cross_validation import Learnt
from emat.pixel_learner.features import WORKING_SIDE
from tests.raises import raises_code


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
    with raises_code("bad-number", "64", "2000"):
        Segmenter.load("default", device="cpu", size=size)


# What is said of classes


def _learnt(left_out: list[list[float]], confusion: list[list[float]] | None = None) -> Learnt:
    """What was reached on each photo, by class."""
    reached = torch.tensor(left_out)
    count = reached.shape[1]
    unknown = torch.full((count,), torch.nan)
    return Learnt(
        mean=torch.zeros(1),
        spread=torch.ones(1),
        weights=torch.zeros(count, 1),
        bias=torch.zeros(count),
        mixtures=torch.zeros(count, 3),
        presence=torch.full((count, 3), torch.nan),
        left_out_iou=reached,
        presence_right=unknown,
        presence_auroc=unknown,
        confusion=None if confusion is None else torch.tensor(confusion),
    )


def test_classes_that_cannot_be_told_apart_are_named() -> None:
    learnt = _learnt([[0.7, 0.6]] * 3, [[0.1, 0.8], [0.05, 0.9]])
    found = forecasts(learnt, ["crop", "weed"], [(f"photo {number}", ("crop", "weed")) for number in range(3)])
    assert found["crop"].sentence("crop") == "of crop, 80% is called weed: show more of both, or a larger --size"
    assert found["weed"].sentence("weed") == ""
    assert found["weed"].called == pytest.approx({"crop": 0.05, "weed": 0.9})


def test_the_sentence_follows_the_lower_end_of_the_range() -> None:
    steady, unsteady = ([[value] for value in values] for values in ((0.5, 0.5, 0.5, 0.5), (0.1, 0.9, 0.2, 0.8)))
    shown = [(f"photo {number}", ("it",)) for number in range(4)]
    assert forecasts(_learnt(steady), ["it"], shown)["it"].sentence("it") == ""
    one = forecasts(_learnt(unsteady), ["it"], shown)["it"]
    assert one.sentence("it").startswith("with these examples it is found at 0.3 to 0.8 IoU")


def test_the_worst_of_a_few_is_not_accused_for_being_the_worst() -> None:
    """The IoU of photos of one class has a standard deviation of 0.17."""
    draw = np.random.RandomState(0)
    shown = [(f"photo {number}", ("it",)) for number in range(5)]
    clean = [np.clip(draw.normal(0.6, 0.17, 5), 0, 1) for _ in range(100)]
    accused = [forecasts(_learnt([[x] for x in row.tolist()]), ["it"], shown)["it"].least_agreeing for row in clean]
    assert sum(each is not None for each in accused) <= 5
    wrong = forecasts(_learnt([[0.8], [0.7], [0.02], [0.75], [0.85]]), ["it"], shown)["it"]
    assert wrong.least_agreeing == "photo 2"


def test_an_example_on_which_nothing_is_found_is_hard_and_not_wrong() -> None:
    shown = [(f"photo {number}", ("it",)) for number in range(5)]
    learnt = _learnt([[0.8], [0.7], [0.02], [0.75], [0.85]])
    for found_there, accused in ((0.05, None), (0.9, "photo 2")):
        areas = torch.tensor([[1.0], [0.9], [found_there], [1.1], [1.0]])
        one = forecasts(replace(learnt, left_out_area=areas), ["it"], shown)["it"]
        assert one.least_agreeing == accused
