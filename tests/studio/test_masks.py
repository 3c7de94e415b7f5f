"""Masks follow the thresholds of each class, and leave the page in a zip file."""

import io
import json
import zipfile
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from emat.errors import EmatError
from emat.images import read_mask
from emat.inference.prediction import Prediction, Thresholds
from emat.studio import actions
from emat.studio.masks import FORMATS, export_masks, is_present, label_map, moved_thresholds
from emat.studio.photos import studio_photo
from emat.studio.session import Session, StudioQuery
from tests.studio.conftest import BLUE, GREY, RED, Files, left_half, paint

NUMBERS = {"red": 1, "blue": 2}


@pytest.fixture
def query() -> StudioQuery:
    photo = np.zeros((6, 8, 3), np.uint8)
    random = np.random.default_rng(0)
    maps = {name: random.random((6, 8), np.float32) for name in NUMBERS}
    return StudioQuery(0, studio_photo(photo, "a.png"), Prediction(photo, {"red": 0.8, "blue": 0.6}, maps))


def test_at_the_usual_thresholds_it_is_the_prediction(session_with_classes: Session, query: StudioQuery) -> None:
    assert query.prediction is not None
    labels = label_map(session_with_classes, query, NUMBERS, (6, 8))
    np.testing.assert_array_equal(labels, query.prediction.label_map)


def test_a_slider_moves_its_own_class_alone(session_with_classes: Session, query: StudioQuery) -> None:
    session_with_classes.thresholds["blue"] = 0.7
    assert is_present(session_with_classes, query, "red")
    assert not is_present(session_with_classes, query, "blue")
    assert set(np.unique(label_map(session_with_classes, query, NUMBERS, (6, 8)))) == {0, 1}


def test_a_lower_threshold_never_shows_less(session_with_classes: Session, query: StudioQuery) -> None:
    shares = []
    for value in (0.98, 0.7, 0.5, 0.2, 0.02):
        session_with_classes.thresholds["red"] = value
        shares.append(float((label_map(session_with_classes, query, {"red": 1}, (6, 8)) == 1).mean()))
    assert shares == sorted(shares)
    assert shares[0] == 0 < shares[-1]


def test_what_the_user_painted_is_final_and_fits_any_size(session_with_classes: Session, query: StudioQuery) -> None:
    mask = np.zeros((6, 8), bool)
    mask[:3] = True
    query.corrected = {"blue": mask}
    labels = label_map(session_with_classes, query, NUMBERS, (60, 80))
    assert (labels[:30] == 2).all()
    assert (labels[30:] == 0).all()
    assert not is_present(session_with_classes, query, "red")


@given(st.floats(0, 1), st.floats(0.01, 0.99), st.floats(0, 1))
def test_presence_moves_with_the_slider_from_none_to_all(presence: float, mask: float, moved: float) -> None:
    usual = Thresholds(presence, mask)
    assert moved_thresholds(usual, mask).presence == pytest.approx(presence, abs=1e-4)
    assert moved_thresholds(usual, 0.0).presence == 0
    assert moved_thresholds(usual, 1.0).presence == 1
    assert moved_thresholds(usual, moved).mask == moved


@pytest.fixture
def answered(session_with_classes: Session, photo_file: Files) -> Session:
    """Two photos with answers, one of them larger than the page works with."""
    session = session_with_classes
    actions.add_drafts(session, [photo_file("a.png", RED, GREY)])
    actions.add_example(session, [paint(session.colours["red"], left_half())])
    actions.add_photos(session, [photo_file("b.png", RED, BLUE), photo_file("c.png", BLUE, RED, size=(600, 1200))])
    list(actions.search(session))
    return session


def test_masks_have_the_size_of_their_photos_and_the_order_of_the_classes(answered: Session, tmp_path: Path) -> None:
    with zipfile.ZipFile(export_masks(answered, "png", tmp_path)) as archive:
        large = read_mask(archive.read("masks/c.png"))
        assert "1 red\n2 blue" in archive.read("classes.txt").decode()
    assert large.shape == (600, 1200)
    assert (large[:, 620:] == 1).all()
    assert (large[:, :580] == 0).all()


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_is_a_zip_without_strange_names(answered: Session, tmp_path: Path, format: str) -> None:
    with zipfile.ZipFile(export_masks(answered, format, tmp_path)) as archive:
        names = archive.namelist()
        assert archive.testzip() is None
    assert any("b" in PurePosixPath(name).stem for name in names) or format == "coco"
    for name in names:
        assert not PurePosixPath(name).is_absolute()
        assert ".." not in PurePosixPath(name).parts
        assert not name.startswith(".")
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".zip") == [f"masks-{format}.zip"]


def test_names_that_lead_elsewhere_stay_in_the_zip(session_with_classes: Session, tmp_path: Path) -> None:
    session = session_with_classes
    strange = tmp_path / "..\\..\\evil.png"
    Image.new("RGB", (20, 10)).save(strange, "PNG")
    actions.add_photos(session, [strange])
    actions.begin_correction(session, 0)
    actions.finish_correction(session, [paint(session.colours["red"], np.ones((10, 20), bool))])
    with zipfile.ZipFile(export_masks(session, "png", tmp_path / "out")) as archive:
        assert "masks/evil.png" in archive.namelist()
        assert Image.open(io.BytesIO(archive.read("masks/evil.png"))).size == (20, 10)


def test_a_coco_file_counts_what_is_there(answered: Session, tmp_path: Path) -> None:
    with zipfile.ZipFile(export_masks(answered, "coco", tmp_path)) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".json")]
        written = json.loads(archive.read(name))
    assert {image["file_name"] for image in written["images"]} == {"b.png", "c.png"}
    assert len(written["annotations"]) == 2


def test_there_is_nothing_to_export_before_there_are_answers(session: Session, tmp_path: Path) -> None:
    with pytest.raises(EmatError, match="no masks yet"):
        export_masks(session, "png", tmp_path)
    with pytest.raises(EmatError, match="no format"):
        export_masks(session, "../png", tmp_path)
