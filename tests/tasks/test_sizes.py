"""Size splits made from masks equal the published ones, and the histogram agrees with them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from emat.datasets.dataset import ClassAreas
from emat.datasets.fold_lists import FoldList
from emat.errors import EmatError
from emat.tasks.augmentation import THETA
from emat.tasks.sampling import load_split
from emat.tasks.sizes import (
    PUBLISHED_SIZES,
    object_sizes,
    parse_size,
    quartile_theta,
    size_histogram,
    size_split,
)


@pytest.mark.parametrize("size", PUBLISHED_SIZES)
def test_splits_from_the_masks_equal_the_published_lists(size: str, shared: Path, areas: ClassAreas) -> None:
    splits = shared / "data" / "splits"
    made = tuple(size_split(fold, areas, size) for fold in load_split(splits, "pascal", "val"))
    assert made == load_split(splits, "pascal", size)


def test_the_histogram_counts_every_entry_and_its_bins_are_the_splits(shared: Path, areas: ClassAreas) -> None:
    splits = shared / "data" / "splits"
    histograms = [size_histogram(fold, areas) for fold in load_split(splits, "pascal", "val")]
    assert [int(histogram.sum()) for histogram in histograms] == [346, 451, 725, 346]
    for index, size in enumerate(PUBLISHED_SIZES[:3]):
        lengths = [len(fold.entries) for fold in load_split(splits, "pascal", size)]
        assert [int(histogram[index]) for histogram in histograms] == lengths
    # The paper chose its ranges so that each holds at least 100 objects of the largest fold.
    assert histograms[2][:3].tolist() == [129, 119, 112]


TEN = ClassAreas(lambda name: np.repeat([1, 0], [int(name), 10 - int(name)])[None])  # "3": class 1 covers 3 of 10
FOLD = FoldList("pets", 0, "val", tuple((str(n), 1) for n in (0, 1, 3, 5, 10)), (1,))


def test_a_range_includes_its_lower_end_but_not_its_upper_end() -> None:
    assert size_split(FOLD, TEN, "10-30").entries == (("1", 1),)
    assert size_split(FOLD, TEN, "0-100").entries == FOLD.entries[:-1]
    assert object_sizes(FOLD, TEN).tolist() == [0.0, 0.1, 0.3, 0.5, 1.0]


def test_the_last_bin_holds_all_larger_objects() -> None:
    assert size_histogram(FOLD, TEN, step=10).tolist() == [1, 1, 0, 1, 0, 2]


@pytest.mark.parametrize("size", ["5", "10-5", "5-5", "a-b", "0-101", "-1-5", "0.5-1"])
def test_a_wrong_range_is_refused(size: str) -> None:
    with pytest.raises(EmatError, match="is not a range of object sizes"):
        parse_size(size)


def test_theta_is_the_lower_quartile_of_object_sizes() -> None:
    assert quartile_theta([FOLD], TEN) == 0.1


def test_the_published_theta_is_about_the_quartile_of_the_training_masks(shared: Path, areas: ClassAreas) -> None:
    train = load_split(shared / "data" / "splits", "pascal", "train")[0]
    some = replace(train, entries=train.entries[::4])  # a quarter of the masks tells it as well
    assert quartile_theta([some], areas) == pytest.approx(THETA["pascal"], abs=0.02)
