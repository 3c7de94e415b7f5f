"""The segmenter's manners: fit, predict, add, remove, many photos, many threads."""

import gc
import struct
import subprocess
import sys
import threading
import weakref
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from emat import Example, Prediction, Segmenter
from emat.errors import EmatError
from emat.features import FeatureCache
from emat.inference.prediction import Thresholds
from emat.methods.trained_head import load_head
from tests.inference.colour_method import ColourMethod
from tests.raises import raises_code

RED, BLUE, GREY = (230, 20, 20), (20, 20, 230), (90, 90, 90)


def _photo(*colours: tuple[int, int, int], size: tuple[int, int] = (32, 48)) -> NDArray[np.uint8]:
    """Stripes of colours, side by side."""
    photo = np.zeros((*size, 3), np.uint8)
    for index, colour in enumerate(colours):
        photo[:, index * size[1] // len(colours) : (index + 1) * size[1] // len(colours)] = colour
    return photo


def _left() -> tuple[int, int, int, int]:
    return (0, 0, 24, 32)


@pytest.fixture
def segmenter() -> Segmenter:
    return Segmenter(ColourMethod())


def test_what_was_shown_is_found_and_what_is_absent_is_empty(segmenter: Segmenter) -> None:
    segmenter.fit([Example(_photo(RED, GREY), {"red": _left()}), Example(_photo(BLUE, GREY), {"blue": _left()})])
    assert segmenter.classes_ == ("red", "blue")
    prediction = segmenter.predict(_photo(GREY, BLUE, size=(64, 200)))
    assert prediction.present == {"blue"}
    assert prediction.label_map.shape == (64, 200)
    assert prediction.label_map.dtype == np.uint8
    assert (prediction.label_map[:, 110:] == 2).all()
    assert (prediction.label_map[:, :90] == 0).all()
    assert not prediction.mask("red").any()
    assert prediction.scores["red"] < 0.5 < prediction.scores["blue"]


def test_one_example_may_show_several_classes(segmenter: Segmenter) -> None:
    segmenter.fit([Example(_photo(RED, BLUE), {"red": _left(), "blue": (24, 0, 48, 32)})])
    assert segmenter.predict(_photo(BLUE, RED)).present == {"red", "blue"}


def test_examples_come_and_go_without_encoding_the_others_again(segmenter: Segmenter) -> None:
    first, second = (Example(_photo(colour, GREY), {name: _left()}) for colour, name in ((RED, "red"), (BLUE, "blue")))
    method = segmenter.method
    assert isinstance(method, ColourMethod)
    segmenter.fit([first]).add(second)
    assert (segmenter.classes_, method.encoded) == (("red", "blue"), 2)
    segmenter.remove(first)
    assert (segmenter.classes_, method.encoded) == (("blue",), 2)
    assert segmenter.predict(_photo(RED, BLUE)).label_map.max() == 1
    segmenter.remove(0)
    assert segmenter.classes_ == ()
    with raises_code("not-fitted"):
        segmenter.predict(_photo(RED))


def test_with_a_cache_a_photo_is_encoded_once_and_the_answers_are_the_same(tiny_head: Path) -> None:
    plain = Segmenter.load(tiny_head)
    caching = Segmenter(
        plain.method, plain.thresholds, cache=FeatureCache(plain.method, memory_bytes=10**8), learner=plain.learner
    )
    photo = _photo(RED, BLUE)
    for segmenter in (plain, caching):
        segmenter.fit([Example(photo, {"red": _left()})])
    assert caching.cache is not None
    for _ in range(2):
        np.testing.assert_array_equal(caching.predict(photo).maps["red"], plain.predict(photo).maps["red"])
    assert caching.cache.counts.misses == 1


def test_a_copy_knows_the_same_and_goes_on_by_itself(segmenter: Segmenter) -> None:
    segmenter.fit([Example(_photo(RED, GREY), {"red": _left()})])
    other = segmenter.copy().add(Example(_photo(BLUE, GREY), {"blue": _left()}))
    assert (segmenter.classes_, other.classes_) == (("red",), ("red", "blue"))
    assert other.method is segmenter.method


def test_adding_one_by_one_is_the_same_as_fitting_all(tiny_head: Path) -> None:
    examples = [Example(_photo(RED, GREY), {"red": _left()}), Example(_photo(GREY, RED), {"red": (24, 0, 48, 32)})]
    together, apart = Segmenter.load(tiny_head).fit(examples), Segmenter.load(tiny_head)
    for example in examples:
        apart.add(example)
    asked = _photo(RED, BLUE, GREY)
    assert _same(together.predict(asked), apart.predict(asked))


def test_the_order_of_predictions_is_that_of_the_photos_and_reading_is_ahead(segmenter: Segmenter) -> None:
    segmenter.fit([Example(_photo(RED, GREY), {"red": _left()})])
    colours = [RED, GREY, GREY, RED, GREY, RED, RED]
    taken = 0

    def photos() -> Iterator[NDArray[np.uint8]]:
        nonlocal taken
        for colour in colours:
            taken += 1
            yield _photo(colour)

    answers = []
    for prediction in segmenter.predict_many(photos(), ahead=2):
        answers.append(prediction.present == {"red"})
        assert taken <= len(answers) + 2, "no more photos in memory than asked for"
    assert answers == [colour == RED for colour in colours]


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_results_do_not_depend_on_what_is_predicted_together(tiny_head: Path, ahead: int) -> None:
    segmenter = Segmenter.load(tiny_head).fit([Example(_photo(RED, GREY), {"red": _left()})])
    photos = [_photo(RED, BLUE), _photo(GREY, size=(10, 90)), _photo(BLUE, GREY)]
    alone = [segmenter.predict(photo) for photo in photos]
    for one, other in zip(alone, segmenter.predict_many(photos, ahead=ahead), strict=True):
        assert _same(one, other)


def test_a_bad_photo_among_many_raises_what_is_wrong(segmenter: Segmenter, tmp_path: Path) -> None:
    segmenter.fit([Example(_photo(RED, GREY), {"red": _left()})])
    stream = segmenter.predict_many([_photo(RED), tmp_path / "gone.jpg"])
    assert next(stream).present == {"red"}
    with raises_code("no-such-file", "gone.jpg"):
        next(stream)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("emat-reader")]


