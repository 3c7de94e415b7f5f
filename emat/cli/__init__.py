"""The command line: one verb a file, and here the one table of verbs.

A verb's module is imported only when that verb is asked for, so `emat --help` stays instant and never loads torch.
Each module holds either `command`, a function, or `app`, a Typer with verbs of its own.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from emat import __version__
from emat.errors import EmatError

VERBS: dict[str, str] = {
    "demo": "The main job on five photos, in one command: ends with a picture.",
    "fit": "Learn classes from a few masked photos; writes one file.",
    "predict": "Find those classes in photos: masks and scores, in many formats.",
    "studio": "The web page on this machine: paint examples, get masks.",
    "train": "Train a head on any data set with masks.",
    "tune": "Choose the thresholds of a trained head.",
    "eval": "Evaluate a method on few-shot tasks, all settings in one pass.",
    "report": "Tables and figures from the results of evaluations.",
    "tasks": "Few-shot tasks: digest, count, freeze, show.",
    "weights": "Backbones and heads: what is here, fetch more, import public files.",
    "convert": "Convert annotations between COCO, LabelMe, YOLO-seg and indexed PNG.",
    "data": "Check a data set; show fold lists and whether they are the published ones.",
    "doctor": "What works on this machine: versions, memory, device, weights, extras.",
}

INTERRUPTED = 130
USER_CAN_FIX = 2


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"emat {__version__}")
        raise typer.Exit


def build_app(verb: str | None) -> typer.Typer:
    """The application with `verb`'s module loaded; the other verbs are there by name and summary only."""
    app = typer.Typer(
        name="emat",
        help="Few-shot classification and segmentation: a few masked photos in, masks on all the others out.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
        ] = False,
    ) -> None:
        pass

    for name, summary in VERBS.items():
        if name != verb:
            app.command(name, help=summary)(lambda: None)
            continue
        module = import_module(f"emat.cli.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name, help=summary, no_args_is_help=True)
        else:
            app.command(name, no_args_is_help=getattr(module, "NO_ARGS_IS_HELP", False))(module.command)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 2 the user's to fix, 130 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        build_app(next((word for word in given if not word.startswith("-")), None))(given)
    except EmatError as error:
        typer.secho(f"emat: {error}", err=True, fg=typer.colors.RED)
        sys.exit(USER_CAN_FIX)
    except KeyboardInterrupt:
        typer.echo("emat: interrupted", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # `emat ... | head` is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
