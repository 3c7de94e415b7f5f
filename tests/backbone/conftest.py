"""What the backbone tests share: a home of their own, a tiny ViT, a server that misbehaves as told."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from emat.backbone.registry import IMAGENET_MEAN, IMAGENET_STD, BackboneSpec
from emat.backbone.vit import ViT

ETAG = '"version-1"'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for name in ("EMAT_OFFLINE", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.fixture
def tiny_spec() -> BackboneSpec:
    return BackboneSpec(
        name="tiny",
        make=partial(ViT, width=24, depth=2, heads=2, patch=14, pos_grid=5),
        channels=4,
        width=12,
        stride=14,
        multiple=14,
        image_size=70,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        licence="Apache-2.0",
    )


@pytest.fixture
def tiny_tensors(tiny_spec: BackboneSpec) -> dict[str, torch.Tensor]:
    """Random weights under the public names, as public files have them: with a mask token."""
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.randn(value.shape, generator=generator) / 4 for name, value in tiny_spec.make().state_dict().items()
    }
    return tensors | {"mask_token": torch.zeros(1, 24)}


class Server:
    """One file over HTTP on this machine, with ranges; it can break off, wait, and announce a checksum."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.etag = ETAG
        self.breaks_after: list[int] = []  # bytes after which each of the first answers ends
        self.announced: str | None = None  # checksum in a redirect, as the hub does
        self.ranges: list[str | None] = []  # what each request asked for
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
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: server.breaks_after.pop(0)] if server.breaks_after else body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server(bytes(range(256)) * 4096)  # 1 MiB
    yield running
    running.http.shutdown()
    running.http.server_close()
