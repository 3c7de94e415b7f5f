"""Evaluation tasks by the published protocol, in the original and the augmented settings.

Every task follows from its index alone: task 731 is the same in any process and any order, because its random numbers
start from the seed 731. They come from NumPy's legacy generator, whose stream NumPy promises never to change.

`TaskSampler` draws a task of the original setting. `augment` turns it into one of an augmented setting, which uses
annotations of the support photos that the original setting discards.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np

from emat.datasets.dataset import ClassAreas
from emat.datasets.fold_lists import FOLDS, FoldList, load_fold_list
from emat.errors import EmatError
from emat.tasks.task import TASKS_PER_FOLD, Configuration, Protocol, Queries, Setting, Task

# Paper, supplement, "Object Size Filtering": the 25th percentile of object sizes in the training set.
THETA: Mapping[str, float] = {"pascal": 0.07, "coco": 0.03}
ORDINARY_SPLITS = ("train", "val")  # any other split of a fold list is a range of object sizes
ONE_PHOTO = 1  # a size split leaves out classes with a single photo, which cannot be both query and shot


@dataclass(frozen=True, kw_only=True)
class TaskVariant:
    """The choices about tasks that an evaluation makes for all its configurations.

    The help text of each field is shown by the command line.
    """

    query_has_class: Annotated[bool, "Make every query show the first way."] = False
    all_classes: Annotated[bool, "Fully augmented setting: any class may become a way, not only the fold's."] = False
    theta: Annotated[
        float | None, "Fraction of a photo that an object must exceed to be added. Default: as published."
    ] = None


@dataclass(frozen=True)
class TaskRequest(TaskVariant):
    """What a user chooses about tasks; the published protocol says everything else."""

    way: Annotated[int, "Number of classes per task."] = 1
    shot: Annotated[int, "Number of support photos per class."] = 1
    setting: Annotated[Setting, "Which annotations of the support photos count."] = Setting.ORIGINAL
    tasks: Annotated[int | None, f"Number of tasks per fold. Default: as published, {TASKS_PER_FOLD}."] = None


def published_protocol(fold_list: FoldList, request: TaskRequest) -> Protocol:
    """Complete `request` to the protocol that is published for the data set and split of `fold_list`.

    PASCAL takes its queries from the list in order; COCO, and any other data set, draws a class and then a photo. Size
    splits go through a shuffled list and their queries always have the class. The fully augmented setting adds the
    fold's test classes as ways, which is the reading behind the published counts, or any class with `all_classes`.

    Raises:
        EmatError: If an augmented setting needs a theta and none is given or published for the data set.
    """
    is_size_split = fold_list.split not in ORDINARY_SPLITS
    queries = Queries.LISTED if fold_list.dataset == "pascal" else Queries.DRAWN
    return Protocol(
        way=request.way,
        shot=request.shot,
        setting=request.setting,
        query_has_class=request.query_has_class or is_size_split,
        queries=Queries.SHUFFLED if is_size_split else queries,
        tasks=TASKS_PER_FOLD if request.tasks is None else request.tasks,
        theta=_published_theta(fold_list.dataset, request.setting) if request.theta is None else request.theta,
        new_ways=None if request.all_classes else fold_list.class_ids,
    )


def size_split_tasks(fold_lists: Iterable[FoldList]) -> int:
    """Return the number of tasks per fold of a size split: its longest list, but at most `TASKS_PER_FOLD`."""
    return min(TASKS_PER_FOLD, max(len(fold_list.entries) for fold_list in fold_lists))


def load_split(folder: Path, dataset: str, split: str, folds: Sequence[int] | None = None) -> tuple[FoldList, ...]:
    """Read the lists of `folds` (None: all) of a published data set's split from `folder`."""
    return tuple(load_fold_list(folder, dataset, fold, split) for fold in (range(FOLDS) if folds is None else folds))


