"""Predictions over HTTP: a FastAPI application around one fitted segmenter.

It answers `POST /predict` (a photo as the body or as a form's file) with JSON or, if the client accepts `image/png`,
with a label map; `POST /examples` teaches it one more example; `GET /classes`, `/health` and `/metrics` describe it.
Its own description is at `/openapi.json`, and as a page at `/docs`.

A server that listens on this machine alone needs no token. It answers only requests whose host is this machine, so
that a web page cannot reach it through a domain name that points here. A server that other machines can reach needs the
token in every request.

Photos that come together are predicted together (`Batcher`), by one thread, in the order in which they came. A single
thread uses the network, so memory does not grow with the number of clients, and a queue of limited length refuses what
could not be answered in time. Photos of a batch are read while earlier ones are predicted. On a GPU they go through the
backbone together; each is compared with the examples on its own, so an answer does not depend on the others.
"""

import asyncio
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from emat import __version__
from emat.errors import EmatError, needs_extra
from emat.images import Pixels, Source
from emat.inference.example import Example
from emat.inference.photos import read_ahead
from emat.inference.prediction import Prediction
from emat.inference.segmenter import Segmenter
from emat.pictures.html import table
from emat.scale.patience import TooSlow
from emat.scale.requests import (
    ServeOptions,
    as_json,
    as_png,
    example_of,
    json_of,
    json_response,
    photo_of,
    refusal,
    said,
)

MOST_WAITING = 256
MOST_TOGETHER = 16


class Busy(Exception):
    """More requests are waiting than will be answered soon."""


@dataclass(frozen=True)
class _Request:
    photo: Source
    answer: "Future[Prediction]"


class Batcher:
    """Predicts photos in a thread of its own.

    Args:
        segmenter: Called for the segmenter that is to be used now.
        most_waiting: How many photos may wait.
        most_together: How many photos are taken from the queue together.
        at_once: How many of them go through the backbone together; by default what `Segmenter.predict_many` chooses.
    """

    def __init__(
        self,
        segmenter: Callable[[], Segmenter],
        most_waiting: int = MOST_WAITING,
        most_together: int = MOST_TOGETHER,
        at_once: int | None = None,
    ) -> None:
        self._segmenter, self._most, self._at_once = segmenter, most_together, at_once
        self._waiting: queue.Queue[_Request | None] = queue.Queue(most_waiting)
        self.batches = 0
        self.photos = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="emat-batches", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many photos are waiting."""
        return self._waiting.qsize()

    def submit(self, photo: Source) -> "Future[Prediction]":
        """Ask for a prediction; its errors are those of `Segmenter.predict`.

        Raises:
            Busy: If too many photos are waiting, or the server is ending.
        """
        if self._closed.is_set():
            raise Busy("this server is ending")
        request = _Request(photo, Future())
        try:
            self._waiting.put_nowait(request)
        except queue.Full:
            raise Busy("too many photos are waiting; try again later") from None
        return request.answer

    def close(self) -> None:
        """Answer everything that is waiting, then end the thread."""
        self._closed.set()
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        while True:
            first = self._waiting.get()
            batch = [] if first is None else [first]
            ending = first is None
            while not ending and len(batch) < self._most:
                try:
                    following = self._waiting.get_nowait()
                except queue.Empty:
                    break
                ending = following is None
                if following is not None:
                    batch.append(following)
            self._answer(batch)
            if ending:
                return

    def _answer(self, batch: list[_Request]) -> None:
        if not batch:
            return
        self.batches += 1
        segmenter = self._segmenter()
        asked: deque[_Request] = deque()  # whose photos were read and are not predicted yet
        try:
            photos = self._readable(batch, segmenter, asked)
            for prediction in segmenter.predict_many(photos, batch_size=self._at_once):
                asked.popleft().answer.set_result(prediction)
        except Exception:  # of one photo, which must not be the end of the others
            for request in batch:
                if not request.answer.done():
                    _answer_alone(request, segmenter)

    def _readable(self, batch: list[_Request], segmenter: Segmenter, asked: "deque[_Request]") -> Iterator[Pixels]:
        """Read the photos of a batch; a request whose photo cannot be read is answered at once."""
        reading = read_ahead((request.photo for request in batch), reading=segmenter.reading)
        for request, read in zip(batch, reading, strict=True):
            self.photos += 1
            if read.pixels is None:
                request.answer.set_exception(read.problem or EmatError("photo-not-read", "the photo was not read"))
            else:
                asked.append(request)
                yield read.pixels


def _answer_alone(request: _Request, segmenter: Segmenter) -> None:
    try:
        request.answer.set_result(segmenter.predict(request.photo))
    except Exception as error:
        request.answer.set_exception(error)


LOOPBACK_ALONE = ServeOptions()


@dataclass
class Metrics:
    """What `/metrics` counts."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)  # by path and status
    seconds: Counter[str] = field(default_factory=Counter)  # by path, of all its requests together
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, path: str, status: int, seconds: float) -> None:
        """Count one request."""
        with self.lock:
            self.requests[path, status] += 1
            self.seconds[path] += seconds  # type: ignore[assignment]

    def text(self, batcher: Batcher, segmenter: Segmenter) -> str:
        """Return everything in the text format of Prometheus."""
        lines = ["# TYPE emat_requests_total counter"]
        with self.lock:
            for (path, status), count in sorted(self.requests.items()):
                lines.append(f'emat_requests_total{{path="{path}",status="{status}"}} {count}')
            lines.append("# TYPE emat_request_seconds_total counter")
            for path, seconds in sorted(self.seconds.items()):
                lines.append(f'emat_request_seconds_total{{path="{path}"}} {seconds:.6f}')
        for name, kind, value in (
            ("photos_total", "counter", batcher.photos),
            ("batches_total", "counter", batcher.batches),
            ("photos_waiting", "gauge", batcher.waiting),
            ("classes", "gauge", len(segmenter.classes_)),
            ("examples", "gauge", len(segmenter.examples_)),
        ):
            lines += [f"# TYPE emat_{name} {kind}", f"emat_{name} {value}"]
        return "\n".join(lines) + "\n"


