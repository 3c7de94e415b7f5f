"""Label Studio's protocol: requests as Label Studio 1.23 sends them, answers as it reads them."""

import base64
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from emat import Segmenter
from emat.errors import EmatError
from emat.images import Pixels
from tests.scale.conftest import photo_of

pytest.importorskip("fastapi", reason="the server needs the extra `serve`")
from fastapi.testclient import TestClient

from emat.integrations.label_studio import LabelConfig, decode_brush, encode_brush, masks_of
from emat.scale.requests import ServeOptions
from emat.scale.serve import build_app
from tests.raises import raises_code

BRUSH_CONFIG = """
<View>
  <Image name="image" value="$image" zoom="true"/>
  <BrushLabels name="tag" toName="image">
    <Label value="square" background="#FFA39E"/><Label value="corner" background="#D4380D"/>
  </BrushLabels>
</View>
"""
POLYGON_CONFIG = BRUSH_CONFIG.replace("BrushLabels", "PolygonLabels")


def png(photo: Pixels) -> bytes:
    out = io.BytesIO()
    Image.fromarray(photo).save(out, "PNG")
    return out.getvalue()


def data_address(photo: Pixels) -> str:
    return "data:image/png;base64," + base64.b64encode(png(photo)).decode()


def predict_request(image: str, config: str = BRUSH_CONFIG) -> dict[str, Any]:
    """What `MLApi._prep_prediction_req` of Label Studio builds."""
    task = {
        "id": 7,
        "data": {"image": image},
        "meta": {},
        "created_at": "2026-01-01T10:00:00.000000Z",
        "updated_at": "2026-01-01T10:00:00.000000Z",
        "is_labeled": False,
        "overlap": 1,
        "inner_id": 1,
        "total_annotations": 0,
        "cancelled_annotations": 0,
        "total_predictions": 0,
        "project": 1,
        "file_upload": 1,
        "annotations": [],
        "predictions": [],
    }
    params = {"login": None, "password": None, "context": None}
    return {"tasks": [task], "project": "1.1767261600", "label_config": config, "params": params}


def annotation_request(image: str, result: list[dict[str, Any]], task: int = 7) -> dict[str, Any]:
    """What a webhook of Label Studio sends when an annotation is submitted."""
    return {
        "action": "ANNOTATION_CREATED",
        "annotation": {"id": 1, "completed_by": 1, "result": result, "was_cancelled": False, "ground_truth": False},
        "project": {"id": 1, "title": "Shapes", "label_config": BRUSH_CONFIG},
        "task": {"id": task, "data": {"image": image}, "project": 1},
    }


def brush(mask: Any, label: str) -> dict[str, Any]:
    height, width = mask.shape
    value = {"format": "rle", "rle": encode_brush(mask), "brushlabels": [label]}
    sizes = {"original_width": width, "original_height": height, "image_rotation": 0}
    return {"id": "a", "from_name": "tag", "to_name": "image", "type": "brushlabels", "value": value, **sizes}


@pytest.fixture
def client(fitted: Segmenter) -> Iterator[TestClient]:
    with TestClient(build_app(fitted, ServeOptions(label_studio=True)), base_url="http://127.0.0.1:9090") as client:
        yield client


def test_setup_says_a_version(client: TestClient) -> None:
    request = {
        "project": "1.1767261600",
        "schema": BRUSH_CONFIG,
        "hostname": "http://localhost:8080",
        "access_token": "token",
        "extra_params": None,
    }
    answer = client.post("/setup", json=request)
    assert answer.status_code == 200
    assert answer.json()["model_version"].endswith("-3-examples")
    assert client.get("/health").status_code == 200
    refused = client.post("/setup", json=request | {"schema": "<View><Text name='t' value='$t'/></View>"})
    assert refused.json()["code"] == "bad-interface"