def test_threads_predict_at_once_while_examples_change(tiny_head: Path) -> None:
    extra = Example(_photo(BLUE, GREY), {"blue": _left()})
    segmenter = Segmenter.load(tiny_head).fit([Example(_photo(RED, GREY), {"red": _left()})])
    photos = [_photo(RED, BLUE), _photo(BLUE, GREY), _photo(GREY, RED, BLUE)] * 4
    one = [segmenter.predict(photo).maps["red"] for photo in photos]
    two = [segmenter.copy().add(extra).predict(photo).maps["red"] for photo in photos[:3]] * 4
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(segmenter.predict, photo) for photo in photos]
        segmenter.add(extra)
        segmenter.remove(extra)
        for future, *either in zip(running, one, two, strict=True):
            # A photo is looked at with the examples of one moment, never with a mixture of two.
            found = future.result().maps["red"]
            assert any(np.allclose(found, expected, atol=1e-6) for expected in either)


def test_an_example_s_photo_is_not_kept_in_memory(segmenter: Segmenter) -> None:
    photo = _photo(RED, GREY)
    gone = weakref.ref(photo)
    segmenter.fit([Example(photo, {"red": _left()})])
    del photo
    gc.collect()
    assert gone() is None


def test_pictures_arrays_bytes_and_turned_files_are_one_photo(segmenter: Segmenter, tmp_path: Path) -> None:
    segmenter.fit([Example(_photo(RED, GREY), {"red": _left()})])
    photo = _photo(GREY, RED)
    path = tmp_path / "turned.png"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.rot90(photo).copy()).save(path, exif=exif)  # turned back by its reader
    expected = segmenter.predict(photo)
    for source in (Image.fromarray(photo), path, str(path), path.read_bytes()):
        assert _same(expected, segmenter.predict(source))


def test_a_method_that_only_segments_is_scored_by_its_surest_pixel() -> None:
    from emat.methods.registry import build_method

    torch.manual_seed(0)
    segmenter = Segmenter(build_method("emat-s", image_size=64, device="cpu"))
    segmenter.fit([Example(_photo(RED, GREY), {"red": _left()})])
    prediction = segmenter.predict_unrefined(_photo(RED, BLUE))  # refinement moves the highest pixel, not the score
    assert prediction.scores["red"] == pytest.approx(float(prediction.maps["red"].max()), abs=1e-4)


