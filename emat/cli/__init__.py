"""The command line: each verb has a file, and this is the one table of verbs.

The module of a verb is imported only when that verb is used, so that `emat --help` is instant and never loads torch.
Each module has either `command`, a function, or `app`, a Typer application with verbs of its own.
"""

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from emat import __version__
from emat.errors import EmatError

VERBS: dict[str, str] = {
    "demo": "Try emat on five photos; ends with a picture.",
    "fit": "Learn classes from a few masked photos; writes one file.",
    "predict": "Find those classes in photos: masks and scores, in many formats.",
    "serve": "Answer predictions over HTTP, also for Label Studio.",
    "export": "Write a fitted segmenter as one ONNX file.",
    "studio": "Click or paint examples and get masks, on a web page on this machine.",
    "train": "Train a head on any data set with masks.",
    "tune": "Choose the thresholds of a trained head.",
    "eval": "Evaluate a head on few-shot tasks, all settings in one pass.",
    "report": "Make tables and figures from the results of evaluations.",
    "reproduce": "Make every table and figure of the paper beside the published ones.",
    "tasks": "Draw few-shot tasks: digest, count, freeze, show, sizes.",
    "weights": "Backbones and heads: list, fetch, import.",
    "convert": "Convert annotations between COCO, LabelMe, YOLO-seg and indexed PNG.",
    "data": "Check a data set; show fold lists and whether they are the published ones.",
    "doctor": "Report what works on this machine: versions, memory, device, weights.",
}

# Flags that had other names once. They still work, but the help does not show them.
OLD_SPELLINGS: dict[str, dict[str, str]] = {
    "predict": {"--presence": "--threshold-presence", "--threshold": "--threshold-mask"},
    "train": {"--root": "--data", "--lambda": "--presence-weight"},
    "tune": {"--root": "--data", "--output": "--out"},
    "eval": {"--root": "--data", "--output": "--out", "--size-split": "--object-size"},
    "report": {"--output": "--out"},
    "reproduce": {"--root": "--data"},
    "tasks": {"--root": "--data", "--output": "--out", "--size": "--object-size"},
    "data": {"--from-masks": "--data", "--write": "--out"},
}

INTERRUPTED = 130
USER_CAN_FIX = 2
FOR_THE_USER = (errno.ENAMETOOLONG, errno.ENOSPC, errno.EFBIG, errno.EROFS)  # the user can fix these


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"emat {__version__}")
        raise typer.Exit


def build_app(verb: str | None) -> typer.Typer:
    """Return the application with the module of `verb` loaded; the other verbs have only a name and a summary."""
    app = typer.Typer(
        name="emat",
        help="Few-shot classification and segmentation: show a few masked photos, get masks on all others.",
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
            app.add_typer(module.app, name=name, help=summary, epilog=module.EXAMPLE, no_args_is_help=True)
        else:
            app.command(name, no_args_is_help=getattr(module, "NO_ARGS_IS_HELP", False))(module.command)
    return app


def in_new_spelling(arguments: Sequence[str]) -> list[str]:
    """Replace flags of the command line by their present names (see `OLD_SPELLINGS`).

    >>> in_new_spelling(["tasks", "digest", "--size=0-5"])
    ['tasks', 'digest', '--object-size=0-5']
    """
    names = OLD_SPELLINGS.get(_verb(arguments) or "", {})
    found: list[str] = []
    for position, word in enumerate(arguments):
        if word == "--":  # everything after it is not a flag
            return [*found, *arguments[position:]]
        flag, equals, value = word.partition("=")
        found.append(f"{names.get(flag, flag)}{equals}{value}")
    return found


def _verb(arguments: Sequence[str]) -> str | None:
    return next((word for word in arguments if not word.startswith("-")), None)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 for done, 2 for an error that the user can fix, 130 for interrupted."""
    given = in_new_spelling(sys.argv[1:] if arguments is None else arguments)
    try:
        build_app(_verb(given))(given)
    except EmatError as error:
        typer.secho(f"emat: {error}", err=True, fg=typer.colors.RED)
        sys.exit(USER_CAN_FIX)
    except KeyboardInterrupt:
        typer.echo("emat: interrupted", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # `emat ... | head` is not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        if error.errno not in FOR_THE_USER:
            raise
        what = f"{error.filename[:60]!r}: " if isinstance(error.filename, str) else ""
        typer.secho(f"emat: {what}{error.strerror}; choose another name or make room", err=True, fg=typer.colors.RED)
        sys.exit(USER_CAN_FIX)