class Served:
    """The segmenter of a server, which grows by examples, and the thread that asks it."""

    def __init__(self, segmenter: Segmenter, options: ServeOptions) -> None:
        self.segmenter, self.options = segmenter, options
        self.metrics, self.batcher = Metrics(), Batcher(lambda: self.segmenter)
        self._teaching = threading.Lock()

    async def predict(self, photo: bytes) -> Prediction:
        """Predict one photo; EmatError if it cannot be read, Busy if too many are waiting."""
        return await asyncio.wrap_future(self.batcher.submit(photo))

    def teach(self, example: Example, replaces: str | None = None) -> None:
        """Learn from one more example. Requests go on with the examples before it until it is learnt.

        Args:
            example: The example.
            replaces: The name of an earlier example, which is forgotten if there is one.
        """
        with self._teaching:
            following = self.segmenter.copy()
            names = [one.name for one in following.examples_]
            if replaces in names:
                following.remove(names.index(replaces))
            following.add(example)
            following.forecast_  # noqa: B018 - learns now, so that no request has to wait for it
            if self.options.keep is not None:
                following.save(self.options.keep)
            self.segmenter = following


def build_app(segmenter: Segmenter, options: ServeOptions = LOOPBACK_ALONE) -> Any:
    """Build the application.

    Args:
        segmenter: A fitted segmenter; for Label Studio it may have no examples yet.
        options: How it behaves.

    Returns:
        A FastAPI application.

    Raises:
        EmatError: If the packages of the extra `serve` are missing.
    """
    check_packages()
    from fastapi import FastAPI, Request, Response

    served = Served(segmenter, options)

    @asynccontextmanager
    async def life(_: Any) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(served.batcher.close)

    app = FastAPI(
        title="emat",
        version=__version__,
        description="Few-shot segmentation over HTTP",
        lifespan=life,
        docs_url=None,  # FastAPI's own pages load scripts from other servers
        redoc_url=None,
    )
    app.state.served = served

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        began = time.perf_counter()
        response = refusal(request, options) or await call_next(request)
        route = getattr(request.scope.get("route"), "path", "other")
        served.metrics.add(route, response.status_code, time.perf_counter() - began)
        return response

    @app.exception_handler(EmatError)
    async def wrong(_: Request, error: EmatError) -> Response:
        return said(422, error.code, str(error))

    @app.exception_handler(Busy)
    async def busy(_: Request, error: Busy) -> Response:
        return said(503, "server-busy", str(error), {"Retry-After": "1"})

    @app.exception_handler(TooSlow)
    async def slow(_: Request, error: TooSlow) -> Response:
        return said(408, "request-too-slow", str(error), {"Connection": "close"})

    backend = _label_studio(app, served) if options.label_studio else None

    @app.post("/predict", openapi_extra=PHOTO_BODY, responses={200: {"content": {"image/png": {}}}})
    async def predict(request: Request) -> Response:
        """Find the classes in a photo: the body itself, or the file `photo` of a form."""
        if backend is not None and request.headers.get("content-type", "").startswith("application/json"):
            return json_response(await backend.predict(await json_of(request, options.most_bytes)))
        if not served.segmenter.classes_:
            raise EmatError("not-fitted", "this server has no example yet; POST one to /examples")
        prediction = await served.predict(await photo_of(request, options.most_bytes))
        if "image/png" in request.headers.get("accept", ""):
            return Response(await asyncio.to_thread(as_png, prediction), media_type="image/png")
        return json_response(await asyncio.to_thread(as_json, prediction))

    @app.post("/examples", openapi_extra=EXAMPLE_BODY)
    async def examples(request: Request) -> Response:
        """Learn from one more example: a form with the file `photo` and a mask image for each class, named for it."""
        if not options.accepts_examples:
            return said(
                409,
                "conflicting-options",
                "this server has several workers, which cannot learn together; start it with --workers 1",
            )
        example = await example_of(request, options.most_bytes)
        await asyncio.to_thread(served.teach, example)
        return json_response(_description(served.segmenter))

    @app.get("/classes")
    async def classes() -> Response:
        """The classes, the thresholds and the number of examples."""
        return json_response(_description(served.segmenter))

    @app.get("/docs", include_in_schema=False)
    async def described() -> Response:
        return Response(_page(app.openapi()), media_type="text/html")

    @app.get("/health")
    async def health() -> Response:
        """Whether the server answers."""
        return json_response({"status": "ok", "emat": __version__})

    @app.get("/metrics")
    async def metrics() -> Response:
        """What was asked and how long it took, for Prometheus."""
        return Response(served.metrics.text(served.batcher, served.segmenter), media_type="text/plain; version=0.0.4")

    return app


