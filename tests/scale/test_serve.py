"""The HTTP server: answers, refusals, examples, metrics, and the end of it."""

import asyncio
import base64
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from emat import Segmenter
from emat.formats.run_lengths import mask_of_counts, unpack
from emat.images import Pixels
from emat.scale.requests import ServeOptions
from tests.cli.command import run
from tests.scale.conftest import photo_of

pytest.importorskip("fastapi", reason="the server needs the extra `serve`")
from fastapi.testclient import TestClient

from emat.scale.serve import build_app
from tests.raises import raises_code


def png(array: Pixels) -> bytes:
    out = io.BytesIO()
    Image.fromarray(array).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def client(fitted: Segmenter) -> Iterator[TestClient]:
    with TestClient(build_app(fitted), base_url="http://127.0.0.1:8000") as client:
        yield client


def test_a_photo_as_body_or_form_gets_what_predict_says(client: TestClient, fitted: Segmenter) -> None:
    expected = fitted.predict(photo_of(5))
    body = client.post("/predict", content=png(photo_of(5)), headers={"content-type": "image/png"})
    form = client.post("/predict", files={"photo": ("a.png", png(photo_of(5)))})
    assert body.status_code == form.status_code == 200
    assert body.json() == form.json()
    answer = body.json()
    assert (answer["height"], answer["width"]) == (48, 64)
    for entry in answer["classes"]:
        assert entry["score"] == expected.scores[entry["name"]]
        mask = mask_of_counts(unpack(entry["segmentation"]["counts"]), (48, 64))
        assert np.array_equal(mask, expected.mask(entry["name"]))
        assert entry["area"] == mask.sum()
        assert entry["present"] == (entry["name"] in expected.present)


def test_a_client_that_accepts_png_gets_the_label_map(client: TestClient, fitted: Segmenter) -> None:
    response = client.post("/predict", content=png(photo_of(5)), headers={"accept": "image/png"})
    assert response.headers["content-type"] == "image/png"
    shown = Image.open(io.BytesIO(response.content))
    assert shown.mode == "P"
    assert np.array_equal(np.array(shown), fitted.predict(photo_of(5)).label_map)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ({"content": b""}, "no-photos"),
        ({"content": b"nonsense"}, "not-an-image"),
        ({"files": {"picture": b"x"}}, "no-photos"),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, "bad-request"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(client: TestClient, sent: dict[str, Any], code: str) -> None:
    response = client.post("/predict", **sent)
    assert response.status_code == 422
    assert response.json()["code"] == code
    assert response.json()["error"].count("\n") == 0


def test_an_example_is_learnt_and_kept(fitted: Segmenter, tmp_path: Path) -> None:
    mask = np.zeros((48, 64), np.uint8)
    mask[30:40, 40:60] = 255
    options = ServeOptions(keep=tmp_path / "kept.emat")
    with TestClient(build_app(fitted, options), base_url="http://localhost") as client:
        files = {"photo": ("a.png", png(photo_of(9))), "bar": ("b.png", png(mask))}
        response = client.post("/examples", files=files)
        assert response.json()["classes"] == ["square", "corner", "bar"]
        assert client.get("/classes").json()["examples"] == 4
        names = [entry["name"] for entry in client.post("/predict", content=png(photo_of(9))).json()["classes"]]
        assert names == ["square", "corner", "bar"]
        small = client.post("/examples", files=files | {"bar": ("b.png", png(mask[:9]))})
        assert small.json()["code"] == "mask-size"
    assert Segmenter.load(tmp_path / "kept.emat").classes_ == ("square", "corner", "bar")
    assert fitted.classes_ == ("square", "corner")


def test_several_workers_take_no_examples(fitted: Segmenter) -> None:
    with TestClient(build_app(fitted, ServeOptions(accepts_examples=False)), base_url="http://localhost") as client:
        assert client.post("/examples").status_code == 409


