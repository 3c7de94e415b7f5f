"""What `emat reproduce` makes: every table and figure, and the tasks that have to be measured for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from emat.datasets.dataset import ClassAreas, Dataset
from emat.datasets.fold_lists import equals_published
from emat.errors import EmatError
from emat.reports.paper.models import ABLATION_ROWS, FSCS_ROWS, SEGMENTING_ROW
from emat.tasks.benchmark import Benchmark, Watch, open_benchmark, size_split
from emat.tasks.sampling import ORDINARY_SPLITS, TaskRequest, TaskSampler, size_split_tasks
from emat.tasks.task import TASKS_PER_FOLD, Configuration, Protocol, Setting, Task, digest

BOTH = ("pascal", "coco")
SMALL_SPLITS = ("0-5", "5-10", "10-15")  # percent of the photo
ALL_SMALL = "0-15"
WAYS, CURVE_SHOTS = (1, 2, 3, 4, 5), 5
NO_THETA = 0.0
COMPARED = {"figure-1", "figure-4", "figure-6"}  # these show EMAT beside one other model
BESIDE_EMAT = ("CST*", "CST")  # which one, if it is measured


@dataclass(frozen=True)
class Need:
    """Tasks of all folds that are measured under the same conditions."""

    way: int
    shot: int
    setting: Setting = Setting.ORIGINAL
    object_size: str | None = None  # percent of the photo
    query_has_class: bool = False
    all_classes: bool = False
    theta: float | None = None  # None for the published one

    def request(self, tasks: int | None) -> TaskRequest:
        """Return the request that draws so many tasks a fold; None for the published number."""
        return TaskRequest(
            self.way,
            self.shot,
            self.setting,
            tasks,
            query_has_class=self.query_has_class,
            all_classes=self.all_classes,
            theta=self.theta,
        )

    def words(self) -> str:
        """Describe the tasks."""
        parts = [f"{self.way}-way {self.shot}-shot", f"{self.setting.value.replace('-', ' ')} setting"]
        parts += [f"objects of {self.object_size} %"] if self.object_size else []
        parts += ["query has the class"] if self.query_has_class else []
        parts += ["any class may become a way"] if self.all_classes else []
        parts += ["without theta"] if self.theta == NO_THETA else []
        return ", ".join(parts)


THREE_SETTINGS = tuple(Need(2, 1, setting) for setting in Setting)
SMALL = Need(1, 1, object_size=ALL_SMALL, query_has_class=True)
SIZES = tuple(Need(1, 1, object_size=split, query_has_class=True) for split in SMALL_SPLITS)
CURVES = tuple(Need(way, CURVE_SHOTS, Setting.FULLY_AUGMENTED) for way in WAYS)
MASKS_ONLY = tuple(Need(1, shot, query_has_class=True) for shot in (1, 5))
ALL_CLASSES = Need(2, 1, Setting.FULLY_AUGMENTED, all_classes=True)
FILTERED = (  # Figure 8: with one way, the partially augmented setting is the original one
    Need(2, 1, Setting.PARTIALLY_AUGMENTED),
    Need(1, 1, Setting.FULLY_AUGMENTED),
    Need(2, 1, Setting.FULLY_AUGMENTED),
)
UNFILTERED = tuple(Need(each.way, each.shot, each.setting, theta=NO_THETA) for each in FILTERED)


@dataclass(frozen=True)
class Part:
    """A table or figure."""

    name: str
    title: str
    needs: tuple[Need, ...] = ()
    rows: tuple[str, ...] | None = None  # the models that it is about; None for all that are compared
    datasets: tuple[str, ...] = BOTH
    needs_data: bool = True

    @property
    def is_figure(self) -> bool:
        """Whether it is a figure."""
        return self.name.startswith("figure")


PARTS: tuple[Part, ...] = (
    Part("table-1", "Comparison of FS-CS methods, three settings", THREE_SETTINGS),
    Part("table-2", "Ablation study of EMAT", (THREE_SETTINGS[0], SMALL), tuple(ABLATION_ROWS), ("pascal",)),
    Part("table-3", "Comparison of FS-CS methods by fold, PASCAL-5i", THREE_SETTINGS, None, ("pascal",)),
    Part("table-4", "Comparison of FS-CS methods by fold, COCO-20i", THREE_SETTINGS, None, ("coco",)),
    Part("table-5", "Comparison of few-shot segmentation (FS-S) methods", MASKS_ONLY, (SEGMENTING_ROW, "EMAT")),
    Part("table-readings", 'The two readings of "fully augmented"', (THREE_SETTINGS[2], ALL_CLASSES), ("EMAT",)),
    Part("table-attention", "Attention memory and runtime against CST at equal t_s", needs_data=False),
    Part("figure-1", "Small objects", (SMALL,)),
    Part("figure-2", "A support set in the three settings"),
    Part("figure-3", "The network", needs_data=False),
    Part("figure-4", "Queries with none, some and all support classes; a task in three settings", THREE_SETTINGS),
    Part("figure-5", "Masks at the resolutions of the attention layers"),
    Part("figure-6", "Accuracy and mIoU by object size", SIZES),
    Part("figure-7", "How each setting augments a task"),
    Part("figure-8", "Object size filtering (theta) and the augmented settings", (*FILTERED, *UNFILTERED), ("EMAT",)),
    Part("figure-9", "1- to 5-way 5-shot, fully augmented setting", CURVES),
    Part("figure-10", "Object sizes by fold"),
    Part("figure-dense", "Training memory as the mask grows to the whole photo", needs_data=False),
)  # fmt: skip


def choose_parts(dataset: str | None, only: str | None = None) -> tuple[Part, ...]:
    """Return the parts that are made for a data set, in the paper's order.

    Args:
        dataset: "pascal" or "coco"; None for the figures that need no data set.
        only: Their names with commas between them; None for all.

    Raises:
        EmatError: If a name is not a part, or not one of this data set.
    """
    possible = {
        part.name: part
        for part in PARTS
        if (dataset in part.datasets if dataset else part.is_figure and not part.needs_data)
    }
    if only is None:
        return tuple(possible.values())
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    for name in wanted:
        if name not in possible:
            raise EmatError(f"--only has {name!r}; what can be made here is {', '.join(possible)}")
    if not wanted:
        raise EmatError("--only names nothing; write for example --only table-1,figure-6")
    return tuple(part for name, part in possible.items() if name in wanted)


def other_model(labels: Sequence[str]) -> str | None:
    """Return the model that is shown beside EMAT: CST*, CST, or else the first that is measured."""
    others = [label for label in labels if label in compared(labels) and label != "EMAT"]
    return next((label for label in (*BESIDE_EMAT, *others) if label in others), None)


def compared(labels: Sequence[str]) -> list[str]:
    """Return the models that classify and segment and are not only steps of the ablation."""
    apart = {SEGMENTING_ROW, *ABLATION_ROWS} - set(FSCS_ROWS)
    return [label for label in labels if label not in apart]


def models_of(part: Part, labels: Sequence[str]) -> list[str]:
    """Return those of the measured models that a part is about."""
    if part.rows is not None:
        return [label for label in labels if label in part.rows]
    if part.name in COMPARED:
        return [label for label in labels if label in ("EMAT", other_model(labels))]
    return compared(labels)


def needs_of(parts: Sequence[Part], label: str, labels: Sequence[str]) -> list[Need]:
    """Return what has to be measured with one of the models for these parts, each need once."""
    return list(dict.fromkeys(need for part in parts if label in models_of(part, labels) for need in part.needs))


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
    _again: dict[tuple[int, str, Protocol], tuple[Task, ...]] = field(default_factory=dict)

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

    def drawn_again(self, cell: Mapping[str, Any]) -> tuple[Task, ...] | None:
        """Draw the tasks of a configuration in a results file; None if they are not those that were measured."""
        try:
            protocol = Protocol.from_json(cell["protocol"])
            key = (int(cell["fold"]), str(cell["split"]), protocol)
            if key not in self._again:
                benchmark = self.benchmark if key[1] in ORDINARY_SPLITS else self._of_size(key[1])
                self._again[key] = tuple(TaskSampler(benchmark.fold_list(key[0]), protocol, self.areas))
        except EmatError:
            return None  # of other lists or another data set
        return self._again[key] if digest(self._again[key]) == cell["digest"] else None

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
