"""Label Studio's ML-backend protocol on top of `emat serve`: masks as suggestions, submitted annotations as examples.

Label Studio asks `POST /setup` when it is connected to the server, `POST /predict` with tasks as JSON for suggestions,
and `POST /webhook` when somebody submits an annotation. A photo of a task is fetched from where the task says.
"""

import asyncio
import base64
import binascii
import http.client
import os
import re
import sys
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import unquote, urljoin, urlsplit

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from emat import __version__
from emat.errors import EmatError
from emat.files import shown
from emat.formats.class_names import tidy_name
from emat.formats.regions import outline, trace_regions
from emat.formats.writing import WriteOptions
from emat.images import MAX_PIXELS
from emat.inference.example import MOST_MASK_PIXELS, Example, read_mask_source
from emat.inference.prediction import Prediction
from emat.scale.requests import json_of, json_response
from emat.scale.serve import Served

TIMEOUT = 30  # seconds for a photo
BRUSH, POLYGON = "brushlabels", "polygonlabels"
KINDS = {"BrushLabels": BRUSH, "PolygonLabels": POLYGON}
CHANNELS = 4  # of RGBA
VALUE_BITS = 8
LENGTHS = (3, 4, 8, 16)  # bits for the number of values of a run
LEARNT_FROM = ("ANNOTATION_CREATED", "ANNOTATION_UPDATED")


@dataclass(frozen=True)
class LabelConfig:
    """What the labelling interface of a project says: which control draws masks, and where a task has its photo."""

    from_name: str
    to_name: str
    kind: str  # of results, BRUSH or POLYGON
    photo_key: str  # in the data of a task
    labels: tuple[str, ...]

    @classmethod
    def read(cls, text: str) -> "LabelConfig":
        """Read the XML of a labelling interface.

        Raises:
            EmatError: If it has no brush or polygon labels on an image.
        """
        if "<!DOCTYPE" in text or "<!ENTITY" in text:
            raise EmatError("bad-interface", "the labelling interface defines entities; remove its DOCTYPE")
        try:
            root = ElementTree.fromstring(text)
        except (ElementTree.ParseError, ValueError) as error:
            raise EmatError("bad-interface", f"the labelling interface is not XML ({error})") from None
        images = {image.get("name"): image.get("value", "").lstrip("$") for image in root.iter("Image")}
        for tag, kind in KINDS.items():
            for control in root.iter(tag):
                if control.get("toName") in images:
                    labels = tuple(label.get("value", "") for label in control.iter("Label"))
                    to_name = control.get("toName", "")
                    return cls(control.get("name", ""), to_name, kind, images[to_name], labels)
        raise EmatError(
            "bad-interface", "the labelling interface has no BrushLabels or PolygonLabels for an Image; add one of them"
        )


class StudioTask(BaseModel):
    """A task of Label Studio."""

    id: int | str | None = None
    data: dict[str, Any] = {}


class SetupRequest(BaseModel):
    """What `POST /setup` is sent."""

    interface: str = Field("", alias="schema")
    hostname: str | None = None
    access_token: str | None = None


class PredictRequest(BaseModel):
    """What `POST /predict` is sent."""

    label_config: str = ""
    tasks: list[StudioTask] = []


class Project(BaseModel):
    """The project of an annotation."""

    label_config: str = ""


class Annotation(BaseModel):
    """What somebody drew."""

    result: list[dict[str, Any]] = []


class AnnotationRequest(BaseModel):
    """What `POST /webhook` is sent when an annotation was submitted or changed."""

    project: Project = Project()
    annotation: Annotation = Annotation()
    task: StudioTask = StudioTask()


Body = TypeVar("Body", bound=BaseModel)


