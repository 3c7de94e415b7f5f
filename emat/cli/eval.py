"""`emat eval`: evaluate a head, in all settings, ways and shots at once."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from emat.cli.options import AsJson, DataOptions, FeatureFolder, WorkingSize, refinement, takes
from emat.datasets.dataset import Dataset
from emat.distributed import Processes, find_processes
from emat.errors import EmatError
from emat.evaluation.absence import absence, absent_configurations
from emat.evaluation.evaluator import FittedOptions, default_limits
from emat.evaluation.results import OWN_THRESHOLDS, read_results, results, write_results
from emat.evaluation.run import EvaluatedMethod, Run, evaluate, load_folds, remove_journals, seconds_spent
from emat.files import is_number
from emat.methods.base import PAPER_THRESHOLD, Thresholds
from emat.methods.trained_head import training_of
from emat.outputs import claim_file
from emat.progress import follow
from emat.reports.comparison import show_results
from emat.tasks.benchmark import Benchmark
from emat.tasks.sampling import TaskRequest, TaskVariant
from emat.tasks.task import Configuration, Setting, read_task_file

NO_ARGS_IS_HELP = True
ALL = "all"
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
FOLD_IN_NAME = "{fold}"
GIGABYTE = 2**30
VARIANT = tuple(option.name for option in fields(TaskVariant))
SAID_BY_TASK_FILE = ("absent", "fold", "folds", "way", "shot", "setting", "object_size", "names", "min_area", *VARIANT)


@dataclass(frozen=True)
class HeadOptions:
    """What is evaluated."""

    model: Annotated[
        str | None, "The head: a file or a name from `emat weights list`; {fold} stands for the number of the fold."
    ] = None
    method: Annotated[
        str | None, "A method that needs no training, instead of --model; or another method for the head."
    ] = None
    backbone: Annotated[str | None, "The backbone. Default: the one that the head was trained with."] = None
    size: WorkingSize = None


@dataclass(frozen=True)
class EvalOptions(TaskVariant, DataOptions, HeadOptions):
    """The options of `emat eval`. Those that take several values are texts such as "1,2"."""

    object_size: Annotated[
        str | None, "Only objects of these sizes in percent of the photo: 0-5, or several as in 0-5,5-10."
    ] = None
    fold: Annotated[
        str | None, "The folds: 0, or 0,2, or all. Default: the fold that the head was trained for, or else all."
    ] = None
    folds: Annotated[
        str | None,
        "all for all folds. Lists made from masks: number of folds, or a file with the class names of one fold on each "
        "line.",
    ] = None
    way: Annotated[str | None, "Number of classes per task: 2, or 1,2,3. Default: 1."] = None
    shot: Annotated[str | None, "Number of support photos per class: 1, or 1,5. Default: 1."] = None
    setting: Annotated[
        str | None, "original (the default), partially-augmented, fully-augmented, several of them, or all."
    ] = None
    tasks: Annotated[
        str | None, "Number of tasks per fold (default: as published, 1000), or a task file of emat tasks freeze."
    ] = None

    absent: Annotated[
        bool, "Also ask about photos without the class, from easy to hard, and show how well absence is told."
    ] = False
    only_seg: Annotated[bool, "Score masks only, not presence."] = False
    threshold_presence: Annotated[
        float | None, f"Probability from which a class counts as present. Default: {PAPER_THRESHOLD}, as in the paper."
    ] = None
    threshold_mask: Annotated[
        float | None, f"Probability from which a pixel belongs to a class. Default: {PAPER_THRESHOLD}, as in the paper."
    ] = None
    own_thresholds: Annotated[bool, "Use the thresholds in the head's file, which emat tune writes."] = False
    threshold: Annotated[str | None, typer.Option("--threshold", hidden=True)] = None  # 0.5, or 0.4,0.3, or own

    as_fitted: Annotated[
        bool,
        "Answer as users are answered: the supports are fitted with all that emat fit decides, the query predicted.",
    ] = False
    learn: Annotated[
        bool | None,
        typer.Option(
            "--learn/--no-learn", help="As fitted, with a pixel classifier or without. Default: as published."
        ),
    ] = None
    refine: Annotated[
        str | None, "As fitted, with masks refined by auto, mobilesam, guided or none. Default: as published."
    ] = None
    cache: FeatureFolder = None
    cache_memory: Annotated[
        float | None,
        typer.Option(min=0, help="Gigabytes of features to keep in each process. Default: a quarter of the memory."),
    ] = None
    precision: Annotated[
        str,
        "Encode photos in float32, bfloat16 or float16. The last two are faster on GPUs and some processors, and move "
        "scores a little.",
    ] = "float32"
    device: Annotated[str, "auto, cpu, cuda or mps."] = "auto"
    devices: Annotated[
        int | None,
        typer.Option(min=1, help="Devices per node, or processes on a CPU. Default: 1, or those of torchrun."),
    ] = None
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes.")] = 1

    def __post_init__(self) -> None:
        if self.cache_memory is not None and not math.isfinite(self.cache_memory):
            raise EmatError(
                "bad-number", f"--cache-memory is {self.cache_memory}; give a number of gigabytes, or leave it out"
            )
        if self.precision not in PRECISIONS:
            raise EmatError("unknown-choice", f"--precision is {self.precision!r}; choose {', '.join(PRECISIONS)}")
        if self.precision != "float32" and self.fitted() is not None:
            raise EmatError(
                "conflicting-options",
                "users' photos are encoded in float32; leave out --precision with --as-fitted, --learn and --refine",
            )

    def fitted(self) -> FittedOptions | None:
        """Return how tasks are answered as users are; None for the published protocol.

        --as-fitted alone does all that a user gets; --learn and --refine ask for one part of it.
        """
        if not self.as_fitted and not self.learn and self.refine in (None, "none"):
            return None
        learn = self.as_fitted if self.learn is None else self.learn
        way = ("auto" if self.as_fitted else "none") if self.refine is None else self.refine
        return FittedOptions(learn, refinement(way))

    def benchmarks(self, only: list[int] | None, *, silent: bool) -> list[Benchmark]:
        """Open the benchmark, or `only` some of its folds; there is one for each object size."""
        folds = None if self.folds == ALL else self.folds
        sizes = [None] if self.object_size is None else list(dict.fromkeys(self.object_size.split(",")))
        return [replace(self, folds=folds, object_size=size).open(only, silent=silent) for size in sizes]

    def task_file(self) -> Configuration | None:
        """Read the task file, if one was given; no option may then contradict it."""
        if self.tasks is None or is_number(self.tasks):
            return None
        if not Path(self.tasks).is_file():
            raise EmatError(
                "bad-number", f"--tasks is {self.tasks!r}; give a number of tasks, or a task file of emat tasks freeze"
            )
        given = [name for name in SAID_BY_TASK_FILE if getattr(self, name) != getattr(EvalOptions, name)]
        if given:
            flag = f"--{given[0].replace('_', '-')}"
            raise EmatError(
                "conflicting-options",
                f"the tasks in {self.tasks} are already drawn, so {flag} cannot change them; leave it out",
            )
        return read_task_file(Path(self.tasks))

    def chosen_folds(self, default: int | None) -> list[int] | None:
        """Return the folds to evaluate, None for all; `default` if no option says which."""
        if self.fold is None and self.folds != ALL and default is not None:
            return [default]
        if self.fold in (None, ALL):
            return None
        return _numbers(str(self.fold), "--fold", least=0)

    def configurations(self, benchmark: Benchmark, folds: list[int] | None) -> list[Configuration]:
        """Draw the tasks of every fold, way, shot and setting that is asked for."""
        wanted = [fold_list.fold for fold_list in benchmark.fold_lists] if folds is None else folds
        names = Setting.ORIGINAL.value if self.setting is None else self.setting
        settings = list(Setting) if names == ALL else list(dict.fromkeys(map(_setting, names.split(","))))
        tasks = int(self.tasks) if self.tasks and is_number(self.tasks) else None
        variant = {name: getattr(self, name) for name in VARIANT}
        if self.absent:
            variant["query_has_class"] = True
        drawn = [
            benchmark.sampler(fold, TaskRequest(way, shot, setting, tasks, **variant)).configuration()
            for fold in wanted
            for way in _numbers(self.way or "1", "--way")
            for shot in _numbers(self.shot or "1", "--shot")
            for setting in settings
        ]
        return [*drawn, *(lacking for configuration in drawn for lacking in self._absent(configuration, benchmark))]

    def _absent(self, configuration: Configuration, benchmark: Benchmark) -> list[Configuration]:
        """Draw queries without the class, if asked for, from the fold's published list or else from all photos."""
        dataset, areas = benchmark.dataset, benchmark.areas
        if not self.absent or dataset is None or areas is None:
            return []
        listed = (name for name, _ in benchmark.fold_list(configuration.fold).entries)
        names = dict.fromkeys(listed if self.lists else dataset.names)
        return absent_configurations(configuration, tuple(names), areas, dataset.classes)

    def thresholds(self) -> Thresholds | None:
        """Return the thresholds to evaluate with; None if each head uses those of its own file."""
        numbers = [self.threshold_presence, self.threshold_mask]
        own = self.own_thresholds or self.threshold == OWN_THRESHOLDS
        if (own or self.threshold is not None) and numbers != [None, None]:
            raise EmatError(
                "given-twice", "thresholds are given twice; leave out --threshold-presence and --threshold-mask"
            )
        if own:
            return None
        if self.threshold is not None:
            numbers = _two_numbers(self.threshold)
        presence, mask = (PAPER_THRESHOLD if number is None else number for number in numbers)
        return Thresholds(presence, mask)

    def as_json(self) -> dict[str, Any]:
        """Return the options as values that JSON can hold."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}


@takes(EvalOptions)
def command(
    options: EvalOptions,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The results file. Default: a file in runs/ named for the run.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a head or a method on few-shot tasks; all settings, ways and shots share one pass.

    Example: emat eval --model head.safetensors --dataset pascal --data VOC2012 --lists splits --fold 0 --way 2 --shot 1
    --setting all -o fold0.json

    An interrupted evaluation is resumed when the same command is given again.
    """
    processes = find_processes(options.devices, options.nodes, options.device)
    try:
        run, dataset = _prepare(options, processes)
        processes.start()  # an error before this line is reported by one process, and later ones by the process itself
        photos = {name for configuration in run.configurations for task in configuration.tasks for name in task.photos}
        state = processes.broadcast(dataset.state(photos))  # another machine's copy has other file times
        run = replace(run, data_state=state)
        path = out or Path("runs", _name(run))
        content = _results(run, dataset, path, options, processes)
    except EmatError as error:
        raise processes.with_rank(error) from None
    if content is None:
        return
    if as_json:
        shown = {key: content[key] for key in ("summaries", "absence") if key in content}
        typer.echo(json.dumps({"results": str(path), **shown}, indent=2))
        return
    show_results(content, Console())
    typer.echo(f"{path}: {content['work']['tasks']} tasks in {content['seconds']:.0f} s")


