"""The hub, played by a server on this machine."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from emat import Segmenter
from emat.inference import hub
from tests.inference.spots import spot_examples
from tests.raises import raises_code


class Hub:
    """Keeps the files of one model, as far as a push and a download ask for it."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}"

    def _handler(hub) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def answer(self, content: bytes, status: int = 200) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_GET(self) -> None:
                content = hub.files.get(self.path.rpartition("/")[2])
                self.answer(content or b"", 200 if content is not None and "/resolve/main/" in self.path else 404)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                address = f"{hub.address}/me/spots"
                if self.path == "/api/repos/create":
                    reply: dict[str, object] = {"url": address, "name": "me/spots", "id": "me/spots"}
                elif self.path == "/api/validate-yaml":  # of the card
                    reply = {"errors": [], "warnings": []}
                elif "/preupload/" in self.path:
                    asked = json.loads(body)["files"]
                    modes = [{"path": each["path"], "uploadMode": "regular", "shouldIgnore": False} for each in asked]
                    reply = {"files": modes}
                else:
                    for line in map(json.loads, body.splitlines()):
                        if line["key"] == "file":
                            hub.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                    reply = {"commitUrl": f"{address}/commit/{'0' * 40}", "commitOid": "0" * 40, "success": True}
                self.answer(json.dumps(reply).encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    hub = Hub()
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("HF_TOKEN", "hf_only_for_this_test")
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
    for name in ("EMAT_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    yield hub
    hub.http.shutdown()
    hub.http.server_close()


@pytest.fixture(scope="module")
def fitted() -> Segmenter:
    return Segmenter.load("default", device="cpu", refine=None, fetch=False).fit(spot_examples(1, 2))


def test_what_is_pushed_is_loaded_again_and_has_a_card(server: Hub, fitted: Segmenter) -> None:
    pytest.importorskip("huggingface_hub", reason="pushing needs huggingface_hub (the extra hub)")
    assert fitted.push_to_hub("me/spots") == "hf://me/spots"
    assert set(server.files) == {"segmenter.safetensors", "README.md"}
    card = server.files["README.md"].decode()
    assert "| spot | 2 | " in card
    assert 'Segmenter.load("hf://me/spots")' in card
    loaded = Segmenter.load("hf://me/spots", device="cpu", refine=None)
    assert loaded.classes_ == ("spot",)
    photo = spot_examples(3)[0].photo
    assert (loaded.predict(photo).label_map == fitted.predict(photo).label_map).all()


def test_without_a_connection_the_copy_of_last_time_is_used(
    server: Hub, fitted: Segmenter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted.save(tmp_path / "a.emat")
    server.files[hub.SEGMENTER_FILE] = (tmp_path / "a.emat").read_bytes()
    first = hub.fetch_segmenter("hf://me/spots")
    monkeypatch.setenv("EMAT_OFFLINE", "1")
    assert hub.fetch_segmenter("hf://me/spots") == first
    assert "the copy of last time is used" in capsys.readouterr().err
    assert [path.name for path in first.parent.iterdir() if path.suffix != ".lock"] == [hub.SEGMENTER_FILE]


@pytest.mark.parametrize("address", ["hf://spots", "hf://me/../spots", "hf://me/spots@a/b", "hf://me/spots/file"])
def test_what_is_not_an_address_is_refused(address: str) -> None:
    with raises_code("bad-address"):
        Segmenter.load(address)


def test_a_model_that_is_not_there_is_one_sentence(server: Hub) -> None:
    with raises_code("download-failed", "hf://me/nothing"):
        Segmenter.load("hf://me/nothing")


def test_a_hub_that_cannot_be_reached_is_one_sentence(
    server: Hub, fitted: Segmenter, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub", reason="pushing needs huggingface_hub (the extra hub)")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with raises_code("upload-failed", "me/spots"):
        fitted.push_to_hub("me/spots")


def test_nothing_is_pushed_where_the_network_is_forbidden(
    server: Hub, fitted: Segmenter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMAT_OFFLINE", "1")
    with raises_code("offline-mode", "me/spots"):
        fitted.push_to_hub("me/spots")
    assert server.files == {}


def test_what_is_no_segmenter_does_not_replace_the_copy_of_last_time(
    server: Hub, fitted: Segmenter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted.save(tmp_path / "a.emat")
    server.files[hub.SEGMENTER_FILE] = (tmp_path / "a.emat").read_bytes()
    kept = hub.fetch_segmenter("hf://me/spots")
    for content in (b"<!doctype html>", b"\x08\0\0\0\0\0\0\0{broken", b""):
        server.files[hub.SEGMENTER_FILE] = content
        assert hub.fetch_segmenter("hf://me/spots").read_bytes() == (tmp_path / "a.emat").read_bytes()
        assert "the copy of last time is used" in capsys.readouterr().err
    kept.unlink()
    with raises_code("wrong-file-kind|download-failed|damaged-file", "hf://me/spots"):
        hub.fetch_segmenter("hf://me/spots")