class TaskSampler:
    """The tasks of one fold: a sequence whose items are drawn when they are asked for, the same every time.

    Drawing a task opens no photo. Only the augmented settings need `areas`, which are counted in masks.

    Args:
        fold_list: The photos and their classes to draw from.
        protocol: How to draw.
        areas: How much of each photo each class covers.

    Raises:
        EmatError: If the list has too few photos or classes for the protocol.

    >>> fold = FoldList("pets", 0, "val", (("a", 1), ("b", 1), ("c", 2), ("d", 2)), (1, 2))
    >>> task = TaskSampler(fold, Protocol(way=2))[3]
    >>> task.query, task.ways, task.shots
    ('d', (2, 1), (('c',), ('a',)))
    """

    def __init__(self, fold_list: FoldList, protocol: Protocol, areas: ClassAreas | None = None) -> None:
        if protocol.setting is not Setting.ORIGINAL and areas is None:
            raise EmatError(
                "missing-option", f"the {protocol.setting.value} setting needs masks; give them with --masks or --data"
            )
        self.fold_list = fold_list
        self.protocol = protocol
        self._areas = areas
        self.class_ids = fold_list.class_ids
        self._listed = fold_list.entries
        if protocol.queries is Queries.SHUFFLED:
            self.class_ids = tuple(c for c, count in fold_list.counts.items() if count > ONE_PHOTO)
            self._listed = _shuffled(fold_list, self.class_ids)
        _check_enough_photos(fold_list, protocol, self.class_ids)

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
        protocol = self.protocol
        return augment(task, protocol.setting, self._areas, protocol.theta, protocol.new_ways, random)

    def __iter__(self) -> Iterator[Task]:
        return (self[index] for index in range(len(self)))

    def configuration(self) -> Configuration:
        """Draw all tasks, and return them with the list and protocol that they were drawn from."""
        source = self.fold_list
        return Configuration(
            source.dataset, source.fold, source.split, self.class_ids, source.sha256, self.protocol, tuple(self)
        )

    def _draw_query(self, index: int, random: np.random.RandomState) -> tuple[str, int]:
        if self.protocol.queries is not Queries.DRAWN:
            return self._listed[index % len(self._listed)]
        query_class = int(random.choice(self.class_ids, 1, replace=False)[0])
        return self._draw_photo(query_class, random), query_class

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
            name = self._draw_photo(way, random)
            if name != query and name not in shots:
                shots.append(name)
        return tuple(shots)

    def _draw_photo(self, class_id: int, random: np.random.RandomState) -> str:
        # This is what choice(names, 1, replace=False) does, without making an array of thousands of names each time.
        names = self.fold_list.photos_of_class[class_id]
        return names[int(random.permutation(len(names))[0])]


def _published_theta(dataset: str, setting: Setting) -> float:
    if dataset not in THETA and setting is not Setting.ORIGINAL:
        raise EmatError(
            "missing-option",
            f"theta is published for {' and '.join(THETA)}, but not for {dataset}; give one with --theta",
        )
    return THETA.get(dataset, 0.0)


def _shuffled(fold_list: FoldList, class_ids: Collection[int]) -> tuple[tuple[str, int], ...]:
    order = dict.fromkeys(class_id for _, class_id in fold_list.entries if class_id in class_ids)  # as first seen
    entries = [(name, class_id) for class_id in order for name in fold_list.photos_of_class[class_id]]
    np.random.RandomState(0).shuffle(entries)
    return tuple(entries)


def _check_enough_photos(fold_list: FoldList, protocol: Protocol, class_ids: Collection[int]) -> None:
    named = f"{fold_list.dataset} fold {fold_list.fold} ({fold_list.split})"
    if not fold_list.entries:
        raise EmatError("empty-list", f"the list of {named} is empty; check the file, or the masks it was made from")
    if protocol.way > len(class_ids):
        raise EmatError(
            "too-few-photos",
            f"{named} has {len(class_ids)} classes, too few for {protocol.way} ways; ask for fewer ways",
        )
    need = protocol.shot + 1  # one photo is the query
    for class_id in class_ids:
        have = len(fold_list.photos_of_class[class_id])
        if have < need:
            raise EmatError(
                "too-few-photos",
                f"class {class_id} of {named} has {have} photo{'s' * (have != 1)}, "
                f"but {protocol.shot}-shot tasks need {need}, including the query; "
                "ask for fewer shots or add photos of this class",
            )


def augment(
    task: Task,
    setting: Setting,
    areas: ClassAreas,
    theta: float,
    admitted: Collection[int] | None,
    random: np.random.RandomState,
) -> Task:
    """Add to `task` what else its support photos show: every other class that covers more than `theta` of a photo.

    The partially augmented setting only adds shots to classes that are ways already. The fully augmented setting also
    appends new ways. Afterwards every way gets equally many shots by repeating some of its own.

    Args:
        task: A task of the original setting.
        setting: The setting to bring it to.
        areas: How much of each photo each class covers.
        theta: The fraction of a photo that an object must exceed.
        admitted: The classes that may become ways; None allows every class.
        random: Draws the shots that are repeated.
    """
    task = replace(task, setting=setting)
    if setting is Setting.ORIGINAL:
        return task
    shots = {way: list(names) for way, names in zip(task.ways, task.shots, strict=True)}
    augmented = False
    for way, names in zip(task.ways, task.shots, strict=True):
        for name in names:
            for class_id, fraction in areas[name].items():
                if class_id == way or fraction <= theta:
                    continue
                becomes_way = setting is Setting.FULLY_AUGMENTED and (admitted is None or class_id in admitted)
                if class_id in shots or becomes_way:
                    shots.setdefault(class_id, []).append(name)
                    augmented = True
    if not augmented:
        return task
    _fill(shots, random)
    return replace(task, ways=tuple(shots), shots=tuple(map(tuple, shots.values())), augmented=True)


def _fill(shots: dict[int, list[str]], random: np.random.RandomState) -> None:
    most = max(map(len, shots.values()))
    for names in shots.values():
        while len(names) < most:
            names.append(names[random.randint(len(names))])
