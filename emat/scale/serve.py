"""Predictions over HTTP: a FastAPI application around one fitted segmenter.

It answers `POST /predict` (a photo as the body or as a form's file) with JSON or, if the client accepts `image/png`,
with a label map; `POST /examples` teaches it one more example; `GET /classes`, `/health` and `/metrics` describe it.
Its own description is at `/openapi.json`, and as a page at `/docs`.

A server that listens on this machine alone needs no token. It answers only requests whose host is this machine, so
that a web page cannot reach it through a domain name that points here. A server that other machines can reach needs the
token in every request.

Requests that come together are answered together (`emat.scale.batcher`).
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from emat import __version__
from emat.errors import EmatError, needs_extra
from emat.inference.example import Example
from emat.inference.prediction import Prediction
from emat.inference.segmenter import Segmenter
from emat.scale.batcher import Batcher, Busy
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

    app = FastAPI(title="emat", version=__version__, description="Few-shot segmentation over HTTP", lifespan=life)
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


def check_packages() -> None:
    """Raise an EmatError if the packages of the extra `serve` are missing."""
    with needs_extra("the server", "serve"):
        import fastapi  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
