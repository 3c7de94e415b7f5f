"""Classes that lie on each other do not compete: a leaf reaches below its lesions."""

from pathlib import Path

import numpy as np
import pytest

from emat import Example, Segmenter
from emat.inference.example import MaskedPhoto
from emat.inference.postprocessing import ClassRules, make_labels
from emat.inference.prediction import Prediction, Thresholds
from emat.measure import MeasureOptions
from emat.measure.shares import Within
from tests.raises import raises_code

SIZE = (60, 80)
LEAF, LESION, STEM = np.zeros(SIZE, bool), np.zeros(SIZE, bool), np.zeros(SIZE, bool)
LEAF[10:50, 10:60], LESION[20:26, 20:26], STEM[20:40, 65:78] = True, True, True
MAPS = {
    "lesion": np.where(LESION, 0.7, 0.05).astype(np.float32),
    "leaf": np.where(LEAF, 0.95, 0.05).astype(np.float32),
    "stem": np.where(STEM, 0.9, 0.05).astype(np.float32),
}
SCORES = dict.fromkeys(MAPS, 0.9)


def prediction(*order: str) -> Prediction:
    rules = {
        name: ClassRules(Thresholds(), lies_on=order[order.index(name) + 1 :] if name in order else ()) for name in MAPS
    }
    return Prediction(np.zeros((*SIZE, 3), np.uint8), SCORES, MAPS, rules)


def test_a_leaf_takes_its_lesion_if_both_compete() -> None:
    assert not prediction().mask("lesion").any()


def test_masks_of_classes_that_overlap_are_whole() -> None:
    found = prediction("lesion", "leaf")
    assert np.array_equal(found.mask("lesion"), LESION)
    assert np.array_equal(found.mask("leaf"), LEAF)
    assert np.array_equal(found.mask("stem"), STEM)
    assert found.overlapped == {"leaf"}


def test_in_the_label_map_the_upper_class_has_priority() -> None:
    labels = prediction("lesion", "leaf").label_map
    assert np.array_equal(labels == 1, LESION)
    assert np.array_equal(labels == 2, LEAF & ~LESION)
    layers = make_labels(SIZE, SCORES, MAPS.__getitem__, prediction("lesion", "leaf").rules)
    assert np.array_equal(layers.below == 2, LEAF)


def test_a_class_only_lies_on_the_classes_that_were_named() -> None:
    on_stem = {**MAPS, "lesion": np.where(LESION | STEM, 0.7, 0.05).astype(np.float32)}
    found = Prediction(np.zeros((*SIZE, 3), np.uint8), SCORES, on_stem, prediction("lesion", "leaf").rules)
    assert np.array_equal(found.mask("lesion"), LESION)


def test_severity_is_of_the_whole_leaf() -> None:
    options = MeasureOptions(groups=(), within=(Within("lesion", "leaf"),))
    rows = {row["class"]: row for row in prediction("lesion", "leaf").measure(options).photos}
    assert rows["lesion"]["within_area"] == LEAF.sum()
    assert rows["lesion"]["share_within"] == pytest.approx(100 * LESION.sum() / LEAF.sum())


def test_examples_of_the_lower_class_reach_below_the_upper_one() -> None:
    shown = MaskedPhoto(
        np.zeros((*SIZE, 3), np.uint8), {"lesion": LESION, "leaf": LEAF & ~LESION}, np.zeros(SIZE, bool)
    )
    assert np.array_equal(shown.with_overlap(("lesion", "leaf")).masks["leaf"], LEAF)
    assert np.array_equal(shown.with_overlap(()).masks["leaf"], LEAF & ~LESION)


def test_a_fitted_file_remembers_what_overlaps(tiny_head: Path, tmp_path: Path) -> None:
    photo = np.random.default_rng(0).integers(0, 255, (*SIZE, 3), np.uint8)
    example = Example(photo, {"lesion": LESION, "leaf": LEAF & ~LESION})
    new = Segmenter.load(tiny_head, learn=False, refine=None, overlap=("lesion", "leaf")).fit([example])
    new.save(tmp_path / "a.emat")
    loaded = Segmenter.load(tmp_path / "a.emat")
    assert loaded.decisions_.overlap == ("lesion", "leaf")
    assert loaded.rules_["lesion"].lies_on == ("leaf",)
    assert loaded.predict(photo).overlapped == {"leaf"}
    with raises_code("unknown-class", "'stem'"):
        Segmenter.load(tiny_head, learn=False, refine=None, overlap=("lesion", "stem")).fit([example])
