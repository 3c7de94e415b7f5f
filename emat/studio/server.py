"""Serves the page on 127.0.0.1 only. It loads nothing from other servers."""

import socket
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from emat.errors import EmatError, needs_extra
from emat.files import emat_home
from emat.inference.segmenter import Segmenter

if TYPE_CHECKING:
    import uvicorn

HOST = "127.0.0.1"
FIRST_PORT = 7860
PORTS = 100  # that are tried if none was asked for
STARTING = 30  # seconds that the server may take


@contextmanager
def serving(
    segmenter: Segmenter, port: int | None = None, *, browser: bool = False, private: bool = False
) -> Iterator[str]:
    """Serve the page and give its address; every new tab starts with a copy of `segmenter`.

    Args:
        segmenter: What new tabs start with.
        port: The port; by default the first free one from 7860 on.
        browser: Whether to open the page in the browser.
        private: Whether to save nothing: all that was done is deleted when the studio ends. Otherwise sessions are
            saved in `studio` in emat's home folder.

    Raises:
        EmatError: The port is taken, or the extra `studio` is not installed.
    """
    _require_extra()
    import uvicorn

    from emat.studio.actions import Clicks, Studio
    from emat.studio.routes import build_app
    from emat.studio.security import Guard
    from emat.studio.sessions import Sessions, SharedMethods

    with _listening(port) as listener, _folder(private) as folder:
        port = int(listener.getsockname()[1])
        sessions = Sessions(SharedMethods(segmenter), folder, private)
        studio = Studio(sessions, Clicks())
        server = uvicorn.Server(
            uvicorn.Config(
                Guard(build_app(studio), port),
                log_level="error",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=2,
            )
        )
        thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listener]}, name="emat studio server", daemon=True
        )
        thread.start()
        try:
            _wait_until_started(server, thread)
            address = f"http://{HOST}:{port}/"
            if browser:
                webbrowser.open(address)
            yield address
        finally:
            server.should_exit = True
            thread.join(timeout=10)
            sessions.close()
            studio.clicks.close()


@contextmanager
def _listening(port: int | None) -> Iterator[socket.socket]:
    with socket.socket() as listener:
        if sys.platform != "win32":  # there, it would share a port that another server has
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried = range(FIRST_PORT, FIRST_PORT + PORTS) if port is None else [port]
        for candidate in tried:
            try:
                listener.bind((HOST, candidate))
                listener.listen(128)
            except OSError:
                continue
            yield listener
            return
        which = f"every port from {FIRST_PORT} to {FIRST_PORT + PORTS - 1}" if port is None else f"port {port}"
        raise EmatError("cannot-listen", f"{which} is taken; choose another with --port")


@contextmanager
def _folder(private: bool) -> Iterator[Path]:
    """The folder of the sessions, which only this user may read."""
    if private:
        with tempfile.TemporaryDirectory(prefix="emat-studio-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    kept = emat_home() / "studio"
    try:
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept.chmod(0o700)
    except OSError as error:
        raise EmatError(
            "cannot-write",
            f"{kept} cannot be written: {error.strerror}; choose another folder by EMAT_HOME, or use --private",
        ) from None
    yield kept


def _wait_until_started(server: "uvicorn.Server", thread: threading.Thread) -> None:
    deadline = time.monotonic() + STARTING
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise EmatError("cannot-listen", "the studio's server did not start; try another port with --port")
        time.sleep(0.02)


def _require_extra() -> None:
    with needs_extra("the studio", "studio"):
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
