"""An HTTP server on this machine that misbehaves as told, for the tests of downloads."""

import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ETAG = '"version-1"'
PIECES = 16  # of an answer that is sent slowly


class Server:
    """One file over HTTP on this machine, with ranges; it can break off, wait, and announce a checksum."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.etag = ETAG
        self.breaks_after: list[int] = []  # bytes after which each of the first answers ends
        self.announced: str | None = None  # checksum in a redirect, as the hub does
        self.moved: str | None = None  # an address that every request is sent on to
        self.length: str | None = None  # what an answer says of its length, if it is not the truth
        self.ranges: list[str | None] = []  # what each request asked for
        self.pause = 0.0  # seconds between the pieces of an answer
        self.delay = threading.Event()
        self.delay.set()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}/file.bin"

    def _handler(server) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if server.announced and "store" not in self.path:
                    self.send_response(302)
                    self.send_header("Location", "/store" + self.path)
                    self.send_header("X-Linked-ETag", f'"{server.announced}"')
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if server.moved:
                    self.send_response(302)
                    self.send_header("Location", server.moved)
                    self.end_headers()
                    return
                asked = self.headers.get("Range")
                server.ranges.append(asked)
                server.delay.wait(10)
                start = 0
                if asked and self.headers.get("If-Range") == server.etag:
                    start = int(asked.removeprefix("bytes=").rstrip("-"))
                if start > len(server.content):
                    self.send_error(416)
                    return
                body = server.content[start:]
                self.send_response(206 if start else 200)
                self.send_header("ETag", server.etag)
                self.send_header("Content-Length", server.length or str(len(body)))
                self.end_headers()
                body = body[: server.breaks_after.pop(0)] if server.breaks_after else body
                piece = max(1, -(-len(body) // PIECES)) if server.pause else max(1, len(body))
                with suppress(ConnectionError):  # whoever asked may have been killed
                    for start in range(0, len(body), piece):
                        self.wfile.write(body[start : start + piece])
                        time.sleep(server.pause)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler
