"""The options that several verbs share, and the one way in which a dataclass becomes the options of a verb.

A verb whose choices are the fields of a dataclass is decorated with `takes`: every field becomes an option, and the
verb is called with the dataclass. A field is annotated with its help text, or with a `typer.Option` if it needs more.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeVar, cast, get_type_hints

import typer

from emat.datasets.layouts import LAYOUTS
from emat.errors import EmatError
from emat.images import Reading, Stretch
from emat.progress import follow
from emat.tasks.benchmark import Benchmark, open_benchmark
from emat.tasks.sampling import TaskRequest

if TYPE_CHECKING:
    from emat.refine.refiner import Refinement

Options = TypeVar("Options")
Own = ParamSpec("Own")

AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
DeviceName = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.")]
HeadName = Annotated[
    str, typer.Option("--model", help="The head: default, best, a name from `emat weights list`, or a file.")
]
BackboneName = Annotated[
    str | None, typer.Option("--backbone", help="The backbone, if the head's file does not say which one.")
]
WorkingSize = Annotated[
    int | None,
    typer.Option("--size", min=1, help="Resize photos to this many pixels a side. Default: the head's size."),
]
PresenceThreshold = Annotated[
    float | None, typer.Option("--threshold-presence", help="Probability from which a class counts as present.")
]
MaskThreshold = Annotated[
    float | None, typer.Option("--threshold-mask", help="Probability from which a pixel belongs to a class.")
]
FeatureFolder = Annotated[
    Path | None, typer.Option("--cache", help="Folder that keeps the features of photos between runs.")
]
DatasetKind = Annotated[
    str | None,
    typer.Option("--dataset", help=f"The kind of data set: {', '.join(LAYOUTS)}. Default: recognised from its files."),
]
DataPath = Annotated[Path, typer.Option("--data", help="The data set, with photos and masks.")]
MasksPath = Annotated[
    Path | None, typer.Option("--masks", help="Folder or zip of the masks, if they are not with the photos.")
]
NamesFile = Annotated[
    Path | None, typer.Option("--names", help="File of the photos to use, one name per line. Default: all photos.")
]
FoldChoice = Annotated[
    str | None,
    typer.Option("--folds", help="Number of folds to make, or a file with the class names of one fold on each line."),
]
LeastArea = Annotated[
    float,
    typer.Option("--min-area", min=0, max=1, help="Lists made from masks: fraction of a photo a class must exceed."),
]
Shapes = Annotated[
    str | None,
    typer.Option("--shapes", help="masks (exact) or polygons. Default: masks for coco, polygons for labelme and yolo."),
]
Tolerance = Annotated[
    float,
    typer.Option("--tolerance", help="How many pixels polygons may be off; 0 keeps every corner of every pixel."),
]
StretchOption = Annotated[
    str | None,
    typer.Option(
        "--stretch",
        help="Photos of more than 8 bits: percentile, min-max, none or LOW,HIGH. Default: as fitted, or percentile.",
    ),
]
MaxPixels = Annotated[
    int | None, typer.Option("--max-pixels", min=1, help="The largest photo to read, in pixels. Default: 89 million.")
]
Refine = Annotated[
    str,
    typer.Option("--refine", help="Crisper masks: auto, mobilesam (emat weights fetch mobilesam), guided or none."),
]


def refinement(text: str) -> "Refinement | None":
    """Return the refinement that --refine names, None for "none"; EmatError if there is no such refinement."""
    from emat.refine.refiner import check_refinement

    way = None if text == "none" else text
    try:
        check_refinement(way)
    except EmatError:
        raise EmatError(f"--refine is {text!r}; it must be auto, mobilesam, guided or none") from None
    return cast("Refinement | None", way)


def reading_of(stretch: str | None, max_pixels: int | None, usual: Reading | None = None) -> Reading:
    """Return how photos are read according to --stretch and --max-pixels; `usual` supplies what is not given."""
    usual = usual or Reading()
    return Reading(
        usual.stretch if stretch is None else Stretch.read(stretch),
        usual.max_pixels if max_pixels is None else max_pixels,
    )


@dataclass(frozen=True)
class DataOptions:
    """Which data set and which fold lists are meant."""

    dataset: Annotated[
        str | None, "pascal, coco or a layout such as folder. Default: recognised from the files of --data."
    ] = None
    data: Annotated[Path | None, "The data set, with photos and masks."] = None
    masks: Annotated[
        Path | None, "Folder or zip of the masks, if they are not with the photos. Tasks can be drawn from it alone."
    ] = None
    lists: Annotated[Path | None, "Folder of fold lists. Default: lists are made from the masks."] = None
    object_size: Annotated[str | None, "Only objects of this size in percent of the photo, such as 0-5."] = None
    names: Annotated[
        Path | None, "Lists made from masks: file of the photos to use, one name per line. Default: all photos."
    ] = None
    folds: Annotated[
        str | None, "Lists made from masks: number of folds, or a file with the class names of one fold on each line."
    ] = None
    min_area: LeastArea = 0.0

    def open(self, only: Sequence[int] | None = None, *, silent: bool = False) -> Benchmark:
        """Open the benchmark, or `only` some of its folds; progress is shown unless `silent`."""
        return open_benchmark(
            self.dataset,
            self.lists,
            self.data,
            masks=self.masks,
            object_size=self.object_size,
            names=self.names,
            folds=self.folds,
            min_area=self.min_area,
            only=only,
            watch=iter if silent else lambda names: follow(names, len(names), "masks read"),
        )


@dataclass(frozen=True)
class TaskOptions(TaskRequest, DataOptions):
    """Which tasks of which data set are meant."""


def takes(options: type[Options]) -> Callable[[Callable[Concatenate[Options, Own], None]], Callable[..., None]]:
    """Give a verb an option for each field of the dataclass `options`, which is its first parameter."""
    hints = get_type_hints(options, include_extras=True)
    parameters = [_option(each.name, hints[each.name], each.default) for each in fields(cast(Any, options))]

    def decorate(verb: Callable[Concatenate[Options, Own], None]) -> Callable[..., None]:
        return _with_parameters(verb, parameters, lambda values: options(**values))

    return decorate


def takes_given(
    options: type[Any], defaults: dict[str, Any], flags: dict[str, str]
) -> Callable[[Callable[Concatenate[dict[str, Any], Own], None]], Callable[..., None]]:
    """Give a verb an option for each field of the dataclass `options`, but call it only with those that were given.

    A configuration file can then supply the others. The verb's first parameter is a dictionary.

    Args:
        options: The dataclass.
        defaults: The default of each field, which the help shows.
        flags: A short flag for some of the fields.
    """
    hints = get_type_hints(options, include_extras=True)
    parameters = [
        _optional(each.name, hints[each.name], defaults[each.name], flags.get(each.name)) for each in fields(options)
    ]

    def decorate(verb: Callable[Concatenate[dict[str, Any], Own], None]) -> Callable[..., None]:
        return _with_parameters(
            verb, parameters, lambda values: {name: value for name, value in values.items() if value not in (None, [])}
        )

    return decorate


def _option(name: str, hint: Any, default: Any) -> inspect.Parameter:
    kind, described = hint.__origin__, hint.__metadata__[0]
    if isinstance(described, str):
        described = typer.Option(_flag(name), help=described)
    empty = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=empty, annotation=Annotated[kind, described])


def _optional(name: str, hint: Any, default: Any, short: str | None) -> inspect.Parameter:
    """Return an option that is None unless it is given; its help shows the true default."""
    kind = hint.__origin__
    is_list = getattr(kind, "__origin__", None) is tuple
    scalar = next(each for each in getattr(kind, "__args__", (kind,)) if each is not type(None))
    flag = _flag(name)
    flags = [f"{flag}/--no-{flag[2:]}"] if scalar is bool else [flag, *([short] if short else [])]
    shown = False if default in (None, []) else str(default)
    option = typer.Option(*flags, help=hint.__metadata__[0], show_default=shown)
    annotation = Annotated[list[scalar] | None, option] if is_list else Annotated[scalar | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _with_parameters(
    verb: Callable[..., None], parameters: Sequence[inspect.Parameter], build: Callable[[dict[str, Any]], Any]
) -> Callable[..., None]:
    """Return `verb` with `parameters` in place of its first one, which is built from their values."""
    own = list(inspect.signature(verb).parameters.values())[1:]
    every = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*own, *parameters)]

    @wraps(verb)
    def with_options(**given: Any) -> None:
        verb(build({each.name: given.pop(each.name) for each in parameters}), **given)

    # Typer reads the options of a command from its signature and annotations.
    with_options.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in every}
    return with_options
