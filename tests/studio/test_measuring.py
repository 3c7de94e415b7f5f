"""Numbers in the studio are those of `emat measure`, with what the page chose."""

import csv
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from emat import Example, Segmenter
from emat.studio.examples import add_photo, correct
from emat.studio.export import answered as with_masks
from emat.studio.export import export
from emat.studio.measuring import OTSU, answer, choices_of, choose, picture, report_page
from emat.studio.photos import BACKGROUND_PAINT
from emat.studio.session import Session, new_session
from tests.raises import raises_code
from tests.studio.conftest import BLUE, GREY, RED, SIZE, look, png, stripes


def row_of(session: Session, name: str = "red", photo: int = 0) -> dict[str, object]:
    found = answer(session, list(session.queries.values())[photo])
    return next(row for row in found["photos"] if row["class"] == name)


def test_a_photo_has_numbers_in_the_unit_that_was_chosen(answered: Session) -> None:
    pixels = row_of(answered)
    assert pixels["count"] == 1
    area = float(pixels["area"])  # type: ignore[arg-type]
    assert area == pytest.approx(SIZE[0] * SIZE[1] / 2, rel=0.1)
    choose(answered, {"unit": "typed", "length": "2mm"})
    assert row_of(answered)["area"] == 4 * area
    choose(answered, {"unit": "points", "length": "10um", "points": [0, 0, 30, 40], "clicked": "b.png"})
    assert row_of(answered)["area"] == pytest.approx(area * 0.2**2)
    assert row_of(answered)["unit_source"] == "two points on b.png, 10um apart"
    assert row_of(answered, "blue")["count"] == 0, "a row of zeros"


def test_the_unit_of_a_dropped_file_is_known(answered: Session) -> None:
    data = io.BytesIO()
    tifffile.imwrite(data, stripes(RED, BLUE), imagej=True, resolution=(2, 2), metadata={"unit": "um"})
    add_photo(answered, data.getvalue(), "deep.tif")
    look(answered)
    assert (row_of(answered, photo=2)["pixel_size"], row_of(answered, photo=2)["unit"]) == (0.5, "um")
    assert row_of(answered, photo=1)["unit"] == "px"


def test_small_objects_are_grey_and_do_not_count(answered: Session) -> None:
    query = next(iter(answered.queries.values()))
    before = np.asarray(Image.open(io.BytesIO(picture(answered, query))), int)
    choose(answered, {"smallest": "100000px"})
    assert row_of(answered)["count"] == 0
    after = np.asarray(Image.open(io.BytesIO(picture(answered, query))), int)
    red = np.s_[10:30, 5:20]
    assert (np.ptp(after[red], axis=2) < np.ptp(before[red], axis=2)).mean() > 0.9, "less colourful"


def test_the_share_of_a_painted_class_and_of_what_stands_out(answered: Session) -> None:
    query = next(iter(answered.queries.values()))
    paint = np.full(SIZE, BACKGROUND_PAINT, np.uint8)
    paint[:, :30] = 2
    paint[10:20, 5:15] = 1
    correct(answered, query.key, paint)
    choose(answered, {"inner": "red", "outer": "blue"})
    assert row_of(answered)["share_within"] == pytest.approx(100 * 100 / 1200)
    assert row_of(answered)["source"] == "painted in the studio"
    choose(answered, {"inner": "red", "outer": OTSU})
    assert row_of(answered)["within"] == OTSU
    assert row_of(answered)["share_within"] is not None


def test_choices_outlive_the_page_and_are_checked(answered: Session) -> None:
    choose(answered, {"unit": "typed", "length": "1cm", "touching": "together"})
    assert choices_of(answered).length == "1cm"
    for wrong, code in (
        ({"unit": "yards"}, "page-outdated"),
        ({"points": ["a"]}, "page-outdated"),
        ({"unit": "typed", "length": "wide"}, "unclear-option"),
        ({"inner": "green", "outer": "red"}, "unknown-class"),
        ({"accept": ["red.count <= 1"]}, "too-few-examples"),
    ):
        with raises_code(code):
            choose(answered, wrong)
    assert choices_of(answered).length == "1cm"


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1e308, 10**199, "1", None])
def test_a_point_is_a_place_on_a_photo(answered: Session, wrong: object) -> None:
    with raises_code("page-outdated", "points"):
        choose(answered, {"unit": "points", "length": "10um", "points": [0, 0, wrong, 40]})
    assert row_of(answered)["unit"] == "px", "what was chosen before stays"


def test_an_export_has_what_emat_measure_writes(answered: Session, tmp_path: Path) -> None:
    choose(answered, {"unit": "typed", "length": "2mm"})
    with zipfile.ZipFile(
        export(answered, ["measurements", "parquet", "rois", "geojson", "labels"], tmp_path)
    ) as archive:
        names = set(archive.namelist())
        rows = list(csv.DictReader(io.StringIO(archive.read("measured/objects.csv").decode())))
        assert b"<h1>red, blue: measured</h1>" in archive.read("measured/report.html")
    expected = {"objects.csv", "photos.csv", "columns.csv", "objects.parquet", "photos.parquet", "report.html"}
    expected |= {"rois/b.zip", "rois/c.zip", "geojson/b.geojson", "labels/c.ome.tif"}
    assert {f"measured/{name}" for name in expected} <= names
    assert {row["photo"] for row in rows} == {"b.png", "c.png"}
    assert all(float(row["area_mm2"]) == 4 * float(row["area_px"]) for row in rows)
    assert "intensity_mean_red" in rows[0]


def test_a_verdict_comes_with_the_false_oks_to_expect(tiny_head: Path, tmp_path: Path) -> None:
    mask = np.zeros(SIZE, bool)
    mask[:, : SIZE[1] // 2] = True
    noise = np.random.default_rng(0).integers(0, 9, (3, *SIZE, 3), np.uint8)
    examples = [Example(stripes(RED, GREY) + each, {"red": mask}) for each in noise]
    session = new_session(Segmenter.load(tiny_head, learn=True, refine=None).fit(examples), tmp_path / "sessions")
    add_photo(session, png(RED, GREY), "b.png")
    look(session)
    choose(session, {"accept": ["red.share <= 30%"]})
    assert answer(session, next(iter(session.queries.values())))["verdict"] == "NOT OK"
    page = report_page(session, with_masks(session)).decode()
    assert "Of 3 examples that are NOT OK" in page
    choose(session, {"accept": ["red.share <= 30%", "red.count >= 1"]})
    choose(session, {"accept": ["red.count >= 1"]})
    assert answer(session, next(iter(session.queries.values())))["verdict"] == "OK"
