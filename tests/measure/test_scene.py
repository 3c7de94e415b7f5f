"""Scenes number objects throughout a photo, and one function removes what does not count."""

import numpy as np
import pytest

from emat.measure import Filters, Scene
from emat.measure.exports import label_planes
from emat.measure.scene import Area, filtered
from emat.measure.units import Scale
from tests.measure.shapes import disc, ring, scene_of
from tests.raises import raises_code


def squares(*sides: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    mask = np.zeros((100, 100), bool)
    for number, side in enumerate(sides):
        mask[10 : 10 + side, 10 + 25 * number : 10 + 25 * number + side] = True
    return mask


def test_numbers_run_through_all_classes() -> None:
    scene = scene_of(squares(3, 4), np.roll(squares(5), 50, axis=0))
    assert {name: np.unique(labels[labels > 0]).tolist() for name, labels in scene.objects.items()} == {
        "a": [1, 2],
        "b": [3],
    }
    assert scene.object_image.max() == 3
    assert np.unique(scene.label_map).tolist() == [0, 1, 2]


def test_small_objects_are_removed_everywhere_and_the_rest_numbered_anew() -> None:
    scene = scene_of(squares(2, 5, 10))
    kept = filtered(scene, Filters(Area(26)))
    assert np.bincount(kept.objects["a"].ravel())[1:].tolist() == [100]
    assert kept.label_map.sum() == kept.object_image.sum() == 100
    assert np.bincount(scene.objects["a"].ravel())[1:].tolist() == [4, 25, 100]


def test_the_smallest_area_may_have_a_unit() -> None:
    scale = Scale(0.5, "um", "test")
    kept = filtered(scene_of(squares(2, 5, 10)), Filters(Area.read("6.25um2")), scale)
    assert np.bincount(kept.objects["a"].ravel())[1:].tolist() == [25, 100]
    with raises_code("unknown-pixel-size", "photo.png"):
        filtered(scene_of(squares(2)), Filters(Area.read("6.25um2")))


def test_border_objects_can_be_dropped_and_holes_filled() -> None:
    mask = ring(30, 60)
    mask[:5, :5] = True
    kept = filtered(scene_of(mask), Filters(border="drop", fill_holes=True))
    assert np.array_equal(kept.mask("a"), disc(60))


def test_a_hole_that_holds_another_object_of_the_class_stays_its_own() -> None:
    kept = filtered(scene_of(ring(30, 60) | disc(20)), Filters(fill_holes=True))
    assert kept.mask("a").sum() == disc(60).sum()
    assert int((kept.objects["a"] == kept.objects["a"][250, 250]).sum()) == disc(20).sum()


@pytest.mark.parametrize("names", [("leaf", "lesion"), ("lesion", "leaf")])
def test_what_lies_in_a_filled_hole_is_still_seen(names: tuple[str, str]) -> None:
    masks = {"leaf": ring(30, 60), "lesion": disc(20)}
    kept = filtered(scene_of(*(masks[name] for name in names), names=names), Filters(fill_holes=True))
    assert np.array_equal(kept.mask("leaf"), disc(60))
    assert np.array_equal(kept.label_map == 1 + names.index("lesion"), disc(20))
    assert np.array_equal(kept.label_map == 1 + names.index("leaf"), disc(60) & ~disc(20))
    planes, planes_of = label_planes(kept)
    assert planes_of == list(names)
    assert (planes > 0).sum() == disc(60).sum() + disc(20).sum(), "every object is whole in a plane of its own"


def test_a_region_lies_below_the_classes() -> None:
    scene = scene_of(disc(20)).with_class("leaf", disc(60), "otsu")
    assert scene.classes == ("a", "leaf")
    assert scene.label_map[250, 250] == 1
    assert scene.mask("leaf").sum() == disc(60).sum()
    assert scene.object_image[250, 250] == 1


def test_a_label_image_keeps_its_objects_apart() -> None:
    image = np.zeros((20, 20), np.uint16)
    image[2:6, 2:6], image[2:6, 6:9] = 300, 7
    scene = Scene.of_label_image(np.zeros((20, 20, 3), np.uint8), image, "cell")
    assert np.bincount(scene.objects["cell"].ravel())[1:].tolist() == [12, 16]


@pytest.mark.parametrize("text", ["20", "5um", "px", "-3px"])
def test_an_area_that_is_none_is_refused(text: str) -> None:
    with raises_code("unclear-option"):
        Area.read(text)


def test_a_mask_of_another_size_is_refused() -> None:
    with raises_code("mask-size"):
        Scene.of_label_map(np.zeros((5, 5, 3), np.uint8), np.zeros((4, 5), np.uint8), ["a"])


def test_of_many_classes_each_keeps_its_index_and_absent_ones_take_no_memory() -> None:
    label_map = np.zeros((400, 500), np.uint16)
    label_map[10:20, 10:20], label_map[50:60, 50:60] = 7, 300
    scene = Scene.of_label_map(np.zeros((400, 500, 3), np.uint8), label_map, [f"class {n}" for n in range(1, 401)])
    kept = filtered(scene, Filters(fill_holes=True, border="drop"))
    assert np.array_equal(kept.label_map, label_map)
    assert kept.object_image.max() == 2
    assert sum(labels.strides != (0, 0) for labels in kept.objects.values()) == 2
