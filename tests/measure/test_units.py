"""The size of a pixel is read from where it is known, and never made up."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from emat.errors import EmatError
from emat.measure.units import Scale, ScaleObject, given_scale, scale_in_file
from tests.measure.shapes import bar, disc, scene_of
from tests.raises import raises_code

PHOTO = np.zeros((20, 30), np.uint16)


def written(path: Path, **options: Any) -> Scale | None:
    tifffile.imwrite(path, PHOTO, **options)
    return scale_in_file(path)


def test_ome_xml_says_the_size_and_the_unit(tmp_path: Path) -> None:
    metadata = {"axes": "YX", "PhysicalSizeX": 0.65, "PhysicalSizeXUnit": "µm", "PhysicalSizeY": 0.65}
    found = written(tmp_path / "a.ome.tif", ome=True, metadata={**metadata, "PhysicalSizeYUnit": "µm"})
    assert found == Scale(0.65, "um", "OME-XML")


def test_imagej_says_the_size_and_the_unit(tmp_path: Path) -> None:
    found = written(tmp_path / "a.tif", imagej=True, resolution=(4, 4), metadata={"unit": "um"})
    assert found == Scale(0.25, "um", "ImageJ tags")


def test_an_imagej_file_without_a_unit_has_none(tmp_path: Path) -> None:
    assert written(tmp_path / "a.tif", imagej=True, resolution=(4, 4)) is None


def test_the_resolution_of_a_scanner_is_taken(tmp_path: Path) -> None:
    found = written(tmp_path / "a.tif", resolution=(300, 300), resolutionunit="INCH")
    assert found is not None
    assert found.side == pytest.approx(25.4 / 300)
    assert found.unit == "mm"
    assert found.source == "TIFF resolution of 300 dpi"
    found = written(tmp_path / "b.tif", resolution=(31250, 31250), resolutionunit="CENTIMETER")
    assert found == Scale(0.32, "um", "TIFF resolution")


@pytest.mark.parametrize("dots", [72, 96])
def test_the_resolution_of_a_screen_says_nothing(tmp_path: Path, dots: int) -> None:
    assert written(tmp_path / "a.tif", resolution=(dots, dots), resolutionunit="INCH") is None


def test_nothing_is_made_up(tmp_path: Path) -> None:
    assert written(tmp_path / "a.tif") is None
    Image.new("RGB", (4, 4)).save(tmp_path / "a.jpg", dpi=(300, 300))
    assert scale_in_file(tmp_path / "a.jpg") is None
    assert scale_in_file(tmp_path / "gone.tif") is None
    (tmp_path / "broken.tif").write_bytes(b"II*\0 no directory")
    assert scale_in_file(tmp_path / "broken.tif") is None


def test_pixels_that_are_not_square_are_refused(tmp_path: Path) -> None:
    with raises_code("pixels-not-square"):
        written(tmp_path / "a.tif", imagej=True, resolution=(4, 2), metadata={"unit": "um"})


def test_hostile_xml_is_not_expanded(tmp_path: Path) -> None:
    text = '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "x">]><OME><Pixels PhysicalSizeX="1" PhysicalSizeY="1"/></OME>'
    assert written(tmp_path / "a.tif", description=text) is None


def test_a_given_size_is_read() -> None:
    assert given_scale("0.32 µm") == Scale(0.32, "um", "given by --pixel-size")
    with raises_code("unclear-option"):
        given_scale("0.32")


def test_a_coin_sets_the_scale() -> None:
    found = ScaleObject.read("a=23.25mm").scale(scene_of(disc(100)))
    assert found.side == pytest.approx(23.25 / 200, rel=0.01)
    assert (found.unit, found.source) == ("mm", "a of 23.25 mm")


@pytest.mark.parametrize(
    ("mask", "problem"),
    [
        (np.zeros((500, 500), bool), "shows no a"),
        (disc(100)[:200], "cut off"),
        (bar(200, 100), "not round"),
        (disc(100) & ~bar(90, 90), "not round"),
        (np.concatenate([disc(100), disc(70)], axis=1), "several"),
    ],
)
def test_a_coin_that_cannot_be_measured_is_refused_with_a_sentence(mask: Any, problem: str) -> None:
    with pytest.raises(EmatError, match=problem):
        ScaleObject.read("a=23.25mm").scale(scene_of(mask))


def test_a_speck_beside_the_coin_does_not_matter() -> None:
    mask = disc(100)
    mask[5:9, 5:9] = True
    assert ScaleObject.read("a=2cm").scale(scene_of(mask)).side == pytest.approx(0.01, rel=0.01)


def test_units_are_converted() -> None:
    assert Scale(0.5, "mm", "x").in_unit("um").side == 500
    with raises_code("unknown-unit", "'inch'"):
        Scale(0.5, "mm", "x").in_unit("inch")


@pytest.mark.parametrize("side", ["1e-320", "1e300", "inf", "nan", "-1", "0"])
def test_a_size_that_no_pixel_has_says_nothing(tmp_path: Path, side: str) -> None:
    pixels = f'<Pixels PhysicalSizeX="{side}" PhysicalSizeY="{side}"/>'
    text = f'<?xml version="1.0"?><OME xmlns="x"><Image>{pixels}</Image></OME>'
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((4, 6), np.uint8), description=text, metadata=None)
    assert scale_in_file(tmp_path / "a.tif") is None


@pytest.mark.parametrize("size", ["9" * 400 + "um", "0." + "0" * 400 + "1um", "0um"])
def test_a_size_that_is_no_number_is_refused(size: str) -> None:
    with raises_code("unclear-option"):
        given_scale(size)
