"""Masks leave the page in a zip."""

import io
import json
import zipfile
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from PIL import Image

from emat.errors import EmatError
from emat.images import read_mask
from emat.studio import actions
from emat.studio.export import FORMATS, export_masks
from emat.studio.session import Session
from tests.studio.conftest import BLUE, GREY, RED, Files, left_half, paint


@pytest.fixture
def answered(session_with_classes: Session, photo_file: Files) -> Session:
    """Two photos with answers, one of them larger than the page works with."""
    session = session_with_classes
    actions.add_drafts(session, [photo_file("a.png", RED, GREY)])
    actions.add_example(session, [paint(session.colours["red"], left_half())])
    actions.add_photos(session, [photo_file("b.png", RED, BLUE), photo_file("c.png", BLUE, RED, size=(600, 1200))])
    list(actions.look(session))
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
