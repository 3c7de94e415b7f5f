"""The tasks that the paper's tables and figures are measured on."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from emat.datasets.class_areas import ClassAreas
from emat.datasets.dataset import Dataset
from emat.datasets.published_lists import equals_published
from emat.errors import EmatError
from emat.reports.paper.parts import Need
from emat.tasks.benchmark import Benchmark, Watch, open_benchmark
from emat.tasks.sampling import TaskSampler, size_split_tasks
from emat.tasks.sizes import size_split
from emat.tasks.task import TASKS_PER_FOLD, Configuration


@dataclass
class PaperTasks:
    """The tasks of a data set by what they are needed for. They are drawn once.

    Args:
        name: "pascal" or "coco".
        benchmark: The folds with their validation lists, photos and masks.
        lists: The folder of the fold lists; None if they were made from the masks.
        tasks: How many tasks to measure a fold; None for the published number.
        counted: How many tasks of a fold to draw when augmented tasks are counted; None for the published number.
    """

    name: str
    benchmark: Benchmark
    lists: Path | None
    tasks: int | None
    counted: int | None = None
    _drawn: dict[tuple[Need, int | None], tuple[Configuration, ...] | str] = field(default_factory=dict)

    @property
    def dataset(self) -> Dataset:
        """The photos and masks."""
        assert self.benchmark.dataset is not None
        return self.benchmark.dataset

    @property
    def areas(self) -> ClassAreas:
        """How much of each photo each class covers."""
        assert self.benchmark.areas is not None
        return self.benchmark.areas

    @property
    def folds(self) -> list[int]:
        """The numbers of the folds."""
        return [each.fold for each in self.benchmark.fold_lists]

    @property
    def are_published(self) -> bool:
        """Whether the fold lists are the published ones."""
        return all(equals_published(each) for each in self.benchmark.fold_lists)

    @cached_property
    def state(self) -> str:
        """A hash that changes when a photo or mask changes."""
        return self.dataset.state(self.dataset.names)

    def class_names(self, fold: int) -> list[str]:
        """Return the names of a fold's test classes."""
        return [self.dataset.classes[class_id - 1] for class_id in self.benchmark.fold_list(fold).class_ids]

    def measured(self, need: Need) -> tuple[Configuration, ...]:
        """Return the tasks that are measured, one configuration for each fold; none if they cannot be drawn."""
        return self._configurations(need, self.tasks)

    def augmented(self, need: Need) -> list[int] | None:
        """Return how many of the published number of tasks a setting augments, by fold; None if none can be drawn."""
        found = self._configurations(need, self.counted)
        return [sum(task.augmented for task in each.tasks) for each in found] or None

    def problem(self, need: Need) -> str | None:
        """Return why tasks cannot be drawn; None if they can."""
        self.measured(need)
        drawn = self._drawn[need, self.tasks]
        return drawn if isinstance(drawn, str) else None

    def _configurations(self, need: Need, tasks: int | None) -> tuple[Configuration, ...]:
        key = (need, tasks)
        if key not in self._drawn:
            try:
                self._drawn[key] = self._draw(need, tasks)
            except EmatError as error:
                self._drawn[key] = str(error)
        drawn = self._drawn[key]
        return () if isinstance(drawn, str) else drawn

    def samplers(self, need: Need) -> list[TaskSampler]:
        """Return the sampler of each fold's published number of tasks, which draws a task when it is asked for."""
        return [self.benchmark.sampler(fold, need.request(None)) for fold in self.folds]

    def _draw(self, need: Need, tasks: int | None) -> tuple[Configuration, ...]:
        benchmark = self.benchmark
        if need.object_size is not None:
            benchmark = self._of_size(need.object_size)
            tasks = None if tasks is None else min(tasks, size_split_tasks(benchmark.fold_lists))
        request = need.request(tasks if tasks is None else min(tasks, TASKS_PER_FOLD))
        return tuple(benchmark.sampler(fold, request).configuration() for fold in self.folds)

    def _of_size(self, size: str) -> Benchmark:
        if self.lists is not None:
            lists = open_benchmark(self.name, self.lists, None, object_size=size).fold_lists
        else:
            lists = tuple(size_split(each, self.areas, size) for each in self.benchmark.fold_lists)
        return replace(self.benchmark, fold_lists=lists)


def open_tasks(
    name: str, data: Path, masks: Path | None, lists: Path | None, tasks: int | None, watch: Watch = iter
) -> PaperTasks:
    """Open a data set for the paper's tables.

    Args:
        name: "pascal" or "coco".
        data: The data set, with photos and masks; or its photos, if `masks` are given.
        masks: A folder or zip of the masks, if they are not with the photos.
        lists: The folder of the fold lists; None makes them from the masks.
        tasks: How many tasks to measure a fold; None for the published number.
        watch: Is given the names of the masks that are read, and may show progress.

    Raises:
        EmatError: If there are no photos, no masks, or classes of another data set.
    """
    benchmark = open_benchmark(name, lists, data, masks=masks, watch=watch)
    dataset = benchmark.dataset
    if dataset is None or not dataset.has_photos:
        raise EmatError(f"{data} has no photos; give a data set with photos and masks")
    if dataset.name != name:
        raise EmatError(f"{data} is not {name}: its classes are {_some(dataset.classes)}")
    return PaperTasks(name, benchmark, lists, tasks)


def _some(classes: Sequence[str]) -> str:
    shown = ", ".join(classes[:3])
    return f"{shown} and {len(classes) - 3} more" if len(classes) > 3 else shown
