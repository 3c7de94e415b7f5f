"""The options of a training run: `TrainingOptions`, and the YAML file that they are read from and written to.

The help text of each option stands beside its type, and its flags if they are not its name. The command line and the
configuration file both take them from here.
"""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from emat.errors import EmatError, needs_extra
from emat.files import read_text
from emat.methods.base import PAPER_LAMBDA
from emat.model.network import Shape
from emat.outputs import write_text
from emat.tasks.training_tasks import POSITIVE

SCHEDULES = ("constant", "cosine", "one-cycle")
PRECISIONS = ("32-true", "bf16-mixed")
QUERY_ORDERS = ("listed", "drawn")
GIGABYTE = 2**30
LARGEST_MASK = 4096  # pixels a side; each step compares a batch of masks of this size
# The options that decide what the weights are and what a step is. They cannot change when a run is resumed; all others
# can.
FIXED_IN_A_RUN = (
    "method", "backbone", "size", "support_grid", "widths", "channels", "batch", "batch_per_process", "tasks_per_epoch",
    "start_from",
)  # fmt: skip
ABOVE_ZERO = (
    "epochs", "batch", "save_every", "check_every", "devices", "nodes", "size", "support_grid", "tasks_per_epoch",
    "max_tasks", "at_once", "lr", "clip_grad", "mask_size", "cache_disk",
)  # fmt: skip
ZERO_OR_MORE = ("val_tasks", "warmup", "cache_memory", "foreground_weight", "presence_weight", "seed")
BELOW_ONE = ("ema", "min_area")