def _prepare(options: EvalOptions, processes: Processes) -> tuple[Run, Dataset]:
    from_file, thresholds = options.task_file(), options.thresholds()
    one_head = options.model is not None and FOLD_IN_NAME not in options.model
    usual = training_of(str(options.model)).fold if one_head else None
    folds = options.chosen_folds(usual) if from_file is None else [from_file.fold]
    benchmarks = options.benchmarks(folds, silent=processes.rank > 0)
    dataset, areas = benchmarks[0].dataset, benchmarks[0].areas
    if dataset is None or areas is None:
        raise EmatError("missing-option", "an evaluation needs photos and masks; give the data set with --data")
    if from_file is None:
        configurations = [drawn for benchmark in benchmarks for drawn in options.configurations(benchmark, folds)]
    else:
        configurations = [from_file]
    areas.keep()
    methods = _load_methods(options, configurations, str(processes.device or options.device))
    if options.model is not None and processes.rank == 0:
        _warn_of_seen_classes(options.model, configurations, dataset)
    run = Run(tuple(configurations), methods, thresholds, options.only_seg, as_fitted=options.fitted())
    return run, dataset


def _load_methods(
    options: EvalOptions, configurations: Sequence[Configuration], device: str
) -> dict[int, EvaluatedMethod]:
    """Load the head of each fold."""
    folds = dict.fromkeys(configuration.fold for configuration in configurations)
    heads = {fold: None if options.model is None else _head_of_fold(options.model, fold) for fold in folds}
    return load_folds(
        heads,
        options.method,
        backbone=options.backbone,
        image_size=options.size,
        device=device,
        precision=PRECISIONS[options.precision],
    )


