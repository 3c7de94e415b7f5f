"""The command line: each verb has a file, and this is the one table of verbs.

The module of a verb is imported only when that verb is used, so that `emat --help` is instant and never loads torch.
Each module has either `command`, a function, or `app`, a Typer application with verbs of its own.
"""

import errno
import inspect
import io
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from emat import __version__
from emat.errors import EmatError
from emat.files import from_user
from emat.outputs import forget_claims
from emat.threads import use_threads

VERBS: dict[str, str] = {
    "demo": "Try emat on five photos; ends with a picture.",
    "fit": "Learn classes from a few masked photos; writes one file.",
    "show": "Show what a fitted file holds and what to expect of it.",
    "predict": "Find those classes in photos: masks and scores, many formats.",
    "measure": "Measure objects: tables with units, verdicts, a report.",
    "serve": "Answer predictions over HTTP, also for Label Studio.",
    "export": "Write a fitted segmenter as one ONNX file.",
    "studio": "Click or paint examples and get masks, on a local web page.",
    "train": "Train a head on any data set with masks.",
    "tune": "Choose the thresholds of a trained head.",
    "eval": "Evaluate a head on few-shot tasks, all settings in one pass.",
    "report": "Make tables and figures from the results of evaluations.",
    "reproduce": "Make the paper's tables and figures beside the published ones.",
    "tasks": "Draw few-shot tasks: digest, count, freeze, show, sizes.",
    "weights": "Backbones and heads: list, fetch, import.",
    "convert": "Convert between COCO, LabelMe, YOLO-seg and indexed PNG.",
    "data": "Check a data set; compare fold lists with the published ones.",
    "doctor": "Report what works here: versions, memory, device, weights.",
}

# The help shows verbs by what one wants to do, and the options of every verb in these panels, in this order.
INTENTS: dict[str, tuple[str, ...]] = {
    "Try it": ("demo", "studio", "doctor"),
    "Find classes in your photos": ("fit", "show", "predict", "measure"),
    "Work with other programs": ("convert", "serve", "export", "weights"),
    "Evaluate and train": ("data", "tasks", "eval", "report", "train", "tune", "reproduce"),
}
PANELS: dict[str, str] = {
    "Input": "config data dataset kind folder masks mask mask_values lists names load fold folds classes "
    "exclude_classes shots sparse overlap stretch pages project region min_area object_size way shot setting tasks "
    "query_has_class all_classes theta absent val_data val_names photos results models index",
    "Model": "model method backbone size learn refine tiles threshold threshold_presence threshold_mask own_thresholds "
    "as_fitted crisp engine support_grid widths channels start_from head_only",
    "Measurement": "instances table properties within scale pixel_size border fill_holes touching accept strict",
    "Server": "host port token workers limit label_studio browser private",
    "Training": "epochs tasks_per_epoch max_tasks batch lr schedule positive flip seed resume val_tasks check_every",
    "Output": "out format to copy_photos shapes tolerance thumbnails figures page only plan run "
    "as_json overwrite report keep print_config list_",
}
ADVANCED = "Advanced"


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

OFFLINE, THREADS = "--offline", "--threads"  # flags that every verb has
INTERRUPTED = 130
USER_CAN_FIX = 2
FOR_THE_USER = (errno.ENAMETOOLONG, errno.ENOSPC, errno.EFBIG, errno.EROFS)  # the user can fix these


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"emat {__version__}")
        raise typer.Exit


def _offline(asked: bool) -> None:
    if asked:
        os.environ["EMAT_OFFLINE"] = "1"  # also for the processes that this one starts


def build_app(verb: str | None) -> typer.Typer:
    """Return the application with the module of `verb` loaded; the other verbs have only a name and a summary."""
    app = typer.Typer(
        name="emat",
        cls=Verbs,
        help="Few-shot classification and segmentation: show a few masked photos, get masks on all others.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def options(
        version: Annotated[
            bool,
            typer.Option("--version", callback=_version, is_eager=True, metavar="", help="Print the version and exit."),
        ] = False,
        offline: Annotated[
            bool, typer.Option(OFFLINE, callback=_offline, metavar="", help="Never use the network.")
        ] = False,
        threads: Annotated[
            int | None, typer.Option(THREADS, min=1, metavar="N", help="Threads to compute with.", show_default=False)
        ] = None,
    ) -> None:
        forget_claims()

    for intent, name in ((intent, name) for intent, names in INTENTS.items() for name in names):
        if name != verb:
            app.command(name, help=VERBS[name], rich_help_panel=intent)(lambda: None)
            continue
        module = import_module(f"emat.cli.{name}")
        if hasattr(module, "app"):
            for command in module.app.registered_commands:
                command.cls = Verb
            app.add_typer(
                module.app,
                name=name,
                cls=Verbs,
                help=VERBS[name],
                epilog=module.EXAMPLE,
                no_args_is_help=True,
                rich_help_panel=intent,
            )
        else:
            without_arguments = getattr(module, "NO_ARGS_IS_HELP", False)
            app.command(name, cls=Verb, no_args_is_help=without_arguments, rich_help_panel=intent)(module.command)
    return app