@dataclass(frozen=True)
class TrainingOptions:
    """The options of one training run. The defaults are the paper's (Sec. 5) wherever it gives a value.

    Raises:
        EmatError: If a value is out of range; the message names the option and the value.
    """

    method: Annotated[
        str, "Method to train: emat, cst, an ablation or a baseline. An unknown name lists all methods."
    ] = "emat"
    backbone: Annotated[str | None, "Frozen backbone. Default: the method's own."] = None
    size: Annotated[int | None, "Resize photos to this many pixels a side. Default: the backbone's size."] = None
    support_grid: Annotated[
        int | None, "Side of the support grid of EMAT and CST. Default: the published one, 20 for EMAT and 12 for CST."
    ] = None
    widths: Annotated[str | None, "Widths of the two attention layers, such as 64,32. Default: the published ones."] = (
        None
    )
    channels: Annotated[
        str | None, "First and last of the backbone's correlation channels to compare, such as 14-41. Default: all."
    ] = None

    start_from: Annotated[
        str | None, "Head, given by its file or name, whose weights training starts with. Default: random weights."
    ] = None

    data: Annotated[tuple[Path, ...], "Data set to train on, in any layout. Repeat the option for several."] = ()
    masks: Annotated[
        Path | None, "Folder or zip file with the masks of the first data set, if they are not beside its photos."
    ] = None
    dataset: Annotated[
        str | None, "Kind of the first data set, such as pascal. Default: recognised from its files."
    ] = None
    lists: Annotated[
        Path | None, "Folder with fold lists for the first data set. Default: lists are made from its masks."
    ] = None
    names: Annotated[
        tuple[Path, ...],
        "File with photo names, one on each line. The data set that has these photos is trained on them only. Repeat "
        "the option for several data sets; if more than one has these photos, give one file for each, in their order.",
    ] = ()
    fold: Annotated[
        int | None, "Keep the classes of this fold out of training, in all data sets, and validate on them."
    ] = None
    folds: Annotated[str | None, "Number of folds, or a file with the class names of one fold on each line."] = None
    exclude_classes: Annotated[tuple[str, ...], "Keep this class out of training, too. Repeatable."] = ()
    min_area: Annotated[
        float | None,
        "Use a class of a photo only if it covers more than this share of the photo. Default: one cell of the support "
        "grid, which is 0.0025; 0 with --lists.",
    ] = None

    val_data: Annotated[Path | None, "Data set to validate on. Default: the first one of --data."] = None
    val_names: Annotated[
        Path | None, "File with the names of the photos to validate on. Default: the photos that --names leaves out."
    ] = None
    val_tasks: Annotated[int, "Number of validation tasks; 0 trains without validation."] = 1000
    check_every: Annotated[int, "Number of epochs from one validation to the next."] = 1

    epochs: Annotated[int, "Number of epochs."] = 80
    tasks_per_epoch: Annotated[
        int | None, "Number of tasks in an epoch. Default: the number of entries in the lists."
    ] = None
    max_tasks: Annotated[int | None, "Stop after this many tasks, even before the last epoch."] = None
    batch: Annotated[int, "Number of tasks in one step, over all devices together."] = 9
    batch_per_process: Annotated[
        bool,
        "Give --batch tasks to each process in one step instead of sharing them. The paper trains with 9 tasks in a "
        "step, the published configuration with 9 for each of three processes.",
    ] = False
    at_once: Annotated[
        int | None, "Number of tasks that a device computes at the same time. Default: its whole share of the batch."
    ] = None
    lr: Annotated[float | None, "Learning rate. Default: the method's own, 0.001 for EMAT and CST."] = None
    schedule: Annotated[str, f"How the learning rate changes during the run: {', '.join(SCHEDULES)}."] = "constant"
    warmup: Annotated[int, "Number of steps at the start in which the learning rate rises from 0."] = 0
    ema: Annotated[
        float,
        "Decay of a moving average of the weights, such as 0.999. The average is validated and saved; 0 uses the "
        "weights themselves.",
    ] = 0.0
    clip_grad: Annotated[
        float | None, "Gradients with a larger norm are scaled down to this norm. Default: no limit."
    ] = None
    presence_weight: Annotated[float, "Weight of the classification loss (the paper's lambda)."] = PAPER_LAMBDA
    foreground_weight: Annotated[float, "Weight of a foreground pixel; a background pixel has the weight 1."] = 1.0
    mask_size: Annotated[
        int | None, "Pixels a side at which masks are compared in the loss. Default: the size of the photo."
    ] = None
    positive: Annotated[float, "Share of tasks whose query shows the class of the support."] = POSITIVE
    queries: Annotated[
        str | None,
        "How queries are chosen: listed goes through the list, drawn draws a class first. Default: listed if PASCAL is "
        "the only data set, otherwise drawn.",
    ] = None
    flip: Annotated[bool, "Mirror each photo half of the time.", "--flip/--no-flip"] = False
    seed: Annotated[int, "Seed of the tasks and of the first weights."] = 0

    out: Annotated[
        Path | None, "Folder of the run. Default: runs/ and a name made from the options.", "--out", "-o"
    ] = None
    save_every: Annotated[int, "Save the state after this many steps, and after every epoch."] = 100
    cache: Annotated[Path | None, "Folder that keeps the features of photos between runs. Default: only memory."] = None
    cache_float16: Annotated[bool, "Keep features in half precision.", "--cache-float16/--no-cache-float16"] = False
    cache_memory: Annotated[float, "Gigabytes of features that each process keeps in memory."] = 8.0
    cache_disk: Annotated[float | None, "Gigabytes that the folder --cache may take. Default: no limit."] = None
    device: Annotated[str, "auto, cpu, cuda or mps."] = "auto"
    devices: Annotated[int, "Devices of a node, or processes on a CPU. Under torchrun: those that it started."] = 1
    nodes: Annotated[int, "Number of nodes. Under torchrun: those that it started."] = 1
    strategy: Annotated[str, "Lightning's strategy for several devices, such as ddp."] = "auto"
    precision: Annotated[str, f"Lightning's precision: {' or '.join(PRECISIONS)}."] = "32-true"

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise EmatError("bad-number", f"{_words(option.name)} is {value}; it must be finite")
        for name, choices in (("schedule", SCHEDULES), ("precision", PRECISIONS), ("queries", (None, *QUERY_ORDERS))):
            value = getattr(self, name)
            if value not in choices:
                raise EmatError(
                    "unknown-choice",
                    f"{name} is {value!r}; choose {' or '.join(str(choice) for choice in choices if choice)}",
                )
        for name in ABOVE_ZERO:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise EmatError("bad-number", f"{_words(name)} is {value}; it must be above 0")
        if self.mask_size is not None and self.mask_size > LARGEST_MASK:
            raise EmatError(
                "bad-number", f"mask size is {self.mask_size}; it can be at most {LARGEST_MASK} pixels a side"
            )
        for name in ZERO_OR_MORE:
            if getattr(self, name) < 0:
                raise EmatError("bad-number", f"{_words(name)} is {getattr(self, name)}; it must be 0 or more")
        self.shape  # noqa: B018 - raises if widths or channels cannot be read
        for name in BELOW_ONE:
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise EmatError("bad-number", f"{_words(name)} is {value}; it must be at least 0 and below 1")

    @property
    def tasks_per_step(self) -> int:
        """The number of tasks in one step, over all processes."""
        return self.batch * self.devices * self.nodes if self.batch_per_process else self.batch

    @property
    def shape(self) -> Shape:
        """The sizes of the network that differ from the published ones."""
        widths, channels = _two_numbers("widths", self.widths, ","), _two_numbers("channels", self.channels, "-")
        return Shape(self.support_grid, widths, None if channels is None else (channels[0], channels[1] + 1))

    def changed_from(self, other: "TrainingOptions") -> list[str]:
        """Return the names of the options in which this run differs from `other`."""
        return [option.name for option in fields(self) if getattr(self, option.name) != getattr(other, option.name)]


