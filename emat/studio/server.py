"""Serves the page on 127.0.0.1 only. It loads nothing from other servers, and uploads are deleted at the end."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from emat.errors import EmatError
from emat.inference.segmenter import Segmenter

HOST = "127.0.0.1"
MAX_FILE_SIZE = 200 * 1024 * 1024  # bytes of one uploaded file

# The browser itself refuses whatever is not served here. Gradio needs its inline scripts; its editor compiles some.
POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'none'; form-action 'none'; base-uri 'self'"
)


@contextmanager
def serving(segmenter: Segmenter, port: int | None = None, *, browser: bool = False) -> Iterator[str]:
    """Serve the page and give its address; every new tab starts with a copy of `segmenter`."""
    with tempfile.TemporaryDirectory(prefix="emat-studio-", ignore_cleanup_errors=True) as folder:
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
        os.environ["GRADIO_TEMP_DIR"] = folder  # uploads are deleted when the studio ends
        _require_gradio()
        from emat.studio.events import Studio
        from emat.studio.page import STYLE, build_page, theme
        from emat.studio.session import SharedMethods

        page = build_page()
        with page.blocks:
            Studio(page, SharedMethods(segmenter), Path(folder) / "downloads").connect()
        try:
            _, address, _ = page.blocks.launch(
                server_name=HOST, server_port=port, inbrowser=browser, prevent_thread_lock=True, quiet=True,
                share=False, allowed_paths=[], max_file_size=MAX_FILE_SIZE, footer_links=[], ssr_mode=False, pwa=False,
                mcp_server=False, enable_monitoring=False, theme=theme(), css_paths=STYLE,
                app_kwargs={"middleware": _middleware()},
            )  # fmt: skip
        except OSError:  # Gradio's own words are about its own settings
            which = "every port from 7860 on" if port is None else f"port {port}"
            raise EmatError(f"{which} is taken; choose another with --port") from None
        try:
            yield address
        finally:
            page.blocks.close(verbose=False)


def _require_gradio() -> None:
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        if error.name not in (None, "gradio"):
            raise
        raise EmatError('the studio needs Gradio, which is not installed: pip install "emat[studio]"') from None


def _middleware() -> list[Any]:
    """Refuse requests to any other host name, and send the policy with every response."""
    from starlette.datastructures import MutableHeaders
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    class Policy:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def send_with_policy(message: Any) -> None:
                if message["type"] == "http.response.start":
                    headers = MutableHeaders(scope=message)
                    headers["Content-Security-Policy"] = POLICY
                    headers["Referrer-Policy"] = "no-referrer"
                await send(message)

            await self.app(scope, receive, send_with_policy)

    return [Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"]), Middleware(Policy)]