def read_as(kind: type[Body], content: Mapping[str, Any]) -> Body:
    """Return what a request says; EmatError if a part of it is of the wrong kind."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise EmatError("bad-request", f"the request is wrong at {where}: {first['msg']}") from None


@dataclass(frozen=True)
class Submitted:
    """An annotation that somebody submitted."""

    task: StudioTask
    config: LabelConfig
    masks: dict[str, NDArray[np.bool_]]


class LabelStudioBackend:
    """Answers the requests of one Label Studio.

    Args:
        served: The segmenter and its thread.

    Raises:
        EmatError: The environment has a key, but does not say whom it is for.
    """

    def __init__(self, served: Served) -> None:
        self.served = served
        self.address = self._users_address = os.environ.get("LABEL_STUDIO_URL", "")
        self._key = os.environ.get("LABEL_STUDIO_API_KEY", "")
        if self._key and not self.address:
            raise EmatError(
                "missing-option",
                "LABEL_STUDIO_API_KEY is set, but not LABEL_STUDIO_URL; set both, because the key is for that address",
            )

    @property
    def version(self) -> str:
        """What suggestions are marked with; it changes with every example."""
        return f"emat-{__version__}-{len(self.served.segmenter.examples_)}-examples"

    def setup(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Check that the project's labelling interface can be used, and remember where its photos are."""
        request = read_as(SetupRequest, content)
        LabelConfig.read(request.interface)
        # What the user set by environment variables stays. Otherwise an address and its key come and go together: a key
        # must never be sent to the address of another request.
        if not self._users_address:
            self.address, self._key = request.hostname or "", request.access_token or ""
        return {"model_version": self.version}

    async def predict(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Give suggestions for tasks; none as long as there is no example."""
        request = read_as(PredictRequest, content)
        config = LabelConfig.read(request.label_config)
        results = []
        for task in request.tasks:
            if not self.served.segmenter.classes_:
                results.append({"result": [], "score": 0.0, "model_version": self.version})
                continue
            photo = await asyncio.to_thread(self._photo, task, config)
            prediction = await self.served.predict(photo)
            suggestion = results_of(prediction, config)
            score = max((float(one["score"]) for one in suggestion), default=0.0)
            results.append({"result": suggestion, "score": score, "model_version": self.version})
        return {"results": results, "model_version": self.version}

    def submitted(self, content: Mapping[str, Any]) -> Submitted | None:
        """Read an annotation that was submitted or changed; None if the request is about something else.

        Raises:
            EmatError: If it cannot be read.
        """
        if content.get("action") not in LEARNT_FROM:
            return None
        request = read_as(AnnotationRequest, content)
        config = LabelConfig.read(request.project.label_config)
        return Submitted(request.task, config, masks_of(request.annotation.result))

    def learn(self, submitted: Submitted) -> None:
        """Learn from an annotation; a task's new annotation replaces its old one.

        Label Studio waits one second for an answer, so this runs after it, and a problem can only be reported here.
        """
        name = f"task {submitted.task.id}"
        try:
            photo = self._photo(submitted.task, submitted.config)
            self.served.teach(Example(photo, submitted.masks, name=name), replaces=name)
        except EmatError as error:
            print(f"emat: the annotation of {name} was not learnt: {error}", file=sys.stderr, flush=True)

    def _photo(self, task: "StudioTask", config: LabelConfig) -> bytes:
        address = task.data.get(config.photo_key)
        if not isinstance(address, str) or not address:
            raise EmatError(
                "bad-request", f"task {task.id} has no {config.photo_key!r}; its data should name the photo there"
            )
        if address.startswith("data:"):
            return _from_data_address(address)
        return self._fetched(address)

    def _fetched(self, address: str) -> bytes:
        most = self.served.options.most_bytes
        try:
            full = urljoin(self.address.rstrip("/") + "/", address) if self.address else address
            if _origin(full)[0] not in ("http", "https"):
                raise ValueError("set LABEL_STUDIO_URL to the address of Label Studio")
            request = urllib.request.Request(full)
            # The key is for Label Studio alone, not for wherever else photos are.
            if self._key and _origin(full) == _origin(self.address):
                request.add_header("Authorization", f"Token {self._key}")
            with urllib.request.build_opener(_SameHost()).open(request, timeout=TIMEOUT) as response:
                content: bytes = response.read(most + 1)
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise EmatError("download-failed", f"the photo {shown(address)} cannot be fetched: {reason}") from None
        if len(content) > most:
            raise EmatError("file-too-large", f"the photo {shown(address)} has more than {most // 2**20} MB")
        return content


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Takes the key away from a request that is sent on to another host, such as a store of files."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """Follow a redirection to http or https, but never from https to http."""
        before, after = _origin(req.full_url), _origin(newurl)
        if after[0] not in ("http", "https") or (before[0], after[0]) == ("https", "http"):
            raise urllib.error.URLError(f"it is redirected from {before[0]} to {after[0]}, which is not followed")
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and before != after:
            following.remove_header("Authorization")
        return following


def _origin(address: str) -> tuple[str, str]:
    """Scheme and host of an address, with the port. A key for one of them is for no other."""
    parts = urlsplit(address)
    return parts.scheme.lower(), parts.netloc.lower()


def results_of(prediction: Prediction, config: LabelConfig) -> list[dict[str, Any]]:
    """Return the classes that are present, and that the project knows, as results of a suggestion."""
    height, width = prediction.photo.shape[:2]
    results: list[dict[str, Any]] = []
    labels = {tidy_name(label): label for label in config.labels}
    for kept, score, _ in prediction.found():
        if labels and kept not in labels:
            continue
        mask, name = prediction.mask(kept), labels.get(kept, kept)
        if config.kind == BRUSH:
            values: list[dict[str, Any]] = [{"format": "rle", "rle": encode_brush(mask), BRUSH: [name]}]
        else:
            scale = np.array([100 / width, 100 / height])
            rings = [outline(region, WriteOptions.tolerance) * scale for region in trace_regions(mask)]
            values = [{"points": ring.tolist(), "closed": True, POLYGON: [name]} for ring in rings]
        for value in values:
            results.append(
                {
                    "id": f"emat{len(results)}",
                    "from_name": config.from_name,
                    "to_name": config.to_name,
                    "type": config.kind,
                    "original_width": width,
                    "original_height": height,
                    "image_rotation": 0,
                    "score": float(score),
                    "value": value,
                }
            )
    return results


def masks_of(results: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[np.bool_]]:
    """Return the mask of every class in an annotation's results; several results of a class are joined.

    Raises:
        EmatError: If a result cannot be read.
    """
    masks: dict[str, NDArray[np.bool_]] = {}
    for result in results:
        kind = result.get("type")
        if kind not in (BRUSH, POLYGON, "rectanglelabels"):
            continue
        try:
            value = result.get("value") or {}
            labels = value.get(kind) or []
            if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
                raise ValueError("its labels are not a list of names")
            if not labels:
                continue
            size = (int(result["original_height"]), int(result["original_width"]))
            if min(size) < 1 or size[0] * size[1] > MAX_PIXELS:
                raise ValueError(f"an image of {size[1]} x {size[0]} pixels")
            if len({*masks, *labels}) * size[0] * size[1] > MOST_MASK_PIXELS:
                raise ValueError(f"{len({*masks, *labels})} masks of {size[1]} x {size[0]} pixels")
            mask = _mask_of(kind, value, size)
            for label in labels:
                masks[label] = masks[label] | mask if label in masks else mask
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise EmatError("bad-outline", f"a {kind} of the annotation cannot be read ({str(error)[:80]})") from None
    return masks


def _mask_of(kind: str, value: Mapping[str, Any], size: tuple[int, int]) -> NDArray[np.bool_]:
    height, width = size
    if kind == BRUSH:
        return decode_brush(value["rle"], size)
    if kind == POLYGON:
        corners: Any = [(float(x) * width / 100, float(y) * height / 100) for x, y in value["points"]]
    else:
        left, top = float(value["x"]) * width / 100, float(value["y"]) * height / 100
        corners = (left, top, left + float(value["width"]) * width / 100, top + float(value["height"]) * height / 100)
    return read_mask_source(corners, size, "a shape of the annotation").inside


def encode_brush(mask: NDArray[np.bool_]) -> list[int]:
    """Return the run lengths of a mask (H, W) as Label Studio stores them, a list of bytes.

    The bits are: the number of bytes of the RGBA image (32), the bits of a value less one (5), four lengths less one
    (4 each), and then the runs. A run begins with a bit that says whether its values are all equal, and the index of
    one of the four lengths (2). In so many bits stands its number of values less one; its value or values follow.

    >>> decode_brush(encode_brush(np.eye(3, dtype=bool)), (3, 3)).astype(int).tolist()
    [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    """
    flat = mask.ravel()
    edges = np.flatnonzero(np.diff(flat)) + 1
    starts = np.concatenate([[0], edges, [flat.size]])
    bits = [f"{flat.size * CHANNELS:032b}", f"{VALUE_BITS - 1:05b}", *(f"{length - 1:04b}" for length in LENGTHS)]
    for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        value = f"{255 if flat[start] else 0:08b}"
        left = (end - start) * CHANNELS
        while left:
            now = min(left, 2 ** LENGTHS[-1])
            index = next(number for number, length in enumerate(LENGTHS) if now <= 2**length)
            bits.append(f"1{index:02b}{now - 1:0{LENGTHS[index]}b}{value}")
            left -= now
    text = "".join(bits)
    text += "0" * (-len(text) % 8)
    return list(int(text, 2).to_bytes(len(text) // 8, "big"))


def decode_brush(runs: Sequence[int], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return the mask (H, W) of run lengths; a pixel counts if it is not transparent.

    Raises:
        ValueError: If they are damaged, or of another size.
    """
    count = size[0] * size[1] * CHANNELS
    if not 0 < count <= MAX_PIXELS * CHANNELS:
        raise ValueError(f"an image of {size[1]} x {size[0]} pixels")
    reader = _Bits(bytes(list(runs)))  # a list first: of a number, so many zeros would be made
    if reader.take(32) != count:
        raise ValueError(f"the run lengths are not of an image of {size[1]} x {size[0]} pixels")
    value_bits = reader.take(5) + 1
    lengths = [reader.take(4) + 1 for _ in range(4)]
    image = np.zeros(count, np.uint8)
    done = 0
    while done < count:
        is_run, length = reader.take(1), reader.take(lengths[reader.take(2)]) + 1
        if is_run:
            image[done : done + length] = min(255, reader.take(value_bits))
        else:
            image[done : done + length] = [min(255, reader.take(value_bits)) for _ in range(length)][: count - done]
        done += length
    return image.reshape(*size, CHANNELS)[:, :, CHANNELS - 1] > 0


class _Bits:
    """Numbers of any width from the bits of a file."""

    def __init__(self, content: bytes) -> None:
        self._content, self._done = content, 0

    def take(self, count: int) -> int:
        """Return the number in the next `count` bits."""
        end = self._done + count
        if end > 8 * len(self._content):
            raise ValueError("the run lengths end too early")
        around = int.from_bytes(self._content[self._done // 8 : -(-end // 8)], "big")
        self._done = end
        return (around >> (-end % 8)) & ((1 << count) - 1)


def _from_data_address(address: str) -> bytes:
    match = re.fullmatch(r"data:[\w/+.-]*(;base64)?,(.*)", address, re.DOTALL)
    if match is None:
        raise EmatError("bad-request", "the photo is a data address that cannot be read")
    try:
        return base64.b64decode(match[2], validate=True) if match[1] else unquote(match[2]).encode("latin-1")
    except (binascii.Error, UnicodeEncodeError):
        raise EmatError("bad-request", "the photo is a data address that cannot be read") from None


def add_label_studio(app: Any, served: Served) -> LabelStudioBackend:
    """Add the protocol's addresses to the application; `POST /predict` with JSON is handed over by the server."""
    from fastapi import Request, Response
    from starlette.background import BackgroundTask

    backend = LabelStudioBackend(served)
    most = served.options.most_bytes

    async def setup(request: Request) -> Response:
        """Connect a project of Label Studio."""
        return json_response(backend.setup(await json_of(request, most)))

    async def webhook(request: Request) -> Response:
        """Learn from a submitted annotation, after the answer."""
        # In a thread: other requests are answered while the masks of a large photo are drawn.
        submitted = await asyncio.to_thread(backend.submitted, await json_of(request, most))
        if submitted is None:
            return json_response({"status": "nothing to do", "model_version": backend.version}, 201)
        learning = BackgroundTask(backend.learn, submitted)
        return json_response({"status": "learning", "model_version": backend.version}, 201, learning)

    async def versions() -> Response:
        """The version of the suggestions."""
        return json_response({"versions": [backend.version]})

    app.post("/setup")(setup)
    app.post("/webhook", status_code=201)(webhook)
    app.get("/versions")(versions)
    return backend
