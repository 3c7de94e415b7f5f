"""A prediction is measured in Python as on the command line: original values, and the unit of its file."""

from pathlib import Path

import numpy as np
import pytest
import tifffile

from emat.inference.prediction import Prediction
from emat.measure import MeasureOptions
from emat.measure.units import Scale
from tests.raises import raises_code

SIZE = (60, 80)
CELLS = np.zeros(SIZE, bool)
CELLS[10:40, 10:30], CELLS[20:30, 30:34], CELLS[10:40, 34:60] = True, True, True  # two that touch at a neck


@pytest.fixture
def prediction() -> Prediction:
    photo = np.zeros((*SIZE, 3), np.uint8)
    return Prediction(photo, {"cell": 0.9}, {"cell": np.where(CELLS, 0.9, 0.1).astype(np.float32)})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two channels of 16 bits, 0.5 um a pixel."""
    values = np.stack([np.where(CELLS, 30000, 500), np.full(SIZE, 777)]).astype(np.uint16)
    metadata = {"axes": "CYX", "Channel": {"Name": ["DAPI", "GFP"]}, "PhysicalSizeX": 0.5, "PhysicalSizeY": 0.5}
    tifffile.imwrite(tmp_path / "dish.ome.tif", values, ome=True, metadata=metadata, photometric="minisblack")
    return tmp_path / "dish.ome.tif"


def test_the_file_gives_name_unit_and_original_values(prediction: Prediction, file: Path) -> None:
    rows = prediction.measure(photo=file, touching="together").table()
    (row,) = rows
    assert (row["photo"], row["unit_source"], row["area_um2"]) == ("dish.ome.tif", "OME-XML", CELLS.sum() / 4)
    assert (row["intensity_mean_DAPI"], row["intensity_max_GFP"]) == (30000, 777)


def test_without_the_file_there_is_no_unit_and_values_are_as_shown(prediction: Prediction) -> None:
    row = prediction.measure(touching="together").table()[0]
    assert (row["photo"], row["unit_source"], row["intensity_max_grey"]) == ("photo", "not known", 0)


def test_options_come_before_the_file(prediction: Prediction, file: Path) -> None:
    options = MeasureOptions(groups=(), scale=Scale(2.0, "um", "objective"))
    row = prediction.measure(options, photo=file, name="dish 1", touching="together").table()[0]
    assert (row["photo"], row["unit_source"], row["area_um2"]) == ("dish 1", "objective", 4 * CELLS.sum())


def test_objects_that_touch_are_split_or_not(prediction: Prediction) -> None:
    assert len(prediction.measure().objects) == 2
    assert len(prediction.measure(touching="together").objects) == 1
    with raises_code("unknown-choice"):
        prediction.measure(touching="apart")


def test_another_file_than_the_photo_is_refused(prediction: Prediction, tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "other.tif", np.zeros((10, 10), np.uint16))
    with raises_code("mask-size", "give the same file"):
        prediction.measure(photo=tmp_path / "other.tif")
