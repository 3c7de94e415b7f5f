"""The augmented settings equal the golden tasks and the published counts."""

import json
from pathlib import Path

import numpy as np
import pytest

from emat.datasets.dataset import ClassAreas
from emat.datasets.fold_lists import FoldList
from emat.tasks.augmentation import augment
from emat.tasks.sampling import TaskRequest, TaskSampler, load_split, published_protocol
from emat.tasks.task import Setting, Task

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
