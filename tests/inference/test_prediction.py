"""Reading an answer: thresholds, presence, sizes."""

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from emat.formats.coco import read_coco
from emat.inference.prediction import Prediction, Thresholds
from emat.refine.objects import absorb_fringes
from tests.raises import raises_code


def _prediction(
    scores: dict[str, float], maps: list[NDArray[np.float32]], size: tuple[int, int] = (4, 6)
) -> Prediction:
    return Prediction(np.zeros((*size, 3), np.uint8), scores, dict(zip(scores, maps, strict=True)))


def _flat(value: float, size: tuple[int, int] = (4, 6)) -> NDArray[np.float32]:
    return np.full(size, value, np.float32)


def test_a_class_that_is_not_there_has_an_empty_mask_whatever_was_drawn() -> None:
    prediction = _prediction({"cat": 0.3, "dog": 0.9}, [_flat(0.99), _flat(0.6)])
    assert prediction.present == {"dog"}
    assert not prediction.mask("cat").any()
    assert prediction.mask("dog").all(), "its pixels go to the class that is there"


def test_pixels_go_to_the_likeliest_class_and_below_the_threshold_to_none() -> None:
    left = _flat(0.0)
    left[:, :3] = 0.8
    prediction = _prediction({"cat": 0.9, "dog": 0.9}, [left, _flat(0.6)])
    assert (prediction.label_map[:, :3] == 1).all()
    assert (prediction.label_map[:, 3:] == 2).all()
    assert (prediction.at(Thresholds(mask=0.7)).label_map[:, 3:] == 0).all()


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_other_thresholds_read_the_same_maps(presence: float, mask: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    scores = {"cat": float(random.random()), "dog": float(random.random())}
    maps = [random.random((4, 6)).astype(np.float32) for _ in scores]
    prediction = _prediction(scores, maps).at(Thresholds(presence, mask))
    expected = np.zeros((4, 6), np.uint8)
    best = np.full((4, 6), np.float32(mask))
    for index, (map_, score) in enumerate(zip(maps, scores.values(), strict=True), start=1):
        wins = (map_ >= best) & (score >= presence)
        expected[wins], best[wins] = index, map_[wins]
    assert np.array_equal(prediction.label_map, absorb_fringes(expected))
    assert prediction.present == {name for name in scores if prediction.mask(name).any()}


def test_maps_of_a_large_photo_come_at_its_own_size() -> None:
    prediction = _prediction({"cat": 0.9}, [_flat(0.8, (4, 6))], size=(40, 60))
    assert prediction.probability("cat").shape == prediction.label_map.shape == (40, 60)
    assert prediction.mask("cat").all()
    assert prediction.overlay().size == (60, 40)


def test_found_lists_score_and_share() -> None:
    half = _flat(0.9)
    half[:2] = 0
    assert list(_prediction({"cat": 0.9, "dog": 0.1}, [half, half]).found()) == [("cat", 0.9, 0.5)]


def test_wrong_thresholds_and_names_are_refused() -> None:
    with raises_code("bad-number", "presence", "50"):
        Thresholds(presence=50)
    with raises_code("unknown-class", "'cow'", "cat"):
        _prediction({"cat": 0.9}, [_flat(1)]).mask("cow")


def test_a_class_with_a_high_score_and_nothing_drawn_is_not_present() -> None:
    prediction = _prediction({"cat": 0.97, "dog": 0.9}, [_flat(0.1), _flat(0.8)])
    assert prediction.present == {"dog"}
    assert [name for name, _, _ in prediction.found()] == ["dog"]


def _two_cats() -> Prediction:
    cats = _flat(0.0, (20, 30))
    cats[2:8, 2:8] = 0.9
    cats[12:18, 20:28] = 0.9
    return _prediction({"cat": 0.8, "dog": 0.1}, [cats, _flat(0.0, (20, 30))], size=(20, 30))


def test_a_notebook_shows_the_overlay_and_a_row_for_each_class() -> None:
    shown = _two_cats()._repr_html_()
    picture = re.search(r"data:image/jpeg;base64,([^\"]+)", shown)
    assert picture is not None
    with Image.open(io.BytesIO(base64.b64decode(picture[1]))) as image:
        assert image.size == (30, 20)
    assert "<td>cat</td><td>0.80</td><td>yes</td><td>14.0%</td>" in shown
    assert "<td>dog</td><td>0.10</td><td>no</td><td>0.0%</td>" in shown


def test_printed_it_is_one_line() -> None:
    assert repr(_two_cats()) == "Prediction(photo of 30 x 20: cat 0.80 on 14.0% of it, no dog (0.10))"


def test_the_content_of_a_coco_file_has_masks_and_scores(tmp_path: Path) -> None:
    content = _two_cats().to_coco("a.jpg")
    assert [each["area"] for each in content["annotations"]] == [36, 48]
    assert {each["score"] for each in content["annotations"]} == {0.8}
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    instances = read_coco(tmp_path / "annotations.json")
    assert np.array_equal(instances.drawings["a.jpg"].label_map(instances.classes), _two_cats().label_map)


def test_the_suffix_says_what_is_saved(tmp_path: Path) -> None:
    prediction = _two_cats()
    for name in ("a.png", "a.jpg", "a.json"):
        prediction.save(tmp_path / name)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "a.png")), prediction.label_map)
    assert Image.open(tmp_path / "a.jpg").size == (30, 20)
    assert len(json.loads((tmp_path / "a.json").read_text())["annotations"]) == 2
    with raises_code("wrong-suffix"):
        prediction.save(tmp_path / "a.gif")


def test_supervision_gets_every_object() -> None:
    pytest.importorskip("supervision", reason="to_supervision needs the package supervision")
    found = _two_cats().to_supervision()
    assert found.xyxy.tolist() == [[2, 2, 8, 8], [20, 12, 28, 18]]
    assert found.mask.sum(axis=(1, 2)).tolist() == [36, 48]
    assert found.data["class_name"].tolist() == ["cat", "cat"]
    assert len(_prediction({"cat": 0.0}, [_flat(0.0)]).to_supervision()) == 0
