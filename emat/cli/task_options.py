"""The options that say which tasks are meant, shared by every verb that draws tasks."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from emat.cli.progress import follow
from emat.tasks.benchmark import Benchmark, open_benchmark
from emat.tasks.sampling import TaskSampler
from emat.tasks.task import Setting

Own = ParamSpec("Own")


@dataclass(frozen=True)
class TaskOptions:
    """Every field is an option of the command line; `with_task_options` puts them there."""

    dataset: Annotated[
        str | None, typer.Option(help="pascal, coco or a layout such as folder. Default: seen from --data.")
    ] = None
    lists: Annotated[
        Path | None, typer.Option(help="Folder of fold lists. Default: made from the masks of --data.")
    ] = None
    data: Annotated[
        Path | None,
        typer.Option("--data", "--masks", help="The data set, or its masks alone: a folder or zip."),
    ] = None
    way: Annotated[int, typer.Option(help="Classes per task.")] = 1
    shot: Annotated[int, typer.Option(help="Support images per class.")] = 1
    setting: Annotated[Setting, typer.Option(help="Which annotations of support images count.")] = Setting.ORIGINAL
    query_has_class: Annotated[
        bool, typer.Option("--query-has-class", help="The query always shows the first way.")
    ] = False
    size: Annotated[
        str | None, typer.Option(help="Only objects of this size in percent of the image, such as 0-5.")
    ] = None
    all_classes: Annotated[bool, typer.Option("--all-classes", help="Fully augmented: any class may become a way.")] = (
        False
    )
    theta: Annotated[
        float | None, typer.Option(help="Least area of an added object, a fraction. Default: as published.")
    ] = None
    tasks: Annotated[int | None, typer.Option(help="Tasks per fold. Default: as published, 1000.")] = None
    names: Annotated[Path | None, typer.Option(help="Made lists: a file of the images to use, a name a line.")] = None
    folds: Annotated[
        str | None, typer.Option(help="Made lists: number of folds, or a file with a fold's class names on each line.")
    ] = None
    min_area: Annotated[
        float, typer.Option(min=0, max=1, help="Made lists: a class must cover more of the photo than this.")
    ] = 0.0

    def open(self, only: Sequence[int] | None = None, *, silent: bool = False) -> Benchmark:
        """The benchmark that is meant, or `only` some of its folds; progress is shown unless `silent`."""
        return open_benchmark(
            self.dataset,
            self.lists,
            self.data,
            size=self.size,
            names=self.names,
            folds=self.folds,
            min_area=self.min_area,
            only=only,
            watch=iter if silent else lambda names: follow(names, len(names), "masks read"),
        )

    def sampler(self, benchmark: Benchmark, fold: int) -> TaskSampler:
        """The tasks of one fold of `benchmark`."""
        return benchmark.sampler(
            fold,
            self.way,
            self.shot,
            self.setting,
            query_has_class=self.query_has_class,
            all_classes=self.all_classes,
            theta=self.theta,
            tasks=self.tasks,
        )


def with_task_options(command: Callable[Concatenate[TaskOptions, Own], None]) -> Callable[..., None]:
    """Give `command`, whose first parameter is a `TaskOptions`, an option for each of its fields."""
    shared = inspect.signature(TaskOptions).parameters
    own = list(inspect.signature(command).parameters.values())[1:]
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*own, *shared.values())]

    @wraps(command)
    def with_options(**given: Any) -> None:
        options = TaskOptions(**{name: given.pop(name) for name in shared})
        command(options, **given)  # type: ignore[call-arg]  # Typer gives exactly the parameters declared below

    # Typer reads a command's options from its signature and annotations.
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options