def test_health_metrics_and_description(client: TestClient) -> None:
    client.post("/predict", content=png(photo_of(1)))
    client.post("/predict", content=b"nonsense")
    assert client.get("/health").json()["status"] == "ok"
    text = client.get("/metrics").text
    assert 'emat_requests_total{path="/predict",status="200"} 1' in text
    assert 'emat_requests_total{path="/predict",status="422"} 1' in text
    assert "emat_photos_total 2" in text
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/predict", "/examples", "/classes", "/health", "/metrics"} <= set(paths)


def test_the_page_of_the_description_loads_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/docs").text
    assert "POST /predict" in page
    assert "//" not in page, "an address of another server"
    assert client.get("/redoc").status_code == 404


def test_without_a_token_only_this_machine_is_answered(client: TestClient) -> None:
    assert client.get("/classes").status_code == 200
    assert client.get("/classes", headers={"host": "evil.example:8000"}).status_code == 403
    assert client.get("/classes", headers={"origin": "https://evil.example"}).status_code == 403
    assert client.get("/classes", headers={"host": "[::1]:8000"}).status_code == 200


def test_with_a_token_everybody_needs_it(fitted: Segmenter) -> None:
    with raises_code("needs-token"):
        ServeOptions(host="0.0.0.0")
    with TestClient(build_app(fitted, ServeOptions("0.0.0.0", "secret")), base_url="http://any.example") as client:
        assert client.get("/classes").status_code == 401
        assert client.get("/classes", headers={"authorization": "Bearer wrong"}).status_code == 401
        assert client.get("/classes", headers={"authorization": "Bearer secret"}).status_code == 200
        basic = base64.b64encode(b"user:secret").decode()
        assert client.get("/classes", headers={"authorization": f"Basic {basic}"}).status_code == 200
        assert client.get("/health").status_code == 200


def test_a_request_over_the_limit_is_refused_even_if_it_does_not_say_so(fitted: Segmenter) -> None:
    with TestClient(build_app(fitted, ServeOptions(most_bytes=2**20)), base_url="http://localhost") as client:
        assert client.post("/predict", content=bytes(2**20 + 1)).status_code == 413
        silent = client.post("/predict", content=(bytes(2**19) for _ in range(3)))
        assert silent.json()["code"] == "file-too-large"


@contextmanager
def running(fitted_file: Path, *options: str) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A server in a process of its own, and its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["serve", str(fitted_file), "--port", str(port), "--device", "cpu", *options]
    environment = {**os.environ, "no_proxy": "127.0.0.1"}
    server = subprocess.Popen(
        [sys.executable, "-m", "emat", *words], env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
            except OSError:
                assert server.poll() is None
                time.sleep(0.2)
        yield server, port
    finally:
        server.kill()
        server.communicate()


def ask(port: int, number: int) -> dict[str, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/predict", png(photo_of(number)), method="POST")
    with urllib.request.urlopen(request, timeout=300) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def test_a_server_that_is_told_to_end_finishes_what_it_began(fitted_file: Path) -> None:
    with running(fitted_file) as (server, port), ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(ask, port, number) for number in range(6)]
        while _photos_begun(port) < 1:
            time.sleep(0.01)
        server.send_signal(signal.SIGTERM)
        assert all(one.result()["classes"] for one in asked)
        assert server.wait(300) in (0, -signal.SIGTERM)


@pytest.mark.slow
def test_several_workers_answer_as_one_and_end_together(fitted_file: Path, fitted: Segmenter) -> None:
    with running(fitted_file, "--workers", "2") as (server, port):
        workers = psutil.Process(server.pid).children(recursive=True)
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda number: ask(port, number), range(8)))
        for number, answer in enumerate(answers):
            expected = fitted.predict(photo_of(number)).scores
            assert {one["name"]: one["score"] for one in answer["classes"]} == pytest.approx(expected, abs=1e-5)
        server.send_signal(signal.SIGTERM)
        assert server.wait(300) in (0, -signal.SIGTERM)
        assert psutil.wait_procs(workers, timeout=60)[1] == []


