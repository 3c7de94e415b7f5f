"""The options of `emat eval`: which tasks, by which method, and how the work is done."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from emat.cli.task_options import TaskOptions
from emat.errors import EmatError
from emat.evaluation.results import OWN_THRESHOLDS
from emat.method import PAPER_THRESHOLD, Thresholds
from emat.tasks.benchmark import Benchmark
from emat.tasks.frozen import FrozenTasks, freeze, read_frozen_tasks
from emat.tasks.task import Setting

ALL = "all"
SAID_BY_FILE = (
    *("fold", "folds", "way", "shot", "setting", "query_has_class", "size_split", "all_classes", "theta"),
    *("names", "min_area"),
)


@dataclass(frozen=True)
class EvalOptions:
    """Every field is an option of the command line."""

    model: Annotated[
        str | None, typer.Option(help="A head: a file or a name of `emat weights list`; {fold} stands for the fold.")
    ] = None
    method: Annotated[str | None, typer.Option(help="Without --model: a method that needs no training.")] = None
    backbone: Annotated[str | None, typer.Option(help="Default: what the head was trained with.")] = None
    size: Annotated[
        int | None, typer.Option(min=1, help="Pixels a side that photos are resized to. Default: the head's.")
    ] = None

    dataset: Annotated[
        str | None, typer.Option(help="pascal, coco or a layout such as folder. Default: seen from --data.")
    ] = None
    data: Annotated[Path | None, typer.Option("--data", "--root", help="The data set, photos and masks.")] = None
    lists: Annotated[Path | None, typer.Option(help="Folder of fold lists. Default: made from the masks.")] = None
    fold: Annotated[
        str | None, typer.Option(help="0, or 0,2, or all. Default: the fold the head was trained for, else all.")
    ] = None
    folds: Annotated[
        str | None, typer.Option(help="all; or, of made lists: how many, or a file with a fold's classes on each line.")
    ] = None
    way: Annotated[str | None, typer.Option(help="Classes per task: 2, or 1,2,3. Default: 1.")] = None
    shot: Annotated[str | None, typer.Option(help="Support images per class: 1, or 1,5. Default: 1.")] = None
    setting: Annotated[
        str | None,
        typer.Option(help="original (default), partially-augmented, fully-augmented, some of them, or all."),
    ] = None
    query_has_class: Annotated[
        bool, typer.Option("--query-has-class", help="The query always shows the first way.")
    ] = False
    size_split: Annotated[
        str | None, typer.Option(help="Only objects of these sizes in percent of the image: 0-5, or 0-5,5-10.")
    ] = None
    tasks: Annotated[
        str | None, typer.Option(help="Tasks per fold (default: as published, 1000), or a file of emat tasks freeze.")
    ] = None
    all_classes: Annotated[bool, typer.Option("--all-classes", help="Fully augmented: any class may become a way.")] = (
        False
    )
    theta: Annotated[
        float | None, typer.Option(help="Least area of an added object, a fraction. Default: as published.")
    ] = None
    names: Annotated[Path | None, typer.Option(help="Made lists: a file of the images to use, a name a line.")] = None
    min_area: Annotated[
        float, typer.Option(min=0, max=1, help="Made lists: a class must cover more of the photo than this.")
    ] = 0.0

    only_seg: Annotated[bool, typer.Option("--only-seg", help="Judge masks alone, not presence.")] = False
    threshold: Annotated[
        str, typer.Option(help="Probabilities that count: 0.5, or 0.4,0.3 for presence and masks, or own: the head's.")
    ] = str(PAPER_THRESHOLD)

    cache: Annotated[Path | None, typer.Option(help="Folder that keeps photos' features between runs.")] = None
    cache_memory: Annotated[
        float | None,
        typer.Option(min=0, help="Gigabytes of features a process keeps. Default: a quarter for all."),
    ] = None
    device: Annotated[str, typer.Option(help="cpu, cuda, mps or auto.")] = "auto"
    devices: Annotated[
        int | None,
        typer.Option(min=1, help="Devices of a node, or processes on a CPU. Default: 1; those that torchrun started."),
    ] = None
    nodes: Annotated[int, typer.Option(min=1, help="Nodes.")] = 1

    def __post_init__(self) -> None:
        if self.cache_memory is not None and not math.isfinite(self.cache_memory):
            raise EmatError(f"--cache-memory is {self.cache_memory}; give a number of gigabytes, or leave it away")

    def open(self, only: list[int] | None, *, silent: bool) -> list[Benchmark]:
        """The benchmark that is meant, or `only` some of its folds; of several size splits one for each."""
        sizes = [None] if self.size_split is None else list(dict.fromkeys(self.size_split.split(",")))
        return [replace(self._task_options(), size=size).open(only, silent=silent) for size in sizes]

    def frozen(self) -> FrozenTasks | None:
        """The tasks of the file that was given instead of a number; nothing else may then say what tasks are meant."""
        if self.tasks is None or self.tasks.isdecimal():
            return None
        if not Path(self.tasks).is_file():
            raise EmatError(f"--tasks is {self.tasks!r}; give a number of tasks, or a file of emat tasks freeze")
        given = [name for name in SAID_BY_FILE if getattr(self, name) != getattr(EvalOptions, name)]
        if given:
            option = f"--{given[0].replace('_', '-')}"
            raise EmatError(f"the tasks in {self.tasks} are drawn already: {option} cannot change them; leave it away")
        return read_frozen_tasks(Path(self.tasks))

    def chosen_folds(self, default: int | None) -> list[int] | None:
        """The folds asked for, None for all; `default` where nothing was said."""
        if self.fold is None and self.folds != ALL and default is not None:
            return [default]
        if self.fold in (None, ALL):
            return None
        return _numbers(str(self.fold), "--fold", least=0)

    def cells(self, benchmark: Benchmark, folds: list[int] | None) -> list[FrozenTasks]:
        """The tasks of every fold, way, shot and setting asked for."""
        named = [each.fold for each in benchmark.fold_lists] if folds is None else folds
        words = Setting.ORIGINAL.value if self.setting is None else self.setting
        settings = list(Setting) if words == ALL else list(dict.fromkeys(map(_setting, words.split(","))))
        return [
            freeze(replace(self._task_options(), way=way, shot=shot, setting=setting).sampler(benchmark, fold))
            for fold in named
            for way in _numbers(self.way or "1", "--way")
            for shot in _numbers(self.shot or "1", "--shot")
            for setting in settings
        ]

    def thresholds(self) -> Thresholds | None:
        """What counts as present and as foreground; None for what each head's file says."""
        if self.threshold == OWN_THRESHOLDS:
            return None
        try:
            presence, *masks = map(float, self.threshold.split(","))
            (mask,) = masks or [presence]
        except ValueError:
            raise EmatError(
                f"--threshold is {self.threshold!r}; write one number, two as in 0.4,0.3 for presence and masks, or own"
            ) from None
        return Thresholds(presence, mask)

    def plain(self) -> dict[str, Any]:
        """What was asked, as JSON has it."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}

    def _task_options(self) -> TaskOptions:
        return TaskOptions(
            dataset=self.dataset,
            lists=self.lists,
            data=self.data,
            query_has_class=self.query_has_class,
            all_classes=self.all_classes,
            theta=self.theta,
            tasks=int(self.tasks) if self.tasks and self.tasks.isdecimal() else None,
            names=self.names,
            folds=None if self.folds == ALL else self.folds,
            min_area=self.min_area,
        )


def _numbers(words: str, option: str, least: int = 1) -> list[int]:
    parts = [word.strip() for word in words.split(",")]
    if not all(word.isdecimal() and int(word) >= least for word in parts):
        raise EmatError(f"{option} is {words!r}; write numbers from {least} on, such as {least} or {least},{least + 1}")
    return list(dict.fromkeys(map(int, parts)))


def _setting(word: str) -> Setting:
    try:
        return Setting(word.strip())
    except ValueError:
        known = ", ".join(each.value for each in Setting)
        raise EmatError(f"there is no setting {word!r}; the settings are {known}, or all") from None
