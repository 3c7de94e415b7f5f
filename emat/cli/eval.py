"""`emat eval`: how good a method is, in all settings, ways and shots at once."""

import inspect
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from emat.cli.eval_options import EvalOptions
from emat.cli.output_place import check_output
from emat.cli.progress import follow
from emat.datasets.dataset import Dataset
from emat.errors import EmatError
from emat.evaluation.contender import Contender, load_contender
from emat.evaluation.data_state import data_state
from emat.evaluation.one_pass import default_limits
from emat.evaluation.processes import Processes, find_processes
from emat.evaluation.results import read_results, results, summaries_of, write_results
from emat.evaluation.run import Run, evaluate, remove_journals, seconds_spent
from emat.evaluation.seen_classes import training_of, warning
from emat.evaluation.summary import Summary
from emat.method import PAPER_THRESHOLD
from emat.tasks.frozen import FrozenTasks

NO_ARGS_IS_HELP = True
FOLD_IN_NAME = "{fold}"
GIGABYTE = 2**30


def _eval(
    options: EvalOptions,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The results file. Default: runs/ and a name for the run.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summaries as JSON.")] = False,
) -> None:
    """Evaluate a method on few-shot tasks; all settings, ways and shots share one pass.

    Example: emat eval --model head.safetensors --dataset pascal --root VOC2012 --lists splits --fold 0 --way 2 --shot 1
    --setting all -o fold0.json

    An interrupted evaluation goes on when the same command is given again.
    """
    processes = find_processes(options.devices, options.nodes, options.device)
    try:
        run, dataset = _prepare(options, processes)
        processes.start()  # what cannot be done was said by one process then, and what is said now is its own
        photos = {name for cell in run.cells for task in cell.tasks for name in task.images}
        run = replace(run, data_state=processes.from_first(data_state(dataset, photos)))  # a copy has its own times
        path = output or Path("runs", _name(run))
        content = _results(run, dataset, path, options, processes)
    except EmatError as error:
        raise processes.own(error) from None
    if content is None:
        return
    if as_json:
        typer.echo(json.dumps({"results": str(path), "summaries": content["summaries"]}, indent=2))
        return
    _show(content, Console())
    typer.echo(f"{path}: {content['work']['tasks']} tasks in {content['seconds']:.0f} s")


def _prepare(options: EvalOptions, processes: Processes) -> tuple[Run, Dataset]:
    frozen, thresholds = options.frozen(), options.thresholds()
    one_head = options.model is not None and FOLD_IN_NAME not in options.model
    usual = training_of(str(options.model)).fold if one_head else None
    folds = options.chosen_folds(usual) if frozen is None else [frozen.fold]
    benchmarks = options.open(folds, silent=processes.rank > 0)
    dataset, areas = benchmarks[0].dataset, benchmarks[0].areas
    if dataset is None or areas is None:
        raise EmatError("an evaluation looks at photos and masks; give the data set by --data")
    cells = [frozen] if frozen else [cell for each in benchmarks for cell in options.cells(each, folds)]
    areas.keep()
    contenders = _contenders(options, cells, str(processes.device or options.device))
    if options.model is not None and processes.rank == 0:
        _warn_of_seen_classes(options.model, cells, dataset)
    return Run(tuple(cells), contenders, thresholds, options.only_seg), dataset


def _contenders(options: EvalOptions, cells: Sequence[FrozenTasks], device: str) -> dict[int, Contender]:
    """A contender for each fold of `cells`; folds that name the same head have the same one."""
    built: dict[str | None, Contender] = {}
    contenders: dict[int, Contender] = {}
    for fold in dict.fromkeys(cell.fold for cell in cells):
        model = None if options.model is None else _head_of_fold(options.model, fold)
        if model not in built:
            built[model] = load_contender(
                model,
                options.method,
                backbone=options.backbone,
                image_size=options.size,
                device=device,
                beside=next(iter(built.values()), None),
            )
        contenders[fold] = built[model]
    return contenders