class WithPlainHelp:
    """A command whose option --help is shown without `<bool>`, which looks as if a value had to follow."""

    help_panel: str | None = None

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option --help."""
        option: Any = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.rich_help_panel, option.metavar = self.help_panel, ""
        return option


class Verbs(WithPlainHelp, TyperGroup):
    """`emat` itself, and the verbs that have verbs below them."""


class Verb(WithPlainHelp, TyperCommand):
    """A verb whose options are shown in panels, the panels always in the same order."""

    help_panel = ADVANCED

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Typer breaks lines where the source does, and the terminal breaks them again.
        self.help = None if self.help is None else re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(self.help))
        for option in (parameter for parameter in self.params if isinstance(parameter, TyperOption)):
            panel = next((panel for panel, names in PANELS.items() if option.name in names.split()), ADVANCED)
            option.rich_help_panel = option.rich_help_panel or panel
            if option.is_flag:
                option.metavar = ""
        order = ["", *PANELS, ADVANCED]  # arguments first
        self.params.sort(key=lambda parameter: order.index(getattr(parameter, "rich_help_panel", None) or ""))

    def invoke(self, ctx: Any) -> Any:
        """Run the verb. A `~` in a path is the home folder also where the shell left it, as in --out=~/masks."""
        ctx.params = {
            name: from_user(value) if isinstance(value, Path) else value for name, value in ctx.params.items()
        }
        return super().invoke(ctx)


def in_new_spelling(arguments: Sequence[str]) -> list[str]:
    """Replace flags by their present names (see `OLD_SPELLINGS`), and put those first that every verb has.

    >>> in_new_spelling(["fit", "photos", "--offline"])
    ['--offline', 'fit', 'photos']
    >>> in_new_spelling(["fit", "photos", "--threads", "2"])
    ['--threads=2', 'fit', 'photos']
    >>> in_new_spelling(["tasks", "digest", "--size=0-5"])
    ['tasks', 'digest', '--object-size=0-5']
    """
    arguments = _with_joined_threads(arguments)
    names = OLD_SPELLINGS.get(_verb(arguments) or "", {})
    end = arguments.index("--") if "--" in arguments else len(arguments)  # what follows it is not a flag
    parts = (word.partition("=") for word in arguments[:end])
    words = [f"{names.get(flag, flag)}{equals}{value}" for flag, equals, value in parts]
    first = [word for word in words if word == OFFLINE or word.partition("=")[0] == THREADS]
    return [*first, *(word for word in words if word not in first), *arguments[end:]]


def _with_joined_threads(arguments: Sequence[str]) -> list[str]:
    """Write `--threads 2` as `--threads=2`, so that its value is not taken for a verb."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    if THREADS in words[: end - 1]:
        index = words.index(THREADS)
        words[index : index + 2] = [f"{THREADS}={words[index + 1]}"]
    return words


def _verb(arguments: Sequence[str]) -> str | None:
    return next((word for word in arguments if not word.startswith("-")), None)


def _reasons(error: BaseException) -> Iterator[BaseException]:
    """The errors during whose handling an error was raised, the last first."""
    while (reason := error.__context__) is not None:
        yield reason
        error = reason


@contextmanager
def _noticing_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt for what follows from Ctrl-C: PyTorch makes an error of another kind of it."""
    noticed: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        noticed.append(number)
        signal.default_int_handler(number, frame)

    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ours = usual and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception:
        if noticed:
            raise KeyboardInterrupt from None
        raise
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 for done, 2 for an error that the user can fix, 130 for interrupted."""
    given = in_new_spelling(sys.argv[1:] if arguments is None else arguments)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller closed it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A terminal may lack letters; what it lacks is shown as ?. A file that cannot be sought stays as it is.
        with suppress(OSError):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
    try:
        if zero := next((word for word in given if "\0" in word), None):  # from a program, not from a shell
            raise EmatError("bad-file-name", f"{zero[:60]!r} has a zero byte, which no name has; leave it out")
        asked = next((word.partition("=")[2] for word in given if word.startswith(f"{THREADS}=")), None)
        use_threads(asked)  # before a verb loads PyTorch
        try:
            with _noticing_interrupts():
                build_app(_verb(given))(given)
        except SystemExit as ended:
            for reason in _reasons(ended):  # Typer makes exit codes of them
                if isinstance(reason, (BrokenPipeError, KeyboardInterrupt)):
                    raise reason from None
            sys.stdout.flush()  # here and not after this function, where nobody could handle an error
            raise
    except EmatError as error:
        if "--json" in given:  # a program reads this; people read the sentence below
            typer.echo(json.dumps({"error": str(error), "code": error.code}))
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