def _photos_begun(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        text = response.read().decode()
    waiting, done = (
        int(text.split(f"\nemat_{name} ")[1].split("\n")[0]) for name in ("photos_waiting", "photos_total")
    )
    return waiting + done


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), "missing-option"),
        (("absent.emat",), "no-such-file"),
        (("FILE", "--host", "0.0.0.0"), "needs-token"),
        (("FILE", "--workers", "2", "--keep", "x.emat"), "conflicting-options"),
    ],
)
def test_what_the_user_can_fix_is_one_sentence(words: tuple[str, ...], code: str, fitted_file: Path) -> None:
    assert run("serve", *(fitted_file if word == "FILE" else word for word in words)) == code


@pytest.mark.parametrize("value", ["Basic \xff", "Basic /w==", "Basic", "Bearer \xff", "\xff", "Basic =", "Digest x"])
def test_any_header_of_authorization_is_answered(fitted: Segmenter, value: str) -> None:
    app = build_app(fitted, ServeOptions(token="secret"))
    with TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False) as client:
        assert client.get("/classes", headers={b"authorization": value.encode("latin-1")}).status_code == 401


def test_pages_of_another_origin_are_refused_also_on_this_machine(client: TestClient) -> None:
    for origin in ("http://localhost:3000", "http://127.0.0.1:8001", "https://evil.example", "null", "http://[", ""):
        answer = client.get("/classes", headers={"origin": origin})
        assert answer.status_code == (200 if not origin else 403), origin
    assert client.get("/classes", headers={"origin": "http://127.0.0.1:8000"}).status_code == 200


@pytest.mark.parametrize("length", ["9" * 5000, "9" * 12, "x", "-1", "\xb2"])
def test_any_content_length_is_answered(client: TestClient, length: str) -> None:
    sent = [(b"content-length", length.encode("latin-1")), (b"content-type", b"image/png")]
    assert 400 <= client.post("/predict", content=b"", headers=sent).status_code < 500


FORM = "Content-Type: multipart/form-data; boundary=x\r\nTransfer-Encoding: chunked"


@pytest.mark.parametrize("asked", ["/predict HTTP/1.1\r\nContent-Length: 99", f"/examples HTTP/1.1\r\n{FORM}"])
def test_a_request_that_never_ends_is_refused(fitted: Segmenter, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    import uvicorn

    monkeypatch.setattr("emat.scale.patience.SECONDS", 0.5)
    server = uvicorn.Server(uvicorn.Config(build_app(fitted), log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        ended = pool.submit(server.run, sockets=[listener])
        try:
            with socket.create_connection(listener.getsockname(), timeout=60) as client:
                client.sendall(f"POST {asked}\r\nHost: localhost\r\n\r\n1\r\na\r\n".encode())
                answer = b"".join(iter(lambda: client.recv(9999), b""))  # until the server closes the connection
        finally:
            server.should_exit = True
            ended.result()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"request-too-slow"' in answer


def test_a_client_that_goes_away_in_the_middle_of_a_request_is_not_an_error_of_the_server(fitted: Segmenter) -> None:
    said: list[dict[str, Any]] = []
    heard: Iterator[dict[str, Any]] = iter(
        [{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}]
    )

    async def receive() -> dict[str, Any]:
        return next(heard)

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    scope = {"type": "http", "method": "POST", "path": "/predict", "query_string": b"", "http_version": "1.1",
             "headers": [(b"host", b"localhost"), (b"content-length", b"99")], "server": ("127.0.0.1", 80),
             "client": ("127.0.0.1", 1), "scheme": "http", "root_path": "", "raw_path": b"/predict"}  # fmt: skip
    asyncio.run(build_app(fitted, ServeOptions())(scope, receive, send))
    assert [each["status"] for each in said if "status" in each] in ([], [422])
