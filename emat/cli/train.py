"""`emat train`: train a method's head."""

import inspect
import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from emat.cli.progress import follow
from emat.training.config import as_plain, config_text, from_plain, read_config
from emat.training.settings import Settings
from emat.training.state import CONFIG

NO_ARGS_IS_HELP = True
OTHER_FLAGS = {"data": ("--root",), "presence_weight": ("--lambda",)}


def _train(
    given: dict[str, Any],
    config: Annotated[Path | None, typer.Option(help="YAML file of settings; options go before it.")] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the settings as YAML and stop.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, with its settings but for those given.")
    ] = False,
) -> None:
    """Train a head on any data set with masks; the backbone stays as it is.

    The paper's experiment:  emat train --dataset pascal --root VOC2012 --lists splits --fold 0 --backbone dinov2-s

    On a laptop:  emat train --data photos --fold 0 --size 256 --max-tasks 20000 --ema 0.999 --out runs/mine
    """
    settings = _settings(given, config, resume)
    if print_config:
        typer.echo(config_text(settings))
        return
    from emat.training.engine import train

    folder = train(settings, resume=resume, watch=lambda names: follow(names, len(names), "masks read"))
    if int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0:
        typer.echo(f"trained: {folder / 'best.safetensors'}")


def _settings(given: dict[str, Any], config: Path | None, resume: bool) -> Settings:
    """Options before the file, the file before the run that goes on, that before the defaults."""
    values = {} if config is None else read_config(config)
    values |= given
    settings = from_plain(values)
    if not resume:
        return settings
    from emat.training.engine import run_folder

    folder = run_folder(settings)
    begun = read_config(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    return from_plain({**begun, **values, "out": folder})


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command`, whose first parameter holds what was given of the settings, an option for each of them."""
    own = list(inspect.signature(command).parameters.values())[1:]
    hints = get_type_hints(Settings, include_extras=True)
    defaults = as_plain(Settings())
    options = [_option(each.name, hints[each.name], defaults[each.name]) for each in fields(Settings)]

    def with_options(**values: Any) -> None:
        rest = {each.name: values.pop(each.name) for each in own}
        command({name: value for name, value in values.items() if value not in (None, [])}, **rest)

    with_options.__doc__ = command.__doc__
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*options, *own)]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options


def _option(name: str, hint: Any, default: Any) -> inspect.Parameter:
    """An option that is None unless given, so that a file can stand behind it; its help shows the true default."""
    kind = hint.__origin__
    is_list = getattr(kind, "__origin__", None) is tuple
    scalar = next(each for each in getattr(kind, "__args__", (kind,)) if each is not type(None))
    flags = [f"--{name.replace('_', '-')}", *OTHER_FLAGS.get(name, ())]
    if scalar is bool:
        flags = [f"{flags[0]}/--no-{flags[0][2:]}"]
    shown = False if default in (None, []) else str(default)
    option = typer.Option(*flags, help=hint.__metadata__[0], show_default=shown)
    annotation = Annotated[list[scalar] | None, option] if is_list else Annotated[scalar | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


command = _with_settings(_train)
