"""A segmenter that learns: what changes nothing, what it says of itself, what it refuses."""

from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from numpy.typing import NDArray

from emat import Example, Segmenter
from emat.images import Reading
from emat.inference.example import Scribble
from emat.inference.forecast import Forecast
from emat.pixel_learner.features import WORKING_SIDE
from emat.tensor_files import load_safetensors, read_metadata, write_tensors
from tests.raises import raises_code

SIZE = (48, 64)


def _photo(seed: int, spots: int = 9) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Red spots on a noisy grey ground, and where they are."""
    draw = np.random.RandomState(seed)
    photo = draw.randint(90, 130, (*SIZE, 3)).astype(np.uint8)
    mask = np.zeros(SIZE, bool)
    for _ in range(spots):
        y, x = draw.randint(4, SIZE[0] - 4), draw.randint(4, SIZE[1] - 4)
        mask[y - 3 : y + 3, x - 3 : x + 3] = True
    photo[mask] = (200, 60, 50)
    return photo, mask


def _examples(*seeds: int) -> list[Example]:
    return [Example(photo, {"spot": mask}, name=f"photo {seed}") for seed in seeds for photo, mask in [_photo(seed)]]


@pytest.fixture(scope="module")
def learnt() -> Segmenter:
    return Segmenter.load("default", device="cpu").fit(_examples(1, 2, 3))


def test_it_finds_what_the_head_alone_cannot(learnt: Segmenter) -> None:
    photo, mask = _photo(9)
    found = learnt.predict(photo).mask("spot")
    assert (found & mask).sum() / (found | mask).sum() > 0.7


def test_the_forecast_says_what_to_expect(learnt: Segmenter) -> None:
    forecast = learnt.forecast_["spot"]
    assert forecast.examples == 3
    assert forecast.iou is not None
    assert forecast.iou > 0.7
    assert forecast.low is not None
    assert forecast.high is not None
    assert 0.5 < forecast.low < forecast.iou < forecast.high <= 1
    assert forecast.presence is forecast.auroc is None
    assert forecast.sentence("spot") == ""


def test_a_wrong_mask_is_named() -> None:
    photo, mask = _photo(4)
    wrong = Example(photo, {"spot": ~mask}, name="photo 4")
    forecast = Segmenter.load("default", device="cpu").fit([*_examples(1, 2, 3), wrong]).forecast_["spot"]
    assert forecast.least_agreeing == "photo 4"
    assert "photo 4 agrees least" in forecast.sentence("spot")


def test_one_example_has_no_forecast() -> None:
    forecast = Segmenter.load("default", device="cpu").fit(_examples(1)).forecast_["spot"]
    assert forecast == Forecast(examples=1, iou=None, presence=None)
    assert "add a second one" in forecast.sentence("spot")


def test_without_learning_nothing_is_forecast_and_nothing_changes() -> None:
    plain = Segmenter.load("default", device="cpu", learn=False).fit(_examples(1, 2))
    assert plain.forecast_ == {}
    assert plain.examples_[0].working is None


def test_the_same_fit_gives_the_same_bytes_and_a_file_predicts_alike(learnt: Segmenter, tmp_path: Path) -> None:
    again = Segmenter.load("default", device="cpu").fit(_examples(1, 2, 3))
    for name, segmenter in (("one", learnt), ("two", again)):
        segmenter.save(tmp_path / f"{name}.emat")
    assert (tmp_path / "one.emat").read_bytes() == (tmp_path / "two.emat").read_bytes()
    loaded = Segmenter.load(tmp_path / "one.emat", device="cpu")
    photo, _ = _photo(9)
    assert loaded.predict(photo).scores == learnt.predict(photo).scores
    assert (loaded.predict(photo).label_map == learnt.predict(photo).label_map).all()
    assert loaded.forecast_ == learnt.forecast_


def test_removing_an_example_equals_never_having_shown_it(learnt: Segmenter, tmp_path: Path) -> None:
    learnt.save(tmp_path / "spots.emat")
    photo, _ = _photo(9)
    expected = Segmenter.load("default", device="cpu").fit(_examples(1, 3)).predict(photo)
    for segmenter in (learnt.copy(), Segmenter.load(tmp_path / "spots.emat", device="cpu")):
        assert segmenter.remove(1).predict(photo).scores == expected.scores
        assert (segmenter.predict(photo).label_map == expected.label_map).all()


def test_the_order_of_examples_changes_nothing(learnt: Segmenter) -> None:
    photo, _ = _photo(9)
    other = Segmenter.load("default", device="cpu").fit(_examples(3, 1, 2))
    assert other.predict(photo).scores["spot"] == pytest.approx(learnt.predict(photo).scores["spot"], abs=1e-5)
    assert other.forecast_["spot"].iou == pytest.approx(learnt.forecast_["spot"].iou)


def test_what_lies_below_undecided_pixels_changes_nothing() -> None:
    photo, mask = _photo(1)
    void = np.zeros(SIZE, bool)
    void[:, :20] = True
    asked, _ = _photo(9)
    scores = []
    for below in (mask | void, mask & ~void):
        segmenter = Segmenter.load("default", device="cpu").fit([Example(photo, {"spot": below}, void=void)])
        scores.append(segmenter.predict(asked).probability("spot"))
    assert (scores[0] == scores[1]).all()


def test_negatives_set_presence_which_agrees_with_the_mask() -> None:
    negatives = [Example(_photo(seed, spots=0)[0], {}, name=f"empty {seed}") for seed in (11, 12, 13)]
    segmenter = Segmenter.load("default", device="cpu").fit([*_examples(1, 2, 3), *negatives])
    assert segmenter.classes_ == ("spot",)
    assert segmenter.forecast_["spot"].presence == 1
    auroc = segmenter.forecast_["spot"].auroc
    assert auroc is not None
    assert 0.8 < auroc < 1
    for seed, spots in ((9, 9), (14, 0)):
        prediction = segmenter.predict(_photo(seed, spots)[0])
        assert ("spot" in prediction.present) is (spots > 0)
        assert prediction.mask("spot").any() == (spots > 0)


def test_what_may_be_there_is_not_absent() -> None:
    dots = [_photo(seed) for seed in (5, 6)]
    for undecided in ((), ("spot",), ("spot", "a class that nobody shows")):
        other = [Example(255 - photo, {"dot": mask}, undecided=undecided) for photo, mask in dots]
        segmenter = Segmenter.load("default", device="cpu").fit([*_examples(1, 2), *other])
        assert segmenter.classes_ == ("spot", "dot")
        assert (segmenter.forecast_["spot"].presence is None) is bool(undecided)
        assert segmenter.forecast_["dot"].presence is not None


def test_strokes_are_enough() -> None:
    photo, mask = _photo(1)
    rows, columns = np.nonzero(mask)
    inside = [(float(columns[index]), float(rows[index])) for index in range(0, len(rows), 25)]
    outside = [(float(x), float(y)) for y, x in np.argwhere(~mask)[::200]]
    strokes = {"spot": Scribble(points=inside, width=1), "background": Scribble(points=outside, width=1)}
    segmenter = Segmenter.load("default", device="cpu").fit([Example(photo, strokes, sparse=True)])
    asked, truth = _photo(9)
    found = segmenter.predict(asked).probability("spot") >= segmenter.thresholds.mask
    assert (found & truth).sum() / (found | truth).sum() > 0.4
    with raises_code("needs-learning"):
        Segmenter.load("default", device="cpu", learn=False).fit([Example(photo, strokes, sparse=True)])


def test_strokes_promise_nothing_about_whole_photos() -> None:
    strokes = {"spot": Scribble(points=[(1, 1)]), "background": Scribble(points=[(40, 40)])}
    examples = [Example(_photo(seed)[0], strokes, sparse=True) for seed in (1, 2)]
    forecast = Segmenter.load("default", device="cpu").fit(examples).forecast_["spot"]
    assert forecast == Forecast(examples=2, iou=None, presence=None)
    assert forecast.sentence("spot").startswith("strokes on spot do not tell how well it will work")


def test_negatives_alone_and_a_class_of_negatives_alone_are_refused() -> None:
    photo, mask = _photo(1)
    with raises_code("no-classes"):
        Segmenter.load("default", device="cpu").fit([Example(photo, {})])
    with raises_code("unknown-class", "'crack'"):
        Segmenter.load("default", device="cpu").fit(
            [Example(photo, {"spot": mask}), Example(photo, {}, absent=["crack"])]
        )


def test_a_file_without_photos_predicts_and_says_that_it_cannot_learn_again(learnt: Segmenter, tmp_path: Path) -> None:
    learnt.save(tmp_path / "spots.emat", thumbnails=False)
    loaded = Segmenter.load(tmp_path / "spots.emat", device="cpu")
    photo, _ = _photo(9)
    assert loaded.predict(photo).scores == learnt.predict(photo).scores
    for change in (lambda: loaded.remove(0), lambda: loaded.add(_examples(4)[0])):
        with raises_code("photo-not-kept"):
            change()
    assert loaded.predict(photo).scores == learnt.predict(photo).scores, "a refused change leaves what was known"


def test_a_point_on_a_large_photo_is_not_lost() -> None:
    photo = np.full((1500, 2000, 3), 120, np.uint8)
    photo[600:900, 800:1200] = (200, 60, 50)
    strokes = {"spot": Scribble(points=[(1003, 753)]), "background": Scribble(points=[(103, 103)])}
    found = Segmenter.load("default", device="cpu").fit([Example(photo, strokes, sparse=True)]).predict(photo)
    assert found.probability("spot")[750, 1000] > found.probability("spot")[100, 100]


def test_examples_of_one_name_are_told_apart_in_the_forecast() -> None:
    shown = [(photo, mask) for seed in (1, 2, 3) for photo, mask in [_photo(seed)]]
    photo, mask = _photo(4)
    examples = [Example(one, {"spot": where}) for one, where in [*shown, (photo, ~mask)]]
    forecast = Segmenter.load("default", device="cpu").fit(examples).forecast_["spot"]
    assert forecast.least_agreeing == "the array"


def test_the_presence_threshold_of_the_user_decides() -> None:
    empty = [Example(_photo(seed, spots=0)[0], {}, name=f"empty {seed}") for seed in (5, 6)]
    segmenter = Segmenter.load("default", device="cpu").fit([*_examples(1, 2, 3), *empty])
    photo, _ = _photo(9)
    usual = segmenter.predict(photo)
    segmenter.thresholds = type(segmenter.thresholds)(presence=1.0, mask=segmenter.thresholds.mask)
    strict = segmenter.predict(photo)
    assert usual.present == {"spot"}
    assert strict.scores == pytest.approx(usual.scores)
    assert strict.present == set()


def test_a_file_of_an_earlier_version_predicts_alike(learnt: Segmenter, tmp_path: Path) -> None:
    learnt.save(tmp_path / "new.emat")
    tensors, metadata = load_safetensors(tmp_path / "new.emat"), read_metadata(tmp_path / "new.emat")
    del (
        tensors["learnt.side"],
        tensors["learnt.presence_auroc"],
        metadata["size"],
    )  # it had no size of its own, and a fourth number in each mixture
    mixtures = tensors["learnt.mixtures"]
    tensors["learnt.mixtures"] = torch.cat([mixtures, torch.zeros(len(mixtures), 1)], dim=1)
    write_tensors(tmp_path / "old.emat", tensors, metadata)
    loaded = Segmenter.load(tmp_path / "old.emat", device="cpu")
    photo, _ = _photo(9)
    assert loaded.working_side == WORKING_SIDE
    assert (loaded.predict(photo).label_map == learnt.predict(photo).label_map).all()


def _textured(seed: int, contrast: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """A blob of coarse noise on fine noise, lighter by `contrast`; how hard a photo is differs between photos."""
    draw = np.random.RandomState(seed)
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    row, column, radius = draw.randint(15, 33), draw.randint(15, 49), draw.randint(6, 14)
    mask = (y - row) ** 2 + (x - column) ** 2 <= radius**2
    coarse = np.kron(draw.randint(-25, 25, (12, 16)), np.ones((4, 4)))
    grey = draw.randint(90, 130) + draw.randint(-25, 25, SIZE) + np.where(mask, coarse + contrast, 0)
    return np.repeat(grey.clip(0, 255).astype(np.uint8)[..., None], 3, axis=2), mask


def test_the_forecast_is_near_to_what_ten_new_photos_reach() -> None:
    sets = [
        lambda seed: _photo(seed),
        lambda seed: _photo(seed, spots=2),
        lambda seed: _textured(seed, 10),
        lambda seed: _textured(seed, 40),
    ]
    misses = []
    for number, make in enumerate(sets):
        shown = [make(100 * number + seed) for seed in range(15)]
        segmenter = Segmenter.load("prototype", device="cpu", learn=True, size=96)
        segmenter.fit([Example(photo, {"it": mask}) for photo, mask in shown[:5]])
        reached = []
        for photo, mask in shown[5:]:
            found = segmenter.predict(photo).probability("it") >= segmenter.thresholds.mask
            reached.append((found & mask).sum() / (found | mask).sum())
        forecast = segmenter.forecast_["it"].iou
        assert forecast is not None
        misses.append(forecast - float(np.mean(reached)))
    assert np.mean(np.abs(misses)) < 0.11, misses
    assert np.mean(misses) < 0.02, "it does not flatter"


def _stack(path: Path, seed: int) -> NDArray[np.bool_]:
    """Five channels of 16 bits; the spots are in the last one, whose colour another channel fills."""
    _, mask = _photo(seed)
    draw = np.random.RandomState(seed)
    values = draw.randint(900, 1100, (5, *SIZE)).astype(np.uint16)
    values[1] = draw.randint(3900, 4100, SIZE)
    values[1, 0] = 0
    values[4][mask] += 300
    tifffile.imwrite(path, values, ome=True, metadata={"axes": "CYX"}, photometric="minisblack")
    return mask


def test_the_learner_sees_every_channel_and_the_backbone_three(tmp_path: Path) -> None:
    masks = {number: _stack(tmp_path / f"{number}.ome.tif", number) for number in (1, 2, 3, 9)}
    examples = [Example(tmp_path / f"{number}.ome.tif", {"spot": masks[number]}) for number in (1, 2, 3)]
    segmenter = Segmenter.load("default", device="cpu", refine=None).fit(examples)
    segmenter.save(tmp_path / "spots.emat")
    found = Segmenter.load(tmp_path / "spots.emat", device="cpu", refine=None).predict(tmp_path / "9.ome.tif")
    assert found.photo.shape == (*SIZE, 3)
    mask = found.mask("spot")
    assert (mask & masks[9]).sum() / (mask | masks[9]).sum() > 0.6
    with raises_code("channels-differ"):
        segmenter.predict(_photo(9)[0])
    with raises_code("channels-differ"):
        segmenter.fit([*examples, *_examples(1)])
    chosen = Reading(channels=("0", "1", "2"))
    three = Segmenter.load("default", device="cpu", refine=None, reading=chosen).fit(examples)
    blind = three.predict(tmp_path / "9.ome.tif").mask("spot")
    assert (blind & masks[9]).sum() / max(1, (blind | masks[9]).sum()) < 0.4, "the spots are in no other channel"
