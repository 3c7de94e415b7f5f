"""Files with channels, depths and times are read as their metadata say."""

import json
import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import zarr
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.images import Reading, read_channels, read_photo
from emat.images.stacks import Plane, Stack, open_stack, write_zarr
from tests.raises import raises_code

T, C, Z, Y, X = 2, 3, 4, 20, 30
USUAL = Reading()


@pytest.fixture
def values() -> NDArray[np.uint16]:
    return np.random.default_rng(0).integers(0, 60000, (T, C, Z, Y, X)).astype(np.uint16)


def opened(path: Path) -> Stack:
    stack = open_stack(path, USUAL)
    assert stack is not None
    return stack


@pytest.mark.parametrize("axes", ["TCZYX", "TZCYX", "CZYX", "ZCYX", "CYX", "ZYX", "TYX"])
def test_the_axes_of_an_ome_tiff_may_have_any_order(tmp_path: Path, values: NDArray[np.uint16], axes: str) -> None:
    first = values[tuple(slice(None) if axis in axes else 0 for axis in "TCZYX")]
    left = [axis for axis in "TCZYX" if axis in axes]
    moved = first.transpose([left.index(axis) for axis in axes])
    tifffile.imwrite(tmp_path / "a.ome.tif", moved, ome=True, metadata={"axes": axes}, photometric="minisblack")
    stack = opened(tmp_path / "a.ome.tif")
    expected = {"T": T, "C": C, "Z": Z, "Y": Y, "X": X}
    assert stack.shape == tuple(expected[axis] if axis in axes else 1 for axis in "TCZYX")
    plane = Plane(2 if "Z" in axes else None, 1 if "T" in axes else None)
    assert plane in stack.planes("none")
    read = stack.values(plane, "none")
    wanted = values[1 if "T" in axes else 0, :, 2 if "Z" in axes else 0]
    assert np.array_equal(read, np.moveaxis(wanted if "C" in axes else wanted[:1], 0, 2))


def test_imagej_hyperstacks_are_read(tmp_path: Path, values: NDArray[np.uint16]) -> None:
    moved = values.transpose(0, 2, 1, 3, 4)
    tifffile.imwrite(tmp_path / "a.tif", moved, imagej=True, metadata={"axes": "TZCYX"})
    stack = opened(tmp_path / "a.tif")
    assert stack.shape == (T, C, Z, Y, X)
    assert np.array_equal(stack.values(Plane(3, 1), "none"), np.moveaxis(values[1, :, 3], 0, 2))


def test_depths_are_projected(tmp_path: Path, values: NDArray[np.uint16]) -> None:
    tifffile.imwrite(tmp_path / "a.ome.tif", values[0], ome=True, metadata={"axes": "CZYX"}, photometric="minisblack")
    stack = opened(tmp_path / "a.ome.tif")
    assert len(stack.planes("none")) == Z
    (plane,) = stack.planes("max")
    assert plane.position == {}
    assert np.array_equal(stack.values(plane, "max"), np.moveaxis(values[0].max(axis=1), 0, 2))
    mean = stack.values(plane, "mean")
    assert mean.dtype == np.uint16
    assert np.array_equal(mean, np.rint(np.moveaxis(values[0].mean(axis=1), 0, 2)))


def two_channels(path: Path, **options: Any) -> NDArray[np.uint16]:
    values = np.zeros((2, Y, X), np.uint16)
    values[0, :10], values[1, :, :10] = 40000, 900
    metadata = {"axes": "CYX", "Channel": {"Name": ["DAPI", "GFP"]}, "PhysicalSizeX": 0.5, "PhysicalSizeY": 0.5}
    tifffile.imwrite(path, values, ome=True, metadata=metadata, photometric="minisblack", **options)
    return values


def test_channels_become_colours_each_stretched_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.ome.tif"
    two_channels(path)
    assert opened(path).channels == ("DAPI", "GFP")
    photo = read_photo(path)
    assert (photo[0, 20].tolist(), photo[15, 0].tolist()) == ([255, 0, 255], [0, 255, 0])
    assert read_photo(path, reading=Reading(channels=("gfp",)))[15, 0].tolist() == [255, 255, 255]
    assert read_photo(path, reading=Reading(channels=("1", "DAPI")))[15, 0].tolist() == [255, 0, 255]
    with raises_code("no-such-channel", "'RFP'", "DAPI, GFP"):
        read_photo(path, reading=Reading(channels=("RFP",)))


def test_more_than_three_channels_share_the_colours(tmp_path: Path) -> None:
    values = np.zeros((5, Y, X), np.uint8)
    values[3, :10] = 200
    tifffile.imwrite(tmp_path / "a.ome.tif", values, ome=True, metadata={"axes": "CYX"}, photometric="minisblack")
    assert read_photo(tmp_path / "a.ome.tif")[0, 0].tolist() == [200, 0, 0]


