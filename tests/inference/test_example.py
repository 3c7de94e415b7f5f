"""Masks as people give them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco

from emat.errors import EmatError
from emat.inference.example import Example, Scribble

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
    with pytest.raises(
        EmatError, match=r"is 30 x 20 pixels but its photo is 20 x 30; save the mask at the photo's size"
    ):
        Example(path, {"all": np.ones((20, 30), bool)}).read()


def _scribble(**parts: Any) -> Scribble:
    return Scribble(**parts)


@pytest.mark.parametrize(
    ("mask", "sentence"),
    [
        (np.zeros((20, 30), bool), "is all background; mark the cat or leave the mask out"),
        (np.ones((10, 10), bool), "is 10 x 10 pixels but its photo is 30 x 20"),
        (np.ones((20, 30), np.float32), "is an array of float32; make it bool"),
        ({"size": [10, 10], "counts": [0, 100]}, "is 10 x 10 pixels but its photo is 30 x 20"),
        ({"size": [20, 30], "counts": [5]}, "cannot be drawn"),
        ({"counts": [5]}, "has no size"),
        ((20, 5, 10, 15), r"a box is \(left, top, right, bottom\)"),
        ((50, 50, 60, 60), "is all background"),
        ([(1, 2), (3, 4)], "is not a polygon"),
        ([1, 2, 3, 4, 5], "is not a polygon"),
        (5, "is a int; give an image"),
        ("no_such_mask.png", "no_such_mask.png does not exist"),
        (_scribble(points=[(1, 2, 3), (4, 5, 6)]), r"'cat' for a.jpg: a scribble .* it has \(1, 2, 3\) where a point"),
        (_scribble(points=[3, 4]), "it has 3 where a point should be; give points"),
        (_scribble(strokes=[(3, 4), (5, 6)]), "it has 3 where a point should be; give points"),
        (_scribble(points=[("a", 4)]), r"it has \('a', 4\) where a point"),
        (_scribble(points=[(3, 4)], width="5"), "its width is '5'; give points"),
        (Scribble(points=[(40, 25)]), "'cat' for a.jpg lies outside of its photo of 30 x 20 pixels"),
        (_scribble(points=np.array([(40, 25)])), "lies outside of its photo"),
        (Scribble(), "is all background"),
    ],
)
def test_a_mask_that_cannot_be_used_is_refused_in_one_sentence(mask: object, sentence: str) -> None:
    with pytest.raises(EmatError, match=sentence) as caught:
        Example(PHOTO, {"cat": mask}, name="a.jpg").read()  # type: ignore[dict-item]
    assert "\n" not in str(caught.value)


def test_an_example_without_masks_is_a_negative_and_an_empty_name_is_refused() -> None:
    assert Example("a.jpg", {}).masks == {}
    with pytest.raises(EmatError, match="are a list; give masks such as"):
        Example("a.jpg", [SQUARE])  # type: ignore[arg-type]
    with pytest.raises(EmatError, match="absent is a list"):
        Example("a.jpg", {}, absent="cat")
    with pytest.raises(EmatError, match="says that it is absent"):
        Example("a.jpg", {"cat": SQUARE}, absent=["cat"])
    with pytest.raises(EmatError, match="undecided is a list"):
        Example("a.jpg", {}, undecided="cat")
    with pytest.raises(EmatError, match="says what is known of 'cat' and that it is undecided"):
        Example("a.jpg", {"cat": SQUARE}, undecided=["cat"])
    with pytest.raises(EmatError, match="nothing painted"):
        Example("a.jpg", {}, sparse=True)
    with pytest.raises(EmatError, match="class name ' '"):
        Example("a.jpg", {" ": SQUARE})


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "does not exist"), (b"", "is empty"), (b"\xff\xd8\xff\xe0 no photo", "cannot be read")],
)
def test_a_photo_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    path = tmp_path / "bad.jpg"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EmatError, match=f"bad.jpg.*{sentence}"):
        Example(path, {"cat": SQUARE}).read()


def test_undecided_pixels_are_neither_the_class_nor_its_background() -> None:
    photo = np.zeros((4, 6, 3), np.uint8)
    mask = np.zeros((4, 6), np.uint8)
    mask[:, :2], mask[:, 2] = 1, 255
    void = np.zeros((4, 6), bool)
    void[0] = True
    shown = Example(photo, {"cat": mask}, void=void).read()
    known, other = shown.known()
    assert known["cat"].tolist()[1] == [1, 1, 255, 0, 0, 0]
    assert (known["cat"][0] == 255).all()
    assert other.tolist()[1] == [0, 0, 255, 0, 0, 0]
    assert shown.masks["cat"].sum() == 6
    with pytest.raises(EmatError, match="every pixel"):
        Example(photo, {"cat": mask}, void=np.ones((4, 6), bool)).read()
    with pytest.raises(EmatError, match="undecided pixels alone"):
        Example(photo, {"cat": (0, 0, 6, 1)}, void=void).read()


def test_a_white_mask_is_an_object_and_not_undecided() -> None:
    mask = np.zeros((4, 6), np.uint8)
    mask[1:3, 1:3] = 255
    assert Example(np.zeros((4, 6, 3), np.uint8), {"cat": mask}).read().masks["cat"].sum() == 4


def test_of_a_sparse_example_only_the_strokes_are_known() -> None:
    strokes = {"cat": Scribble(strokes=[[(2, 2), (2, 7)]], width=1), "background": Scribble(points=[(8, 8)], width=3)}
    shown = Example(np.zeros((10, 12, 3), np.uint8), strokes, sparse=True).read()
    assert set(shown.masks) == {"cat"}
    known, other = shown.known()
    assert (known["cat"] == 1).sum() == 6
    assert (known["cat"] == 0).sum() == 5
    assert (known["cat"] == 255).sum() == 120 - 11
    assert (other == 0).sum() == 11


def test_what_is_absent_is_known_and_the_rest_is_not() -> None:
    photo = np.zeros((4, 6, 3), np.uint8)
    known, other = Example(photo, {}, absent=["crack"]).read().known()
    assert (known["crack"] == 0).all()
    assert (other == 255).all()
    assert (Example(photo, {}).read().known()[1] == 0).all()
