"""Everything that says how a run trains, in one value: read once at the edge, from options and a file.

Each field's help stands beside its type; the command line and the configuration file take it from there.
"""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from emat.errors import EmatError
from emat.method import PAPER_LAMBDA
from emat.tasks.training_tasks import POSITIVE

SCHEDULES = ("constant", "cosine", "one-cycle")
PRECISIONS = ("32-true", "bf16-mixed")
QUERIES = ("listed", "drawn")
GIGABYTE = 2**30
LARGEST_MASK = 4096  # pixels a side; a step compares a batch of them
# What a run's weights are and what its steps count: another value makes it another run. All else may change when it
# goes on.
IDENTITY = ("method", "backbone", "size", "batch", "tasks_per_epoch", "start_from")


@dataclass(frozen=True)
class Settings:
    """One training run. Defaults are the paper's (Sec. 5) wherever it gives a value."""

    method: Annotated[str, "What to train: emat, cst, an ablation or a baseline; an unknown name lists all."] = "emat"
    backbone: Annotated[str | None, "Frozen backbone. Default: the method's own."] = None
    size: Annotated[int | None, "Photos are resized to this many pixels a side. Default: the backbone's size."] = None

    start_from: Annotated[
        str | None, "A head, by file or name, whose weights training begins with. Default: random weights."
    ] = None

    data: Annotated[tuple[Path, ...], "A data set to train on, of any layout; repeat for several."] = ()
    dataset: Annotated[str | None, "Kind of the first data set, such as pascal. Default: seen from its files."] = None
    lists: Annotated[Path | None, "Folder of fold lists for the first data set. Default: made from masks."] = None
    names: Annotated[
        tuple[Path, ...],
        "File of photo names, one a line: the data set that has them is trained on these alone. Repeatable; "
        "if several data sets have them, one for each, in their order.",
    ] = ()
    fold: Annotated[int | None, "Train without this fold's classes, in all data sets, and validate on them."] = None
    folds: Annotated[str | None, "Number of folds, or a file with a fold's class names on each line."] = None
    exclude_classes: Annotated[tuple[str, ...], "Also train without this class; repeatable."] = ()
    min_area: Annotated[
        float | None, "Least share of a photo an object covers to be asked for. Default: one cell; 0 with --lists."
    ] = None

    val_data: Annotated[Path | None, "Data set to validate on. Default: the first one."] = None
    val_names: Annotated[Path | None, "File of photos to validate on. Default: those that --names leaves out."] = None
    val_tasks: Annotated[int, "Validation tasks; 0 trains without."] = 1000
    check_every: Annotated[int, "Validate after so many epochs."] = 1

    epochs: Annotated[int, "Epochs."] = 80
    tasks_per_epoch: Annotated[int | None, "Tasks of an epoch. Default: as many as the lists have entries."] = None
    max_tasks: Annotated[int | None, "Stop after so many tasks, whatever the epochs say."] = None
    batch: Annotated[int, "Tasks of one step, over all devices together."] = 9
    at_once: Annotated[int | None, "Tasks in memory at once on a device. Default: its share of the batch."] = None
    lr: Annotated[float | None, "Learning rate. Default: the method's own, 0.001 for EMAT and CST."] = None
    schedule: Annotated[str, f"Course of the learning rate: {', '.join(SCHEDULES)}."] = "constant"
    warmup: Annotated[int, "Steps in which the learning rate rises from 0."] = 0
    ema: Annotated[float, "Validate and keep a moving average of the weights, such as 0.999; 0: the weights."] = 0.0
    clip_grad: Annotated[float | None, "Longest gradient allowed. Default: any."] = None
    presence_weight: Annotated[float, "Weight of the classification loss (the paper's lambda)."] = PAPER_LAMBDA
    foreground_weight: Annotated[float, "Weight of a foreground pixel against a background pixel."] = 1.0
    mask_size: Annotated[int | None, "Pixels a side at which masks are compared. Default: the photo's."] = None
    positive: Annotated[float, "Share of tasks that ask for the class the query was drawn for."] = POSITIVE
    queries: Annotated[
        str | None, "Draw queries from the list (listed) or by class (drawn). Default: listed for PASCAL alone."
    ] = None
    flip: Annotated[bool, "Mirror photos half of the time."] = False
    seed: Annotated[int, "Tasks and first weights follow from it."] = 0

    out: Annotated[Path | None, "Folder of the run. Default: runs/ and a name made from the settings."] = None
    save_every: Annotated[int, "Write the state after so many steps, and after every epoch."] = 100
    cache: Annotated[Path | None, "Folder that keeps photos' features between runs. Default: memory alone."] = None
    cache_float16: Annotated[bool, "Keep features in half precision."] = False
    cache_memory: Annotated[float, "Gigabytes of features kept in memory by each process."] = 8.0
    cache_disk: Annotated[float | None, "Gigabytes that --cache may take. Default: any."] = None
    device: Annotated[str, "cpu, cuda, mps or auto."] = "auto"
    devices: Annotated[int, "Devices of a node, or processes on a CPU. Under torchrun: those it started."] = 1
    nodes: Annotated[int, "Nodes. Under torchrun: those it started."] = 1
    strategy: Annotated[str, "Lightning's way to use several devices, such as ddp."] = "auto"
    precision: Annotated[str, f"Lightning's precision: {' or '.join(PRECISIONS)}."] = "32-true"

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise EmatError(f"{each.name.replace('_', ' ')} is {value}; it must be finite")
        for name, choices in (("schedule", SCHEDULES), ("precision", PRECISIONS), ("queries", (None, *QUERIES))):
            value = getattr(self, name)
            if value not in choices:
                raise EmatError(f"{name} is {value!r}; choose {' or '.join(str(each) for each in choices if each)}")
        for name in ("epochs", "batch", "save_every", "check_every", "devices", "nodes", *_POSITIVE_OR_NONE):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise EmatError(f"{name.replace('_', ' ')} is {value}; it must be above 0")
        if self.mask_size is not None and self.mask_size > LARGEST_MASK:
            raise EmatError(f"mask size is {self.mask_size}; more than {LARGEST_MASK} pixels a side are not compared")
        for name in ("val_tasks", "warmup", "cache_memory", "foreground_weight", "presence_weight", "seed"):
            if getattr(self, name) < 0:
                raise EmatError(f"{name.replace('_', ' ')} is {getattr(self, name)}; it must be 0 or more")
        for name, low, high in (("ema", 0.0, 1.0), ("min_area", 0.0, 1.0)):
            value = getattr(self, name)
            if value is not None and not low <= value < high:
                raise EmatError(f"{name.replace('_', ' ')} is {value}; it must be at least 0 and below 1")

    def changed_from(self, other: "Settings") -> list[str]:
        """The names of the fields in which two runs differ."""
        return [each.name for each in fields(self) if getattr(self, each.name) != getattr(other, each.name)]


_POSITIVE_OR_NONE = ("size", "tasks_per_epoch", "max_tasks", "at_once", "lr", "clip_grad", "mask_size", "cache_disk")