def test_a_stack_of_depths_is_no_photo_until_it_is_projected(tmp_path: Path, values: NDArray[np.uint16]) -> None:
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(path, values[0], ome=True, metadata={"axes": "CZYX"}, photometric="minisblack")
    with raises_code("several-pages"):
        read_photo(path)
    assert read_photo(path, reading=Reading(project="max")).shape == (Y, X, 3)


def test_plain_photos_and_stacks_of_pages_stay_what_they_were(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "grey.ome.tif", np.zeros((Y, X), np.uint16), ome=True)
    tifffile.imwrite(tmp_path / "rgb.ome.tif", np.zeros((Y, X, 3), np.uint8), ome=True, photometric="rgb")
    tifffile.imwrite(tmp_path / "pages.tif", np.zeros((4, Y, X), np.uint8), photometric="minisblack")
    for path in tmp_path.iterdir():
        assert open_stack(path, USUAL) is None


def test_an_ome_zarr_is_read_with_its_names_and_its_scale(tmp_path: Path, values: NDArray[np.uint16]) -> None:
    path = tmp_path / "a.ome.zarr"
    write_zarr(path, values[0, :2, 0], ["DAPI", "GFP"], (0.25, "micrometer"))
    stack = opened(path)
    assert (stack.shape, stack.channels, stack.pixel) == ((1, 2, 1, Y, X), ("DAPI", "GFP"), (0.25, 0.25, "micrometer"))
    assert np.array_equal(stack.values(Plane(None, None), "none"), np.moveaxis(values[0, :2, 0], 0, 2))
    assert read_photo(path).shape == (Y, X, 3)


def test_a_scale_of_all_sizes_of_an_ome_zarr_counts_too(tmp_path: Path, values: NDArray[np.uint16]) -> None:
    path = tmp_path / "a.ome.zarr"
    write_zarr(path, values[0, :2, 0], ["DAPI", "GFP"], (2.0, "micrometer"))
    facts = json.loads((path / ".zattrs").read_text())
    facts["multiscales"][0]["coordinateTransformations"] = [{"type": "scale", "scale": [1.0, 0.25, 0.25]}]
    (path / ".zattrs").write_text(json.dumps(facts))
    assert opened(path).pixel == (0.5, 0.5, "micrometer")


def test_an_ome_zarr_of_five_axes_is_read_plane_by_plane(tmp_path: Path, values: NDArray[np.uint16]) -> None:
    description = "ImageJ=1.5\nimages=3000000000\nchannels=1000000000\nslices=3\n"
    pages = np.zeros((3, 8, 8), np.uint8)
    tifffile.imwrite(tmp_path / "b.tif", pages, description=description, photometric="minisblack", metadata=None)
    with suppress(EmatError):
        assert open_stack(tmp_path / "b.tif", USUAL) is None
    root = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    root.create_array("0", shape=values.shape, dtype=values.dtype)[:] = values
    axes = [{"name": name.lower()} for name in "TCZYX"]
    root.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": [{"path": "0"}]}]}
    stack = opened(tmp_path / "a.zarr")
    assert stack.shape == values.shape
    assert stack.pixel is None
    assert np.array_equal(stack.values(Plane(3, 1), "none"), np.moveaxis(values[1, :, 3], 0, 2))


def test_damaged_stacks_are_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.zarr").mkdir()
    with raises_code("damaged-file", "a.zarr"):
        open_stack(tmp_path / "a.zarr", USUAL)
    path = tmp_path / "a.ome.tif"
    two_channels(path, compression="zlib")
    content = bytearray(path.read_bytes())
    with tifffile.TiffFile(path) as file:
        start = file.pages[0].dataoffsets[0]
    content[start : start + 8] = b"nothing!"
    path.write_bytes(content)
    with raises_code("damaged-file"):
        read_photo(path)
    two_channels(path)
    with raises_code("photo-too-large"):
        read_photo(path, reading=Reading(max_pixels=100))


def ome(path: Path, sizes: str, data: str = "<TiffData/>") -> Path:
    """Three pages of 8 x 8 pixels, and OME-XML that may say something else."""
    text = (
        '<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"><Image ID="Image:0">'
        f'<Pixels ID="Pixels:0" DimensionOrder="XYCZT" Type="uint8" {sizes}>'
        f'<Channel ID="Channel:0:0" SamplesPerPixel="1"/>{data}</Pixels></Image></OME>'
    )
    pages = np.zeros((3, 8, 8), np.uint8)
    tifffile.imwrite(path, pages, description=text, photometric="minisblack", metadata=None)
    return path


