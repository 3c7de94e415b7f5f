"""A segmenter that refines, and single objects of a prediction."""

import numpy as np
import pytest

from emat import Example, Prediction, Segmenter
from emat.inference.postprocessing import ClassRules
from emat.methods.base import Thresholds
from emat.refine.mobilesam import MobileSAM
from emat.refine.refiner import Refinement
from tests.inference.colour_method import ColourMethod
from tests.raises import raises_code
from tests.refine.conftest import mobilesam

__all__ = ["mobilesam"]

RED, GREY = (230, 20, 20), (90, 90, 90)


def two_discs() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    y, x = np.ogrid[:64, :96]
    photo = np.full((64, 96, 3), GREY, np.uint8)
    photo[((y - 32) ** 2 + (x - 30) ** 2 <= 300) | ((y - 32) ** 2 + (x - 62) ** 2 <= 300)] = RED
    return photo


def test_a_refining_segmenter_draws_closer_to_the_edges() -> None:
    photo = two_discs()
    shown = Example(photo, {"red": (20, 22, 40, 42)})
    plain, guided = (Segmenter(ColourMethod(), refine=way).fit([shown]) for way in (None, "guided"))
    truth = photo[..., 0] == RED[0]
    wrong = [int((one.predict(photo).mask("red") != truth).sum()) for one in (plain, guided)]
    assert wrong[1] < wrong[0]


def test_a_copy_refines_as_its_original_does() -> None:
    assert Segmenter(ColourMethod(), refine="guided").copy().refine == "guided"


def test_another_way_is_refused() -> None:
    with raises_code("unknown-choice", "'sharp'"):
        Segmenter(ColourMethod(), refine="sharp")  # type: ignore[arg-type]


def test_touching_objects_of_a_prediction_are_counted_apart() -> None:
    photo = two_discs()
    map_ = (photo[..., 0] == RED[0]).astype(np.float32)
    prediction = Prediction(photo, {"disc": 0.9, "none": 0.1}, {"disc": map_, "none": map_})
    found = prediction.instances("disc")
    assert len(found) == 2
    assert sum(row.area for row in found.rows) == int(map_.sum())
    assert sorted(round(row.centroid[0]) for row in found.rows) == [30, 62]
    assert len(prediction.instances("none")) == 0  # it is not present
    assert prediction.object_image.max() == 2
    with raises_code("unknown-class"):
        prediction.instances("cat")


def test_objects_of_mobilesam_decide_where_they_are_known() -> None:
    photo = two_discs()
    map_ = (photo[..., 0] == RED[0]).astype(np.float32)
    whole = np.where(map_[::2, ::2] > 0, 1, 0).astype(np.int32)  # one object, at half the size
    prediction = Prediction(photo, {"disc": 0.9}, {"disc": map_}, objects={"disc": whole})
    assert max(row.area for row in prediction.instances("disc").rows) > 0.9 * map_.sum()


def test_auto_follows_the_edges_where_examples_show_no_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emat.refine.mobilesam._loaded", [MobileSAM()])  # untrained, and not to be asked
    photo = two_discs()
    thin = np.zeros(photo.shape[:2], bool)
    thin[32, 20:40] = True
    shown = Example(photo, {"red": thin})
    guided, auto = (Segmenter(ColourMethod(), refine=way).fit([shown]).predict(photo) for way in ("guided", "auto"))
    assert np.array_equal(guided.probability("red"), auto.probability("red"))
    assert not auto.objects


def test_what_is_left_of_a_region_that_another_class_took_is_dropped(
    mobilesam: MobileSAM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emat.refine.mobilesam._loaded", [mobilesam])
    photo = two_discs()
    y, x = np.ogrid[:64, :96]
    left = (y - 32) ** 2 + (x - 30) ** 2 <= 300
    wide = left | ((y < 16) & (abs(x - 30) < 12))
    maps = {"disc": np.where(left, 0.9, 0.1).astype(np.float32), "blob": np.where(wide, 0.6, 0.1).astype(np.float32)}
    prediction = Prediction(photo, {"disc": 0.9, "blob": 0.9}, maps, rules_of(disc="auto", blob="guided"))
    assert prediction.present == {"disc", "blob"}
    assert prediction.refined().present == {"disc"}


def rules_of(**ways: Refinement) -> dict[str, ClassRules]:
    return {name: ClassRules(Thresholds(), way) for name, way in ways.items()}


def test_guided_refinement_does_not_move_pixels_from_one_class_to_another() -> None:
    random = np.random.default_rng(0)
    photo = random.integers(0, 256, (48, 64, 3), dtype=np.uint8)
    left = np.broadcast_to(np.arange(64) < 32, (48, 64))
    cat = np.linspace(0.95, 0.05, 64, dtype=np.float32)[None].repeat(48, axis=0)
    dog = cat[:, ::-1].copy()
    cow = np.asarray(0.98 * np.maximum(cat, dog), np.float32)
    maps = {"cat": cat, "dog": dog, "cow": cow}
    rules = rules_of(cat="guided", dog="guided", cow="guided")
    after = Prediction(photo, dict.fromkeys(maps, 0.9), maps, rules).refined()
    assert (after.maps["cat"] >= after.maps["dog"])[left].all()
    assert (after.maps["dog"] >= after.maps["cat"])[~left].all()
    assert after.present == {"cat", "dog"}, "the cow had no pixel before"
    assert not np.array_equal(after.maps["cat"], maps["cat"])
