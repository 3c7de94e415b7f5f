"""Runs commands of emat in children that can be killed, each within a limit of file size.

What they import is imported only once, here, so that a kill hits their work.

It reads a JSON object on each line and answers with one: {"arguments": [...], "kill_after": seconds or null,
"file_limit": bytes or null, "home": folder or null, "server": address of weights or null} gives {"code": ...,
"out": ..., "err": ..., "seconds": ...}.
"""

import contextlib
import gc
import json
import os
import resource
import signal
import sys
import time
import traceback
from dataclasses import replace
from functools import partial
from typing import Any

import lightning.fabric  # noqa: F401 - a training imports it when it begins
import pydantic  # noqa: F401 - Typer imports it when it reads the first option
from PIL import Image

import emat.cli.convert
import emat.cli.eval
import emat.cli.fit
import emat.cli.measure
import emat.cli.predict
import emat.cli.show
import emat.cli.train
import emat.cli.weights
import emat.inference.segmenter  # noqa: F401
from emat.backbone.registry import BACKBONES
from emat.backbone.vit import ViT
from emat.cli import main
from emat.methods import trained_head


def take_weights_from(server: str) -> None:
    """Fetch published heads, and the backbone `dinov2-s`, from a server on this machine; the backbone is narrow."""
    make = partial(ViT, 48, 12, 6, patch=14, pos_grid=5)
    BACKBONES["dinov2-s"] = replace(
        BACKBONES["dinov2-s"], make=make, width=8, image_size=56, urls=(f"{server}/backbone.safetensors",)
    )
    trained_head.HOST = server
    os.environ["no_proxy"] = "127.0.0.1"
    os.environ.pop("EMAT_OFFLINE", None)


def child(asked: dict[str, Any], out: int, err: int) -> None:
    """Run a command in this process and end it; nothing of the parent may go on here."""
    code = 1
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        if (limit := asked["file_limit"]) is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        if asked["home"] is not None:
            os.environ["EMAT_HOME"] = asked["home"]
        if asked["server"] is not None:
            take_weights_from(asked["server"])
        main(asked["arguments"])
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def run(asked: dict[str, Any]) -> dict[str, object]:
    """Run a command in a child, and kill it if that is asked for."""
    pipes = [os.pipe(), os.pipe()]  # a limit of file size does not concern them
    began = time.monotonic()
    process = os.fork()
    if process == 0:
        child(asked, pipes[0][1], pipes[1][1])
    after = asked["kill_after"]
    if after is not None:
        while time.monotonic() - began < after:
            if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                break
            time.sleep(0.002)
        else:
            os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    seconds = time.monotonic() - began
    said = []
    for read, write in pipes:
        os.close(write)
        with os.fdopen(read, errors="replace") as end:
            said.append(end.read())
    return {"code": os.waitstatus_to_exitcode(status), "out": said[0], "err": said[1], "seconds": seconds}


if __name__ == "__main__":
    Image.init()  # otherwise it imports the formats when the first file is opened
    gc.freeze()  # a collection in a child would copy the memory of everything that is loaded
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)
