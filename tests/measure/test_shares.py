"""Severity: how much of one class another covers."""

from dataclasses import replace

import numpy as np
import pytest

from emat.measure import MeasureOptions, Scene, measure
from emat.measure.shares import Within, otsu_region
from tests.measure.shapes import disc, scene_of
from tests.raises import raises_code

LESION_IN_LEAF = MeasureOptions(groups=(), within=(Within("lesion", "leaf"),))


def leaf_with_lesion() -> Scene:
    label_map = np.zeros((100, 200), np.uint8)
    label_map[20:80, 20:80] = 2  # a leaf of 3600 pixels
    label_map[30:50, 30:48] = 1  # with a lesion of 360
    label_map[20:80, 110:170] = 2  # a leaf without
    label_map[2:8, 2:8] = 1  # a lesion on nothing
    return Scene.of_label_map(
        np.zeros((100, 200, 3), np.uint8), label_map, ("lesion", "leaf"), "a.png", touching="together"
    )


def test_the_share_of_a_photo_and_of_each_leaf() -> None:
    found = measure(leaf_with_lesion(), LESION_IN_LEAF)
    lesion = next(row for row in found.photos if row["class"] == "lesion")
    assert (lesion["within"], lesion["within_area"], lesion["area_within"]) == ("leaf", 7200, 360)
    assert lesion["share_within"] == 5
    leaves = [row for row in found.objects if row["class"] == "leaf"]
    assert [row["percent_lesion"] for row in leaves] == [10, 0]
    lesions = [row for row in found.objects if row["class"] == "lesion"]
    assert [row["id_of_leaf"] for row in lesions] == [None, leaves[0]["id"]]


def test_a_leaf_around_its_lesion_is_one_leaf() -> None:
    label_map = np.zeros((300, 700), np.uint8)
    label_map[70:230, 40:240] = 2
    label_map[70:230, 400:600] = 2
    label_map[:, :500][np.roll(disc(30), (-100, -110), (0, 1))[:300]] = 1
    label_map[120:180, 470:530] = 0  # a hole in which no lesion is
    scene = Scene.of_label_map(np.zeros((300, 700, 3), np.uint8), label_map, ("lesion", "leaf"), "a.png")
    pieces = np.unique(scene.objects["leaf"][:, :300])[1:]
    leaves = [row for row in measure(scene, LESION_IN_LEAF).objects if row["class"] == "leaf"]
    assert len(pieces) > 1, "otherwise this test shows nothing"
    on_the_left = [row for row in leaves if float(row["centroid_x"] or 0) < 300]
    assert [row["percent_lesion"] for row in on_the_left] == [pytest.approx(100 * disc(30).sum() / 32000)]
    assert len(leaves) > 2, "nothing says that the other leaf is one"


def test_a_leaf_that_overlaps_is_taken_as_it_is() -> None:
    cut = leaf_with_lesion()
    whole = cut.mask("leaf") | (cut.mask("lesion") & (np.arange(100)[:, None] > 20))
    scene = replace(cut, objects={"lesion": cut.objects["lesion"]}).with_class("leaf", whole, "masks")
    found = measure(scene, LESION_IN_LEAF)
    assert next(row for row in found.photos if row["class"] == "lesion")["share_within"] == 5


def test_a_share_of_nothing_is_empty() -> None:
    scene = scene_of(disc(20), np.zeros((500, 500), bool), names=("lesion", "leaf"))
    found = measure(scene, LESION_IN_LEAF)
    assert found.photos[0]["share_within"] is None
    assert found.photos[0]["within_area"] == 0


@pytest.mark.parametrize("ground", [(250, 250, 250), (10, 10, 10), (150, 150, 150)])
def test_otsu_finds_a_leaf_on_any_ground(ground: tuple[int, int, int]) -> None:
    leaf = disc(120)
    photo = np.empty((500, 500, 3), np.uint8)
    photo[...] = ground
    photo[leaf] = (60, 140, 50)
    photo[disc(20)] = (120, 90, 40)
    noisy = photo + np.random.default_rng(0).normal(0, 4, photo.shape)
    found = otsu_region(noisy.clip(0, 255).astype(np.uint8))
    assert (found & leaf).sum() / (found | leaf).sum() > 0.98


def test_otsu_finds_nothing_on_an_even_photo() -> None:
    assert not otsu_region(np.full((20, 20, 3), 90, np.uint8)).any()


def test_a_class_that_does_not_exist_is_named() -> None:
    with raises_code("unknown-class", "'stem'"):
        measure(leaf_with_lesion(), MeasureOptions(within=(Within("lesion", "stem"),)))
    with raises_code("unclear-option"):
        Within.read("lesion")