THREE = 'SizeX="8" SizeY="8" SizeC="3" SizeZ="1" SizeT="1"'


@pytest.mark.parametrize(
    ("sizes", "data"),
    [
        ('SizeX="8" SizeY="8" SizeC="3" SizeZ="2000000000" SizeT="1"', "<TiffData/>"),
        ('SizeX="8" SizeY="8" SizeC="3" SizeZ="900000000" SizeT="1"', "<TiffData/>"),
        ('SizeX="900000000" SizeY="900000000" SizeC="3" SizeZ="1" SizeT="1"', "<TiffData/>"),
        ('SizeX="8" SizeY="8" SizeC="x" SizeZ="1" SizeT="1"', "<TiffData/>"),
        ('SizeX="8" SizeY="8" SizeC="-3" SizeZ="1" SizeT="1"', "<TiffData/>"),
        (f'SizeX="8" SizeY="8" SizeC="{"9" * 5000}" SizeZ="1" SizeT="1"', "<TiffData/>"),
        (THREE, '<TiffData IFD="0" PlaneCount="900000000"/>'),
        (THREE, '<TiffData IFD="0" PlaneCount="-1"/>'),
    ],
)
def test_no_memory_is_reserved_for_planes_that_a_file_only_says_it_has(tmp_path: Path, sizes: str, data: str) -> None:
    path, before = ome(tmp_path / "a.ome.tif", sizes, data), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with suppress(EmatError):
        assert open_stack(path, USUAL) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (1 << 20)  # kilobytes


def test_a_stack_opens_no_file_outside_of_its_folder_and_no_pipe(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "secret.tif", np.full((3, 8, 8), 99, np.uint8), photometric="minisblack")
    (tmp_path / "in").mkdir()
    os.mkfifo(tmp_path / "in" / "pipe.tif")

    def naming(name: str) -> Path:
        data = f'<TiffData IFD="0" PlaneCount="3"><UUID FileName="{name}">urn:uuid:b</UUID></TiffData>'
        return ome(tmp_path / "in" / "a.ome.tif", THREE, data)

    for name in ("../secret.tif", str(tmp_path / "secret.tif")):
        with raises_code("path-leads-out"):
            open_stack(naming(name), USUAL)
    assert open_stack(naming("pipe.tif"), USUAL) is None
    tifffile.imwrite(tmp_path / "in" / "b.tif", np.full((3, 8, 8), 99, np.uint8), photometric="minisblack")
    stack = opened(naming("b.tif"))  # a series in several files of one folder
    assert (stack.values(stack.planes("none")[0], "none") == 99).all()


def test_planes_that_are_missing_are_not_taken_for_black(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    elsewhere = '<TiffData FirstC="3" PlaneCount="1"><UUID FileName="gone.tif">b</UUID></TiffData>'
    data = f'<TiffData IFD="0" PlaneCount="3"/>{elsewhere}'
    path = ome(tmp_path / "a.ome.tif", THREE.replace('C="3"', 'C="4"'), data)
    with raises_code("damaged-file", "lacks 1 of its 4 planes"):
        open_stack(path, USUAL)
    assert capfd.readouterr().err == ""


def test_entities_of_xml_are_not_read(tmp_path: Path) -> None:
    path = ome(tmp_path / "a.ome.tif", THREE)
    content = path.read_bytes()
    assert open_stack(path, USUAL) is not None
    path.write_bytes(content.replace(b'<?xml version="1.0"?>', b"<!DOCTYPE a[]><!---->"))
    assert open_stack(path, USUAL) is None


def test_a_channel_of_thousands_of_digits_and_thousands_of_channels_are_refused(tmp_path: Path) -> None:
    stack = opened(ome(tmp_path / "a.ome.tif", THREE))
    with raises_code("no-such-channel"):
        stack.chosen(["1" * 5000])
    root = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=2)
    root.create_array("0", shape=(100_000, 8000, 8000), dtype="u2", chunks=(1, 1000, 1000))
    root.attrs["multiscales"] = [{"axes": ["c", "y", "x"], "datasets": [{"path": "0"}]}]
    with raises_code("photo-too-large"):
        open_stack(tmp_path / "a.zarr", USUAL)


def test_the_bytes_of_a_stack_are_read_as_its_file_is(tmp_path: Path, values: NDArray[np.uint16]) -> None:
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(path, values[0], ome=True, metadata={"axes": "CZYX"}, photometric="minisblack")
    reading = Reading(project="max")
    assert np.array_equal(read_channels(path.read_bytes(), reading=reading), read_channels(path, reading=reading))
    with raises_code("several-pages", "the photo that was sent"):
        read_channels(path.read_bytes(), name="the photo that was sent")