def test_thresholds_come_from_the_head(tiny_head: Path) -> None:
    assert Segmenter.load(tiny_head).thresholds == Thresholds(presence=0.4, mask=0.3)
    assert load_head(tiny_head).image_size == 64


@pytest.mark.parametrize(
    ("examples", "code"),
    [
        ([], "no-examples"),
        (["a.jpg"], "bad-example"),
        (
            [Example(_photo(RED), {"Cat": _left(), "cat": _left()}, name="a.jpg")],
            "given-twice",
        ),
    ],
)
def test_what_cannot_be_fitted_is_refused(segmenter: Segmenter, examples: list[Example], code: str) -> None:
    with raises_code(code):
        segmenter.fit(examples)


def test_a_fit_that_fails_leaves_what_was_known(segmenter: Segmenter) -> None:
    segmenter.fit([Example(_photo(RED, GREY), {"red": _left()})])
    with pytest.raises(EmatError):
        segmenter.fit([Example(_photo(BLUE, GREY), {"blue": (99, 99, 100, 100)})])
    assert segmenter.classes_ == ("red",)


def test_a_class_written_in_another_case_later_is_refused(segmenter: Segmenter) -> None:
    segmenter.fit([Example(_photo(RED, GREY), {"red": _left()})])
    with raises_code("given-twice", "'RED'", "the array", "'red'"):
        segmenter.add(Example(_photo(RED, GREY), {"RED": _left()}))


def test_removing_what_is_not_there_is_refused(segmenter: Segmenter) -> None:
    segmenter.fit([Example(_photo(RED, GREY), {"red": _left()})])
    with raises_code("unknown-example"):
        segmenter.remove(3)
    with raises_code("unknown-example"):
        segmenter.remove(Example(_photo(RED, GREY), {"red": _left()}))


def test_importing_the_package_loads_no_network() -> None:
    code = "import emat, sys; assert 'torch' not in sys.modules and 'numpy' not in sys.modules; emat.Segmenter"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_huge_photo_is_refused(segmenter: Segmenter, tmp_path: Path) -> None:
    segmenter.fit([Example(_photo(RED, GREY), {"red": _left()})])
    path = tmp_path / "huge.png"
    header = struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    body = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    ]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(body))
    with raises_code("photo-too-large"):
        segmenter.predict(path)


def _same(one: Prediction, other: Prediction) -> bool:
    maps = all(np.array_equal(one.maps[name], other.maps[name]) for name in one.classes)
    return maps and one.scores == other.scores and np.array_equal(one.label_map, other.label_map)


@pytest.mark.parametrize(("batch_size", "learn"), [(2, False), (3, True), (8, False)])
def test_photos_that_go_through_the_backbone_together_have_the_same_results(
    tiny_head: Path, batch_size: int, learn: bool
) -> None:
    random = np.random.default_rng(5)
    photos = [
        random.integers(0, 255, (*size, 3), np.uint8) for size in ((40, 60), (64, 64), (30, 50), (64, 64), (9, 9))
    ]
    segmenter = Segmenter.load(tiny_head, learn=learn).fit([Example(photos[0], {"cat": (5, 5, 40, 30)})])
    segmenter.thresholds = Thresholds(0.0, 0.3)
    for photo, together in zip(photos, segmenter.predict_many(photos, batch_size=batch_size), strict=True):
        alone = segmenter.predict(photo)
        assert together.scores["cat"] == pytest.approx(alone.scores["cat"], abs=1e-5)
        assert np.allclose(together.maps["cat"], alone.maps["cat"], atol=1e-5)
        assert np.array_equal(together.label_map, alone.label_map)


def test_a_batch_of_no_photos_is_refused(tiny_head: Path) -> None:
    segmenter = Segmenter.load(tiny_head, learn=False).fit(
        [Example(np.zeros((9, 9, 3), np.uint8), {"x": (0, 0, 5, 5)})]
    )
    with raises_code("bad-number"):
        next(segmenter.predict_many([], batch_size=0))
