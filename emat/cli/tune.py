"""`emat tune`: the thresholds that suit a trained head, chosen on classes it may know."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from safetensors import SafetensorError

from emat.cli.output_place import check_output
from emat.cli.progress import follow
from emat.errors import EmatError
from emat.evaluation.contender import load_contender
from emat.evaluation.one_pass import default_limits
from emat.evaluation.seen_classes import training_of, without_test
from emat.evaluation.thresholds import Sweep, sweep
from emat.inference.feature_cache import FeatureCache
from emat.inference.heads import Head, head_metadata, is_training_free
from emat.method import Thresholds
from emat.tasks.benchmark import open_benchmark
from emat.tasks.frozen import freeze
from emat.tensor_files import write_tensors

NO_ARGS_IS_HELP = True


def command(
    head: Annotated[str, typer.Argument(help="A head: a file or a name of `emat weights list`.")],
    data: Annotated[Path, typer.Option("--data", "--root", help="The data set, photos and masks.")],
    names: Annotated[Path | None, typer.Option(help="File of the photos to use, a name a line. Default: all.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Kind of the data set. Default: seen from its files.")] = None,
    folds: Annotated[
        str | None, typer.Option(help="Number of folds, or a file with a fold's class names on each line.")
    ] = None,
    fold: Annotated[
        int | None,
        typer.Option(help="Leave this fold's classes out. Default: what was kept from the head's training."),
    ] = None,
    way: Annotated[int, typer.Option(min=1, help="Classes per task.")] = 1,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks per fold.")] = 250,
    backbone: Annotated[str | None, typer.Option(help="Where the head's file does not say which.")] = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="Pixels a side that photos are resized to. Default: the head's.")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder that keeps photos' features between runs.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps or auto.")] = "auto",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the head with its thresholds and size to this file.")
    ] = None,
) -> None:
    """Choose the presence and mask thresholds of a head; predictions then use them.

    Choose on classes that are not those of a test: what a head was kept from seeing in training is left out.

    Example: emat tune runs/mine/last.safetensors --data photos --names val.txt --size 320 -o mine.safetensors
    """
    if output is not None and is_training_free(head):
        raise EmatError(f"{head} needs no training, so there is no head to write thresholds into; leave -o away")
    contender = load_contender(head, backbone=backbone, image_size=size, device=device)
    benchmark = open_benchmark(dataset, None, data, names=names, folds=folds)
    assert benchmark.dataset is not None
    remaining = without_test(benchmark, training_of(head), fold)
    chosen = remaining.benchmark
    method = contender.method
    if output is not None:
        check_output(output)
    swept = sweep(
        method,
        benchmark.dataset,
        [freeze(chosen.sampler(each.fold, way, 1, tasks=tasks)) for each in chosen.fold_lists],
        cache=FeatureCache(method, memory_bytes=default_limits().features, folder=cache),
        watch=lambda work: follow(work, len(work), "queries answered"),
    )
    best = swept.best()
    size = method.preparation.image_size
    without = "" if remaining.left_out is None else f", without {remaining.left_out}"
    typer.echo(f"{method.name} on {contender.backbone} at {size} px; {way}-way 1-shot{without}; percent")
    Console().print(_table(swept, best))
    miou = f"mIoU {100 * swept.gated[best].miou:.1f} where classes that are not present have no mask"
    typer.echo(f"best: presence {best.presence:g}, masks {best.mask:g}, {miou}")
    if output is not None:
        tuned = Head(method.name, contender.backbone, size, best, method.trained_weights())
        _write(output, tuned, head_metadata(head))
        typer.echo(f"{output}: the head with these thresholds")


def _write(path: Path, head: Head, metadata: Mapping[str, str]) -> None:
    try:
        write_tensors(path, head.tensors, {**metadata, **head.metadata()})
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise EmatError(f"{path} cannot be written: {reason}; choose another folder or make room") from None


def _table(swept: Sweep, best: Thresholds) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("Threshold", "Accuracy", "mIoU", "False masks", "False area"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each, found in swept.alike.items():
        cells = [found.accuracy, found.miou, found.false_mask_rate, found.false_area]
        words = [f"{100 * value:.1f}" for value in cells]
        for column, chosen in enumerate((best.presence, best.mask)):
            words[column] += " *" if each == chosen else "  "
        table.add_row(f"{each:.2f}", *words)
    return table
