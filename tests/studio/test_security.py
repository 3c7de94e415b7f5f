"""What the studio refuses, asked over HTTP as a stranger would."""

import http.client
import importlib.util
import json
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from emat.inference.segmenter import Segmenter
from emat.studio.server import serving
from tests.inference.colour_method import ColourMethod
from tests.studio.conftest import RED, png

pytestmark = pytest.mark.skipif(importlib.util.find_spec("uvicorn") is None, reason="needs uvicorn")
MEGABYTE = 1024 * 1024


class Client:
    """A browser without a page: it keeps its cookie and its session."""

    def __init__(self, address: str) -> None:
        self.address = urlsplit(address)
        self.origin = f"http://{self.address.netloc}"
        self.cookie = ""
        self.session = ""

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.address.netloc, timeout=30)
        data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
        if self.cookie:
            headers.setdefault("Cookie", self.cookie)
        try:
            connection.request(method, path, data, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            content = answer.read()
            self.headers = answer.headers
            if cookie := answer.headers.get("Set-Cookie"):
                self.cookie = cookie.split(";")[0]
            return answer.status, json.loads(content) if "json" in answer.headers["Content-Type"] else content
        finally:
            connection.close()

    def open(self) -> dict[str, Any]:
        status, state = self.ask("POST", "/api/session", {}, Origin=self.origin)
        assert status == 200
        self.session = state["session"]
        return dict(state)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(Segmenter(ColourMethod()), private=True) as address:
        yield address


@pytest.fixture
def client(address: str) -> Client:
    client = Client(address)
    client.open()
    return client


def test_the_page_says_what_a_browser_may_load(client: Client) -> None:
    status, content = client.ask("GET", "/")
    assert status == 200
    assert b"emat studio" in content
    policy = client.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert "script-src 'self';" in policy


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "cors"},
    ],
)
def test_requests_of_other_pages_are_refused(client: Client, headers: dict[str, str]) -> None:
    path = f"/api/{client.session}/upload?to=photos&name=a.png"
    status, answer = client.ask("POST", path, png(RED), **headers)
    assert status == 403
    assert answer["code"] == "foreign-request"
    assert client.ask("GET", f"/api/{client.session}/state")[1]["photos"] == []
    assert client.ask("POST", path, png(RED), Origin=client.origin)[0] == 200
    assert len(client.ask("GET", f"/api/{client.session}/state")[1]["photos"]) == 1


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost:3000"])
def test_no_other_name_is_answered(client: Client, host: str) -> None:
    assert client.ask("GET", "/", Host=host)[0] == 400


def test_bodies_are_limited_whether_they_say_their_length_or_not(client: Client) -> None:
    act = f"/api/{client.session}/act/add-classes"
    status, answer = client.ask("POST", act, {"text": "a" * 2 * MEGABYTE})
    assert status == 413
    assert answer["code"] == "file-too-large"
    assert client.ask("POST", act, iter([b"a" * MEGABYTE] * 3))[0] == 413, "chunks that state no length"
    upload = f"/api/{client.session}/upload?to=photos&name=a.png"
    began = time.monotonic()
    assert client.ask("POST", upload, b"x", Content_Length=str(300 * MEGABYTE))[0] == 413
    assert time.monotonic() - began < 5, "refused before it is read"
    assert client.ask("GET", f"/api/{client.session}/state")[1]["classes"] == []


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/api", 404),
        ("GET", "/../server.py", 404),
        ("GET", "/%2e%2e/server.py", 404),
        ("GET", "/gradio_api/info", 404),
        ("DELETE", "/", 405),
        ("GET", "/api/session", 405),
        ("POST", "/api/SESSION/act/unknown", 422),
        ("GET", "/api/SESSION/photos/99/result", 422),
        ("GET", "/api/SESSION/photos/x/small.jpg", 404),
        ("GET", "/api/SESSION/elsewhere", 404),
        ("GET", "/api/0123456789abcdef/state", 410),
        ("DELETE", "/api/saved/..%2f..", 404),
        ("DELETE", "/api/saved/0123456789abcdef", 410),
        ("POST", "/api/SESSION/drafts/1/click", 422),
        ("POST", "/api/SESSION/export", 422),
        ("POST", "/api/SESSION/upload?to=../x&name=a", 422),
        ("GET", "/api/SESSION/download", 422),
    ],
)
def test_what_is_not_there_is_a_sentence_and_never_a_failure(
    client: Client, method: str, path: str, expected: int
) -> None:
    status, answer = client.ask(method, path.replace("SESSION", client.session), {} if method == "POST" else None)
    assert status == expected
    assert answer["problem"][0].isupper()


@pytest.mark.parametrize("body", [b"{", b"[]", b"[" * 100_000, b"\xff", b'{"text": 3}', b'{"text": NaN}'])
def test_what_is_not_the_page_s_own_json_is_refused(client: Client, body: bytes) -> None:
    assert client.ask("POST", f"/api/{client.session}/act/add-classes", body)[0] == 422


def test_a_session_is_of_one_browser_alone(client: Client, address: str) -> None:
    stranger = Client(address)
    stranger.open()
    assert stranger.cookie != client.cookie
    assert stranger.ask("GET", f"/api/{client.session}/state")[0] == 410
    assert "HttpOnly" in _cookie_of(address)
    assert "SameSite=Strict" in _cookie_of(address)


def _cookie_of(address: str) -> str:
    client = Client(address)
    client.ask("GET", "/")
    return str(client.headers["Set-Cookie"])


def test_the_51st_tab_is_refused_with_the_reason(address: str) -> None:
    with serving(Segmenter(ColourMethod()), private=True) as other:
        first = Client(other)
        first.open()
        first.ask("POST", f"/api/{first.session}/act/add-classes", {"text": "red"})
        for _ in range(49):
            Client(other).open()
        status, answer = Client(other).ask("POST", "/api/session", {})
        assert status == 503
        assert answer["code"] == "too-many-tabs"
        assert first.ask("GET", f"/api/{first.session}/state")[1]["classes"][0]["name"] == "red"


def test_a_request_that_never_ends_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.open()
    monkeypatch.setattr("emat.scale.patience.SECONDS", 0.5)
    host, port = client.address.netloc.split(":")
    asked = f"POST /api/{client.session}/act/add-classes HTTP/1.1\r\nHost: {host}:{port}\r\nCookie: {client.cookie}"
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(f"{asked}\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(9999), b""))  # until the studio closes the connection
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"request-too-slow"' in answer