def _warn_of_seen_classes(model: str, configurations: Sequence[Configuration], dataset: Dataset) -> None:
    tested: dict[int, set[int]] = {}
    for configuration in configurations:
        tested.setdefault(configuration.fold, set()).update(configuration.class_ids)
    for fold, ids in tested.items():
        names = [name for class_id, name in enumerate(dataset.classes, start=1) if class_id in ids]
        head = _head_of_fold(model, fold)
        message = training_of(head).warning(head, fold, names)
        if message is not None:
            typer.echo(f"emat: {message}", err=True)


def _head_of_fold(model: str, fold: int) -> str:
    return model.replace(FOLD_IN_NAME, str(fold))


def _results(
    run: Run, dataset: Dataset, path: Path, options: EvalOptions, processes: Processes
) -> dict[str, Any] | None:
    """Return the results of the run, from `path` or by evaluating; None in all processes but the first."""
    if path.exists():
        content = read_results(path)
        if content["fingerprint"] != run.fingerprint:
            raise EmatError(
                "other-run", f"{path} has the results of another run; write to another file with --out, or delete it"
            )
        return None if processes.rank else content
    claim_file(path, (".json",))
    journal = path.with_name(f"{path.name}.journal")
    limits = default_limits(processes.per_machine)
    if options.cache_memory is not None:
        limits = replace(limits, features=int(options.cache_memory * GIGABYTE))
    outcomes = evaluate(
        run,
        dataset,
        journal,
        processes=processes,
        features=options.cache,
        limits=limits,
        watch=iter if processes.rank else lambda work: follow(work, len(work), "queries answered"),
    )
    if outcomes is None:
        return None
    content = results(run, outcomes, options=options.as_json(), seconds=seconds_spent(run, journal))
    if options.absent:
        content["absence"] = absence(content["cells"], content["outcomes"]).as_json()
    write_results(path, content)
    remove_journals(journal)
    return content


