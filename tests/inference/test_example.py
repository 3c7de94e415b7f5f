"""Masks as people give them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco

from emat.inference.example import Example, Scribble
from tests.raises import raises_code

PHOTO = np.zeros((20, 30, 3), np.uint8)
SQUARE = np.zeros((20, 30), bool)
SQUARE[5:15, 10:20] = True
CORNERS = [(10, 5), (20, 5), (20, 15), (10, 15)]


def _forms(folder: Path) -> dict[str, object]:
    png = folder / "mask.png"
    Image.fromarray(SQUARE.astype(np.uint8) * 255).save(png)
    flat = [number for corner in CORNERS for number in corner]
    column_major = SQUARE.ravel(order="F")
    changes = np.flatnonzero(np.diff(column_major.astype(np.int8))) + 1
    counts = np.diff([0, *changes, column_major.size]).tolist()
    return {
        "path": png,
        "text": str(png),
        "bytes": png.read_bytes(),
        "picture": Image.open(png),
        "bool": SQUARE,
        "numbers": SQUARE.astype(np.int64) * 7,
        "box": (10, 5, 20, 15),
        "list box": [10.0, 5.0, 20.0, 15.0],
        "corners": CORNERS,
        "flat polygon": flat,
        "polygons": [flat],
        "several": [[(10, 5), (20, 5), (20, 10), (10, 10)], [10, 10, 20, 10, 20, 15, 10, 15]],
        "run lengths": {"size": [20, 30], "counts": counts},
        "compressed": coco.encode(np.asfortranarray(SQUARE.astype(np.uint8))),
    }


def test_the_same_region_is_the_same_mask_however_it_is_given(tmp_path: Path) -> None:
    for form, mask in _forms(tmp_path).items():
        read = Example(PHOTO, {"square": mask}).read().masks["square"]  # type: ignore[dict-item]
        assert np.array_equal(read, SQUARE), form


def test_a_mask_is_drawn_on_the_photo_as_people_see_it(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned
    path = tmp_path / "turned.jpg"
    Image.new("RGB", (30, 20)).save(path, exif=exif)
    shown = Example(path, {"all": np.ones((30, 20), bool)}).read()
    assert shown.photo.shape == (30, 20, 3)
    with raises_code("mask-size", "30", "20"):
        Example(path, {"all": np.ones((20, 30), bool)}).read()


def _scribble(**parts: Any) -> Scribble:
    return Scribble(**parts)


def test_a_mask_of_another_size_is_called_by_its_class_also_where_void_has_that_size_too() -> None:
    small = np.ones((10, 10), bool)
    with raises_code("mask-size", "'cat'"):
        Example(PHOTO, {"cat": small}, void=~small).read()


@pytest.mark.parametrize(
    ("mask", "code"),
    [
        (np.zeros((20, 30), bool), "empty-mask"),
        (np.ones((10, 10), bool), "mask-size"),
        (np.ones((20, 30), np.float32), "mask-values"),
        ({"size": [10, 10], "counts": [0, 100]}, "mask-size"),
        ({"size": [20, 30], "counts": [5]}, "bad-outline"),
        ({"counts": [5]}, "bad-outline"),
        ((20, 5, 10, 15), "bad-outline"),
        ((50, 50, 60, 60), "empty-mask"),
        ([(1, 2), (3, 4)], "bad-outline"),
        ([1, 2, 3, 4, 5], "bad-outline"),
        (5, "bad-outline"),
        ("no_such_mask.png", "no-such-file"),
        (_scribble(points=[(1, 2, 3), (4, 5, 6)]), "bad-outline"),
        (_scribble(points=[3, 4]), "bad-outline"),
        (_scribble(strokes=[(3, 4), (5, 6)]), "bad-outline"),
        (_scribble(points=[("a", 4)]), "bad-outline"),
        (_scribble(points=[(3, 4)], width="5"), "bad-outline"),
        (Scribble(points=[(40, 25)]), "bad-outline"),
        (_scribble(points=np.array([(40, 25)])), "bad-outline"),
        (Scribble(), "empty-mask"),
    ],
)
def test_a_mask_that_cannot_be_used_is_refused_in_one_sentence(mask: object, code: str) -> None:
    with raises_code(code) as caught:
        Example(PHOTO, {"cat": mask}, name="a.jpg").read()  # type: ignore[dict-item]
    assert "\n" not in str(caught.value)


def test_an_example_without_masks_is_a_negative_and_an_empty_name_is_refused() -> None:
    assert Example("a.jpg", {}).masks == {}
    with raises_code("bad-example", "list"):
        Example("a.jpg", [SQUARE])  # type: ignore[arg-type]
    with raises_code("bad-example", "absent"):
        Example("a.jpg", {}, absent="cat")
    with raises_code("bad-example"):
        Example("a.jpg", {"cat": SQUARE}, absent=["cat"])
    with raises_code("bad-example", "undecided"):
        Example("a.jpg", {}, undecided="cat")
    with raises_code("bad-example", "'cat'"):
        Example("a.jpg", {"cat": SQUARE}, undecided=["cat"])
    with raises_code("empty-mask"):
        Example("a.jpg", {}, sparse=True)
    with raises_code("bad-class-name"):
        Example("a.jpg", {" ": SQUARE})


@pytest.mark.parametrize(
    ("content", "code"),
    [(None, "no-such-file"), (b"", "empty-file"), (b"\xff\xd8\xff\xe0 no photo", "damaged-file")],
)
def test_a_photo_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, code: str) -> None:
    path = tmp_path / "bad.jpg"
    if content is not None:
        path.write_bytes(content)
    with raises_code(code, "bad.jpg"):
        Example(path, {"cat": SQUARE}).read()


def test_undecided_pixels_are_neither_the_class_nor_its_background() -> None:
    photo = np.zeros((4, 6, 3), np.uint8)
    mask = np.zeros((4, 6), np.uint8)
    mask[:, :2], mask[:, 2] = 1, 255
    void = np.zeros((4, 6), bool)
    void[0] = True
    shown = Example(photo, {"cat": mask}, void=void).read()
    known, other = shown.pixel_labels()
    assert known["cat"].tolist()[1] == [1, 1, 255, 0, 0, 0]
    assert (known["cat"][0] == 255).all()
    assert other.tolist()[1] == [0, 0, 255, 0, 0, 0]
    assert shown.masks["cat"].sum() == 6
    with raises_code("empty-mask"):
        Example(photo, {"cat": mask}, void=np.ones((4, 6), bool)).read()
    with raises_code("empty-mask"):
        Example(photo, {"cat": (0, 0, 6, 1)}, void=void).read()


def test_a_white_mask_is_an_object_and_not_undecided() -> None:
    mask = np.zeros((4, 6), np.uint8)
    mask[1:3, 1:3] = 255
    assert Example(np.zeros((4, 6, 3), np.uint8), {"cat": mask}).read().masks["cat"].sum() == 4


def test_of_a_sparse_example_only_the_strokes_are_known() -> None:
    strokes = {"cat": Scribble(strokes=[[(2, 2), (2, 7)]], width=1), "background": Scribble(points=[(8, 8)], width=3)}
    shown = Example(np.zeros((10, 12, 3), np.uint8), strokes, sparse=True).read()
    assert set(shown.masks) == {"cat"}
    known, other = shown.pixel_labels()
    assert (known["cat"] == 1).sum() == 6
    assert (known["cat"] == 0).sum() == 5
    assert (known["cat"] == 255).sum() == 120 - 11
    assert (other == 0).sum() == 11


def test_what_is_absent_is_known_and_the_rest_is_not() -> None:
    photo = np.zeros((4, 6, 3), np.uint8)
    known, other = Example(photo, {}, absent=["crack"]).read().pixel_labels()
    assert (known["crack"] == 0).all()
    assert (other == 255).all()
    assert (Example(photo, {}).read().pixel_labels()[1] == 0).all()


def test_class_names_are_tidied() -> None:
    photo = np.zeros((4, 4, 3), np.uint8)
    example = Example(photo, {"cafe\u0301 ": (0, 0, 2, 2)}, absent=[" dog"], undecided=["elk "])
    assert (tuple(example.masks), example.absent, example.undecided) == (("caf\u00e9",), ("dog",), ("elk",))
    with raises_code("given-twice"):
        Example(photo, {"cat": (0, 0, 2, 2), "cat ": (0, 0, 2, 2)})
    with raises_code("bad-class-name"):
        Example(photo, {"a\nb": (0, 0, 2, 2)})


@pytest.mark.parametrize("name", ["void", "Background", "__ignore__"])
def test_a_class_that_no_format_can_write_is_not_learnt(name: str) -> None:
    photo = np.zeros((4, 4, 3), np.uint8)
    for given in ({"masks": {name: (0, 0, 2, 2)}}, {"masks": {}, "absent": [name]}):
        with raises_code("reserved-class-name"):
            Example(photo, **given)
    Example(photo, {"cat": (0, 0, 2, 2), "background": (2, 2, 4, 4)}, sparse=True)


def test_masks_that_do_not_fit_into_the_memory_are_refused_before_they_are_read() -> None:
    photo = np.broadcast_to(np.uint8(0), (9000, 9000, 3))
    with raises_code("photo-too-large", "18 masks of 9000 x 9000"):
        Example(photo, {f"class {number}": (1, 1, 9, 9) for number in range(18)}).read()
