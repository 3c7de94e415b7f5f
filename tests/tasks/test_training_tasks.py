"""Training tasks merge the classes of several data sets and follow from seed, epoch and index."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emat.datasets.dataset import Dataset
from emat.formats.class_names import VOC_CLASSES
from emat.formats.coco import COCO_CLASSES
from emat.images import Pixels
from emat.tasks.task import Queries
from emat.tasks.training_tasks import SourcePhoto, TrainingList, TrainingSource, TrainingTasks, class_key
from tests.raises import raises_code


class ListedDataset(Dataset):
    """Names and classes, which is all that drawing tasks looks at."""

    kind = "listed"

    def __init__(self, name: str, classes: tuple[str, ...]) -> None:
        self.root, self.classes, self.names = Path(name), classes, ()

    def image(self, name: str) -> Pixels:
        raise AssertionError("drawing opens no photo")

    def image_size(self, name: str) -> tuple[int, int]:
        raise AssertionError("drawing opens no photo")

    def mask(self, name: str) -> Pixels:
        raise AssertionError("drawing opens no mask")


def source(name: str, classes: tuple[str, ...], photos: int = 4) -> TrainingSource:
    entries = tuple((f"{name}{c}-{k}", c) for c in range(1, len(classes) + 1) for k in range(photos))
    return TrainingSource(ListedDataset(name, classes), entries)


VOC = source("voc", ("aeroplane", "sofa", "cat"))
COCO = source("coco", ("cat", "couch", "airplane", "zebra"))


def test_every_voc_class_is_a_coco_class() -> None:
    assert {class_key(name) for name in VOC_CLASSES} <= {class_key(name) for name in COCO_CLASSES}


def test_classes_of_several_data_sets_are_merged_by_name() -> None:
    merged = TrainingList([VOC, COCO])
    assert merged.classes == ("aeroplane", "sofa", "cat", "zebra")
    assert [len(photos) for photos in merged.photos_of_class] == [8, 8, 8, 4]
    assert merged.mask_values == [{0: 1, 1: 3}, {0: 2, 1: 2}, {0: 3, 1: 1}, {1: 4}]


@pytest.mark.parametrize("name", ["aeroplane", "Airplane"])
def test_an_excluded_class_is_left_out_of_all_data_sets_under_any_name(name: str) -> None:
    merged = TrainingList([VOC, COCO], [name])
    assert merged.classes == ("sofa", "cat", "zebra")
    assert all(not photo.name.startswith(("voc1-", "coco3-")) for photo in merged.photos)


def test_a_class_with_one_photo_is_left_out_and_named() -> None:
    alone = TrainingSource(ListedDataset("d", ("cat", "dog")), (("a", 1), ("b", 1), ("c", 2)))
    merged = TrainingList([alone])
    assert (merged.classes, merged.lone) == (("cat",), ("dog",))


def test_having_nothing_to_train_on_is_an_error() -> None:
    with raises_code("too-few-photos"):
        TrainingList([VOC], VOC.dataset.classes)


def test_two_names_for_one_class_in_a_data_set_are_an_error() -> None:
    with raises_code("given-twice"):
        TrainingList([source("d", ("hot dog", "hotdog"))])


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    epoch=st.integers(0, 90),
    index=st.integers(0, 200),
    queries=st.sampled_from([Queries.LISTED, Queries.DRAWN]),
)
def test_a_task_follows_from_seed_epoch_and_index_and_is_well_formed(
    seed: int, epoch: int, index: int, queries: Queries
) -> None:
    merged = TrainingList([VOC, COCO])
    task = TrainingTasks(merged, seed, queries=queries, flip=True).draw(epoch, index)
    later = TrainingTasks(merged, seed, queries=queries, flip=True)
    later.draw(epoch + 1, index)
    assert later.draw(epoch, index) == task
    assert task.support != task.query
    assert task.query in merged.photos_of_class[task.query_class]
    assert task.support in merged.photos_of_class[task.way]


def test_a_listed_epoch_asks_every_entry_once_in_an_order_of_its_own() -> None:
    merged = TrainingList([VOC, COCO])
    tasks = TrainingTasks(merged, seed=0)
    epochs = [[tasks.draw(epoch, index) for index in range(len(merged.entries))] for epoch in (0, 1)]
    orders = [[(task.query, task.query_class) for task in epoch] for epoch in epochs]
    assert sorted(map(str, orders[0])) == sorted(map(str, merged.entries)) == sorted(map(str, orders[1]))
    assert orders[0] != orders[1]


def test_drawn_queries_ask_for_rare_classes_as_often_as_for_frequent_ones() -> None:
    entries = (*((f"many{k}", 1) for k in range(50)), ("few0", 2), ("few1", 2))
    merged = TrainingList([TrainingSource(ListedDataset("d", ("many", "few")), entries)])
    tasks = TrainingTasks(merged, seed=0, queries=Queries.DRAWN)
    counts = Counter(tasks.draw(0, index).query_class for index in range(1000))
    assert 400 < counts[1] < 600


@pytest.mark.parametrize("positive", [0.0, 0.5, 0.7, 1.0])
def test_the_share_of_positive_tasks_is_as_asked(positive: float) -> None:
    tasks = TrainingTasks(TrainingList([VOC, COCO]), seed=3, positive=positive)
    drawn = [tasks.draw(0, index) for index in range(1000)]
    assert np.mean([task.way == task.query_class for task in drawn]) == pytest.approx(positive, abs=0.05)
    others = Counter((task.way - task.query_class) % 4 for task in drawn if task.way != task.query_class)
    if positive < 1:
        assert min(others[k] for k in (1, 2, 3)) > 0.8 * max(others.values())


def test_flips_do_not_change_the_tasks() -> None:
    merged = TrainingList([VOC, COCO])
    plain, flipped = TrainingTasks(merged, 0), TrainingTasks(merged, 0, flip=True)
    seen = set()
    for index in range(40):
        with_flips, without = flipped.draw(0, index), plain.draw(0, index)
        assert (with_flips.query, with_flips.support, with_flips.way) == (without.query, without.support, without.way)
        seen.add((with_flips.flip_query, with_flips.flip_support))
    assert len(seen) == 4


def test_a_single_class_allows_no_negative_tasks() -> None:
    merged = TrainingList([source("d", ("cat",))])
    with raises_code("too-few-photos", "cat"):
        TrainingTasks(merged, 0)
    assert TrainingTasks(merged, 0, positive=1.0).draw(0, 0).way == 0


def test_different_lists_have_different_hashes() -> None:
    assert TrainingList([VOC]).sha256 == TrainingList([VOC]).sha256 != TrainingList([VOC], ["cat"]).sha256


def test_the_stream_of_tasks_never_changes() -> None:
    task = TrainingTasks(TrainingList([VOC, COCO]), seed=0).draw(epoch=2, index=5)
    assert (task.query, task.support, task.way) == (SourcePhoto(0, "voc1-0"), SourcePhoto(1, "coco3-1"), 0)


def test_a_class_that_is_asked_for_in_vain_is_one_of_the_querys_own_data_set() -> None:
    tasks = TrainingTasks(TrainingList([VOC, COCO]), seed=0, positive=0.0)
    drawn = [tasks.draw(0, index) for index in range(300)]
    zebra = tasks.drawn_from.classes.index("zebra")
    asked = {source: {task.way for task in drawn if task.query.source == source} for source in (0, 1)}
    assert zebra not in asked[0]  # VOC has none, so its photos would give the answer away
    assert asked == {0: {0, 1, 2}, 1: {0, 1, 2, 3}}


def test_a_data_set_of_one_class_asks_for_those_of_the_others() -> None:
    tasks = TrainingTasks(TrainingList([source("one", ("cat",)), source("two", ("dog", "elk"))]), seed=0, positive=0.0)
    assert {tasks.draw(0, index).way for index in range(50) if tasks.draw(0, index).query.source == 0} == {1, 2}
