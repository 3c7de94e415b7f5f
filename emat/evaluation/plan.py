"""The work of many evaluations as one: every query once, and under it every different question that is asked of it.

Cells are the configurations - fold, way, shot, setting - each with its tasks. Most tasks of the three settings are the
same question, and those of other ways and shots share pairs of images; so all are drawn first and grouped by query.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from emat.tasks.frozen import FrozenTasks
from emat.tasks.task import Task

Pair: TypeAlias = tuple[str, int]  # a support image and the class it stands for


@dataclass(frozen=True)
class Place:
    """Where an outcome belongs: a task of a cell, by the numbers of both."""

    cell: int
    task: int  # its place in the cell's tasks


@dataclass(frozen=True)
class Question:
    """What tasks of any number of cells ask alike."""

    ways: tuple[int, ...]
    shots: tuple[tuple[str, ...], ...]  # shots[w] are the support images of ways[w]
    places: tuple[Place, ...]

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Every (support image, class) that it needs, once."""
        by_way = zip(self.ways, self.shots, strict=True)
        return tuple(dict.fromkeys((name, way) for way, names in by_way for name in names))


@dataclass(frozen=True)
class QueryWork:
    """All that is asked of one query image."""

    query: str
    questions: tuple[Question, ...]

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Every (support image, class) that is compared with the query, once."""
        return tuple(dict.fromkeys(pair for question in self.questions for pair in question.pairs))


def plan(cells: Mapping[int, FrozenTasks], done: Collection[Place] = ()) -> list[QueryWork]:
    """The work that is left of `cells`, numbered by the caller, in the order in which queries first appear."""
    finished = set(done)
    places: dict[str, dict[tuple[tuple[int, ...], tuple[tuple[str, ...], ...]], list[Place]]] = {}
    for number, cell in cells.items():
        for position, task in enumerate(cell.tasks):
            place = Place(number, position)
            if place not in finished:
                places.setdefault(task.query, {}).setdefault((task.ways, task.shots), []).append(place)
    return [
        QueryWork(query, tuple(Question(ways, shots, tuple(found)) for (ways, shots), found in questions.items()))
        for query, questions in places.items()
    ]


@dataclass(frozen=True)
class Savings:
    """What a plan computes, and what it would take one task after the other."""

    tasks: int
    questions: int
    pairs: int
    pairs_apart: int
    images: int
    images_apart: int


def savings(cells: Sequence[FrozenTasks]) -> Savings:
    """How much the tasks of `cells` have in common."""
    work = plan(dict(enumerate(cells)))
    tasks: list[Task] = [task for cell in cells for task in cell.tasks]
    return Savings(
        tasks=len(tasks),
        questions=sum(len(each.questions) for each in work),
        pairs=sum(len(each.pairs) for each in work),
        pairs_apart=sum(len(shots) for task in tasks for shots in task.shots),
        images=len({name for task in tasks for name in task.images}),
        images_apart=sum(len(task.images) for task in tasks),
    )
