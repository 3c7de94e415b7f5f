"""Outlines become exactly the pixels they enclose."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pycocotools import mask as coco

from emat import progress
from emat.formats.drawing import Drawing, DrawnObject
from emat.images import VOID
from tests.raises import raises_code

HEIGHT, WIDTH = 9, 12
MASKS = hnp.arrays(bool, (HEIGHT, WIDTH))


@st.composite
def boxes(draw: st.DrawFn) -> tuple[int, int, int, int]:
    left, right = sorted(draw(st.lists(st.integers(0, WIDTH), min_size=2, max_size=2, unique=True)))
    top, bottom = sorted(draw(st.lists(st.integers(0, HEIGHT), min_size=2, max_size=2, unique=True)))
    return left, top, right, bottom


def outline(box: tuple[int, int, int, int]) -> list[float]:
    left, top, right, bottom = box
    return [left, top, right, top, right, bottom, left, bottom]


@given(st.lists(st.tuples(st.sampled_from(["cat", "dog"]), boxes()), max_size=4))
def test_boxes_are_painted_in_order_the_later_on_top(objects: list[tuple[str, tuple[int, int, int, int]]]) -> None:
    expected = np.zeros((HEIGHT, WIDTH), np.uint8)
    for name, (left, top, right, bottom) in objects:
        expected[top:bottom, left:right] = 1 if name == "cat" else 2
    drawing = Drawing("a.jpg", HEIGHT, WIDTH, tuple(DrawnObject(name, [outline(box)]) for name, box in objects))
    assert np.array_equal(drawing.label_map(["cat", "dog"]), expected)


@given(MASKS)
def test_run_lengths_give_back_the_mask(mask: np.ndarray) -> None:
    runs = coco.encode(np.asfortranarray(mask, np.uint8))
    drawing = Drawing("a.jpg", HEIGHT, WIDTH, (DrawnObject("cat", runs),))
    assert np.array_equal(drawing.label_map(["cat"]), mask.astype(np.uint8))


@given(MASKS)
def test_plain_run_lengths_give_back_the_mask(mask: np.ndarray) -> None:
    columns = mask.ravel(order="F")
    changes = np.flatnonzero(np.diff(np.concatenate([[False], columns, [not columns[-1]]])))
    counts = np.diff(np.concatenate([[0], changes])).tolist()
    runs = {"size": [HEIGHT, WIDTH], "counts": counts}
    drawing = Drawing("a.jpg", HEIGHT, WIDTH, (DrawnObject("cat", runs),))
    assert np.array_equal(drawing.label_map(["cat"]), mask.astype(np.uint8))


def test_crowds_are_void_below_everything() -> None:
    whole, corner = outline((0, 0, WIDTH, HEIGHT)), outline((0, 0, 2, 2))
    objects = (DrawnObject("cat", [corner]), DrawnObject("cat", [whole], crowd=True))
    painted = Drawing("a.jpg", HEIGHT, WIDTH, objects).label_map(["cat"])
    assert painted[:2, :2].tolist() == [[1, 1], [1, 1]]
    assert (painted == VOID).sum() == HEIGHT * WIDTH - 4


def test_less_than_three_corners_enclose_nothing() -> None:
    assert not Drawing("a.jpg", 4, 4, (DrawnObject("cat", [[0, 0, 3, 3]]),)).label_map(["cat"]).any()


@pytest.mark.parametrize(
    "region",
    [
        {"size": [4, 4], "counts": [99]},
        {"size": [4, 4], "counts": [-3, 19]},
        {"size": [4, 4], "counts": "PPPPPPPPPPPP9999"},
        {"size": [400, 400], "counts": [160000]},
        {"counts": [16]},
        {"size": [4, 4], "counts": None},
        [["a", "b", "c", "d", "e", "f"]],
    ],
)
def test_a_region_that_cannot_be_drawn_names_the_photo(region: object) -> None:
    drawing = Drawing("a.jpg", 4, 4, (DrawnObject("cat", region),))  # type: ignore[arg-type]
    with raises_code("bad-outline", "a.jpg", "cat") as caught:
        drawing.label_map(["cat"])
    assert "bytes-like" not in str(caught.value)


def test_a_size_of_hundreds_of_digits_is_shortened() -> None:
    with raises_code("bad-annotation", "...") as caught:
        Drawing("a.jpg", 4, 10**900, ())
    assert len(str(caught.value)) < 400


def test_classes_and_sizes_that_cannot_be_are_refused() -> None:
    with raises_code("unknown-class", "'cat'"):
        Drawing("a.jpg", 4, 4, (DrawnObject("cat", [outline((0, 0, 2, 2))]),)).label_map(["dog"])
    for height, width in ((0, 4), (-1, 4), (40_000, 40_000)):
        with raises_code("bad-annotation"):
            Drawing("a.jpg", height, width, ())


def test_many_classes_make_a_wider_label_map() -> None:
    classes = [str(number) for number in range(300)]
    painted = Drawing("a.jpg", 4, 4, (DrawnObject("299", [outline((0, 0, 4, 4))]),)).label_map(classes)
    assert painted.dtype == np.uint16
    assert (painted == 300).all()


@pytest.mark.parametrize("number", [1e7, 1e9, 1e300, float("nan"), float("inf"), -1e9])
def test_a_corner_far_away_is_refused_before_it_is_drawn(number: float) -> None:
    drawing = Drawing("a.jpg", HEIGHT, WIDTH, ())
    with raises_code("bad-outline", "cat"):
        drawing.filled(DrawnObject("cat", [[0, 0, number, 0, 5, 5]]))


def test_a_corner_just_outside_is_cut_off() -> None:
    drawing = Drawing("a.jpg", HEIGHT, WIDTH, ())
    assert drawing.filled(DrawnObject("cat", [outline((-20, -20, 40, 30))])).all()


def test_an_outline_of_half_a_corner_or_of_no_end_is_refused() -> None:
    drawing = Drawing("a.jpg", HEIGHT, WIDTH, ())
    with raises_code("bad-outline"):
        drawing.filled(DrawnObject("cat", [[0, 0, 5, 0, 5, 5, 1]]))
    to_and_fro = [coordinate for _ in range(100_000) for coordinate in (-20, 0, 30, 0)]
    with raises_code("bad-outline"):
        drawing.filled(DrawnObject("cat", [to_and_fro]))
    with raises_code("bad-outline"):
        drawing.filled(DrawnObject("cat", [[0, 0, 10**400, 0, 5, 5]]))


def test_an_outline_that_covers_no_pixel_is_said(caplog: pytest.LogCaptureFixture) -> None:
    progress._said.cache_clear()
    outside = Drawing("a.jpg", HEIGHT, WIDTH, (DrawnObject("cat", [[20, 20, 25, 20, 25, 25]]),))
    assert not outside.label_map(["cat"]).any()
    assert "a.jpg has an outline that covers no pixel of it" in caplog.text


def test_fractions_in_place_of_pixels_are_refused() -> None:
    fractions = Drawing("a.jpg", HEIGHT, WIDTH, (DrawnObject("cat", [[0.1, 0.1, 0.9, 0.1, 0.9, 0.9]]),))
    with raises_code("bad-outline"):
        fractions.label_map(["cat"])
    corner = Drawing("a.jpg", HEIGHT, WIDTH, (DrawnObject("cat", [[0, 0, 1, 0, 1, 1, 0, 1]]),))
    assert corner.label_map(["cat"]).sum() == 1


@pytest.mark.parametrize(
    "polygon",
    [
        [0, 0, 4.4e8, 0, 4.4e8, 1, 0, 1],  # in fifths of a pixel, this is beyond a C integer
        [0, 0, 8.8e7, 0, 8.8e7, 1, 0, 1],  # and this is gigabytes of steps
        [4.2949672e8, 0, 4.2949674e8, 0, 4.2949674e8, 1],
        [-3e8, 0, 3e8, 0, 3e8, 1],
    ],
)
def test_an_outline_that_pycocotools_cannot_count_never_reaches_it(polygon: list[float]) -> None:
    drawing = Drawing("a.jpg", 1, 89_000_000, (DrawnObject("cat", [polygon]),))
    with raises_code("bad-outline"):
        drawing.filled(drawing.objects[0])
