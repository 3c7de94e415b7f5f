"""`emat serve`: predictions over HTTP."""

import json
import os
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from emat.cli.options import HeadName, PredictOptions, takes
from emat.errors import EmatError
from emat.inference.segmenter import Segmenter
from emat.outputs import claim_file
from emat.scale.requests import MOST_BYTES, ServeOptions
from emat.scale.serve import build_app, check_packages

SECONDS_TO_FINISH = 60  # that requests may take after the server was asked to end


@takes(PredictOptions)
def command(
    how: PredictOptions,
    segmenter: Annotated[
        Path | None, typer.Argument(help="A file that `emat fit` wrote. Only Label Studio can start without one.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen at. Any other than this machine's own needs --token.")
    ] = ServeOptions.host,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for any that is free.")] = 8000,
    token: Annotated[
        str | None, typer.Option(envvar="EMAT_TOKEN", help="What clients must send; better given in EMAT_TOKEN.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that answer. With more than one, no examples are taken.")
    ] = 1,
    limit: Annotated[int, typer.Option(min=1, help="The largest request in MB.")] = MOST_BYTES // 2**20,
    keep: Annotated[
        Path | None, typer.Option(help="The .emat file that is written whenever an example was learnt.")
    ] = None,
    label_studio: Annotated[
        bool, typer.Option("--label-studio", help="Also be an ML backend of Label Studio.")
    ] = False,
    model: HeadName = "default",
) -> None:
    """Answer predictions over HTTP: POST /predict and /examples, GET /classes, /health, /metrics and /docs.

    Ctrl+C or SIGTERM ends the server after what it has begun is answered.

    Example: emat serve pets.emat --port 8000
    """
    options = ServeOptions(host, token, limit * 2**20, keep, workers == 1, label_studio)
    if segmenter is None and not label_studio:
        raise EmatError("missing-option", "say which segmenter is to be served, as in `emat serve pets.emat`")
    if workers > 1 and keep is not None:
        raise EmatError("conflicting-options", "--keep is for a server that learns; it has one worker")
    if keep is not None:  # it may be the file that is served: it is read once, and to go on with it is what is meant
        claim_file(keep, (".emat",), overwrite=keep == segmenter, flag="--keep")
    if workers == 1:
        _run_server(build_app(_loaded(segmenter, model, how), options), host, port, 1)
        return
    source = None if segmenter is None else str(segmenter)
    os.environ["EMAT_SERVED"] = json.dumps([source, model, asdict(how), options.as_json()])
    _run_server("emat.cli.serve:app_from_environment", host, port, workers)


def app_from_environment() -> Any:
    """Build the application in a worker process, from what `emat serve` put into the environment."""
    source, model, how, options = json.loads(os.environ["EMAT_SERVED"])
    return build_app(_loaded(source, model, PredictOptions(**how)), ServeOptions(**options))


def _loaded(segmenter: Path | str | None, model: str, how: PredictOptions) -> Segmenter:
    """The segmenter that is served: a fitted one, or for Label Studio a head that has no examples yet."""
    return how.load(model) if segmenter is None else how.load_fitted(segmenter)


def _run_server(app: Any, host: str, port: int, workers: int) -> None:
    """Serve an application, or what the function of a name returns, until the process is asked to end."""
    check_packages()
    import uvicorn

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise EmatError(
                "cannot-listen", f"nothing can listen at {host}:{port} ({error.strerror}); choose another --port"
            ) from None
    uvicorn.run(
        app,
        host=host,
        port=port,
        workers=workers if workers > 1 else None,
        factory=isinstance(app, str),
        log_level="warning" if workers == 1 else "info",
        timeout_graceful_shutdown=SECONDS_TO_FINISH,
        timeout_worker_healthcheck=SECONDS_TO_FINISH,  # a worker that predicts or loads is busy, not dead
        server_header=False,
    )
