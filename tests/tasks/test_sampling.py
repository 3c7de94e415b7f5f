"""Tasks equal the published ones, follow from their index alone, and impossible requests are refused."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emat.datasets.dataset import ClassAreas
from emat.datasets.fold_lists import FoldList
from emat.tasks.sampling import TaskRequest, TaskSampler, augment, load_split, published_protocol, size_split_tasks
from emat.tasks.task import Protocol, Queries, Setting, Task, digest
from tests.raises import raises_code

DIGESTS: dict[str, str] = json.loads((Path(__file__).parents[1] / "parity" / "task_digests.json").read_text())


@cache
def split(folder: Path, dataset: str, name: str) -> tuple[FoldList, ...]:
    return load_split(folder, dataset, name)


@pytest.mark.parametrize("configuration", DIGESTS)
def test_digest_equals_the_published_one(configuration: str, fold_lists: Path) -> None:
    dataset, fold, shape, *mode = configuration.split("/")
    way, shot = (int(word[0]) for word in shape.split("-"))
    size = mode[0].removeprefix("size") if mode and mode[0].startswith("size") else None
    lists = split(fold_lists, dataset, size or "val")
    protocol = published_protocol(
        lists[int(fold[-1])],
        TaskRequest(
            way, shot, query_has_class=mode == ["query-has-class"], tasks=size_split_tasks(lists) if size else None
        ),
    )
    assert digest(TaskSampler(lists[int(fold[-1])], protocol)) == DIGESTS[configuration]


def fold_of(*counts: int) -> FoldList:
    """A list in which class i + 1 has `counts[i]` photos."""
    own = [(f"{c}-{i}", c) for c, count in enumerate(counts, 1) for i in range(count)]
    return FoldList("pets", 0, "val", tuple(own), tuple(range(1, len(counts) + 1)))


@given(way=st.integers(1, 3), shot=st.integers(1, 4), has_class=st.booleans(), queries=st.sampled_from(Queries))
def test_every_task_is_well_formed(way: int, shot: int, has_class: bool, queries: Queries) -> None:
    fold = fold_of(5, 6, 9)
    protocol = Protocol(way, shot, query_has_class=has_class, queries=queries, tasks=10)
    for task in TaskSampler(fold, protocol):
        assert (task.query, task.query_class) in fold.entries
        assert len(set(task.ways)) == len(task.ways) == way
        assert not has_class or task.ways[0] == task.query_class
        for class_id, shots in zip(task.ways, task.shots, strict=True):
            assert len(set(shots)) == len(shots) == shot
            assert task.query not in shots
            assert set(shots) <= set(fold.photos_of_class[class_id])


DRAWN = Protocol(way=2, shot=2, tasks=20, queries=Queries.DRAWN)
IN_ORDER = list(TaskSampler(fold_of(4, 4, 4), DRAWN))


@given(st.lists(st.integers(0, 19), min_size=1, max_size=8))
def test_a_task_depends_on_its_index_alone(order: list[int]) -> None:
    sampler = TaskSampler(fold_of(4, 4, 4), DRAWN)
    assert [sampler[index] for index in order] == [IN_ORDER[index] for index in order]


def test_listed_queries_repeat_the_list_in_order() -> None:
    fold = fold_of(2, 3)
    queries = [(task.query, task.query_class) for task in TaskSampler(fold, Protocol(tasks=12))]
    assert queries == [*fold.entries, *fold.entries, *fold.entries[:2]]


def test_a_query_lacks_its_way_about_half_the_time() -> None:
    tasks = list(TaskSampler(fold_of(10, 10, 10), Protocol(tasks=1000)))
    assert 0.45 < sum(task.ways[0] == task.query_class for task in tasks) / 1000 < 0.55


def test_too_few_photos_are_refused_with_the_class_and_both_numbers() -> None:
    with raises_code("too-few-photos"):
        TaskSampler(fold_of(9, 3), Protocol(shot=3))
    assert len(list(TaskSampler(fold_of(9, 4), Protocol(shot=3, tasks=50)))) == 50


def test_more_ways_than_classes_are_refused() -> None:
    with raises_code("too-few-photos"):
        TaskSampler(fold_of(9, 9), Protocol(way=3))


def test_an_empty_list_is_refused() -> None:
    with raises_code("empty-list"):
        TaskSampler(fold_of(0, 0), Protocol())


def test_a_size_split_leaves_out_classes_without_a_second_photo() -> None:
    sampler = TaskSampler(fold_of(5, 1, 0, 2), Protocol(queries=Queries.SHUFFLED, query_has_class=True, tasks=40))
    assert sampler.class_ids == (1, 4)
    assert {task.query_class for task in sampler} == {1, 4}


def test_a_fold_of_one_class_gives_one_way_tasks() -> None:
    assert TaskSampler(fold_of(3), Protocol(tasks=1))[0].ways == (1,)


@pytest.mark.parametrize("wrong", [{"way": 0}, {"shot": 0}, {"tasks": 0}, {"theta": 1.0}, {"theta": -0.1}])
def test_values_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with raises_code("bad-number"):
        Protocol(**wrong)


def test_augmented_settings_ask_for_masks() -> None:
    with raises_code("missing-option", "partially-augmented"):
        TaskSampler(fold_of(3, 3), Protocol(setting=Setting.PARTIALLY_AUGMENTED))


def test_tasks_end_where_the_protocol_says() -> None:
    with pytest.raises(IndexError, match="task 7 of 7"):
        TaskSampler(fold_of(3, 3), Protocol(tasks=7))[7]


PARITY = Path(__file__).parents[1] / "parity"
GOLDEN = json.loads((PARITY / "augmentation.json").read_text())
MASKS = np.load(PARITY / "augmentation.npz")["masks"]
PARTIALLY, FULLY = Setting.PARTIALLY_AUGMENTED, Setting.FULLY_AUGMENTED


@pytest.mark.parametrize("configuration", GOLDEN["tasks"])
def test_tasks_equal_the_golden_ones(configuration: str) -> None:
    setting, shape = configuration.split("/")
    way, shot = (int(word[0]) for word in shape.split("-"))
    entries = tuple((name, class_id) for name, class_id in GOLDEN["entries"])
    fold = FoldList("pascal", 0, "val", entries, tuple(GOLDEN["class_ids"]))
    areas = ClassAreas(lambda name: MASKS[int(name.removeprefix("img"))])
    golden = GOLDEN["tasks"][configuration]
    protocol = published_protocol(
        fold, TaskRequest(way, shot, Setting(setting), theta=GOLDEN["theta"], tasks=len(golden))
    )
    drawn = [
        {
            "query": task.query,
            "query_class": task.query_class,
            "classes": list(task.ways),
            "shots": [list(names) for names in task.shots],
            "present": task.present(MASKS[int(task.query.removeprefix("img"))]).tolist(),
            "augmented": task.augmented,
        }
        for task in TaskSampler(fold, protocol, areas)
    ]
    assert drawn == golden


@pytest.mark.parametrize(
    ("setting", "way", "shot", "all_classes", "per_fold"),
    [
        (PARTIALLY, 2, 1, False, [0, 29, 180, 33]),  # 242
        (FULLY, 2, 1, False, [0, 88, 482, 124]),  # 694
        (FULLY, 2, 1, True, [277, 508, 679, 470]),  # 1934
        (FULLY, 1, 5, False, [0, 208, 786, 249]),  # 1243
        (FULLY, 2, 5, False, [0, 380, 947, 431]),  # 1758
        (FULLY, 3, 5, False, [0, 514, 989, 591]),  # 2094
        (FULLY, 4, 5, False, [0, 628, 999, 692]),  # 2319
        (FULLY, 5, 5, False, [0, 728, 1000, 794]),  # 2522
    ],
)
def test_pascal_has_the_published_number_of_augmented_tasks(
    setting: Setting,
    way: int,
    shot: int,
    all_classes: bool,
    per_fold: list[int],
    shared: Path,
    areas: ClassAreas,
) -> None:
    for fold, expected in zip(load_split(shared / "data" / "splits", "pascal", "val"), per_fold, strict=True):
        protocol = published_protocol(fold, TaskRequest(way, shot, setting, all_classes=all_classes))
        assert sum(task.augmented for task in TaskSampler(fold, protocol, areas)) == expected


AREAS = ClassAreas(lambda name: np.array([list(map(int, name))]))  # the name "1120" is the mask [[1, 1, 2, 0]]


def augmented(
    setting: Setting, *shots: tuple[str, ...], theta: float = 0.2, admitted: tuple[int, ...] | None = None
) -> Task:
    task = Task(0, "q", 1, tuple(range(1, len(shots) + 1)), shots)
    return augment(task, setting, AREAS, theta, admitted, np.random.RandomState(0))


def test_a_way_gains_the_photo_of_another_way_that_shows_it() -> None:
    task = augmented(PARTIALLY, ("1122",), ("2222",))
    assert task.shots == (("1122", "1122"), ("2222", "1122"))
    assert task.augmented


def test_an_area_equal_to_theta_adds_nothing() -> None:
    assert not augmented(PARTIALLY, ("1222",), ("2",), theta=0.75).augmented
    assert augmented(PARTIALLY, ("1222",), ("2",), theta=0.74).augmented


def test_partially_augmented_never_adds_a_way() -> None:
    assert not augmented(PARTIALLY, ("1333",), ("2",)).augmented
    assert augmented(FULLY, ("1333",), ("2",)).ways == (1, 2, 3)


def test_new_ways_must_be_admitted() -> None:
    assert augmented(FULLY, ("1344",), admitted=(1, 4)).ways == (1, 4)


def test_the_original_setting_leaves_the_task_alone() -> None:
    assert augmented(Setting.ORIGINAL, ("12",), ("21",)).shots == (("12",), ("21",))


def test_one_way_partially_augmented_is_the_original_task() -> None:
    assert augmented(PARTIALLY, ("12", "13")).shots == (("12", "13"),)
