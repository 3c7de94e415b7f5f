"""Photos, masks and annotation files that are dropped together."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emat.formats.writing import open_writer
from emat.studio.dropped import sort_drop
from emat.studio.session import Session
from tests.studio.conftest import BLUE, GREY, RED, left_half, png, png_of


@pytest.fixture
def drop(session: Session, tmp_path: Path) -> "Drop":
    return Drop(session, tmp_path)


class Drop:
    def __init__(self, session: Session, folder: Path) -> None:
        self.session, self.folder = session, folder

    def __call__(self, **files: bytes) -> list[str]:
        """Drop files whose names have "__" for a dot; return what was said."""
        paths = []
        for name, data in files.items():
            path = self.folder / name.replace("__", ".")
            path.write_bytes(data)
            paths.append((path.name, path))
        return sort_drop(self.session, paths)

    def examples(self) -> dict[str, dict[str, float]]:
        """The share of the photo that each class covers, for each example."""
        found = {}
        for example in self.session.segmenter.examples_:
            assert example.thumbnail is not None
            found[example.name] = {name: float(mask.mean()) for name, mask in example.thumbnail.masks.items()}
        return found


def test_photos_alone_wait_to_be_painted(drop: Drop) -> None:
    assert drop(a__png=png(RED, GREY), b__png=png(BLUE, GREY)) == []
    assert [draft.photo.name for draft in drop.session.drafts.values()] == ["a.png", "b.png"]


@pytest.mark.parametrize("name", ["a_mask__png", "a__png", "a_red__png"])
def test_a_mask_that_fits_its_photo_makes_an_example_at_once(drop: Drop, name: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    photo = {"a__bmp": png_of(noise)} if name == "a__png" else {"a__png": png_of(noise)}
    assert drop(**photo, **{name: png_of(left_half(255))}) == []
    ((_, shown),) = drop.examples().items()
    assert shown == {"red" if "red" in name else "object": 0.5}
    assert drop.session.drafts == {}


def test_a_mask_that_comes_later_finds_its_photo(drop: Drop) -> None:
    drop(a__png=png(RED, GREY))
    assert drop(a_mask__png=png_of(left_half(255))) == []
    assert list(drop.examples()) == ["a.png"]


def test_a_label_map_is_read_by_the_order_of_the_classes(drop: Drop, session_with_classes: Session) -> None:
    labels = left_half(1)
    labels[:, 45:], labels[:4] = 2, 255
    assert drop(a__png=png(RED, BLUE), a_labels__png=png_of(labels)) == []
    assert drop.examples()["a.png"] == {"red": pytest.approx(0.45), "blue": pytest.approx(0.225)}


def test_a_mask_that_does_not_say_its_class_is_refused_and_the_photo_waits(
    drop: Drop, session_with_classes: Session
) -> None:
    (problem,) = drop(a__png=png(RED, GREY), a_mask__png=png_of(left_half(255)))
    assert "a_mask.png does not say which class" in problem
    assert "a_red.png" in problem
    assert len(drop.session.drafts) == 1


def test_a_mask_of_another_size_is_refused_by_its_size(drop: Drop) -> None:
    (problem,) = drop(a__png=png(RED, GREY), a_mask__png=png_of(left_half(255, (10, 10))))
    assert "10 x 10 pixels but its photo is 60 x 40" in problem


def test_a_labelme_file_makes_an_example_and_names_its_class(drop: Drop) -> None:
    shape = {"label": "blob", "shape_type": "rectangle", "points": [[0, 0], [30, 40]]}
    content = {"imagePath": "a.png", "imageHeight": 40, "imageWidth": 60, "shapes": [shape]}
    assert drop(a__png=png(RED, GREY), a__json=json.dumps(content).encode()) == []
    assert drop.examples() == {"a.png": {"blob": pytest.approx(0.5, abs=0.05)}}
    assert list(drop.session.numbers) == ["blob"]


def test_outlines_for_another_size_are_refused(drop: Drop) -> None:
    content = {"imagePath": "a.png", "imageHeight": 400, "imageWidth": 600, "shapes": []}
    (problem,) = drop(a__png=png(RED, GREY), a__json=json.dumps(content).encode())
    assert "600 x 400 pixels, but the photo has 60 x 40" in problem
    assert len(drop.session.drafts) == 1


@pytest.mark.parametrize("format", ["coco", "yolo", "labelme"])
def test_what_emat_writes_comes_back(drop: Drop, tmp_path: Path, format: str) -> None:
    with open_writer(format, tmp_path / "out", ["red", "blue"]) as writer:
        writer.write("a.png", left_half(2))
        writer.write("b.png", np.zeros((40, 60), np.uint8))
    written = {path.name.replace(".", "__"): path.read_bytes() for path in (tmp_path / "out").rglob("*.*")}
    assert drop(a__png=png(BLUE, GREY), b__png=png(GREY), **written) == []
    assert drop.examples()["a.png"] == {"blue": pytest.approx(0.5, abs=0.05)}
    if "b.png" in drop.examples():
        assert drop.examples()["b.png"] == {}, "outlines without an object are a negative example"


def test_outlines_without_photo_and_strange_files_are_named(drop: Drop) -> None:
    content = {"imagePath": "gone.png", "imageHeight": 40, "imageWidth": 60, "shapes": []}
    problems = drop(a__json=json.dumps(content).encode(), b__json=b"no", c__zip=b"no", d__png=b"no")
    text = " ".join(problems)
    for part in ("outlines of gone", "b.json", "c.zip is neither", "d.png"):
        assert part in text
    assert str(drop.folder) not in text, "no path of the server"


def test_a_dropped_file_is_opened_only_as_one_of_the_formats_of_photos(
    drop: Drop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_ghostscript(*_: object, **__: object) -> None:
        raise AssertionError("a dropped file reached Ghostscript")

    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", run_ghostscript)
    eps = io.BytesIO()
    Image.fromarray(left_half(255)).convert("RGB").save(eps, "EPS")
    said = drop(e__png=png(RED, GREY), e_mask__png=eps.getvalue())
    assert said
    assert "is not" in said[0]
    assert "e_mask.png" in said[0]


def test_deep_pictures_do_not_end_a_drop(drop: Drop) -> None:
    deep, mask = io.BytesIO(), io.BytesIO()
    Image.fromarray(np.arange(2400, dtype=np.uint16).reshape(40, 60)).save(deep, "PNG")
    Image.fromarray(left_half(1).astype(np.uint16)).save(mask, "PNG")
    assert drop(a__bmp=png(RED, GREY), a_1__png=deep.getvalue(), a_red__png=mask.getvalue()) == []
    assert drop.examples() == {"a.bmp": {"red": 0.5}}
    assert [draft.photo.name for draft in drop.session.drafts.values()] == ["a_1.png"]
