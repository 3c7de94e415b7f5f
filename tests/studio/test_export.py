"""Results leave the page in one zip file."""

import csv
import io
import json
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from PIL import Image

from emat.images import read_mask
from emat.inference.segmenter import Segmenter
from emat.studio import examples
from emat.studio.examples import correct
from emat.studio.export import MASK_FORMATS, export, nothing_to_export, nothing_to_save, save_fitted
from emat.studio.session import Session, new_session
from tests.raises import raises_code
from tests.studio.conftest import GREY, RED, left_half, look, png, show


def test_masks_have_the_size_of_their_photos_and_the_order_of_the_classes(answered: Session, tmp_path: Path) -> None:
    with zipfile.ZipFile(export(answered, ["png"], tmp_path)) as archive:
        large = read_mask(archive.read("masks/c.png"))
        assert "1 red\n2 blue" in archive.read("classes.txt").decode()
    assert large.shape == (300, 2400)
    assert (large[:, 1220:] == 1).all()
    assert (large[:, :1180] == 0).all()


@pytest.mark.parametrize("format", MASK_FORMATS)
def test_every_format_is_a_zip_without_strange_names(answered: Session, tmp_path: Path, format: str) -> None:
    with zipfile.ZipFile(export(answered, [format], tmp_path)) as archive:
        names = archive.namelist()
        assert archive.testzip() is None
    assert any("b" in PurePosixPath(name).stem for name in names) or format == "coco"
    for name in names:
        assert not PurePosixPath(name).is_absolute()
        assert ".." not in PurePosixPath(name).parts
        assert not name.startswith(".")
    assert [path.name for path in tmp_path.glob("*.zip")] == ["emat-results.zip"]


def test_several_parts_go_into_one_zip_each_in_its_folder(answered: Session, tmp_path: Path) -> None:
    correct(answered, next(iter(answered.queries)), left_half(2))
    parts = ["png", "coco", "overlay", "scores", "objects"]
    with zipfile.ZipFile(export(answered, parts, tmp_path, objects=True)) as archive:
        names = set(archive.namelist())
        scores = list(csv.DictReader(io.StringIO(archive.read("scores.csv").decode())))
        objects = list(csv.DictReader(io.StringIO(archive.read("objects.csv").decode())))
        coco = json.loads(archive.read("coco/annotations.json"))
    assert {"png/masks/b.png", "coco/annotations.json", "overlay/b.jpg"} <= names
    assert [row["photo"] for row in scores] == ["b.png", "c.png"]
    assert scores[0]["red"] == "", "what was painted has no score"
    assert float(scores[0]["blue: share of pixels"]) == 0.5
    assert float(scores[1]["red"]) > 0.9
    assert (scores[1]["red: present"], scores[1]["blue: present"], scores[1]["red: regions"]) == ("1", "0", "1")
    areas = {(row["photo"], row["class"]): int(row["area_px"]) for row in objects}
    assert areas == {("b.png", "blue"): 1200, ("c.png", "red"): pytest.approx(300 * 1200, rel=0.01)}
    assert len(coco["annotations"]) == 2


def test_names_that_lead_elsewhere_stay_in_the_zip(session_with_classes: Session, tmp_path: Path) -> None:
    session = session_with_classes
    examples.add_photo(session, png(RED, size=(10, 20)), "..\\..\\evil.png")
    (key,) = session.queries
    correct(session, key, left_half(1, (10, 20)))
    with zipfile.ZipFile(export(session, ["png"], tmp_path / "out")) as archive:
        assert "masks/evil.png" in archive.namelist()
        assert Image.open(io.BytesIO(archive.read("masks/evil.png"))).size == (20, 10)


def test_the_reason_is_said_as_long_as_there_is_nothing(session_with_classes: Session, tmp_path: Path) -> None:
    session = session_with_classes
    assert nothing_to_export(session) == nothing_to_save(session) == "Add an example in step 2 first"
    with raises_code("nothing-to-save", "add an example"):
        export(session, ["png"], tmp_path)
    show(session, "a.png", RED, GREY)
    assert nothing_to_save(session) == ""
    assert nothing_to_export(session) == "Drop photos in step 3 first"
    examples.add_photo(session, png(RED, GREY), "b.png")
    assert nothing_to_export(session) == "Wait until the first photo is done"
    look(session)
    assert nothing_to_export(session) == ""
    for parts in (["../png"], []):
        with raises_code("unknown-choice"):
            export(session, parts, tmp_path)


def test_what_was_learned_goes_into_a_file_and_comes_back(tiny_head: Path, tmp_path: Path) -> None:
    session = new_session(Segmenter.load(tiny_head), tmp_path / "sessions")
    with raises_code("nothing-to-save"):
        save_fitted(session, tmp_path)
    examples.add_classes(session, "../red")
    show(session, "a.png", RED, GREY)
    with zipfile.ZipFile(export(session, ["emat"], tmp_path / "out")) as archive:
        (name,) = archive.namelist()
        archive.extractall(tmp_path / "unpacked")
    assert "/" not in name
    assert Segmenter.load(tmp_path / "unpacked" / name).classes_ == ("../red",)
