"""A benchmark is opened from lists or from masks, for published and for other data sets."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emat.datasets.dataset import ClassAreas
from emat.datasets.fold_lists import FoldList, list_path, write_fold_list
from emat.tasks.benchmark import (
    PUBLISHED_SIZES,
    object_sizes,
    open_benchmark,
    parse_size,
    quartile_theta,
    size_histogram,
    size_split,
)
from emat.tasks.sampling import THETA, TaskRequest, load_split
from emat.tasks.task import Setting
from tests.raises import raises_code

CLASSES = ("ant", "bee", "cat", "dog")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """24 photos of 20 x 10 in four classes; in photo i, class i % 4 + 1 covers half and the next class a tenth."""
    root = tmp_path / "pets"
    (root / "images").mkdir(parents=True)
    (root / "masks").mkdir()
    (root / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    for i in range(24):
        mask = np.zeros((10, 20), np.uint8)
        mask[:, :10] = i % 4 + 1
        mask[:, 18:] = (i + 1) % 4 + 1
        Image.fromarray(mask).save(root / "masks" / f"p{i:02}.png")
        Image.new("RGB", (20, 10), (i, 2 * i, 99)).save(root / "images" / f"p{i:02}.jpg")
    return root


def test_lists_of_a_new_data_set_are_made_from_its_masks(pets: Path) -> None:
    benchmark = open_benchmark(None, None, pets, folds="2")
    assert [fold.class_ids for fold in benchmark.fold_lists] == [(1, 2), (3, 4)]
    assert benchmark.fold_list(0).dataset == "pets"
    assert benchmark.fold_list(0).counts == {1: 12, 2: 12}


def test_a_min_area_drops_small_objects(pets: Path) -> None:
    benchmark = open_benchmark("folder", None, pets, folds="2", min_area=0.1)
    assert benchmark.fold_list(1).counts == {3: 6, 4: 6}


def test_a_list_of_names_says_which_photos_are_used(pets: Path, tmp_path: Path) -> None:
    every = open_benchmark(None, None, pets, folds="1").fold_list(0)
    names = list(dict.fromkeys(name for name, _ in every.entries))[:8]
    listed = tmp_path / "val.txt"
    listed.write_text("\n".join(names))
    benchmark = open_benchmark(None, None, pets, folds="1", names=listed)
    assert {name for name, _ in benchmark.fold_list(0).entries} == set(names)
    listed.write_text("p99\n")
    with raises_code("no-such-mask"):
        open_benchmark(None, None, pets, names=listed)


def test_folds_may_be_named_in_a_file(pets: Path, tmp_path: Path) -> None:
    (tmp_path / "folds.txt").write_text("ant, dog\nbee\n")
    benchmark = open_benchmark(None, None, pets, folds=str(tmp_path / "folds.txt"))
    assert [fold.class_ids for fold in benchmark.fold_lists] == [(1, 4), (2,)]


def test_theta_of_a_new_data_set_is_the_quartile_of_its_objects(pets: Path) -> None:
    sampler = open_benchmark(None, None, pets, folds="1").sampler(0, TaskRequest(2, 1, Setting.FULLY_AUGMENTED))
    assert sampler.protocol.theta == 0.1
    assert any(task.augmented for task in sampler)


def test_a_size_split_is_made_from_the_masks(pets: Path) -> None:
    benchmark = open_benchmark(None, None, pets, folds="2", object_size="5-15")
    assert benchmark.fold_list(0).counts == {1: 6, 2: 6}
    sampler = benchmark.sampler(0, TaskRequest(1, 1))
    assert len(sampler) == 12
    assert sampler.protocol.query_has_class


def test_counted_masks_are_kept_between_runs(pets: Path, tmp_path: Path) -> None:
    open_benchmark(None, None, pets, folds="2")
    assert len(list((tmp_path / "home" / "class-areas").iterdir())) == 1


def test_only_the_folds_asked_for_need_files(tmp_path: Path) -> None:
    path = tmp_path / "pascal" / "val" / "fold2.txt"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"image{i}__{11 + i % 5}\n" for i in range(20)))
    benchmark = open_benchmark("pascal", tmp_path, None, only=[2])
    assert len(benchmark.sampler(2, TaskRequest(2, 1, tasks=5))) == 5
    with raises_code("unknown-fold"):
        benchmark.fold_list(0)
    with raises_code("no-such-list", "pascal"):
        open_benchmark("pascal", tmp_path, None)


def test_lists_written_for_a_new_data_set_are_read_again(pets: Path, tmp_path: Path) -> None:
    made = open_benchmark(None, None, pets, folds="2")
    for fold_list in made.fold_lists:
        write_fold_list(fold_list, tmp_path / "lists" / list_path(fold_list))
    assert open_benchmark("pets", tmp_path / "lists", None).fold_lists == made.fold_lists


def test_a_missing_argument_is_named_in_the_error(tmp_path: Path) -> None:
    with raises_code("missing-option"):
        open_benchmark("pascal", None, None)
    with raises_code("missing-option"):
        open_benchmark(None, tmp_path, None)
    with raises_code("unclear-option", "'5'"):
        open_benchmark("pascal", tmp_path, None, object_size="5")


def test_published_data_sets_keep_their_folds(shared: Path) -> None:
    benchmark = open_benchmark(None, None, shared / "data" / "voc2012-mini")
    assert [fold.class_ids[0] for fold in benchmark.fold_lists] == [1, 6, 11, 16]
    assert {fold.dataset for fold in benchmark.fold_lists} == {"pascal"}


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
    with raises_code("unclear-option"):
        parse_size(size)


def test_theta_is_the_lower_quartile_of_object_sizes() -> None:
    assert quartile_theta([FOLD], TEN) == 0.1


def test_the_published_theta_is_about_the_quartile_of_the_training_masks(shared: Path, areas: ClassAreas) -> None:
    train = load_split(shared / "data" / "splits", "pascal", "train")[0]
    some = replace(train, entries=train.entries[::4])  # a quarter of the masks tells it as well
    assert quartile_theta([some], areas) == pytest.approx(THETA["pascal"], abs=0.02)
