"""Other programs get exactly the pixels of the masks: files are read again by their own libraries."""

import json
from pathlib import Path

import numpy as np
import pytest
import roifile
import tifffile
from numpy.typing import NDArray
from scipy import ndimage

from emat.measure import MeasureOptions, Scene, measure
from emat.measure.exports import write_geojson, write_labels, write_rois
from emat.measure.units import Scale, scale_in_file
from tests.measure.rois import even_odd, read_rois
from tests.measure.shapes import disc, ring, scene_of
from tests.raises import raises_code


def rough_scene() -> Scene:
    """Objects with holes, parts that touch at a corner, and single pixels, also at the border."""
    random = np.random.default_rng(0)
    noise = ndimage.gaussian_filter(random.normal(size=(90, 120)), 1.5)
    label_map = np.where(noise > 0.12, 1, np.where(noise < -0.12, 2, 0))
    label_map[0, 0], label_map[40, 60] = 1, 2
    return Scene.of_label_map(
        np.zeros((90, 120, 3), np.uint8), label_map, ("cell", "no/cell"), "a/b.png", touching="together"
    )


def masks_of(scene: Scene) -> dict[int, NDArray[np.bool_]]:
    found = {}
    for labels in scene.objects.values():
        for number in np.unique(labels[labels > 0]).tolist():
            found[number] = labels == number
    return found


def test_imagej_rois_are_exactly_the_objects(tmp_path: Path) -> None:
    scene = rough_scene()
    path = tmp_path / "rois.zip"
    write_rois(path, scene)
    expected = masks_of(scene)
    rois = read_rois(path, scene.size)
    assert len(rois) == len(expected) > 30
    for title, mask in rois.items():
        assert np.array_equal(mask, expected[int(title.rpartition("-")[2])]), title
    names = {title.rpartition("-")[0] for title in rois}
    assert names == {"cell", "no/cell"}


def test_an_outline_is_not_a_pixel_too_small(tmp_path: Path) -> None:
    mask = np.zeros((10, 10), bool)
    mask[2:5, 3:7] = True
    write_rois(tmp_path / "a.zip", scene_of(mask))
    roi = roifile.roiread(tmp_path / "a.zip")
    roi = roi[0] if isinstance(roi, list) else roi
    corners = np.asarray(roi.coordinates())
    assert (corners.min(axis=0).tolist(), corners.max(axis=0).tolist()) == ([3, 2], [7, 5])
    assert (roi.left, roi.top, roi.right, roi.bottom) == (3, 2, 7, 5)


def test_the_same_objects_give_the_same_files(tmp_path: Path) -> None:
    scene = rough_scene()
    for name in ("a", "b"):
        write_rois(tmp_path / f"{name}.zip", scene)
        write_geojson(tmp_path / f"{name}.geojson", scene, [])
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert (tmp_path / "a.geojson").read_bytes() == (tmp_path / "b.geojson").read_bytes()


def test_geojson_is_exactly_the_objects_with_their_measurements(tmp_path: Path) -> None:
    found = measure(rough_scene(), MeasureOptions(groups=("size",), scale=Scale(0.5, "um", "test")))
    path = tmp_path / "a.geojson"
    write_geojson(path, found.scene, found.table())
    content = json.loads(path.read_text())
    expected = masks_of(found.scene)
    assert content["type"] == "FeatureCollection"
    assert len(content["features"]) == len(expected)
    for feature in content["features"]:
        geometry = feature["geometry"]
        polygons = geometry["coordinates"] if geometry["type"] == "MultiPolygon" else [geometry["coordinates"]]
        rings = [np.array(ring) for polygon in polygons for ring in polygon]
        assert all(ring[0].tolist() == ring[-1].tolist() for ring in rings), "rings are closed"
        number = int(feature["properties"]["name"].rpartition(" ")[2])
        assert np.array_equal(even_odd(rings, found.scene.size), expected[number])
        area = feature["properties"]["measurements"]["area_um2"]
        assert area == pytest.approx(0.25 * expected[number].sum())
    assert content["features"][0]["properties"]["classification"]["name"] == "cell"
    assert len({feature["id"] for feature in content["features"]}) == len(expected)


def test_label_images_carry_their_numbers_and_the_size_of_a_pixel(tmp_path: Path) -> None:
    scene = rough_scene()
    path = tmp_path / "a.ome.tif"
    write_labels(path, scene, Scale(0.32, "um", "test"))
    with tifffile.TiffFile(path) as file:
        assert file.is_ome
        image = file.asarray()
    assert image.dtype == np.uint16
    assert np.array_equal(image, scene.object_image)
    assert scale_in_file(path) == Scale(0.32, "um", "OME-XML")


def test_classes_that_overlap_have_planes_of_their_own(tmp_path: Path) -> None:
    scene = scene_of(disc(20), names=("lesion",)).with_class("leaf", disc(60), "otsu")
    write_labels(tmp_path / "a.ome.tif", scene, None)
    planes = tifffile.imread(tmp_path / "a.ome.tif")
    assert planes.shape == (2, 500, 500)
    assert np.array_equal(planes > 0, [disc(20), disc(60)])
    assert scale_in_file(tmp_path / "a.ome.tif") is None


def test_more_objects_than_16_bits_hold_are_written_with_32(tmp_path: Path) -> None:
    numbers = np.arange(300 * 300, dtype=np.int32).reshape(300, 300)
    scene = Scene("a", np.zeros((300, 300, 3), np.uint8), {"dot": numbers}, {"dot": "test"})
    write_labels(tmp_path / "a.ome.tif", scene, None)
    image = tifffile.imread(tmp_path / "a.ome.tif")
    assert image.dtype == np.uint32
    assert np.array_equal(image, numbers)


def test_measurements_save_themselves_by_suffix(tmp_path: Path) -> None:
    found = measure(scene_of(ring(10, 20)))
    for suffix in (".csv", ".parquet", ".zip", ".geojson", ".tif"):
        found.save(tmp_path / f"a{suffix}")
        assert (tmp_path / f"a{suffix}").stat().st_size > 0
    with raises_code("wrong-suffix", ".xlsx"):
        found.save(tmp_path / "a.xlsx")