def test_suggestions_are_brush_strokes_of_what_predict_finds(client: TestClient, fitted: Segmenter) -> None:
    expected = fitted.predict(photo_of(5))
    assert expected.present
    answer = client.post("/predict", json=predict_request(data_address(photo_of(5)))).json()
    (suggestion,) = answer["results"]
    assert {one["value"]["brushlabels"][0] for one in suggestion["result"]} == expected.present
    for one in suggestion["result"]:
        assert (one["from_name"], one["to_name"], one["type"]) == ("tag", "image", "brushlabels")
        mask = decode_brush(one["value"]["rle"], (one["original_height"], one["original_width"]))
        assert np.array_equal(mask, expected.mask(one["value"]["brushlabels"][0]))


def test_suggestions_are_polygons_in_percent_where_the_project_has_polygons(
    client: TestClient, fitted: Segmenter
) -> None:
    expected = fitted.predict(photo_of(5))
    request = predict_request(data_address(photo_of(5)), POLYGON_CONFIG)
    result = client.post("/predict", json=request).json()["results"][0]["result"]
    drawn = masks_of(result)
    for name in expected.present:
        both, either = drawn[name] & expected.mask(name), drawn[name] | expected.mask(name)
        assert both.sum() / either.sum() > 0.7  # outlines are simplified by a pixel
    assert all(0 <= value <= 100 for one in result for point in one["value"]["points"] for value in point)


def test_a_submitted_annotation_is_an_example_and_a_second_one_replaces_it(client: TestClient) -> None:
    mask = np.zeros((48, 64), bool)
    mask[30:44, 40:60] = True
    image = data_address(photo_of(9))
    answer = client.post("/webhook", json=annotation_request(image, [brush(mask, "bar")]))
    assert answer.status_code == 201
    assert client.get("/classes").json() | {"thresholds": 0, "method": 0} == {
        "classes": ["square", "corner", "bar"], "examples": 4, "thresholds": 0, "method": 0
    }  # fmt: skip
    client.post("/webhook", json=annotation_request(image, [brush(mask.T[:48].repeat(2, 1)[:, :64], "bar")]))
    assert client.get("/classes").json()["examples"] == 4
    client.post("/webhook", json=annotation_request(image, [brush(mask, "bar")], task=8))
    assert client.get("/classes").json()["examples"] == 5
    assert answer.json()["status"] == "learning"
    other = {"action": "PROJECT_UPDATED", "project": {"id": 1}}
    assert client.post("/webhook", json=other).json()["status"] == "nothing to do"


def test_an_annotation_that_cannot_be_learnt_is_reported_and_the_server_goes_on(
    client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    small = np.ones((9, 9), bool)  # not of the photo's size
    answer = client.post("/webhook", json=annotation_request(data_address(photo_of(9)), [brush(small, "bar")]))
    assert answer.status_code == 201
    assert "the annotation of task 7 was not learnt" in capsys.readouterr().err
    assert client.get("/classes").json()["examples"] == 3
    unreadable = brush(small, "bar") | {"original_width": 5}
    refused = client.post("/webhook", json=annotation_request(data_address(photo_of(9)), [unreadable]))
    assert refused.status_code == 422


def test_a_server_without_examples_suggests_nothing_and_learns(tiny_head: Path) -> None:
    empty = Segmenter.load(tiny_head, device="cpu")
    with TestClient(build_app(empty, ServeOptions(label_studio=True)), base_url="http://localhost") as client:
        image = data_address(photo_of(1))
        assert client.post("/predict", json=predict_request(image)).json()["results"][0]["result"] == []
        mask = np.zeros((48, 64), bool)
        mask[5:25, 13:35] = True
        client.post("/webhook", json=annotation_request(image, [brush(mask, "square")]))
        assert client.get("/classes").json()["classes"] == ["square"]


def test_a_photo_is_fetched_from_label_studio_with_its_key_and_from_elsewhere_without(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    seen: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, self.headers.get("Authorization")))
            if self.path == "/moved":
                self.send_response(302)
                self.send_header("Location", f"http://127.0.0.1:{server.server_port}/elsewhere")
                self.end_headers()
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(png(photo_of(5)))

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host = f"http://localhost:{server.server_port}"
    setup = {"schema": BRUSH_CONFIG, "hostname": host, "access_token": "key"}
    assert client.post("/setup", json=setup).status_code == 200
    for image in ("/data/upload/1/a.png", f"http://127.0.0.1:{server.server_port}/b.png", "/moved"):
        assert client.post("/predict", json=predict_request(image)).status_code == 200
    server.shutdown()
    server.server_close()
    assert seen == [
        ("/data/upload/1/a.png", "Token key"),
        ("/b.png", None),
        ("/moved", "Token key"),
        ("/elsewhere", None),
    ]
    absent = client.post("/predict", json=predict_request("file:///etc/passwd"))
    assert absent.json()["code"] == "download-failed"


