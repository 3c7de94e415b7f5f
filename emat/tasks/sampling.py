"""Evaluation tasks by the published protocol, each from its index alone.

Task 731 is the same in any process and any order, because its random numbers start from 731. They come from
NumPy's legacy generator, whose stream NumPy promises never to change.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from emat.datasets.class_areas import ClassAreas
from emat.datasets.fold_lists import FoldList
from emat.errors import EmatError
from emat.tasks.settings import augment
from emat.tasks.task import Setting, Task

TASKS_PER_FOLD = 1000
LONE_IMAGE = 1  # a size split leaves out a class with no second image: it could never be query and shot


class Queries(str, Enum):
    """A task's query: entry `index` of the list, the same of the list shuffled, or drawn by class."""

    LISTED = "listed"
    SHUFFLED = "shuffled"
    DRAWN = "drawn"


@dataclass(frozen=True)
class Protocol:
    """How tasks are drawn from a fold list.

    `new_ways` are the classes that the fully augmented setting admits as ways; None admits every class.
    """

    way: int = 1
    shot: int = 1
    setting: Setting = Setting.ORIGINAL
    query_has_class: bool = False
    queries: Queries = Queries.LISTED
    tasks: int = TASKS_PER_FOLD
    theta: float = 0.0
    new_ways: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name, value in (("ways", self.way), ("shots", self.shot), ("tasks", self.tasks)):
            if value < 1:
                raise EmatError(f"{value} {name} were asked for; there must be at least 1")
        if not 0 <= self.theta < 1:
            raise EmatError(f"theta is a fraction of the image, at least 0 and below 1, not {self.theta}")


class TaskSampler:
    """The tasks of one fold: a sequence whose items are drawn when asked for, the same every time.

    Drawing opens no image; the augmented settings alone need `areas`. A fold whose lists are too short for
    the protocol is refused here, before any task is drawn.

    >>> fold = FoldList("pets", 0, "val", (("a", 1), ("b", 1), ("c", 2), ("d", 2)), (1, 2))
    >>> task = TaskSampler(fold, Protocol(way=2))[3]
    >>> task.query, task.ways, task.shots
    ('d', (2, 1), (('c',), ('a',)))
    """

    def __init__(self, fold_list: FoldList, protocol: Protocol, areas: ClassAreas | None = None) -> None:
        if protocol.setting is not Setting.ORIGINAL and areas is None:
            raise EmatError(f"the {protocol.setting.value} setting looks into masks; give them by --masks")
        self.fold_list = fold_list
        self.protocol = protocol
        self._areas = areas
        self.class_ids = fold_list.class_ids
        self._listed = fold_list.entries
        if protocol.queries is Queries.SHUFFLED:
            self.class_ids = tuple(c for c, count in fold_list.counts.items() if count > LONE_IMAGE)
            self._listed = _shuffled(fold_list, self.class_ids)
        _check_enough_images(fold_list, protocol, self.class_ids)

    def __len__(self) -> int:
        return self.protocol.tasks

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(f"task {index} of {len(self)}")
        random = np.random.RandomState(index)
        query, query_class = self._draw_query(index, random)
        ways = self._draw_ways(query_class, random)
        shots = tuple(self._draw_shots(way, query, random) for way in ways)
        task = Task(index, query, query_class, ways, shots)
        if self._areas is None:
            return task
        settings = self.protocol
        return augment(task, settings.setting, self._areas, settings.theta, settings.new_ways, random)

    def __iter__(self) -> Iterator[Task]:
        return (self[index] for index in range(len(self)))

    def _draw_query(self, index: int, random: np.random.RandomState) -> tuple[str, int]:
        if self.protocol.queries is not Queries.DRAWN:
            return self._listed[index % len(self._listed)]
        query_class = int(random.choice(self.class_ids, 1, replace=False)[0])
        return self._draw_image(query_class, random), query_class

    def _draw_ways(self, query_class: int, random: np.random.RandomState) -> tuple[int, ...]:
        way = self.protocol.way
        others = [class_id for class_id in self.class_ids if class_id != query_class]
        if not others:
            return (query_class,)
        if self.protocol.query_has_class:
            drawn = random.choice(others, way - 1, replace=False) if way > 1 else ()
            return (query_class, *map(int, drawn))
        chances = [0.5 if class_id == query_class else 0.5 / len(others) for class_id in self.class_ids]
        return tuple(map(int, random.choice(self.class_ids, way, p=chances, replace=False)))

    def _draw_shots(self, way: int, query: str, random: np.random.RandomState) -> tuple[str, ...]:
        shots: list[str] = []
        while len(shots) < self.protocol.shot:
            name = self._draw_image(way, random)
            if name != query and name not in shots:
                shots.append(name)
        return tuple(shots)

    def _draw_image(self, class_id: int, random: np.random.RandomState) -> str:
        # What choice(names, 1, replace=False) does, without making an array of thousands of names each time.
        names = self.fold_list.images_of_class[class_id]
        return names[int(random.permutation(len(names))[0])]


def _shuffled(fold_list: FoldList, class_ids: Collection[int]) -> tuple[tuple[str, int], ...]:
    order = dict.fromkeys(class_id for _, class_id in fold_list.entries if class_id in class_ids)  # as first seen
    entries = [(name, class_id) for class_id in order for name in fold_list.images_of_class[class_id]]
    np.random.RandomState(0).shuffle(entries)
    return tuple(entries)


def _check_enough_images(fold_list: FoldList, protocol: Protocol, class_ids: Collection[int]) -> None:
    where = f"{fold_list.dataset} fold {fold_list.fold} ({fold_list.split})"
    if not fold_list.entries:
        raise EmatError(f"the list of {where} is empty; check the file, or the masks it was made from")
    if protocol.way > len(class_ids):
        raise EmatError(f"{where} has {len(class_ids)} classes, too few for {protocol.way} ways; ask for fewer")
    need = protocol.shot + 1  # one image is the query
    for class_id in class_ids:
        have = len(fold_list.images_of_class[class_id])
        if have < need:
            raise EmatError(
                f"class {class_id} of {where} has {have} image{'s' * (have != 1)}, "
                f"but {protocol.shot}-shot tasks need {need}, the query included; "
                "ask for fewer shots or add images of this class"
            )
