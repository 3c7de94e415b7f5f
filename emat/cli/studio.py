"""`emat studio`: a web page on this machine, on which examples are painted and masks are shown."""

import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from emat.cli.options import HeadName, PredictOptions, takes
from emat.errors import EmatError
from emat.studio.server import serving


@takes(PredictOptions)
def command(
    how: PredictOptions,
    load: Annotated[
        Path | None, typer.Option(help="Start with the examples of this .emat file.", show_default=False)
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The port. Default: the first free port from 7860 on.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    private: Annotated[
        bool, typer.Option("--private", help="Save nothing: photos and examples are deleted when the studio ends.")
    ] = False,
    model: HeadName = "default",
) -> None:
    """Mark a few examples in the browser and get masks on other photos. Nothing leaves this machine.

    Example: emat studio --load pets.emat
    """
    if load is not None and not load.is_file():
        raise EmatError("no-such-file", f"{load} does not exist; write it with `emat fit`, or save it in the studio")
    segmenter = how.load(model if load is None else load, fetch=False)
    signal.signal(signal.SIGTERM, _end)
    with serving(segmenter, port, browser=browser, private=private) as address:
        typer.echo(f"The studio is at {address} (stop it with Ctrl+C)")
        while True:
            time.sleep(3600)


def _end(number: int, _: FrameType | None) -> None:
    """Exit through every `finally`, so that uploads are deleted."""
    sys.exit(128 + number)