def as_plain(options: TrainingOptions) -> dict[str, Any]:
    """Return the options by name, as values that YAML and JSON have."""
    return {option.name: _plain(getattr(options, option.name)) for option in fields(options)}


def from_plain(values: dict[str, Any]) -> TrainingOptions:
    """Return the options with these values; the others have their defaults.

    >>> from_plain({"data": ["pets"], "epochs": 3}).data
    (PosixPath('pets'),)

    Args:
        values: By name, what `as_plain` or `read_config` returned.

    Raises:
        EmatError: If there is no option of a name, or its value has the wrong type or is out of range.
    """
    hints = get_type_hints(TrainingOptions)
    for name in values:
        if name not in hints:
            raise EmatError(
                "unknown-option", f"there is no option {name!r}; emat train --print-config shows all of them"
            )
    return TrainingOptions(**{name: _typed(name, hints[name], value) for name, value in values.items()})


def config_text(options: TrainingOptions) -> str:
    """Return the options as YAML, with the help text of each in a comment."""
    yaml = _yaml()
    hints = get_type_hints(TrainingOptions, include_extras=True)
    lines = []
    for name, value in as_plain(options).items():
        help_text = hints[name].__metadata__[0]
        written = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6)
        lines.append(f"# {help_text}\n{name}: {written.removesuffix('...' + chr(10))}")
    return "\n".join(lines)


def write_config(path: Path, options: TrainingOptions) -> None:
    """Write `options` to the YAML file `path`, which is complete or absent if the process is killed."""
    write_text(path, config_text(options))


def read_config(path: Path) -> dict[str, Any]:
    """Return the values in a YAML file, which need not name every option.

    Raises:
        EmatError: If the file cannot be read, or does not hold names and values.
    """
    yaml = _yaml()
    try:
        content = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise EmatError(
            "bad-syntax", f"{path} is not YAML ({str(error).splitlines()[0]}); see emat train --print-config"
        ) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise EmatError(
            "unclear-option", f"{path} must hold options such as `epochs: 80`; see emat train --print-config"
        )
    return {str(name): value for name, value in content.items()}


def _words(name: str) -> str:
    return name.replace("_", " ")


def _two_numbers(name: str, text: str | None, between: str) -> tuple[int, int] | None:
    if text is None:
        return None
    parts = text.split(between)
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise EmatError("unclear-option", f"{name} is {text!r}; write two numbers with a {between!r} between them")
    return int(parts[0]), int(parts[1])


def _yaml() -> Any:
    with needs_extra("a configuration file", "train"):
        import yaml
    return yaml


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def _typed(name: str, hint: Any, value: Any) -> Any:
    """Return `value` as the type of the field: YAML reads 1e-3 as text, and a single path is not a list."""
    kinds = getattr(hint, "__args__", (hint,))
    if getattr(hint, "__origin__", None) is tuple:
        values = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
        return tuple(_scalar(name, kinds[0], one) for one in values)
    return None if value is None and type(None) in kinds else _scalar(name, kinds[0], value)


def _scalar(name: str, kind: Any, value: Any) -> Any:
    try:
        if isinstance(value, bool) != (kind is bool):
            raise ValueError
        if kind is int and not isinstance(value, int):  # YAML reads 1e3 as text; a large seed must not become a float
            if float(value) != int(float(value)):
                raise ValueError
            return int(float(value))
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        raise EmatError(
            "unclear-option", f"the option {name} is {value!r}, which is not of the type {kind.__name__}"
        ) from None
