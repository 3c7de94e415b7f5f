"""GeoTIFF: objects have coordinates on the ground."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from emat.measure.units import Scale, ground_of, scale_in_file
from tests.cli.command import run

UTM_32_NORTH = (1, 1, 0, 3, 1024, 0, 1, 1, 3072, 0, 1, 32632, 3076, 0, 1, 9001)
WGS_84 = (1, 1, 0, 2, 1024, 0, 1, 2, 2048, 0, 1, 4326)


def keys_of(**chosen: int) -> tuple[int, ...]:
    numbers = {"model": 1024, "raster": 1025, "projected": 3072, "unit": 3076}
    entries = [(numbers[name], 0, 1, value) for name, value in chosen.items()]
    return (1, 1, 0, len(entries), *(number for entry in entries for number in entry))


def geotiff(path: Path, keys: tuple[int, ...], side: float, corner: tuple[float, float]) -> Path:
    tags: list[Any] = [
        (33550, "d", 3, (side, side, 0.0), True),
        (33922, "d", 6, (0.0, 0.0, 0.0, *corner, 0.0), True),
        (34735, "H", len(keys), keys, True),
    ]
    options: Any = {"resolution": (300, 300), "resolutionunit": "INCH"}  # for printing; it says nothing of the ground
    tifffile.imwrite(path, np.zeros((40, 60, 3), np.uint8), photometric="rgb", extratags=tags, **options)
    return path


def test_metres_give_the_size_of_a_pixel(tmp_path: Path) -> None:
    path = geotiff(tmp_path / "a.tif", UTM_32_NORTH, 0.2, (500000.0, 5600000.0))
    assert scale_in_file(path) == Scale(0.2, "m", "GeoTIFF")
    ground = ground_of(path)
    assert ground is not None
    assert ground.crs == "EPSG:32632"
    assert ground.locate(np.array([[0.0, 0.0], [10.0, 5.0]])).tolist() == [[500000, 5600000], [500002, 5599999]]


def test_degrees_do_not(tmp_path: Path) -> None:
    path = geotiff(tmp_path / "a.tif", WGS_84, 0.001, (9.0, 50.0))
    assert scale_in_file(path) is None
    ground = ground_of(path)
    assert ground is not None
    assert ground.crs == "EPSG:4326"


@pytest.mark.parametrize(
    ("keys", "metres"),
    [
        (keys_of(model=1, projected=32632), 0.5),
        (keys_of(model=1, projected=2263, unit=9003), 0.5 * 1200 / 3937),
        (keys_of(model=1, projected=2263, unit=9002), 0.5 * 0.3048),
        (keys_of(model=1, projected=2263), None),  # in feet, but only a register of coordinate systems says so
        (keys_of(model=1, projected=3857, unit=9001), None),  # Web Mercator: longer than on the ground
    ],
)
def test_a_unit_of_the_ground_is_known_or_there_is_none(
    tmp_path: Path, keys: tuple[int, ...], metres: float | None
) -> None:
    scale = scale_in_file(geotiff(tmp_path / "a.tif", keys, 0.5, (100.0, 900.0)))
    assert scale == (None if metres is None else Scale(pytest.approx(metres), "m", "GeoTIFF"))  # type: ignore[arg-type]


def test_coordinates_may_be_of_the_middle_of_a_pixel(tmp_path: Path) -> None:
    keys = keys_of(model=1, raster=2, projected=32632, unit=9001)
    ground = ground_of(geotiff(tmp_path / "a.tif", keys, 2.0, (100.0, 900.0)))
    assert ground is not None
    assert ground.locate(np.array([[0.5, 0.5], [0.0, 0.0]])).tolist() == [[100, 900], [99, 901]]


def test_a_plain_photo_lies_nowhere(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((4, 4), np.uint8))
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    assert ground_of(tmp_path / "a.tif") is None
    assert ground_of(tmp_path / "a.png") is None


def test_geojson_is_in_the_coordinates_of_the_photo(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "masks").mkdir()
    geotiff(tmp_path / "photos" / "a.tif", UTM_32_NORTH, 0.5, (100.0, 900.0))
    mask = np.zeros((40, 60), np.uint8)
    mask[10:20, 20:40] = 255
    Image.fromarray(mask).save(tmp_path / "masks" / "a.png")
    words = ("--masks", tmp_path / "masks", tmp_path / "photos", "-o", tmp_path / "out", "--format", "geojson")
    assert run("measure", *words) == 0
    content = json.loads((tmp_path / "out" / "geojson" / "a.geojson").read_text())
    assert content["crs"]["properties"]["name"] == "EPSG:32632"
    (feature,) = content["features"]
    corners = np.array(feature["geometry"]["coordinates"][0])
    assert (corners.min(axis=0).tolist(), corners.max(axis=0).tolist()) == ([110, 890], [120, 895])
    assert feature["properties"]["measurements"]["area_m2"] == pytest.approx(50)


@pytest.mark.parametrize(
    "tags",
    [
        [(33550, "d", 1, 1.0, True), (33922, "d", 1, 5.0, True)],
        [(33550, "s", 4, "abc", True), (33922, "s", 7, "abcdef", True)],
        [(34264, "s", 17, "abcdefghabcdefgh", True)],
        [(33550, "d", 3, (1.0, 1.0, 0.0), True), (33922, "d", 6, (0.0,) * 6, True), (34735, "H", 1, 5, True)],
        [(33550, "d", 3, (1e308,) * 3, True), (33922, "d", 6, (1e308,) * 6, True)],
        [(34264, "d", 16, (float("inf"),) * 16, True)],
    ],
)
def test_tags_of_another_kind_say_nothing(tmp_path: Path, tags: Any) -> None:
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((4, 6), np.uint8), extratags=tags, metadata=None)
    assert ground_of(tmp_path / "a.tif") is None
    assert scale_in_file(tmp_path / "a.tif") is None