def _warn_of_seen_classes(model: str, cells: Sequence[FrozenTasks], dataset: Dataset) -> None:
    asked: dict[int, set[int]] = {}
    for cell in cells:
        asked.setdefault(cell.fold, set()).update(cell.class_ids)
    for fold, ids in asked.items():
        names = [name for class_id, name in enumerate(dataset.classes, start=1) if class_id in ids]
        head = _head_of_fold(model, fold)
        said = warning(head, training_of(head), fold, names)
        if said is not None:
            typer.echo(f"emat: {said}", err=True)


def _head_of_fold(model: str, fold: int) -> str:
    return model.replace(FOLD_IN_NAME, str(fold))


def _results(
    run: Run, dataset: Dataset, path: Path, options: EvalOptions, processes: Processes
) -> dict[str, Any] | None:
    """The run's results, those that are written already or new ones; None for all processes but the first."""
    if path.exists():
        content = read_results(path)
        if content["fingerprint"] != run.fingerprint:
            raise EmatError(f"{path} holds the results of another run; write to another file by -o, or delete it")
        return None if processes.rank else content
    check_output(path)
    journal = path.with_name(f"{path.name}.journal")
    limits = default_limits(processes.on_machine)
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
    content = results(run, outcomes, options=options.plain(), seconds=seconds_spent(run, journal))
    write_results(path, content)
    remove_journals(journal)
    return content


def _name(run: Run) -> str:
    """A file name that says what was run; its last part tells runs apart."""
    cell = run.cells[0]
    method = next(iter(run.contenders.values())).method.name
    folds = "".join(map(str, dict.fromkeys(cell.fold for cell in run.cells)))
    return f"{method}-{cell.dataset}-{cell.split}-fold{folds}-{run.fingerprint[:8]}.json"


def _show(content: dict[str, Any], console: Console) -> None:
    methods = {
        (each["name"], each["backbone"], each["image_size"], *each["thresholds"].values())
        for each in content["methods"].values()
    }
    for name, backbone, size, presence, mask in sorted(methods):
        apart = "" if presence == mask == PAPER_THRESHOLD else f", presence from {presence:g}, masks from {mask:g}"
        console.print(f"{name} on {backbone} at {size} px{apart}; percent, with 95 % intervals", highlight=False)
    groups: dict[tuple[int, int, bool, str], list[Summary]] = {}
    for summary in summaries_of(content):
        asked = summary.configuration
        groups.setdefault((asked.way, asked.shot, asked.query_has_class, asked.split), []).append(summary)
    for (way, shot, has_class, split), summaries in groups.items():
        words = [f"{way}-way {shot}-shot"]
        words += ["query has the class"] if has_class else []
        words += [] if split in ("train", "val") else [f"objects of {split} % of the image"]
        console.print(_table(", ".join(words), summaries))


def _table(title: str, summaries: list[Summary]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE, pad_edge=False)
    for heading in ("Setting", "Fold", "Tasks", "Accuracy", "mIoU", "False\nmasks", "False\narea"):
        table.add_column(heading, justify="left" if heading == "Setting" else "right", no_wrap=True)
    for summary in summaries:
        fold = "mean" if summary.fold is None else str(summary.fold)
        setting = summary.configuration.setting.removesuffix("-augmented")
        sure = [_score(summary, name) for name in ("accuracy", "miou")]
        false = [_score(summary, name).split(" ")[0] for name in ("false_mask_rate", "false_area")]
        style = "bold" if summary.fold is None else None
        table.add_row(setting, fold, str(summary.tasks), *sure, *false, style=style)
    return table


def _score(summary: Summary, name: str) -> str:
    value, interval = summary.scores[name], summary.intervals[name]
    if value is None:
        return "-"
    return f"{100 * value:.1f}" + (f" {100 * interval[0]:.1f}-{100 * interval[1]:.1f}" if interval else "")


def command(**given: Any) -> None:
    """See `_eval`, whose options and those of `EvalOptions` Typer reads from the signature below."""
    shared = {name: given.pop(name) for name in inspect.signature(EvalOptions).parameters}
    _eval(EvalOptions(**shared), **given)


_own = list(inspect.signature(_eval).parameters.values())[1:]
_parameters = [
    each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    for each in (*inspect.signature(EvalOptions).parameters.values(), *_own)
]
command.__signature__ = inspect.Signature(_parameters)  # type: ignore[attr-defined]
command.__annotations__ = {each.name: each.annotation for each in _parameters}
command.__doc__ = _eval.__doc__