def _name(run: Run) -> str:
    """Return a file name that describes the run; its last part distinguishes it from other runs."""
    first = run.configurations[0]
    method = next(iter(run.methods.values())).method.name
    folds = "".join(map(str, dict.fromkeys(configuration.fold for configuration in run.configurations)))
    return f"{method}-{first.dataset}-{first.split}-fold{folds}-{run.fingerprint[:8]}.json"


def _numbers(text: str, flag: str, least: int = 1) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(is_number(part) and int(part) >= least for part in parts):
        raise EmatError(
            "bad-number", f"{flag} is {text!r}; write numbers from {least} on, such as {least} or {least},{least + 1}"
        )
    return list(dict.fromkeys(map(int, parts)))


def _two_numbers(text: str) -> list[float | None]:
    """Read the older way to give both thresholds: one number, or two with a comma."""
    try:
        presence, *masks = map(float, text.split(","))
        (mask,) = masks or [presence]
    except ValueError:
        raise EmatError(
            "unclear-option",
            f"--threshold is {text!r}; write --threshold-presence and --threshold-mask with a number each",
        ) from None
    return [presence, mask]


def _setting(text: str) -> Setting:
    try:
        return Setting(text.strip())
    except ValueError:
        settings = ", ".join(setting.value for setting in Setting)
        raise EmatError(
            "unknown-choice", f"there is no setting {text!r}; the settings are {settings}, or all"
        ) from None
