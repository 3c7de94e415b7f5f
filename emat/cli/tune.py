"""`emat tune`: choose the thresholds of a head, on classes that it saw in training."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from emat.cli.options import (
    BackboneName,
    DataPath,
    DatasetKind,
    DeviceName,
    FeatureFolder,
    FoldChoice,
    MasksPath,
    NamesFile,
    Overwrite,
    WorkingSize,
)
from emat.errors import EmatError
from emat.evaluation.evaluator import default_limits
from emat.evaluation.run import load_evaluated
from emat.evaluation.thresholds import sweep, without_test
from emat.features import FeatureCache
from emat.methods.trained_head import TrainedHead, head_metadata, is_training_free, training_of
from emat.outputs import claim_file
from emat.progress import follow
from emat.reports.comparison import sweep_table
from emat.tasks.benchmark import open_benchmark
from emat.tasks.sampling import TaskRequest
from emat.tensor_files import write_tensors

NO_ARGS_IS_HELP = True


def command(
    head: Annotated[str, typer.Argument(help="The head: a file or a name from `emat weights list`.")],
    data: DataPath,
    method: Annotated[
        str | None,
        typer.Option(
            help="Method to use the head with, such as emat-prior for a head of emat. Default: the head's own."
        ),
    ] = None,
    masks: MasksPath = None,
    names: NamesFile = None,
    dataset: DatasetKind = None,
    folds: FoldChoice = None,
    fold: Annotated[
        int | None,
        typer.Option(help="Leave out the classes of this fold. Default: those that the head did not see in training."),
    ] = None,
    way: Annotated[int, typer.Option(min=1, help="Number of classes per task.")] = 1,
    tasks: Annotated[int, typer.Option(min=1, help="Number of tasks per fold.")] = 250,
    backbone: BackboneName = None,
    size: WorkingSize = None,
    cache: FeatureFolder = None,
    device: DeviceName = "auto",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write the head to, with its thresholds and size.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Choose the presence and mask thresholds of a head, which predictions then use.

    The classes that the head did not see in training are left out, because they are for testing it.

    Example: emat tune runs/mine/last.safetensors --data photos --names val.txt --size 384 -o mine.safetensors
    """
    if out is not None and is_training_free(head):
        raise EmatError(
            "nothing-to-train", f"{head} needs no training, so there is no head to write thresholds to; leave out --out"
        )
    evaluated = load_evaluated(head, method, backbone=backbone, image_size=size, device=device)
    benchmark = open_benchmark(dataset, None, data, masks=masks, names=names, folds=folds)
    assert benchmark.dataset is not None
    chosen, left_out = without_test(benchmark, training_of(head), fold)
    tuned_method = evaluated.method
    if out is not None:
        claim_file(out, (".safetensors",), reads=[Path(head), data], overwrite=overwrite)
    swept = sweep(
        tuned_method,
        benchmark.dataset,
        [chosen.sampler(one.fold, TaskRequest(way, 1, tasks=tasks)).configuration() for one in chosen.fold_lists],
        cache=FeatureCache(tuned_method, memory_bytes=default_limits().features, folder=cache),
        watch=lambda work: follow(work, len(work), "queries answered"),
    )
    best = swept.best()
    used_size = tuned_method.preparation.image_size
    without = "" if left_out is None else f", without {left_out}"
    typer.echo(f"{tuned_method.name} on {evaluated.backbone} at {used_size} px; {way}-way 1-shot{without}; percent")
    Console().print(sweep_table(swept, best))
    miou = f"mIoU {100 * swept.gated[best].miou:.1f} if classes that are not present have no mask"
    typer.echo(f"best: presence {best.presence:g}, masks {best.mask:g}, {miou}")
    if out is not None:
        tuned = TrainedHead(tuned_method.name, evaluated.backbone, used_size, best, tuned_method.trained_weights())
        write_tensors(out, tuned.tensors, {**head_metadata(head), **tuned.metadata()})
        typer.echo(f"{out}: the head with these thresholds")