def _label_studio(app: Any, served: Served) -> Any:
    from emat.integrations.label_studio import add_label_studio

    return add_label_studio(app, served)


PHOTO_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "image/*": {"schema": {"type": "string", "format": "binary"}},
            "multipart/form-data": {
                "schema": {"type": "object", "properties": {"photo": {"type": "string", "format": "binary"}}}
            },
        },
    }
}
EXAMPLE_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"photo": {"type": "string", "format": "binary"}},
                    "additionalProperties": {"type": "string", "format": "binary"},
                }
            }
        },
    }
}


def _description(segmenter: Segmenter) -> dict[str, Any]:
    return {
        "classes": list(segmenter.classes_),
        "examples": len(segmenter.examples_),
        "thresholds": {"presence": segmenter.thresholds.presence, "mask": segmenter.thresholds.mask},
        "method": segmenter.method.name,
    }


def _page(openapi: dict[str, Any]) -> str:
    """Return a page that says what can be asked, and loads nothing."""
    rows = [
        (f"{verb.upper()} {path}", str(one.get("description", "")))
        for path, verbs in openapi["paths"].items()
        for verb, one in verbs.items()
    ]
    title = f"{openapi['info']['title']} {openapi['info']['version']}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        "<style>body{font:16px sans-serif;margin:2em}td,th{padding:.3em 1em .3em 0;text-align:left}</style>"
        f"<h1>{title}</h1><p>{openapi['info']['description']}</p>{table(('request', 'answer'), rows)}"
        '<p>For programs: <a href="openapi.json">openapi.json</a></p></html>'
    )


def check_packages() -> None:
    """Raise an EmatError if the packages of the extra `serve` are missing."""
    with needs_extra("the server", "serve"):
        import fastapi  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