class Listener:
    """A server that remembers the keys that it was sent."""

    def __init__(self) -> None:
        self.keys: list[str | None] = []
        keys = self.keys

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                keys.append(self.headers.get("Authorization"))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(png(photo_of(5)))

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def test_a_key_is_sent_to_nobody_but_whom_it_is_for(fitted: Segmenter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    studio, stranger = Listener(), Listener()
    app = ServeOptions(label_studio=True)

    def ask(client: TestClient, listener: Listener, key: str) -> None:
        setup = {"schema": BRUSH_CONFIG, "hostname": listener.address, "access_token": key}
        assert client.post("/setup", json=setup).status_code == 200
        for image in ("/a.png", f"{studio.address}/a.png", f"{stranger.address}/a.png"):
            assert client.post("/predict", json=predict_request(image)).status_code == 200

    monkeypatch.setenv("LABEL_STUDIO_API_KEY", "secret")
    with raises_code("missing-option"):
        build_app(fitted, app)
    monkeypatch.setenv("LABEL_STUDIO_URL", studio.address)
    with TestClient(build_app(fitted, app), base_url="http://127.0.0.1:9090") as client:
        ask(client, stranger, "theirs")
    assert set(stranger.keys) == {None}
    assert set(studio.keys) == {"Token secret"}
    monkeypatch.delenv("LABEL_STUDIO_URL")
    monkeypatch.delenv("LABEL_STUDIO_API_KEY")
    studio.keys.clear()
    with TestClient(build_app(fitted, app), base_url="http://127.0.0.1:9090") as client:
        ask(client, studio, "first")
        ask(client, stranger, "")  # another project, without a key
    assert "Token first" in studio.keys
    assert set(stranger.keys) == {None}
    studio.close()
    stranger.close()


def test_rectangles_and_polygons_of_an_annotation_are_joined() -> None:
    sizes = {"original_width": 50, "original_height": 40}
    box = {"x": 10, "y": 10, "width": 20, "height": 50, "rotation": 0, "rectanglelabels": ["a"]}
    triangle = {"points": [[50, 50], [100, 50], [100, 100]], "polygonlabels": ["a"]}
    masks = masks_of(
        [{"type": "rectanglelabels", "value": box, **sizes}, {"type": "polygonlabels", "value": triangle, **sizes}]
    )
    assert masks["a"].shape == (40, 50)
    assert masks["a"][5, 6]
    assert masks["a"][22, 45]
    assert 10 * 20 + 200 < masks["a"].sum() < 10 * 20 + 300


def test_what_a_labelling_interface_lacks_is_said() -> None:
    assert LabelConfig.read(BRUSH_CONFIG).labels == ("square", "corner")
    for text, words in (("<View>", "not XML"), ("<!DOCTYPE x><View/>", "entities"), ("<View/>", "no BrushLabels")):
        with pytest.raises(EmatError, match=words):
            LabelConfig.read(text)


# mask2rle of label-studio-sdk 2.1.2 for a 4 x 5 mask whose pixels (1, 1) to (2, 3) are set
FROM_CONVERTER = [0, 0, 0, 80, 57, 27, 254, 23, 0, 183, 255, 56, 5, 191, 252, 46, 0]


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_a_mask_comes_back(height: int, width: int, seed: int) -> None:
    mask = np.random.default_rng(seed).random((height, width)) > 0.6
    assert np.array_equal(decode_brush(encode_brush(mask), (height, width)), mask)


def test_long_runs_and_values_one_by_one_come_back() -> None:
    mask = np.zeros((300, 400), bool)
    mask[100:280] = True
    assert np.array_equal(decode_brush(encode_brush(mask), mask.shape), mask)


def test_bytes_of_label_studios_own_converter_are_read_and_written() -> None:
    mask = np.zeros((4, 5), bool)
    mask[1:3, 1:4] = True
    assert np.array_equal(decode_brush(FROM_CONVERTER, (4, 5)), mask)
    assert decode_brush(encode_brush(mask), (4, 5)).tolist() == mask.tolist()


@pytest.mark.parametrize("change", ["shorter", "other size", "too large"])
def test_damaged_run_lengths_are_refused(change: str) -> None:
    runs = encode_brush(np.eye(8, dtype=bool))
    size = {"shorter": (8, 8), "other size": (8, 9), "too large": (2**20, 2**20)}[change]
    with pytest.raises(ValueError, match=r"early|not of an image|pixels"):
        decode_brush(runs[:-4] if change == "shorter" else runs, size)


WRONG: list[Any] = [None, True, 0, -1, 1e300, "", "x", "http://[", [], {}, [1], [[]], {"a": 1}, "\ud800", 10**30]


def _with_each_part_wrong(value: Any) -> Iterator[Any]:
    """The value with one of its parts after the other replaced by everything that does not belong there."""
    yield from WRONG
    if isinstance(value, dict):
        for key, part in value.items():
            yield from ({**value, key: wrong} for wrong in _with_each_part_wrong(part))
    elif isinstance(value, list) and value and not isinstance(value[0], int):
        yield from ([wrong] for wrong in _with_each_part_wrong(value[0]))


@pytest.mark.parametrize("address", ["/setup", "/predict", "/webhook"])
def test_no_body_of_any_kind_is_an_error_of_the_server(fitted: Segmenter, address: str) -> None:
    small = np.ones((9, 9), bool)
    polygon = {"points": [[1, 1], [50, 50], [1, 50]], "polygonlabels": ["bar"]}
    sizes = {"original_width": 9, "original_height": 9, "image_rotation": 0}
    result = [brush(small, "bar"), {"type": "polygonlabels", "value": polygon, **sizes}]
    setup = {"schema": BRUSH_CONFIG, "hostname": "http://127.0.0.1:1", "access_token": "token"}
    webhook = annotation_request("/a.png", result)
    good: Any = {"/setup": setup, "/predict": predict_request("/a.png"), "/webhook": webhook}[address]
    if address == "/webhook":
        good = {key: good[key] for key in ("action", "annotation", "project", "task")}
        good["annotation"] = {"result": result}
        bodies = [{**good, "annotation": {"result": [wrong]}} for wrong in _with_each_part_wrong(result[1])]
        bodies += list(_with_each_part_wrong(good))
    else:
        bodies = list(_with_each_part_wrong(good))
    app = build_app(fitted, ServeOptions(label_studio=True))
    app.state.served.teach = lambda *_, **__: None
    with TestClient(app, base_url="http://127.0.0.1:9090", raise_server_exceptions=False) as client:
        for body in bodies:
            sent = json.dumps(body).encode()
            answer = client.post(address, content=sent, headers={"content-type": "application/json"})
            assert answer.status_code < 500, (body, answer.text)
        nested = client.post(address, content=b"[" * 100_000, headers={"content-type": "application/json"})
        assert nested.status_code == 422


@pytest.mark.parametrize("runs", [10**12, "0" * 40, [256], [0.5], None, {"0": 1}])
def test_run_lengths_are_bytes(runs: Any) -> None:
    with raises_code("bad-outline"):
        masks_of([brush(np.eye(8, dtype=bool), "bar") | {"value": {"rle": runs, "brushlabels": ["bar"]}}])


def test_a_small_request_cannot_ask_for_masks_of_many_gigabytes() -> None:
    sizes = {"original_width": 9400, "original_height": 9400}
    value = {"x": 1, "y": 1, "width": 5, "height": 5, "rectanglelabels": [str(number) for number in range(1000)]}
    with raises_code("bad-outline", "1000 masks"):
        masks_of([{"type": "rectanglelabels", "value": value, **sizes}])
