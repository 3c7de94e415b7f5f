"""OK and NOT OK follow from what was measured, and the number of false OKs to expect is told."""

import numpy as np
import pytest

from emat.measure import MeasureOptions, Scene, measure
from emat.measure.shares import Within
from emat.measure.units import Scale
from emat.measure.verdicts import Condition, Confidence
from tests.measure.shapes import bar, scene_of
from tests.raises import raises_code

SCENE = scene_of(bar(200, 10), names=("hair crack",))
NOTHING = scene_of(np.zeros((50, 50), bool), names=("hair crack",))
MM = Scale(0.05, "mm", "test")


def is_ok(text: str, scene: Scene = SCENE, scale: Scale | None = None, groups: tuple[str, ...] = ("skeleton",)) -> bool:
    condition = Condition.read(text, ["hair crack", "hair"])
    found = measure(scene, MeasureOptions(groups=groups, scale=scale, accept=(condition,)))
    assert found.photos[0]["verdict"] == ("OK" if found.verdict else "NOT OK")
    return bool(found.verdict)


def test_conditions_are_about_a_class() -> None:
    assert not is_ok("hair crack.area == 0")
    assert is_ok("hair crack.area == 0", NOTHING)
    assert is_ok("hair crack.count <= 2")
    assert not is_ok("hair crack.share < 0.5%")


def test_conditions_are_about_columns_of_objects_too() -> None:
    assert is_ok("hair crack.width_max.max <= 12")
    assert not is_ok("hair crack.width_max.max <= 8px")
    assert is_ok("hair crack.skeleton_length.sum <= 0", NOTHING)


def test_limits_may_have_a_unit() -> None:
    assert is_ok("hair crack.width_max.max <= 0.6mm", scale=MM)
    assert not is_ok("hair crack.width_max.max <= 300 um", scale=MM)
    assert not is_ok("hair crack.area <= 4.9 mm2", scale=MM)
    assert is_ok("hair crack.area <= 5.1 mm2", scale=MM)
    with raises_code("unknown-pixel-size"):
        is_ok("hair crack.area <= 5 mm2")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("hair crack.area", "unclear-option"),
        ("scratch.area == 0", "unknown-class"),
        ("hair crack.width_max <= 3", "unknown-choice"),
        ("hair crack.width_max.median <= 3", "unknown-choice"),
        ("hair crack.area <= 3mm", "unknown-unit"),
        ("hair crack.count <= 3mm", "unknown-unit"),
        ("hair crack.count <= 3px", "unknown-unit"),
        ("hair crack.area <= 3%", "unknown-unit"),
        ("hair crack.colour.max <= 3", "unknown-column"),
    ],
)
def test_what_is_no_condition_is_refused(text: str, code: str) -> None:
    with raises_code(code):
        Condition.read(text, ["hair crack", "hair"])


@pytest.mark.parametrize("scene", [SCENE, NOTHING])
def test_a_column_that_was_not_measured_is_named(scene: Scene) -> None:
    with raises_code("unknown-column", "add skeleton to --properties"):
        is_ok("hair crack.width_max.max <= 3", scene, groups=("size",))
    with raises_code("missing-option", "--within hair crack=leaf"):
        is_ok("hair crack.share_within <= 3%", scene)


def test_a_limit_without_a_unit_could_be_pixels_or_millimetres() -> None:
    assert is_ok("hair crack.area >= 0", scale=MM), "nothing is nothing in every unit"
    assert not is_ok("hair crack.width_max.max <= 0.6px", scale=MM)
    with raises_code("unclear-option", "write 0.6mm or 0.6px"):
        is_ok("hair crack.width_max.max <= 0.6", scale=MM)
    from_file = MeasureOptions(accept=(Condition.read("hair crack.area <= 5", ["hair crack"]),))
    with raises_code("unclear-option", "write 5mm2 or 5px"):
        measure(SCENE, from_file, in_file=MM)


def test_severity_of_a_leaf_that_is_not_there_is_not_ok() -> None:
    conditions = (Condition.read("lesion.share_within <= 5%", ["lesion", "leaf"]),)
    options = MeasureOptions(groups=(), within=(Within("lesion", "leaf"),), accept=conditions)
    nothing = np.zeros((50, 50), bool)
    leaf = np.ones((50, 50), bool)
    assert measure(scene_of(nothing, leaf, names=("lesion", "leaf")), options).verdict is True
    assert measure(scene_of(nothing, nothing, names=("lesion", "leaf")), options).verdict is False


def test_false_oks_are_counted_among_what_is_not_ok() -> None:
    found = Confidence.of([(False, True), (False, False), (False, False), (True, True), (True, False)])
    assert (found.not_ok, found.false_ok, found.false_alarms) == (3, 1, 1)
    assert found.interval == pytest.approx((0.0084, 0.9057), abs=1e-3)
    assert "expect 33% false OKs (1% to 91%" in found.sentence()


def test_without_anything_to_refuse_nothing_is_known() -> None:
    assert "not known how many false OKs" in Confidence.of([(True, True)] * 4).sentence()


def test_no_false_ok_on_few_examples_is_no_proof() -> None:
    low, high = Confidence.of([(False, False)] * 3).interval
    assert low == 0
    assert high == pytest.approx(0.708, abs=1e-3)
