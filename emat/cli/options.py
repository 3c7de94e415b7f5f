"""The options that several verbs share, and the one way in which a dataclass becomes the options of a verb.

Options are parameters of a verb, annotated for Typer. A verb with many, or some that Python code has as well, takes
them as a dataclass and is decorated with `takes`: every field becomes an option. A field is annotated with its help
text, and with its flags if they are not its name; or with a `typer.Option` if it needs more.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import typer

from emat.datasets.layouts import LAYOUTS
from emat.errors import EmatError
from emat.files import is_number, open_input
from emat.images import Reading, Stretch
from emat.progress import follow
from emat.tasks.benchmark import Benchmark, open_benchmark
from emat.tasks.sampling import TaskRequest

if TYPE_CHECKING:
    from emat.inference.segmenter import Segmenter
    from emat.inference.tiles import Tiles
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
    float | None,
    typer.Option("--threshold-presence", help="Probability from which a class counts as present. Default: as fitted."),
]
MaskThreshold = Annotated[
    float | None,
    typer.Option("--threshold-mask", help="Probability from which a pixel belongs to a class. Default: as fitted."),
]
FeatureFolder = Annotated[
    Path | None, typer.Option("--cache", help="Folder that keeps the features of photos between runs. Default: none.")
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
    float, typer.Option("--tolerance", help="How many pixels polygons may be off; 0 keeps every corner of every pixel.")
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
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace files that are there, also those that emat did not write.")
]
ChannelsOption = Annotated[
    str | None,
    typer.Option(
        "--channels",
        help="Of photos with channels, those to take, as in 0,2 or DAPI,GFP. Default: as fitted, or all.",
        rich_help_panel="Input",  # `emat train` has another option of this name
    ),
]
ProjectOption = Annotated[
    str | None,
    typer.Option(
        "--project", help="Depths of a stack: none (each by itself), or their max or mean. Default: as fitted, or none."
    ),
]
Refine = Annotated[
    str, typer.Option("--refine", help="Crisper masks: auto, mobilesam (emat weights fetch mobilesam), guided or none.")
]


TilesOption = Annotated[
    str | None,
    typer.Option(
        "--tiles",
        help="For small objects in large photos: auto, none, or the tiles a side, such as 3. Default: as fitted, and "
        "none when fitting.",
    ),
]


def read_tiles(text: str | None) -> "Tiles | Literal['fitted']":
    """Return what --tiles says; EmatError if it is neither auto, none nor a number of tiles."""
    from emat.inference.segmenter import AS_FITTED
    from emat.inference.tiles import FINEST_TILES

    if text is None:
        return AS_FITTED
    if text in ("auto", "none"):
        return "auto" if text == "auto" else None
    if not is_number(text) or not 1 <= int(text) <= FINEST_TILES:
        raise EmatError(
            "unknown-choice",
            f"--tiles is {text!r}; it must be auto, none or a number of tiles from 1 to {FINEST_TILES}",
        )
    return int(text)


def refinement(text: str) -> "Refinement | None":
    """Return the refinement that --refine names, None for "none"; EmatError if there is no such refinement."""
    from emat.refine.refiner import check_refinement

    way = None if text == "none" else text
    try:
        check_refinement(way)
    except EmatError:
        raise EmatError("unknown-choice", f"--refine is {text!r}; it must be auto, mobilesam, guided or none") from None
    return cast("Refinement | None", way)


@dataclass(frozen=True)
class ReadingOptions:
    """How photos are read."""

    stretch: StretchOption = None
    channels: ChannelsOption = None
    project: ProjectOption = None
    max_pixels: MaxPixels = None

    def reading(self, usual: Reading | None = None) -> Reading:
        """Return how photos are read; `usual` supplies what is not given. EmatError if an option cannot be read."""
        usual = usual or Reading()
        return Reading(
            usual.stretch if self.stretch is None else Stretch.read(self.stretch),
            usual.max_pixels if self.max_pixels is None else self.max_pixels,
            usual.channels
            if self.channels is None
            else tuple(part.strip() for part in self.channels.split(",") if part.strip()),
            usual.project if self.project is None else self.project,
        )


@dataclass(frozen=True)
class Overrides:
    """What goes before the decisions of a fitted file, under the same names in every verb that loads one."""

    tiles: TilesOption = None
    refine: Refine = "auto"
    threshold_presence: PresenceThreshold = None
    threshold_mask: MaskThreshold = None

    def load(self, source: Path | str, device: str | None = None, *, fetch: bool = True) -> "Segmenter":
        """Load a fitted segmenter, or make a new one from a head.

        Args:
            source: As `Segmenter.load` takes it.
            device: The device to compute on. Default: the CPU, or what --device says where there is such an option.
            fetch: Whether weights may be downloaded.

        Raises:
            EmatError: If there is no such file or head, or an option cannot be read.
        """
        from emat.inference.segmenter import Segmenter
        from emat.methods.base import Thresholds

        segmenter = Segmenter.load(
            source, device=device or "cpu", tiles=read_tiles(self.tiles), refine=refinement(self.refine), fetch=fetch
        )
        fitted = segmenter.thresholds
        segmenter.thresholds = Thresholds(
            fitted.presence if self.threshold_presence is None else self.threshold_presence,
            fitted.mask if self.threshold_mask is None else self.threshold_mask,
        )
        return segmenter

    def load_fitted(self, path: Path | str, device: str | None = None) -> "Segmenter":
        """Load a fitted segmenter.

        Raises:
            EmatError: If the file is missing or has no examples, or an option cannot be read.
        """
        if not Path(path).is_file():
            if Path(path).exists():
                with open_input(Path(path)):  # which says what it is instead
                    pass
            raise EmatError("no-such-file", f"{path} does not exist; make it with `emat fit EXAMPLES -o {path}`")
        segmenter = self.load(path, device)
        if not segmenter.classes_:
            raise EmatError(
                "not-fitted",
                f"{path} is a head that has not learned any class yet; teach it some with `emat fit EXAMPLES -o "
                "pets.emat`",
            )
        return segmenter


@dataclass(frozen=True)
class PredictOptions(Overrides, ReadingOptions):
    """How a segmenter answers photos that users give to it."""

    device: DeviceName = "auto"

    def load(self, source: Path | str, device: str | None = None, *, fetch: bool = True) -> "Segmenter":
        """Load a segmenter as `Overrides.load` does; it reads photos as it was fitted, unless told otherwise."""
        segmenter = super().load(source, device or self.device, fetch=fetch)
        segmenter.reading = self.reading(segmenter.reading)
        return segmenter


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
    parameters = [_option(option.name, hints[option.name], option.default) for option in fields(cast(Any, options))]
    repeatable = {name for name, hint in hints.items() if get_origin(hint.__origin__) is tuple}

    def decorate(verb: Callable[Concatenate[Options, Own], None]) -> Callable[..., None]:
        own = list(inspect.signature(verb, eval_str=True).parameters.values())[1:]
        every = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*own, *parameters)]

        @wraps(verb)
        def with_options(**given: Any) -> None:
            values = {option.name: given.pop(option.name) for option in parameters}
            values |= {name: tuple(values[name] or ()) for name in repeatable}
            cast(Any, verb)(options(**values), **given)

        # Typer reads the options of a command from its signature and annotations.
        with_options.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
        return with_options

    return decorate


def given_options(options: object, context: typer.Context) -> dict[str, Any]:
    """Return the fields of `options` that the user gave, so that a configuration file can supply the others."""
    names = [option.name for option in fields(cast(Any, options))]
    sources = {name: context.get_parameter_source(name) for name in names}
    return {name: getattr(options, name) for name, source in sources.items() if source and source.name == "COMMANDLINE"}


def _option(name: str, hint: Any, default: Any) -> inspect.Parameter:
    """Make the option of a field: its metadata is a help text and flags other than its name, or a `typer.Option`."""
    kind: Any = hint.__origin__
    described, *flags = hint.__metadata__
    if isinstance(described, str):
        described = typer.Option(*(flags or [f"--{name.replace('_', '-')}"]), help=described)
    if get_origin(kind) is tuple:  # Typer knows lists only
        kind, default = list[get_args(kind)[0]] | None, None  # type: ignore[misc]
    empty = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=empty, annotation=Annotated[kind, described])
